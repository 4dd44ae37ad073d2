"""Bring trials to hosts: spread over all that match, one exchange a host, each trial noted before its host hears of it.

Whatever is killed, a trial is never sent twice: a trial's job is changed in the ledger only where nobody else did
so meanwhile, and a job that may have reached its host is sent again under the same id.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jobrunner.core.errors import HostError, JobrunnerError, LinkLostError, UsageError
from jobrunner.core.ids import new_id
from jobrunner.core.jobs import JobRow
from jobrunner.core.states import JobState
from jobrunner.core.values import dataclass
from jobrunner.ledger.sweeps import Sending, SweepRow, Trial
from jobrunner.service import staging, submitters
from jobrunner.service.clock import now
from jobrunner.service.session import Session, client_identity

if TYPE_CHECKING:
    from jobrunner.core.placement import HostFacts
    from jobrunner.core.spec import JobSpec
    from jobrunner.core.spread import Spread
    from jobrunner.ledger import StagedJob
    from jobrunner.upload import Tree

ADAPTIVE = ("tpe", "cmaes")
"""Methods whose points follow from results; only so many trials exist at once as may run."""


@dataclass(frozen=True)
class Delivery:
    """What came of sending: `rows` that hosts have now, an error a host that has not, ids that were gone on with, and
    the `hosts` that took what they were sent."""

    rows: list[JobRow] = field(default_factory=list)
    errors: list[JobrunnerError] = field(default_factory=list)
    sent: list[staging.Sent] = field(default_factory=list)
    resumed: list[str] = field(default_factory=list)
    hosts: tuple[str, ...] = ()


@dataclass(frozen=True)
class Code:
    """Where the code of trials comes from: this tree; or, for hosts named in `there`, an earlier job of the sweep."""

    tree: Tree | None = None
    there: Mapping[str, str] | None = None


@dataclass
class _Work:
    """One delivery: what all its steps need."""

    session: Session
    sweep: SweepRow
    spec: JobSpec
    secrets: Mapping[str, str]
    at: str
    me: submitters.Submitter
    jobs: Mapping[str, JobRow]
    parcels: dict[str, list[staging.Parcel]] = field(default_factory=dict)

    def add(self, host: str, request: Mapping[str, Any], *, resumed: bool) -> None:
        self.parcels.setdefault(host, []).append(staging.Parcel(request, self.secrets, resumed))


def send_trials(
    session: Session, sweep: SweepRow, trials: Sequence[Trial], *, at: str, again: bool = False
) -> list[JobRow]:
    """Send those of the trials that have no job yet, or whose sending was broken off; with `again` also ended ones.

    The trials are in the ledger already. Returns the rows of the jobs that their hosts have now; a host that could
    not take its share is a warning, and its trials are sent by the next call. Raises if nothing at all could be sent.
    """
    from jobrunner.core.spec import spec_from_json
    from jobrunner.service.specs import take_secrets

    spec = spec_from_json(dict(sweep.spec))
    secrets = take_secrets(spec.secrets, session.environ, session.secrets_file)
    done = deliver(
        session, sweep, spec, trials, at=at, again=again, secrets=secrets, code=code_for(session, sweep, spec)
    )
    if done.errors and not done.rows:
        raise done.errors[0]
    for error in done.errors:
        session.warn(error.message)
    return done.rows


def deliver(
    session: Session,
    sweep: SweepRow,
    spec: JobSpec,
    trials: Sequence[Trial],
    *,
    at: str,
    secrets: Mapping[str, str],
    code: Code,
    again: bool = False,
    facts: Sequence[HostFacts] | None = None,
    me: submitters.Submitter | None = None,
) -> Delivery:
    """As `send_trials`, with everything at hand; what went wrong is in the result. Raises if no host fits."""
    own = me or submitters.Submitter(session.home)
    try:
        jobs = {row.id: row for row in session.ledger.list(sweep=sweep.id)}
        work = _Work(session, sweep, spec, secrets, at, own, jobs)
        fresh, resumed = _sort(work, trials, again)
        if fresh:
            _stage(work, fresh, _spread(work, len(fresh), facts, code))
        outcomes = _send(session, work.parcels, code)
    finally:
        if me is None:
            own.close()
    errors = {host: outcome for host, outcome in outcomes.items() if isinstance(outcome, JobrunnerError)}
    ids = [parcel.id for host, parcels in work.parcels.items() if host not in errors for parcel in parcels]
    known = {row.id: row for row in session.ledger.list(sweep=sweep.id)}
    return Delivery(
        rows=[known[id_] for id_ in ids if id_ in known],
        errors=list(errors.values()),
        sent=[outcome for outcome in outcomes.values() if isinstance(outcome, staging.Sent)],
        resumed=[id_ for id_ in resumed if id_ in ids],
        hosts=tuple(host for host in work.parcels if host not in errors),
    )


def unsent(trial: Trial, row: JobRow | None) -> bool:
    """True for a trial that no host has or had: never sent, or its sending was broken off and closed."""
    if row is None:
        return True
    return row.state is JobState.FAILED and row.reason == "interrupted"


def digest_of(sweep: SweepRow) -> str:
    """What the trials' jobs have as `spec_digest`: no submit of a plain spec goes on with one of them."""
    return f"sweep:{sweep.id}"


def code_for(session: Session, sweep: SweepRow, spec: JobSpec) -> Code:
    """The sweep's code as it was when the sweep was submitted: from its folder, else from hosts that have it.

    Raises UsageError where neither is to be had.
    """
    if spec.code is None:
        return Code()
    folder = Path(sweep.folder or "")
    if sweep.code_digest is not None and folder.is_absolute() and folder.is_dir():
        tree = staging.read_code(session, folder, spec.code)
        if staging.code_digest(tree) == sweep.code_digest:
            return Code(tree)
    there = {
        row.host: row.id
        for row in session.ledger.list(sweep=sweep.id)
        if row.host is not None and row.last_seen is not None and not unsent_row(row)
    }
    if there:
        return Code(there=there)
    raise UsageError(
        f"the code of sweep {sweep.id} is not to be had any more: {folder} has changed since, and no host has it",
        code="code_changed",
        remedy="submit the spec again, as a new sweep with the code as it is now",
    )


def unsent_row(row: JobRow) -> bool:
    """True for a job that never reached its host whole."""
    return row.state is JobState.STAGING or (row.state is JobState.FAILED and row.reason == "interrupted")


def _sort(work: _Work, trials: Sequence[Trial], again: bool) -> tuple[list[Trial], list[str]]:
    """The trials that need a new job; those whose sending was cut become parcels under their old ids."""
    session, sweep = work.session, work.sweep
    wanted = {trial.point for trial in trials}
    going_on = _going_on(work)
    staged = {job.row.id: job for job in session.ledger.find_resumable(digest_of(sweep), sweep.code_digest)}
    alive: dict[str, bool] = {}
    fresh: list[Trial] = []
    resumed: list[str] = []
    for trial in session.ledger.sweeps.trials(sweep.id):
        if trial.point not in wanted:
            continue
        row = work.jobs.get(trial.job or "")
        if row is not None and row.id in going_on and not (again and row.state.final):
            continue
        if row is None or unsent(trial, row) or (again and row.state.final):
            fresh.append(trial)
        elif row.id in staged and row.host and _take_over(work, staged[row.id], alive):
            work.add(row.host, staged[row.id].request, resumed=True)
            resumed.append(row.id)
    return fresh, resumed


def _going_on(work: _Work) -> set[str]:
    """Jobs with which a paused trial goes on: who judges the sweep sends them, from their checkpoint."""
    if work.spec.sweep is None or work.spec.sweep.early_stop is None:
        return set()
    told = work.session.ledger.sweeps.requests(work.sweep.id)
    return {job for job, sweep in told.items() if sweep.get("goes_on")}


def _take_over(work: _Work, job: StagedJob, alive: dict[str, bool]) -> bool:
    token = str(job.submitter.get("token", ""))
    if token not in alive:
        alive[token] = submitters.is_alive(work.session.home, job.submitter)
    if alive[token]:
        return False
    return work.session.ledger.take_over(job.row.id, job.submitter, work.me.as_json())


def _spread(work: _Work, count: int, facts: Sequence[HostFacts] | None, code: Code) -> Spread:
    from jobrunner.core.placement import Demand
    from jobrunner.core.spread import spread
    from jobrunner.service.placing import facts_of

    sweep, spec = work.sweep, work.spec
    assert spec.sweep is not None
    if facts is None:
        facts = facts_of(work.session, spec, sweep.host, list(code.there) if code.there is not None else None)
    parallel = None if spec.sweep.method in ADAPTIVE else spec.sweep.parallel
    kept = _shares_now(work) if parallel is not None else {}
    found = spread(Demand.of(spec, sweep.host), facts, count, parallel, kept)
    if not found.order:
        raise found.placement.error()
    return found


def _shares_now(work: _Work) -> dict[str, int]:
    """What each host was told that it may run of this sweep at once, where trials of it are not over."""
    told = work.session.ledger.sweeps.requests(work.sweep.id)
    kept: dict[str, int] = {}
    for row in work.jobs.values():
        share = (told.get(row.id) or {}).get("parallel")
        if not row.state.final and row.host is not None and isinstance(share, int):
            kept[row.host] = max(share, kept.get(row.host, 0))
    return kept


def _stage(work: _Work, trials: Sequence[Trial], found: Spread) -> None:
    """Give each trial a host and a job, in the ledger first."""
    session, sweep = work.session, work.sweep
    plain, ids = work.spec.as_json(), {item.job: session.ledger.resolve(item.job) for item in work.spec.after}
    client = {**client_identity(), "folder": sweep.folder}
    items: list[Sending] = []
    for trial, host in zip(trials, found.order, strict=True):
        before = work.jobs.get(trial.job or "")
        row = JobRow(
            new_id(os.urandom(16)), trial_name(sweep, trial), JobState.STAGING, host=host, device=work.spec.device,
            submitted_at=work.at, sweep=sweep.id, retry_of=before.id if before and not unsent(trial, before) else None,
        )  # fmt: skip
        request = _request(work, trial, row, plain, ids, client, (found.shares or {}).get(host))
        items.append(Sending(trial, row, request, trial.job))
    with session.timings.phase("ledger"):
        staged = set(
            session.ledger.sweeps.stage(
                items,
                spec_digest=digest_of(sweep),
                code_digest=sweep.code_digest,
                submitter=work.me.as_json(),
                at=work.at,
            )
        )
    for item in items:
        if item.row.id in staged:
            work.add(item.row.host or "", item.request, resumed=False)


def _request(
    work: _Work,
    trial: Trial,
    row: JobRow,
    plain: Mapping[str, Any],
    ids: Mapping[str, str],
    client: Mapping[str, Any],
    share: int | None,
) -> dict[str, Any]:
    from jobrunner.core.request import build_request

    request = build_request(
        work.spec, work.session.hosts.get(row.host or ""),
        job_id=row.id, agent_hash=work.session.agent_hash, submitted_at=work.at, client=client, code=work.sweep.code,
        retry_of=row.retry_of, ids=ids, plain=_own_part(plain, trial), sweep=told(work.sweep, work.spec, trial, share),
    )  # fmt: skip
    return {**request, "name": row.name}


def told(sweep: SweepRow, spec: JobSpec, trial: Trial, share: int | None) -> dict[str, Any]:
    """`request.sweep` of a trial: enough for the host to obey, and for `adopt` to bring the sweep back."""
    assert spec.sweep is not None
    rule = spec.sweep.on_error
    stop_after = None if rule == "continue" else 1 if rule == "stop" else rule.stop_after
    return {
        "id": sweep.id,
        "name": sweep.name,
        "number": trial.number,
        "point": trial.point,
        "parameters": dict(trial.parameters),
        "parallel": share,
        "stop_after": stop_after,
        "created_at": sweep.created_at,
        "planned": sweep.planned,
        "only": sweep.host,
        "file": sweep.file,
    }


def trial_name(sweep: SweepRow, trial: Trial) -> str:
    """The name of a trial's job."""
    return f"{sweep.name[:190].rstrip()}-{trial.number}"


def _own_part(plain: Mapping[str, Any], trial: Trial) -> Mapping[str, Any]:
    """The spec that goes with a trial: of a list of points just its own, or each would carry all the others."""
    if plain["sweep"]["method"] != "list":
        return plain
    own = dict(trial.parameters)
    columns = isinstance(plain["sweep"]["parameters"], dict)
    parameters = {name: [text] for name, text in own.items()} if columns else [own]
    return {**plain, "sweep": {**plain["sweep"], "parameters": parameters}}


def _send(
    session: Session, parcels: Mapping[str, list[staging.Parcel]], code: Code
) -> dict[str, staging.Sent | JobrunnerError]:
    """All hosts at once; an interrupt stops what is being sent, and can be gone on with."""
    if not parcels:
        return {}

    def one(host: str) -> staging.Sent | JobrunnerError:
        if code.there is None:
            return staging.deliver(session, host, parcels[host], code.tree)
        return _clone(session, host, parcels[host], code.there.get(host))

    with ThreadPoolExecutor(max_workers=min(16, len(parcels))) as pool:
        futures = {host: pool.submit(one, host) for host in parcels}
        try:
            return {host: future.result() for host, future in futures.items()}
        except BaseException:
            session.links.close()
            raise


def _clone(
    session: Session, host: str, parcels: Sequence[staging.Parcel], source: str | None
) -> staging.Sent | JobrunnerError:
    """New jobs with the code of an earlier one on the same host; nothing is uploaded."""
    existed: list[str] = []
    for begin in range(0, len(parcels), staging.TOGETHER):
        some = parcels[begin : begin + staging.TOGETHER]
        jobs = [{"request": item.request, "secrets": item.secrets} for item in some]
        try:
            link = session.link(host)
            answer = link.request("clone", id=source, jobs=jobs)
            session.ledger.apply_views(host, link.host_facts["instance"], answer["jobs"], now())
            existed += answer.get("existed") or []
        except LinkLostError as error:
            return error
        except (HostError, UsageError) as error:
            staging.forget_unless_there(session, host, [item.id for item in parcels[begin:]], error)
            return error
    return staging.Sent(0, 0, existed)
