"""Sweeps that end because too many of their trials failed."""

from __future__ import annotations

from collections.abc import Mapping

from jobrunner.core.states import JobState
from jobrunner.ledger.sweeps import SweepRow, Tally
from jobrunner.service.clock import now
from jobrunner.service.session import Session


def enforce_on_error(session: Session) -> list[str]:
    """Stop sweeps of which as many trials have failed, over all hosts, as their `on_error` allows.

    What runs goes on to its end; what waits is cancelled. Returns a sentence for each sweep that was stopped.
    """
    from jobrunner.service.control import cancel

    told: list[str] = []
    running = [row for row in session.ledger.sweeps.list() if row.state in ("running", "staging")]
    tallies = session.ledger.sweeps.tallies() if running else {}
    for sweep in running:
        limit, failed = _limit(sweep), tallies.get(sweep.id, Tally()).failed
        if limit is None or failed < limit:
            continue
        why = f"{failed} of its trials failed, and on_error allows {limit - 1}"
        waiting = [row.id for row in session.ledger.list(sweep=sweep.id) if row.state is JobState.QUEUED]
        session.ledger.request_cancel(waiting, now(), None)  # first: whatever is cut now, these end
        for id_ in waiting:
            session.ledger.add_event(id_, "cancel", now(), {"why": f"its sweep was stopped: {why}"})
        end(session, sweep, why)
        if waiting:
            cancel(session, waiting)
        told.append(f"{sweep.name} ({sweep.id}) was stopped: {why}")
    return told


def _limit(sweep: SweepRow) -> int | None:
    rule = (sweep.spec.get("sweep") or {}).get("on_error", "continue")
    if isinstance(rule, Mapping):
        return int(rule["stop_after"])
    return 1 if rule == "stop" else None


def end(session: Session, sweep: SweepRow, why: str) -> None:
    """Note that a sweep is stopped, and why: nobody asks for further trials of it."""
    at = now()
    session.ledger.sweeps.change(sweep.id, at, state="stopped", why=why, ended_at=at)
