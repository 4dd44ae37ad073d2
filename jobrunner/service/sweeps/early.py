"""Early stopping: trials of a sweep are judged by what they told, and stopped, paused, or let go on.

The rules are core/halving.py. A decision is in the ledger, with the wish to cancel, before a host hears of it: a visit
that is killed is finished by the next one, and a host that does not answer is told when it does. Both timelines have
it: the ledger's as `early_stop`, the host's in the cancel's `by`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from jobrunner.core.errors import JobrunnerError
from jobrunner.core.halving import (
    Curve,
    Decision,
    Direction,
    Rule,
    Standing,
    Status,
    finish,
    halve,
    median_rule,
    rung_results,
    sentence,
)
from jobrunner.core.jobs import JobRow
from jobrunner.core.states import JobState
from jobrunner.core.values import dataclass
from jobrunner.ledger.sweeps import SweepRow, Trial
from jobrunner.service.clock import now
from jobrunner.service.reconcile import Reconciled
from jobrunner.service.session import Session
from jobrunner.service.sweeps.adaptive import alone
from jobrunner.service.sweeps.resuming import chain, go_on
from jobrunner.service.sweeps.sending import unsent_row
from jobrunner.service.sweeps.view import settle

if TYPE_CHECKING:
    from jobrunner.transport.link import HostLink

Samples = list[tuple[float | None, float]]
_BY = re.compile(r"early stopping \((?P<verdict>stop|pause)(?:, rung (?P<rung>\d+))?;")
How = Literal["unsent", "running", "ending", "paused", "broken", "completed", "over"]


@dataclass(frozen=True)
class Entry:
    """A trial, the job that runs it now, what it told over all its jobs, and how it is.

    `ending`: it was told to stop and has not ended; `broken`: it was to go on, and that was broken off.
    """

    trial: Trial
    row: JobRow | None
    how: How
    samples: Samples
    source: str | None = None

    @property
    def status(self) -> Status:
        """How it is, as the rules see it."""
        if self.how in ("unsent", "running"):
            return "running"
        return "paused" if self.how == "paused" else "completed" if self.how == "completed" else "over"


def judge(session: Session, found: Reconciled) -> list[str]:
    """Judge the trials of every sweep with `early_stop`. Returns a sentence for each that was stopped or goes on.

    What one sweep runs into is a warning, and does not keep the others from being judged.
    """
    told: list[str] = []
    for sweep in session.ledger.sweeps.list():
        if sweep.state in ("done", "stopped") or not (sweep.spec.get("sweep") or {}).get("early_stop"):
            continue
        try:
            with alone(session, sweep) as ours:
                told += _judge(session, settle(session, sweep.id)) if ours else []
        except JobrunnerError as error:
            session.warn(f"sweep {sweep.name} ({sweep.id}) was not judged: {error.message}")
    return told


def rule_of(sweep: SweepRow) -> tuple[Rule, str, str]:
    """The rule of a sweep, the metric that it judges, and the one that counts its steps."""
    said, words = sweep.spec["sweep"]["early_stop"], (sweep.objective or "").split()
    direction: Direction = "max" if words[1] == "max" else "min"
    rule = Rule(
        said["method"], direction, said["min"], said["max"], said["reduction"], said["pause"], best="best" in words[2:]
    )
    return rule, words[0], said["step"]


def read(session: Session, sweep: SweepRow, metric: str) -> list[Entry]:
    """Every trial of a sweep as the ledger knows it."""
    jobs = {row.id: row for row in session.ledger.list(sweep=sweep.id)}
    told = session.ledger.sweeps.requests(sweep.id)
    curves = session.ledger.metrics.curves(list(jobs), metric)
    found = []
    for trial in session.ledger.sweeps.trials(sweep.id):
        story = chain(trial.job, told)
        samples = [sample for job in story for sample in curves.get(job, [])]
        row = jobs.get(trial.job or "")
        source = story[-2] if len(story) > 1 else None
        found.append(Entry(trial, row, how_is(trial, row, source), samples, source))
    return found


def how_is(trial: Trial, row: JobRow | None, source: str | None) -> How:
    """How a trial is. It was told to stop if its note names the very job that runs it now. Pure."""
    if row is None:
        return "unsent"
    ended = trial.status in ("stopped", "paused") and trial.note.get("ended") == row.id
    if row.state is not JobState.STAGING and unsent_row(row):
        return "broken" if source is not None else "unsent"
    if not row.state.final:
        return "ending" if ended else "running"
    if row.state is JobState.COMPLETED:
        return "completed"
    return "paused" if ended and trial.status == "paused" and row.state is JobState.CANCELLED else "over"


def decide(entries: Sequence[Entry], rule: Rule) -> list[Decision]:
    """What the rule says about trials as they are now. Pure."""
    if rule.method == "median":
        return median_rule([Curve(e.trial.number, e.samples, _status(e)) for e in entries], rule)
    return halve(standings(entries, rule), rule)


def standings(entries: Sequence[Entry], rule: Rule) -> list[Standing]:
    """The trials at their rungs. Pure."""
    found = []
    for entry in entries:
        results = rung_results(entry.samples, rule)
        decided = len(results) if entry.trial.note.get("last") else _decided(entry.trial)
        found.append(Standing(entry.trial.number, results, decided, entry.status))
    return found


def _status(entry: Entry) -> Status:
    return "over" if entry.how == "running" and entry.trial.note.get("last") else entry.status


def _decided(trial: Trial) -> int:
    return 0 if trial.rung is None else trial.rung + 1


def _judge(session: Session, sweep: SweepRow) -> list[str]:
    rule, metric, step = rule_of(sweep)
    entries = read(session, sweep, metric)
    by_number = {entry.trial.number: entry for entry in entries}
    stopping = {e.trial.job or "": "early stopping" for e in entries if e.how == "ending" and not _asked(e)}
    told: list[str] = []
    promoted = _mend(session, sweep, entries)
    for decision in decide(entries, rule):
        entry, why = by_number[decision.number], sentence(decision, rule.method, metric, step)
        if decision.verdict in ("promote", "finish"):
            promoted += _promote(session, sweep, entry, decision, why)
            continue
        _note(session, sweep, entry, decision, why)
        if decision.verdict in ("stop", "pause"):
            stopping[entry.trial.job or ""] = by(decision, why)
            word = "pauses" if decision.verdict == "pause" else "is stopped"
            told.append(f"{_name(sweep, entry)} {word}: {why}")
    _tell(session, entries, stopping)
    told += promoted
    if rule.pause and not told and not stopping:
        told += _at_the_end(session, sweep, entries, rule, metric, step)
    return told


def by(decision: Decision, why: str) -> str:
    """Whose wish a cancel is, for the host's files; `recall` reads it. Pure."""
    rung = "" if decision.rung is None else f", rung {decision.rung}"
    return f"early stopping ({decision.verdict}{rung}; {why})"


def recall(session: Session, sweep_id: str) -> None:
    """After `adopt`: what had been decided about trials, from what their hosts were told."""
    sweep = session.ledger.sweeps.get(sweep_id)
    if not (sweep.spec.get("sweep") or {}).get("early_stop"):
        return
    told = session.ledger.sweeps.requests(sweep_id)
    for trial in session.ledger.sweeps.trials(sweep_id):
        story = chain(trial.job, told)
        if trial.status is not None or not story:
            continue
        for job in reversed(story):
            said = [recalled(str(item.data.get("by"))) for item in session.ledger.events(job) if item.kind == "cancel"]
            status, rung = next((found for found in said if found[0]), (None, None))
            if status is not None:
                status = status if job == story[-1] else "promoted"
                changes = {"status": status, "rung": rung, "note": {"ended": job}}
                session.ledger.sweeps.change_trial(sweep_id, trial.point, now(), **changes)
                break


def recalled(text: str) -> tuple[str | None, int | None]:
    """`stopped` or `paused`, and the rung, from what `by` gave; None for any other text. Pure."""
    match = _BY.match(text)
    if match is None:
        return None, None
    rung = match["rung"]
    return "paused" if match["verdict"] == "pause" else "stopped", None if rung is None else int(rung)


def _asked(entry: Entry) -> bool:
    return entry.row is not None and entry.row.cancel_requested_at is not None


def _name(sweep: SweepRow, entry: Entry) -> str:
    return f"{sweep.name} trial {entry.trial.number} ({entry.trial.job})"


def _note(session: Session, sweep: SweepRow, entry: Entry, decision: Decision, why: str) -> None:
    """Write a decision down, and with it the wish that the job ends."""
    trial, at = entry.trial, now()
    assert trial.job is not None
    changes: dict[str, Any] = {"rung": decision.rung}
    if decision.verdict != "go_on":
        status = "paused" if decision.verdict == "pause" else "stopped"
        changes.update(status=status, note={**trial.note, "ended": trial.job})
    session.ledger.sweeps.change_trial(sweep.id, trial.point, at, **changes)
    session.ledger.add_event(
        trial.job, "early_stop", at, {"verdict": decision.verdict, "why": why, "rung": decision.rung}
    )
    if decision.verdict != "go_on":
        session.ledger.request_cancel([trial.job], at, None)


def _tell(session: Session, entries: Sequence[Entry], stopping: Mapping[str, str]) -> None:
    """Tell the hosts which jobs are to end; nobody waits for it. One that does not answer is told at the next visit."""
    by_host: dict[str, dict[str, str]] = {}
    for entry in entries:
        row = entry.row
        if row is not None and row.id in stopping and row.host is not None:
            by_host.setdefault(row.host, {})[row.id] = stopping[row.id]
            session.ledger.request_cancel([row.id], now(), None)
    if not by_host:
        return

    def ask(link: HostLink) -> dict[str, Any]:
        why = by_host[link.alias]
        return link.request("stop", ids=list(why), grace_s=None, wait_s=0.0, why=why)

    for alias, outcome in session.links.map(ask, list(by_host)).items():
        if outcome.value is None:
            session.warn(f"{alias} could not be told that trials are to stop, and will be when it answers")
            continue
        views = {id_: view for id_, view in outcome.value["jobs"].items() if view}
        session.ledger.apply_views(alias, session.link(alias).host_facts["instance"], views, now())
        session.ledger.applied(list(views), now())


def _mend(session: Session, sweep: SweepRow, entries: Sequence[Entry]) -> list[str]:
    """What an earlier visit began and did not finish: promotions that were broken off, or not written down."""
    told: list[str] = []
    jobs = {row.id: row for row in session.ledger.list(sweep=sweep.id)}
    for entry in entries:
        trial = entry.trial
        if entry.how == "running" and trial.status in ("paused", "stopped"):
            session.ledger.sweeps.change_trial(sweep.id, trial.point, now(), status="promoted")
        source = jobs.get(entry.source or "")
        if entry.how == "broken" and source is not None:
            why = "its going on was broken off before its host had it"
            last = bool(trial.note.get("last"))
            told += _let_go_on(session, sweep, entry, source, why, rung=trial.rung, last=last)
    return told


def _promote(session: Session, sweep: SweepRow, entry: Entry, decision: Decision, why: str) -> list[str]:
    assert entry.row is not None
    last = decision.verdict == "finish"
    return _let_go_on(session, sweep, entry, entry.row, why, rung=decision.rung, last=last)


def _let_go_on(
    session: Session, sweep: SweepRow, entry: Entry, source: JobRow, why: str, *, rung: int | None, last: bool
) -> list[str]:
    """Let a paused trial go on; a host that cannot take it now is a warning, and a later visit tries again."""
    try:
        new = go_on(session, sweep, entry.trial, source, why, rung=rung, last=last)
    except JobrunnerError as error:
        session.warn(f"{_name(sweep, entry)} was to go on, and could not: {error.message}")
        return []
    return [f"{_name(sweep, entry)} goes on as {new}: {why}"] if new else []


def _at_the_end(
    session: Session, sweep: SweepRow, entries: Sequence[Entry], rule: Rule, metric: str, step: str
) -> list[str]:
    """Nothing runs or is to come: the best paused trial runs to its end if none has; else the sweep is over."""
    busy = any(entry.how in ("unsent", "running", "ending", "broken") for entry in entries)
    if busy or not entries or len(entries) < (sweep.planned or 0):
        return []
    chosen = finish(standings(entries, rule), rule) if rule.method == "asha" else None
    if chosen is not None:
        entry = next(item for item in entries if item.trial.number == chosen.number)
        return _promote(session, sweep, entry, chosen, sentence(chosen, rule.method, metric, step))
    at = now()
    session.ledger.sweeps.change(sweep.id, at, state="done", ended_at=at)
    return [f"{sweep.name} ({sweep.id}) is done; its paused trials do not go on"]
