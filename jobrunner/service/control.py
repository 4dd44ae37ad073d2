"""Steering: cancel, hold, release, priority, attach. Each may be repeated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from jobrunner.core.errors import HostError, JobrunnerError, UsageError
from jobrunner.core.jobs import JobRow
from jobrunner.core.states import JobState
from jobrunner.service.clock import now
from jobrunner.service.jobs import job_notes
from jobrunner.service.reconcile import Reconciled, bury, look, reconcile, take_over
from jobrunner.service.results import CancelResult, Listing
from jobrunner.service.session import Session

if TYPE_CHECKING:
    from jobrunner.transport.link import HostLink

DEFAULT_GRACE_S = 30.0
VERIFY_S = 15.0
"""How long after the grace a host may take to prove that nothing is left."""


def cancel(session: Session, words: Sequence[str], *, grace: float | None = None) -> CancelResult:
    """End jobs wholly, and return when their hosts have proved it.

    The wish is kept in the ledger first: a host that cannot be reached now is told at the next contact.
    """
    ids, unknown = _resolve_all(session, words)
    open_ids = session.ledger.request_cancel(ids, now(), grace) if ids else []
    already = [id_ for id_ in ids if id_ not in open_ids]
    found = reconcile(session, only=open_ids)  # carries the wishes, and closes submits whose process died
    _cancel_sending(session, open_ids, found)
    by_host: dict[str, list[str]] = {}
    for id_ in open_ids:
        row = session.ledger.get(id_)
        if not row.state.final and row.host in found.answers:
            by_host.setdefault(row.host, []).append(id_)
    live = {
        alias: [job for job in jobs if job.id in by_host[alias]]
        for alias, jobs in session.ledger.live_by_host().items()
        if alias in by_host
    }

    def stop(link: HostLink) -> dict[str, Any]:
        limit = _longest_grace(session, by_host[link.alias], grace) + VERIFY_S
        ids = by_host[link.alias]
        answer = link.request("stop", ids=ids, grace_s=grace, wait_s=limit, timeout=limit + 20.0)
        return {**answer, "seen": look(session, link, live[link.alias])}

    errors: dict[str, JobrunnerError] = dict(found.errors)
    left: dict[str, list[dict[str, Any]]] = {}
    for alias, outcome in session.links.map(stop, list(by_host)).items():
        if outcome.value is None:
            errors[alias] = outcome.error or HostError(f"{alias} gave no answer", host=alias)
            continue
        take_over(session, alias, outcome.value["seen"], live[alias], [], set())
        left.update({id_: pids for id_, pids in outcome.value.get("left", {}).items() if pids})
        session.ledger.applied([id_ for id_, view in outcome.value["jobs"].items() if view], now())
    rows = [session.ledger.get(id_) for id_ in ids]
    kept = [row.id for row in rows if not row.state.final and (row.unreachable or row.host in errors)]
    return CancelResult(
        rows=rows,
        kept=kept,
        left=left,
        already=already,
        errors=[*unknown, *errors.values(), *_survivors(rows, left)],
        warnings=session.warnings,
        hosts_asked=found.asked,
        hosts_answered=found.answered,
    )


def _cancel_sending(session: Session, ids: list[str], found: Reconciled) -> None:
    """End jobs that another process is sending just now: their ids are closed, and the sender will find them so."""
    wished = set(ids)
    for job in session.ledger.unsent():
        row = job.row
        if row.id not in wished or row.host is None or row.host in found.errors:
            continue
        link = session.link(row.host)
        answer = bury(link, job, cancelled=True)
        session.ledger.apply_views(row.host, link.host_facts["instance"], answer["jobs"], now())


def _survivors(rows: list[JobRow], left: dict[str, list[dict[str, Any]]]) -> list[JobrunnerError]:
    return [
        HostError(
            f"{row.id}: {len(left[row.id])} of its processes would not end on {row.host}: "
            + ", ".join(str(item.get("pid")) for item in left[row.id]),
            host=row.host or "",
            code="left_running",
            remedy="look at them on the host (`ps -fp PID`); a process in state D waits for a driver or a disk",
        )
        for row in rows
        if left.get(row.id)
    ]


def _longest_grace(session: Session, ids: list[str], grace: float | None) -> float:
    if grace is not None:
        return grace
    runs = [session.ledger.detail(id_).request.get("run", {}) for id_ in ids]
    return max((float(run.get("grace_s") or DEFAULT_GRACE_S) for run in runs), default=DEFAULT_GRACE_S)


def _resolve_all(session: Session, words: Sequence[str]) -> tuple[list[str], list[JobrunnerError]]:
    """Ids of words; what does not resolve is an error of its own and stops nothing else."""
    ids: list[str] = []
    errors: list[JobrunnerError] = []
    for word in words:
        try:
            ids.append(session.ledger.resolve(word))
        except JobrunnerError as error:
            errors.append(error)
    if errors and not ids:
        raise errors[0]
    return list(dict.fromkeys(ids)), errors


def hold(session: Session, words: Sequence[str]) -> Listing:
    """Queued jobs stay where they are until `release`."""
    return _wish(session, words, "hold")


def release(session: Session, words: Sequence[str]) -> Listing:
    """Held jobs go on."""
    return _wish(session, words, "release")


def set_priority(session: Session, word: str, value: int) -> Listing:
    """Change a queued job's place among one's own (higher goes first)."""
    return _wish(session, [word], "priority", value=value)


def _wish(session: Session, words: Sequence[str], kind: str, **more: Any) -> Listing:
    ids, errors = _resolve_all(session, words)
    by_host: dict[str, list[str]] = {}
    instances: dict[str, str | None] = {}
    for id_ in ids:
        detail = session.ledger.detail(id_)
        row = detail.row
        if row.state.final:
            raise UsageError(f"{row.name} ({id_}) is {row.state.value} already: only a queued job can be changed")
        if row.host is None:
            raise UsageError(f"{row.name} ({id_}) is on no host yet", remedy="try again in a moment")
        by_host.setdefault(row.host, []).append(id_)
        instances[row.host] = detail.instance

    def ask(link: HostLink) -> dict[str, Any]:
        return link.request("wish", ids=by_host[link.alias], kind=kind, instance=instances[link.alias], **more)

    answered = 0
    for alias, outcome in session.links.map(ask, list(by_host)).items():
        if outcome.value is None:
            errors.append(outcome.error or HostError(f"{alias} gave no answer", host=alias))
            session.ledger.mark_unreachable(alias, errors[-1].message, now())
            continue
        answered += 1
        views = {id_: view for id_, view in outcome.value["jobs"].items() if view}
        session.ledger.apply_views(alias, session.link(alias).host_facts["instance"], views, now())
    rows = [session.ledger.get(id_) for id_ in ids]
    if kind in ("hold", "priority"):
        late = [row for row in rows if row.state is not JobState.QUEUED and not row.unreachable]
        errors += [_too_late(row, kind) for row in late]
    return Listing(
        rows=rows,
        notes=job_notes(session, rows),
        errors=errors,
        warnings=session.warnings,
        hosts_asked=len(by_host),
        hosts_answered=answered,
    )


def _too_late(row: JobRow, kind: str) -> UsageError:
    what = "be held" if kind == "hold" else "change its place"
    return UsageError(f"{row.name} ({row.id}) is {row.state.value}: only a queued job can {what}", code="not_queued")


def attach(session: Session, word: str) -> int:
    """Put this terminal on a running tmux job. Leaving it (Ctrl-B D) leaves the job running."""
    id_ = session.ledger.resolve(word)
    reconcile(session, only=[id_])
    detail = session.ledger.detail(id_)
    row = detail.row
    if detail.request.get("run", {}).get("launcher") != "tmux":
        raise UsageError(
            f"{row.name} ({id_}) has no terminal: it was started with launcher: nohup",
            remedy=f"follow it with `jobrunner logs -f {id_}`, or submit it with `--set launcher=tmux`",
        )
    if row.state is not JobState.RUNNING or row.host is None:
        raise UsageError(
            f"{row.name} ({id_}) is {row.state.value}: there is no terminal to attach to",
            remedy=f"`jobrunner logs {id_}` shows what it printed",
        )
    answer = session.link(row.host).request("attach", id=id_)
    return session.link(row.host).interactive([str(item) for item in answer["argv"]])
