"""Reading: list jobs, show one, wait for some. Each asks the hosts first, in parallel."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from jobrunner.core.errors import HostError, JobrunnerError
from jobrunner.core.jobs import JobRow
from jobrunner.core.states import JobState
from jobrunner.service import afters, metrics
from jobrunner.service.clock import now
from jobrunner.service.reconcile import Reconciled, look, reconcile, take_over
from jobrunner.service.results import JobDetails, Listing, WaitResult, changed_rows
from jobrunner.service.session import Session

if TYPE_CHECKING:
    from jobrunner.ledger import LiveJob
    from jobrunner.transport.link import HostLink

POLL_S = 20.0
"""A host is asked to answer a `wait` after this long at the latest."""

RETRY_S = 2.0
"""Pause before a host that did not answer a `wait` is asked again."""


def list_jobs(
    session: Session,
    *,
    all: bool = False,
    states: Sequence[JobState] = (),
    name: str | None = None,
    host: str | None = None,
    offline: bool = False,
) -> Listing:
    """Jobs, newest first, reconciled with their hosts unless `offline`."""
    found = Reconciled() if offline else _ask(session, host)
    with session.timings.phase("ledger"):
        rows = session.ledger.list(states=states, name=name, host=host, all=all)
        notes = job_notes(session, rows)
    return Listing(
        rows=rows,
        notes=notes,
        errors=list(found.errors.values()),
        warnings=session.warnings,
        hosts_asked=found.asked,
        hosts_answered=found.answered,
    )


def _ask(session: Session, host: str | None) -> Reconciled:
    if host is None:
        return reconcile(session)
    live = session.ledger.live_by_host().get(host, [])
    return reconcile(session, only=[job.id for job in live], also=[host])


def job_notes(session: Session, rows: Iterable[JobRow]) -> dict[str, str]:
    """Per waiting or warned job, in a few words, what its row does not say."""
    notes: dict[str, str] = {}
    for row in rows:
        if row.state.final or row.unreachable or row.cancel_requested_at:
            continue
        detail = session.ledger.detail(row.id)
        if detail.hold:
            notes[row.id] = "held"
        elif row.state is JobState.QUEUED and detail.not_before and detail.not_before > now():
            notes[row.id] = f"retry at {detail.not_before}"
        elif detail.warnings:
            notes[row.id] = str(detail.warnings[-1])
        elif row.state is JobState.QUEUED and detail.priority:
            notes[row.id] = f"priority {detail.priority}"
    return notes


def show(session: Session, word: str) -> JobDetails:
    """Everything about one job, as its host sees it now."""
    id_ = session.ledger.resolve(word)
    found = reconcile(session, only=[id_])
    _read_to_the_end(session, id_, found)
    refresh_checkpoints(session, id_, found)
    ledger = session.ledger
    detail = ledger.detail(id_)
    return JobDetails(
        row=detail.row,
        spec=detail.request.get("spec", {}),
        events=[
            {"at": event.at, "kind": event.kind, "source": event.source, **event.data} for event in ledger.events(id_)
        ],
        attempts=[_attempt(attempt) for attempt in ledger.attempts(id_)],
        checkpoints=[checkpoint_json(item) for item in ledger.checkpoints(id_) if not item.removed],
        evidence=evidence_text(detail.evidence),
        metrics=metrics.summary(session, id_, detail.request.get("spec") or {}),
        errors=list(found.errors.values()),
        warnings=[*session.warnings, *map(str, detail.warnings)],
        hosts_asked=found.asked,
        hosts_answered=found.answered,
    )


def _read_to_the_end(session: Session, id_: str, found: Reconciled) -> None:
    """The journal of a final job, where its end was learned from an answer without events (a submit's, a pull's).

    A host that does not answer now is asked the next time: the verdict is known, and nothing else is wrong.
    """
    detail = session.ledger.detail(id_)
    row = detail.row
    if not row.state.final or row.host is None or row.host in found.errors:
        return
    if any(event.source == "host" and event.kind == "final" for event in session.ledger.events(id_)):
        return
    from jobrunner.ledger import LiveJob

    job = LiveJob(id_, row.name, row.state, detail.instance, detail.offset, True)
    with suppress(JobrunnerError):
        answer = look(session, session.link(row.host), [job])
        take_over(session, row.host, answer, [job], [], set())


def refresh_checkpoints(session: Session, id_: str, found: Reconciled, *, again: bool = False) -> None:
    """Take over the host's list of checkpoints. A final job's list is complete, so it is asked for once (or `again`).

    A host that does not answer becomes an error of `found`; the list stays as it is remembered.
    """
    detail = session.ledger.detail(id_)
    row, key = detail.row, f"checkpoints:{id_}"
    paths = (detail.request.get("run", {}).get("checkpoints") or {}).get("paths")
    if not paths or row.host is None or row.host in found.errors:
        return
    if row.state.final and not again and session.ledger.meta(key) == "complete":
        return
    try:
        answer = session.link(row.host).request("checkpoints", id=id_)
    except HostError as error:
        found.errors[row.host] = error
        return
    found.answers.setdefault(row.host, {})
    session.ledger.replace_checkpoints(id_, answer["checkpoints"])
    if row.state.final and all(item.get("sha256") for item in answer["checkpoints"]):
        session.ledger.set_meta(key, "complete")


def _attempt(attempt: Any) -> dict[str, Any]:
    from dataclasses import asdict

    return asdict(attempt)


def checkpoint_json(item: Any) -> dict[str, Any]:
    """A checkpoint with exactly the contract's keys."""
    keys = ("name", "path", "step", "size", "sha256", "modified_at", "complete", "metrics", "pulled_to")
    return {key: getattr(item, key) for key in keys}


def evidence_text(evidence: Any) -> str:
    """The host's reason for a state, as one text."""
    if evidence is None:
        return ""
    if isinstance(evidence, str):
        return evidence
    if isinstance(evidence, dict):
        return ", ".join(f"{key} {value}" for key, value in evidence.items() if value not in (None, "", []))
    return str(evidence)


def wait(
    session: Session,
    words: Sequence[str],
    *,
    timeout: float | None = None,
    on_change: Callable[[list[JobRow]], None] | None = None,
) -> WaitResult:
    """Return when every job is final, or `timeout` seconds have passed. `on_change` gets rows that changed.

    A host that does not answer is asked again for as long as it takes: silence ends nothing.
    """
    ids = list(dict.fromkeys(session.ledger.resolve(word) for word in words))
    deadline = None if timeout is None else time.monotonic() + timeout
    found = reconcile(session, only=ids)
    rows = [session.ledger.get(id_) for id_ in ids]
    if on_change:
        on_change(rows)
    while not all(row.state.final for row in rows):
        left = POLL_S if deadline is None else min(POLL_S, deadline - time.monotonic())
        if left <= 0:
            break
        asked = [row for row in rows if not row.state.final]
        asked += [session.ledger.get(id_) for id_ in afters.awaited(session, ids) if id_ not in ids]
        found = _wait_once(session, asked, left)
        afters.tell(session, found)
        before, rows = rows, [session.ledger.get(id_) for id_ in ids]
        if on_change and (changed := changed_rows(before, rows)):
            on_change(changed)
        if not found.answers and not all(row.state.final for row in rows):
            time.sleep(min(RETRY_S, max(0.0, deadline - time.monotonic())) if deadline is not None else RETRY_S)
    return WaitResult(
        rows=rows,
        timed_out=not all(row.state.final for row in rows),
        errors=list(found.errors.values()),
        warnings=session.warnings,
        hosts_asked=found.asked,
        hosts_answered=found.answered,
    )


def _wait_once(session: Session, rows: list[JobRow], seconds: float) -> Reconciled:
    """One long question to each host: answer as soon as something changed, or after `seconds`."""
    if any(row.state is JobState.STAGING or row.host is None for row in rows):
        time.sleep(min(1.0, seconds))
        return reconcile(session, only=[row.id for row in rows])
    known = {row.id: row for row in rows}
    live: dict[str, list[LiveJob]] = {}
    for alias, jobs in session.ledger.live_by_host().items():
        chosen = [job for job in jobs if job.id in known]
        if chosen:
            live[alias] = chosen
    told = metrics.journals(session, known)
    several = len(live) > 1
    span = min(seconds, 2.0) if several else seconds

    def ask(link: HostLink) -> dict[str, Any]:
        ids = [job.id for job in live[link.alias]]
        states = {id_: known[id_].state.value for id_ in ids}
        link.request("wait", ids=ids, known=states, timeout_s=span, timeout=span + 20.0)
        return look(session, link, live[link.alias], numbers=told.get(link.alias, []))

    found = Reconciled()
    for alias, outcome in session.links.map(ask, list(live)).items():
        problem: JobrunnerError | None = outcome.error
        if outcome.value is not None:
            found.answers[alias] = outcome.value
            problem = take_over(session, alias, outcome.value, live[alias], [], set(), told.get(alias, []))
        elif problem is not None:
            session.ledger.mark_unreachable(alias, problem.message, now())
        if problem is not None:
            found.errors[alias] = problem
    return found
