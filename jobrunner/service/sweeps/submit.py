"""Submit a sweep: its points, where its trials go, and their sending. One that was cut is finished by the next one.

The sweep and all its points are in the ledger before the first host hears of it, under the digests of spec and code:
the identical submit finds it there as `staging`, and sends what no host has yet.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any

from jobrunner.core.ids import new_id
from jobrunner.core.points import Point, point_id, points
from jobrunner.core.values import dataclass
from jobrunner.ledger.sweeps import SweepRow, Trial
from jobrunner.service import staging, submitters
from jobrunner.service.clock import now
from jobrunner.service.session import Session, client_identity
from jobrunner.service.submitresult import SubmitResult
from jobrunner.service.sweeps.sending import ADAPTIVE, Code, Delivery, deliver, send_trials, unsent

if TYPE_CHECKING:
    from jobrunner.core.placement import HostFacts
    from jobrunner.core.spread import Spread
    from jobrunner.service.specs import LoadedSpec
    from jobrunner.upload import Tree

__all__ = ["Prepared", "prepare", "send", "send_trials"]


@dataclass(frozen=True)
class Prepared:
    """A sweep that could be sent: its points (none yet where they follow from results) and where they would go."""

    item: LoadedSpec
    tree: Tree | None
    only: str | None
    points: list[Point]
    facts: list[HostFacts]
    spread: Spread
    spec: Mapping[str, Any] = field(repr=False)

    def plan(self) -> dict[str, Any]:
        """What `--dry-run` shows."""
        spec, sweep = self.item.spec, self.item.spec.sweep
        assert sweep is not None
        words = [spec.script or "", *spec.args] if spec.script else spec.command
        hosts = Counter(self.spread.order)
        return {
            "name": spec.name,
            "file": str(self.item.path),
            "host": ", ".join(hosts),
            "device": spec.device,
            "cards": list(spec.card_ids) if spec.card_ids is not None else spec.card_count,
            "command": words if isinstance(words, str) else " ".join(map(str, words or ())),
            "files": self.tree.files if self.tree else None,
            "bytes": self.tree.size if self.tree else None,
            "why": "; ".join(
                f"{name}: {why}" for name, why in self.spread.placement.reasons.items() if name not in hosts
            )
            or "every host that matches takes its part",
            "spec": self.spec,
            "sweep": {
                "method": sweep.method,
                "trials": sweep.trials if sweep.method in ADAPTIVE else len(self.points),
                "hosts": dict(hosts),
                "shares": self.spread.shares,
                "points": self.points,
            },
        }


def prepare(session: Session, item: LoadedSpec, tree: Tree | None, only: str | None) -> Prepared:
    """Find a sweep's points and hosts; nothing is sent. Raises UsageError or HostError where that cannot be."""
    from jobrunner.core.placement import Demand
    from jobrunner.core.spread import spread
    from jobrunner.service.placing import facts_of

    sweep = item.spec.sweep
    assert sweep is not None
    if sweep.method in ADAPTIVE:
        from jobrunner.service.sweeps.sampler import require

        require(sweep.method)
    told = [] if sweep.method in ADAPTIVE else points(sweep)
    facts = facts_of(session, item.spec, only)
    found = spread(Demand.of(item.spec, only), facts, len(told) or 1, sweep.parallel)
    if not found.order:
        raise found.placement.error()
    return Prepared(item, tree, only, told, facts, found, item.spec.as_json())


def send(session: Session, ready: Prepared, spec_digest: str) -> SubmitResult:
    """Send a sweep's trials, or go on with an identical submit that was cut. Errors of hosts are in the result."""
    me = submitters.Submitter(session.home)
    try:
        with session.timings.phase("ledger"):
            sweep, resumed = _begin(session, ready, spec_digest, me)
            trials = _first_trials(session, ready, sweep)
        done = deliver(
            session, sweep, ready.item.spec, trials,
            at=now(), secrets=ready.item.secrets, code=Code(ready.tree), facts=ready.facts, me=me,
        )  # fmt: skip
        staging.remember_ways(session, [(ready.item.path, host) for host in done.hosts])
        return _result(session, ready, sweep, done, resumed=resumed)
    finally:
        me.close()


def _begin(session: Session, ready: Prepared, spec_digest: str, me: submitters.Submitter) -> tuple[SweepRow, bool]:
    """A new sweep in the ledger; or that of an identical submit which was cut, and True."""
    code_digest = staging.code_digest(ready.tree)
    for row in session.ledger.sweeps.same(spec_digest, code_digest):
        if not submitters.is_alive(session.home, dict(row.submitter)) and session.ledger.sweeps.take_over(
            row.id, row.submitter, me.as_json()
        ):
            return row, True
    item = ready.item
    sweep = item.spec.sweep
    assert sweep is not None
    row = SweepRow(
        id=new_id(os.urandom(16)),
        name=item.spec.name,
        method=sweep.method,
        state="staging",
        created_at=now(),
        spec=ready.spec,
        objective=sweep.objective,
        planned=sweep.trials if sweep.method in ADAPTIVE else len(ready.points),
        host=ready.only,
        file=str(item.path.absolute()),
        folder=str(item.code_dir) if item.code_dir else None,
        spec_digest=spec_digest,
        code_digest=code_digest,
        code=ready.tree.code() if ready.tree else None,
        client=client_identity(),
        submitter=me.as_json(),
    )
    session.ledger.sweeps.add(row)
    return row, False


def _first_trials(session: Session, ready: Prepared, sweep: SweepRow) -> Sequence[Trial]:
    """The trials to begin with, all in the ledger."""
    if sweep.method in ADAPTIVE:
        from jobrunner.service.sweeps import adaptive

        return list(adaptive.first_points(session, sweep))
    trials = trials_of(sweep.id, ready.points, 0)
    session.ledger.sweeps.add_trials(trials, sweep.created_at)
    return trials


def trials_of(sweep: str, told: Sequence[Point], first: int) -> list[Trial]:
    """Trials of these points, numbered from `first` on."""
    return [Trial(sweep, first + place, point_id(point), point) for place, point in enumerate(told)]


def _result(session: Session, ready: Prepared, sweep: SweepRow, done: Delivery, *, resumed: bool) -> SubmitResult:
    """All trials have reached a host: the sweep is running. Nothing was sent at all: it never was."""
    jobs = {row.id: row for row in session.ledger.list(sweep=sweep.id)}
    trials = session.ledger.sweeps.trials(sweep.id)
    missing = [trial for trial in trials if unsent(trial, jobs.get(trial.job or ""))]
    on_its_way = [row for row in jobs.values() if row.state.value == "STAGING"]
    if not missing and not on_its_way:
        session.ledger.sweeps.change(sweep.id, now(), state="running")
        sweep = replace(sweep, state="running")
    elif not jobs and done.errors:
        session.ledger.sweeps.forget(sweep.id)
        raise done.errors[0]
    _say_who_goes_on(session, sweep, len(trials))
    report: dict[str, Any] = {}
    if ready.tree is not None:
        report = staging.upload_report([ready.tree], done.sent)
    numbers = {trial.job: trial.number for trial in trials}
    return SubmitResult(
        rows=sorted((row for row in jobs.values() if row.id in numbers), key=lambda row: numbers[row.id]),
        report=report,
        resumed=[sweep.id] if resumed else [],
        errors=done.errors,
        warnings=session.warnings,
        sweeps=[sweep],
        hosts_asked=len(ready.facts),
        hosts_answered=len({row.host for row in done.rows}),
    )


def _say_who_goes_on(session: Session, sweep: SweepRow, made: int) -> None:
    """Some sweeps need somebody to look at them now and then; whoever submits one has to know."""
    what = []
    if sweep.method in ADAPTIVE and made < (sweep.planned or 0):
        what.append("asks for its further trials")
    if (sweep.spec.get("sweep") or {}).get("early_stop"):
        what.append("judges its trials")
    if what:
        session.warn(f"`jobrunner serve` {' and '.join(what)}; or `jobrunner tick` now and then, or by a timer")
