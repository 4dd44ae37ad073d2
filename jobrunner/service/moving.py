"""Trials that wait on one host while another could start them go there.

A move is noted in the ledger, then the old host takes the job out of its queue for good (`take_back`), then the ledger
says STAGING on the new host, then that gets it. Each step may be repeated, so a move that was cut is gone on with by
the next visit of any kind (`complete`). The old host's record is kept, and so a job is never on two hosts. Where the
new host cannot take a job after all, its id is closed there, and it goes home: its code still lies where it came from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from jobrunner.core.errors import JobrunnerError, LinkLostError, NotFoundError
from jobrunner.core.jobs import JobRow
from jobrunner.core.states import JobState
from jobrunner.core.values import dataclass
from jobrunner.ledger.moves import Move
from jobrunner.service import staging, submitters
from jobrunner.service.clock import now
from jobrunner.service.courier import Courier

if TYPE_CHECKING:
    from jobrunner.service.reconcile import Reconciled
    from jobrunner.service.session import Session
    from jobrunner.transport.link import HostLink

AWAY = "MOVED"
"""What a host says of a job that was taken out of its queue."""


@dataclass(frozen=True)
class Moved:
    """A job that went from one host's queue to another's."""

    job: str
    name: str
    source: str
    target: str


def rebalance(session: Session, found: Reconciled) -> list[Moved]:
    """Move waiting trials to hosts that can start them now; those that got there.

    `found` is what the hosts said a moment ago: one that did not answer then is left alone. What stands in the way of
    a move (code that is gone, a secret that is not set, a host that fails) is a warning, and nothing is lost by it.
    """
    if not session.ledger.moves.queued_trials():
        return []
    from jobrunner.service.moveplan import planned

    steps = planned(session, found)
    if not steps:
        return []
    courier, me = Courier(session), submitters.Submitter(session.home)
    try:
        moves = []
        for step in steps:
            request = session.ledger.detail(step.id).request
            move = Move(
                step.id, step.source, step.target, int(request.get("moves") or 0) + 1, share=step.share,
                before=_share(request), submitter=me.as_json(),
            )  # fmt: skip
            if courier.pack(move) is not None:
                moves.append(move)
        taken = _take_back(session, session.ledger.moves.begin(moves))
        return _send(session, courier, [_place(session, courier, move) for move in taken])
    finally:
        me.close()


def complete(session: Session, found: Reconciled, noted: Mapping[str, Move]) -> list[Moved]:
    """Go on with moves that were cut, as far as the hosts that they concern have just answered."""
    noted = {**noted, **_told_by_hosts(session, found, noted)}
    left = {id_: move for id_, move in noted.items() if not submitters.is_alive(session.home, dict(move.submitter))}
    if not left:
        return []
    courier, me = Courier(session), submitters.Submitter(session.home)
    try:
        todo = []
        for move in left.values():
            ahead = _next(session, found, move)
            if ahead is None:
                continue
            mine = replace(ahead, submitter=me.as_json())
            if session.ledger.moves.take_over(move, mine):
                todo.append(mine)
        return _send(session, courier, [move if move.placed else _place(session, courier, move) for move in todo])
    finally:
        me.close()


def adopt_away(session: Session, records: Sequence[tuple[str, Mapping[str, Any]]]) -> list[JobRow]:
    """Of jobs that left a host (`(alias, record)`), take over those that no host has; their move goes on."""
    from jobrunner.service.reconcile import reconcile

    fresh: list[str] = []
    for alias, record in records:
        view, request = record["view"], dict(record.get("request") or {})
        id_ = str(view["id"])
        if _known(session, id_):
            continue
        move = _away(session, view)
        if move is None:
            session.warn(f"{alias}: {id_} was on its way to {view['moved'].get('to')}, which is not known here")
            continue
        sweep = request.get("sweep")
        row = JobRow(
            id_, str(view.get("name") or id_), JobState.STAGING, host=alias, device=view.get("device"),
            submitted_at=view.get("submitted_at"), sweep=sweep.get("id") if isinstance(sweep, dict) else None,
        )  # fmt: skip
        session.ledger.moves.note(replace(move, id=id_, source=alias, before=_share(request)))
        session.ledger.insert_staging(row, request, "", None, {})
        fresh.append(id_)
    if fresh:
        reconcile(session, only=fresh)
    return [session.ledger.get(id_) for id_ in fresh]


def _known(session: Session, id_: str) -> bool:
    try:
        return bool(session.ledger.get(id_))
    except NotFoundError:
        return False


def _share(request: Mapping[str, Any]) -> int | None:
    """How many trials of its sweep may run at once where a request goes."""
    sweep = request.get("sweep")
    share = sweep.get("parallel") if isinstance(sweep, dict) else None
    return share if isinstance(share, int) else None


def _next(session: Session, found: Reconciled, move: Move) -> Move | None:
    """The move as it is to be gone on with: None if it is over (then it is ended), or if nobody can say yet."""
    try:
        row = session.ledger.get(move.id)
    except NotFoundError:
        session.ledger.moves.end([move.id])
        return None
    where = row.host or ""
    view = _view(found, where, move.id)
    if row.state.final or (view and view.get("state") != AWAY and where in (move.source, move.target)):
        session.ledger.moves.end([move.id])  # it arrived, or never left, or it is over
        return None
    if where not in found.answers or where in found.errors:
        return None
    if view is None:
        return move if move.placed else None  # a host that does not know a job it had: others settle that
    away = _away(session, view)
    if away is None or (move.placed and away.moves < move.moves):
        return None
    return replace(away, id=move.id, source=where, share=move.share, before=move.before)


def _told_by_hosts(session: Session, found: Reconciled, noted: Mapping[str, Move]) -> dict[str, Move]:
    """Moves that somebody else began: a host says that it let a job go which this ledger has there."""
    told: dict[str, Move] = {}
    for alias, answer in found.answers.items():
        for id_, view in answer.get("jobs", {}).items():
            if view and view.get("state") == AWAY and id_ not in noted:
                move = _away(session, view)
                if move is None or session.ledger.get(id_).host != alias:
                    continue
                share = _share(session.ledger.detail(id_).request)
                told[id_] = replace(move, id=id_, source=alias, share=share, before=share)
                session.ledger.moves.note(told[id_])
    return told


def _away(session: Session, view: Mapping[str, Any]) -> Move | None:
    """Where a job went, by the record that it left: a host that is known here, by its machine or else by its name."""
    record = view.get("moved") or {}
    to, count = record.get("to") or {}, record.get("moves")
    if not isinstance(count, int):
        return None
    hosts = session.ledger.hosts()
    same = [host.alias for host in hosts if host.instance and host.instance == to.get("instance")]
    alias = to.get("alias") if to.get("alias") in [*same, *session.known_aliases()] else next(iter(same), None)
    return Move(str(view.get("id")), "", str(alias), count) if alias else None


def _view(found: Reconciled, alias: str, id_: str) -> Mapping[str, Any] | None:
    view = found.answers.get(alias, {}).get("jobs", {}).get(id_)
    return view if isinstance(view, dict) else None


def _take_back(session: Session, moves: Sequence[Move]) -> list[Move]:
    """Ask the old hosts to let go of the jobs, each once; the moves of those that did.

    A job that has begun meanwhile stays. Of a host that gives no answer nobody knows: those moves stay noted.
    """
    sources: dict[str, list[Move]] = {}
    for move in moves:
        sources.setdefault(move.source, []).append(move)

    def ask(link: HostLink) -> dict[str, Any]:
        taken: dict[str, Any] = {"taken": {}, "jobs": {}}
        for target in dict.fromkeys(move.target for move in sources[link.alias]):
            wanted = {move.id: move.moves for move in sources[link.alias] if move.target == target}
            answer = link.request("take_back", jobs=wanted, to=_place_of(session, target))
            taken["taken"].update(answer["taken"])
            taken["jobs"].update(answer["jobs"])
        return taken

    away: list[Move] = []
    for alias, outcome in session.links.map(ask, list(sources)).items():
        if outcome.value is None:
            session.warn(f"{alias}: {outcome.error.message if outcome.error else 'no answer'}; nothing is moved away")
            continue
        said = outcome.value
        gone = [move for move in sources[alias] if said["taken"].get(move.id)]
        session.ledger.moves.end([move.id for move in sources[alias] if move not in gone])
        session.ledger.apply_views(alias, session.link(alias).host_facts["instance"], said["jobs"], now())
        away += gone
    return away


def _place_of(session: Session, alias: str) -> dict[str, Any]:
    """Where a job goes, as the host that it leaves remembers it."""
    known = session.ledger.host(alias)
    return {
        "alias": alias,
        "instance": known.instance if known else None,
        "hostname": known.hostname if known else None,
    }


def _place(session: Session, courier: Courier, move: Move) -> Move:
    """The ledger says that the job is on its way to the target. One that cannot be packed goes home (see `_send`)."""
    parcel = courier.pack(move)
    placed = replace(move, placed=True)
    request = parcel.request if parcel is not None else session.ledger.detail(move.id).request
    session.ledger.moves.place(placed, request, now())
    return placed


def _send(session: Session, courier: Courier, moves: Sequence[Move]) -> list[Moved]:
    """Bring placed jobs to their targets, all hosts at once; those that arrived.

    A job whose target was never reached, or whose answer was cut, stays on its way: the next visit goes on. One that
    the target does not take goes home.
    """
    targets: dict[str, list[tuple[Move, staging.Parcel]]] = {}
    unpacked: list[Move] = []
    for move in moves:
        parcel = courier.pack(move)
        if parcel is None:
            unpacked.append(move)
        else:
            targets.setdefault(move.target, []).append((move, parcel))
    if not targets and not unpacked:
        return []

    def deliver(alias: str) -> JobrunnerError | None:
        return courier.deliver(alias, [move for move, _ in targets[alias]], [parcel for _, parcel in targets[alias]])

    with ThreadPoolExecutor(max_workers=min(16, max(1, len(targets)))) as pool:
        errors = dict(zip(targets, pool.map(deliver, targets), strict=True))
    arrived: list[Moved] = []
    for alias, error in errors.items():
        for move, _ in targets[alias]:
            row = session.ledger.get(move.id)
            if row.state is not JobState.STAGING:
                session.ledger.moves.end([move.id])
                arrived.append(Moved(move.id, row.name, move.source, move.target))
            elif error is None or not isinstance(error, (LinkLostError, *staging.NOT_REACHED)):
                unpacked.append(move)
        if error is not None:
            session.warn(f"{alias}: {error.message}")
    for move in unpacked:
        if not move.home:
            _go_home(session, courier, move)
    return arrived


def _go_home(session: Session, courier: Courier, move: Move) -> None:
    """The target does not take the job: its id is closed there, and it goes back to where its code lies.

    Nothing is done while the target gives no answer: it may have the job.
    """
    row, request = session.ledger.get(move.id), session.ledger.detail(move.id).request
    away = {"moves": move.moves, "to": _place_of(session, move.source)}
    try:
        link = session.link(move.target)
        answer = link.request("tombstone", id=move.id, name=row.name, request=request, moved=away)
        view = answer["jobs"][move.id]
        if view["state"] != AWAY:  # it is there after all
            session.ledger.apply_views(move.target, link.host_facts["instance"], {move.id: view}, now())
            session.ledger.moves.end([move.id])
            return
        back = replace(move, source=move.target, target=move.source, moves=move.moves + 1, home=True, share=move.before)
        parcel = courier.pack(back)
        if parcel is None:
            return
        placed = _place(session, courier, back)
        error = courier.deliver(back.target, [placed], [parcel])
        if error is not None:
            raise error
        if session.ledger.get(move.id).state is not JobState.STAGING:
            session.ledger.moves.end([move.id])
    except JobrunnerError as error:
        session.warn(f"{move.id} is on its way back to {move.source}: {error.message}")
