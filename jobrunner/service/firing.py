"""Firing schedules: due times are decided, then each that is to be fired is submitted as a job (or a sweep).

A due time fires once, whoever asks: the ledger takes one row for it, and one claim of that row. A run whose process
died on the way goes on at the next pass: its job is there, or was never there, once its host has been asked.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jobrunner.core.duetimes import Before, Decision, Timing, decide, instant, judge, stamp, timing_of
from jobrunner.core.errors import HostError, JobrunnerError, LedgerError, LinkLostError, NotFoundError
from jobrunner.core.ids import new_id
from jobrunner.core.jobs import JobRow
from jobrunner.core.states import JobState
from jobrunner.core.values import dataclass
from jobrunner.ledger.schedules import Run, ScheduleRow
from jobrunner.service import definitions, staging, submitters
from jobrunner.service.clock import now
from jobrunner.service.session import Session, client_identity
from jobrunner.service.staging import NOT_REACHED

if TYPE_CHECKING:
    from jobrunner.core.spec import JobSpec
    from jobrunner.upload import Tree


_SCHEDULED = "schedule:"
"""How digests of what a schedule submitted begin."""


@dataclass
class Pass:
    """What one pass over the schedules did: runs as they are now, by what became of them."""

    fired: list[Run] = field(default_factory=list)
    waiting: list[Run] = field(default_factory=list)
    skipped: list[Run] = field(default_factory=list)
    failed: list[Run] = field(default_factory=list)
    errors: list[JobrunnerError] = field(default_factory=list)
    away: dict[str, str] = field(default_factory=dict)
    """Hosts that did not answer in this pass, and why: they are not asked for each schedule anew."""


def fire_due(session: Session, at: datetime) -> Pass:
    """Decide what is due, and fire what can be. An error with one schedule does not keep the others."""
    done = Pass(errors=finish_sweeps(session))
    schedules = session.ledger.schedules
    rows = {row.id: row for row in schedules.list()}
    for row in rows.values():
        try:
            consider(session, row, at)
        except JobrunnerError as error:
            done.errors.append(error)
    by_schedule: dict[str, list[Run]] = {}
    for run in schedules.open_runs():
        by_schedule.setdefault(run.schedule, []).append(run)
    for id_, runs in by_schedule.items():
        schedule = rows.get(id_) or schedules.get(id_)
        try:
            _work_off(session, schedule, runs, at, done)
        except JobrunnerError as error:
            done.errors.append(error)
    return done


def finish_sweeps(session: Session) -> list[JobrunnerError]:
    """Send what is unsent of schedules' sweeps: a host was away, or the process that sent them died."""
    errors: list[JobrunnerError] = []
    for sweep in session.ledger.sweeps.list():
        ours = (sweep.spec_digest or "").startswith(_SCHEDULED)
        if not ours or sweep.state != "staging" or submitters.is_alive(session.home, dict(sweep.submitter)):
            continue
        from jobrunner.service.sweeps.submit import send_trials
        from jobrunner.service.sweeps.view import settle

        try:
            send_trials(session, sweep, session.ledger.sweeps.trials(sweep.id), at=now())
            settle(session, sweep.id)
        except JobrunnerError as error:
            errors.append(error)
    return errors


def consider(session: Session, row: ScheduleRow, at: datetime, *, always: bool = False) -> list[Decision]:
    """Decide about the due times up to now and note it; `always` notes the time even if nothing was due."""
    timing = timing_of(row.id, row.settings)
    until = instant(row.considered_until)
    since = min(max(until, instant(row.added_at)), at)
    decisions = decide(timing, since, at, paused=row.state == "paused")
    if decisions or always or until > at:  # a clock that was set back counts from now on
        runs = [(stamp(item.due), item.outcome, item.why) for item in decisions]
        # The file first: what it says of a ledger that is lost may leave a due time out, but never repeats one.
        definitions.write(session, replace(row, considered_until=stamp(at)))
        session.ledger.schedules.consider(row.id, stamp(at), runs, stamp(at))
    return decisions


def next_start(session: Session, at: datetime) -> datetime | None:
    """When the next due time of any schedule comes, or a run starts that was spread; None if no schedule is active."""
    found = []
    for row in session.ledger.schedules.list():
        if row.state == "active":
            timing = timing_of(row.id, row.settings)
            found += [due] if (due := next(timing.after(at), None)) is not None else []
            opened = session.ledger.schedules.open_runs(row.id)
            found += [start for run in opened if (start := timing.start(instant(run.due))) > at]
    return min(found, default=None)


def _work_off(session: Session, schedule: ScheduleRow, runs: Sequence[Run], at: datetime, done: Pass) -> None:
    """A schedule's open runs, oldest first."""
    timing = timing_of(schedule.id, schedule.settings)
    ahead: Before | None = None
    for place, run in enumerate(runs):
        due = [instant(other.due) for other in runs[place + 1 :] if not other.manual]
        later = next((moment for moment in due if timing.start(moment) <= at), None)
        result = _work_on(session, schedule, timing, run, at, ahead, later, done.away)
        if result is None:
            continue
        getattr(done, result.outcome if result.outcome != "firing" else "waiting").append(result)
        if result.outcome in ("waiting", "firing"):
            ahead = Before(f"due {result.due}", instant(result.due), None)


def _work_on(
    session: Session,
    schedule: ScheduleRow,
    timing: Timing,
    run: Run,
    at: datetime,
    ahead: Before | None,
    later: datetime | None,
    away: dict[str, str],
) -> Run | None:
    """One open run; as it is afterwards, or None if it is none of our business now."""
    if run.outcome == "firing":
        if submitters.is_alive(session.home, dict(run.claimed_by or {})):
            return None
        settled = _settle_broken(session, schedule, run)
        if settled.outcome != "waiting":
            return settled
        run = settled
    if schedule.state != "active":
        return run if schedule.state == "paused" else _settled(session, run, "skipped", "the schedule was removed")
    if run.manual:
        return fire_run(session, schedule, run)
    before = ahead or _unfinished(session, schedule)
    verdict = judge(timing, instant(run.due), at, before, later)
    if verdict.do == "skip":
        return _settled(session, run, "skipped", verdict.why)
    if verdict.do == "replace":
        why = _end_before(session, schedule)
        if why is not None:
            verdict = replace(verdict, do="wait", why=why)
    if verdict.do == "wait":
        return run if run.why == verdict.why else _settled(session, run, "waiting", verdict.why)
    return _fire_unless_away(session, schedule, run, away)


def _fire_unless_away(session: Session, schedule: ScheduleRow, run: Run, away: dict[str, str]) -> Run:
    """Fire a run, unless every host that could take it has been found silent in this pass."""
    hosts = [schedule.host] if schedule.host else list(schedule.spec.get("hosts") or session.known_aliases())
    if hosts and all(host in away for host in hosts):
        why = f"waits for its host: {away[hosts[0]]}"
        return run if run.why == why else _settled(session, run, "waiting", why)
    fired = fire_run(session, schedule, run)
    if fired.outcome == "waiting":
        known = {host: session.ledger.host(host) for host in hosts}
        away.update({host: row.error for host, row in known.items() if row is not None and row.error})
    return fired


def _settled(session: Session, run: Run, outcome: str, why: str | None, **changes: Any) -> Run:
    """A run after it was settled; as somebody else has left it, if they were quicker."""
    if not session.ledger.schedules.settle(run, outcome, now(), why, **changes):
        return session.ledger.schedules.run(run.seq)
    return replace(run, outcome=outcome, why=why, claimed_by=None, **changes)


def _unfinished(session: Session, schedule: ScheduleRow) -> Before | None:
    """The newest run of a schedule that is not over."""
    for run in session.ledger.schedules.unfinished(schedule.id):
        if run.sweep is not None and _sweep_over(session, run.sweep):
            continue
        what = f"sweep {run.sweep}" if run.sweep else f"job {run.job}"
        return Before(what, instant(run.due), instant(run.fired_at or run.due))
    return None


def _sweep_over(session: Session, id_: str) -> bool:
    from jobrunner.service.sweeps.view import settle

    return settle(session, id_).state not in ("staging", "running")


def _end_before(session: Session, schedule: ScheduleRow) -> str | None:
    """Cancel the runs that are not over, for a new one that replaces them; why that is not done yet, or None."""
    from jobrunner.service.control import cancel

    for run in session.ledger.schedules.unfinished(schedule.id):
        if run.sweep is not None:
            from jobrunner.service.sweeps.manage import stop

            stop(session, run.sweep)
            if not _sweep_over(session, run.sweep):
                return f"sweep {run.sweep}, which it replaces, has not ended yet"
        elif run.job is not None:
            ended = cancel(session, [run.job])
            session.ledger.add_event(run.job, "replaced", now(), {"schedule": schedule.id})
            if not ended.rows[0].state.final:
                return f"job {run.job}, which it replaces, has not ended yet: {_reason(ended.errors)}"
    return None


def _reason(errors: Sequence[JobrunnerError]) -> str:
    return errors[0].message if errors else "it is being stopped"


def _settle_broken(session: Session, schedule: ScheduleRow, run: Run) -> Run:
    """A run whose process died while it fired: fired, if a host has its job; else it waits to be fired again."""
    sweep = session.ledger.schedules.sweep_sent(_digest(schedule, run))
    if sweep is not None:
        return _settled(
            session, run, "fired", "its sending was broken off and gone on with", sweep=sweep, fired_at=now()
        )
    try:
        row = session.ledger.get(run.job or "")
    except NotFoundError:
        return _settled(session, run, "waiting", run.why, job=None)
    if row.state is JobState.STAGING:
        # Its host has not said yet whether it has the job: the claim stays, so that nobody fires it a second time.
        return replace(run, why=f"whether {row.host} has job {row.id} is not known yet: its sending was broken off")
    if row.state is JobState.FAILED and row.reason == "interrupted":
        return _settled(session, run, "waiting", f"the sending of job {row.id} was broken off", job=None)
    return _settled(session, run, "fired", run.why, fired_at=row.submitted_at)


def fire_run(session: Session, schedule: ScheduleRow, run: Run) -> Run:
    """Submit a run. It is as it was (`waiting`, and why) if no host answers or the answer was cut; `failed` (and why)
    if it cannot be submitted as things are."""
    from jobrunner.core.spec import spec_from_json
    from jobrunner.upload import ChangedError

    me = submitters.Submitter(session.home)
    try:
        spec = spec_from_json(dict(schedule.spec))
        id_ = None if spec.sweep is not None else new_id(os.urandom(16))
        if not session.ledger.schedules.claim(run, me.as_json(), now(), job=id_):
            return run  # somebody else fires it
        run = replace(run, outcome="firing", job=id_, claimed_by=me.as_json())
        try:
            if spec.sweep is not None:
                return _send_sweep(session, schedule, run, spec)
            return _send_job(session, schedule, run, spec, me)
        except LinkLostError as error:
            # The host may have it: the claim outlives us, and the next pass asks.
            return replace(run, why=error.message)
        except LedgerError:
            raise  # nothing can be noted now; the claim is found without its process by the next pass
        except HostError as error:
            if isinstance(error, NOT_REACHED) and error.host:
                session.ledger.mark_unreachable(error.host, error.message, now())
            return _settled(session, run, "waiting", f"waits for its host: {error.message}", job=None)
        except ChangedError as error:
            return _settled(session, run, "waiting", f"waits for its code: {error.message}", job=None)
        except JobrunnerError as error:
            why = f"{error.message}; {error.remedy}" if error.remedy else error.message
            return _settled(session, run, "failed", why, job=None)
    finally:
        me.close()


def _send_job(session: Session, schedule: ScheduleRow, run: Run, spec: JobSpec, me: submitters.Submitter) -> Run:
    from jobrunner.service.placing import place_all
    from jobrunner.service.specs import take_secrets

    assert run.job is not None
    secrets = take_secrets(spec.secrets, session.environ, session.secrets_file)
    tree = _code(session, schedule, spec)
    [placement] = place_all(session, [spec], schedule.host)
    if placement.host is None:
        error = placement.error()
        raise HostError(error.message, code=error.code) if placement.drained else error
    at = now()
    request = staging.request_for(
        session, spec, placement.host,
        job_id=run.job, at=at, code=tree.code() if tree else None, client=_client(schedule),
        schedule={"id": schedule.id, "name": schedule.name, "due": run.due, "manual": run.manual},
    )  # fmt: skip
    row = JobRow(
        run.job, spec.name, JobState.STAGING, host=placement.host, device=spec.device, submitted_at=at,
        schedule=schedule.id,
    )  # fmt: skip
    session.ledger.insert_staging(row, request, _digest(schedule, run), staging.code_digest(tree), me.as_json())
    try:
        staging.stage(session, placement.host, [{"request": request, "secrets": secrets}], tree)
    except LinkLostError:
        raise
    except JobrunnerError as error:
        if not staging.forget_unless_there(session, placement.host, [run.job], error):
            raise
    return _settled(session, run, "fired", _why_late(run), fired_at=at)


def _send_sweep(session: Session, schedule: ScheduleRow, run: Run, spec: JobSpec) -> Run:
    from jobrunner.service.specs import LoadedSpec, take_secrets
    from jobrunner.service.sweeps.submit import prepare, send

    secrets = take_secrets(spec.secrets, session.environ, session.secrets_file)
    tree = _code(session, schedule, spec)
    path = Path(schedule.file or schedule.name)
    folder = Path(schedule.folder) if schedule.folder else None
    loaded = LoadedSpec(path, "", spec, path.parent, folder, secrets)
    result = send(session, prepare(session, loaded, tree, schedule.host), _digest(schedule, run))
    if result.errors and not result.rows:
        raise result.errors[0]
    return _settled(session, run, "fired", _why_late(run), fired_at=now(), sweep=result.sweeps[0].id)


def _why_late(run: Run) -> str | None:
    """What a run had waited for stays with it; that it was spread by jitter, or asked for, is no news."""
    return run.why if run.why and not run.why.startswith(("starts at ", "asked for")) else None


def _code(session: Session, schedule: ScheduleRow, spec: JobSpec) -> Tree | None:
    """The code of a run: the folder as it is now, or what was kept of it."""
    if spec.code is None:
        return None
    if schedule.pinned is not None:
        from jobrunner.upload.pinned import kept

        return kept(definitions.code_folder(session), schedule.pinned)
    return staging.read_code(session, Path(schedule.folder or ""), spec.code)


def _client(schedule: ScheduleRow) -> Mapping[str, Any]:
    return {**client_identity(), "folder": schedule.folder}


def _digest(schedule: ScheduleRow, run: Run) -> str:
    """What stands for a spec's digest, so that no submit by hand goes on with a schedule's job."""
    return f"{_SCHEDULED}{schedule.id}:{run.due}:{int(run.manual)}"


def secrets_at_hand(session: Session, names: Sequence[str]) -> set[str]:
    """Those secrets that a process without our environment finds in secrets.env."""
    from jobrunner.service.specs import take_secrets

    found = set()
    for name in names:
        try:
            take_secrets([name], {}, session.secrets_file)
        except JobrunnerError:
            continue
        found.add(name)
    return found


def error_of(session: Session, row: ScheduleRow, run: Run) -> JobrunnerError:
    """The error for a person who asked for a run that could not be fired."""
    kind = HostError if run.outcome == "waiting" else JobrunnerError
    error = kind(
        f"{row.name} ({row.id}) was not submitted: {run.why}",
        code="not_fired",
        remedy=f"then `jobrunner schedule run {row.id}`",
    )
    error.exit_code = 3 if run.outcome == "waiting" else 2
    return error
