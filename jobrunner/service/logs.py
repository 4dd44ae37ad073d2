"""A job's log, from where one asks, across retries and cut connections: each byte once."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from jobrunner.core.errors import AgentError, ConnectError, HostError, LinkLostError, NotFoundError
from jobrunner.core.jobs import JobRow
from jobrunner.core.states import JobState
from jobrunner.core.values import dataclass
from jobrunner.service.clock import now
from jobrunner.service.jobs import evidence_text
from jobrunner.service.reconcile import look, reconcile, take_over
from jobrunner.service.results import LogPiece
from jobrunner.service.session import Session
from jobrunner.service.wider import Wider

if TYPE_CHECKING:
    from jobrunner.transport.link import HostLink

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 15.0
_FINAL = frozenset(state.value for state in JobState if state.final)
SILENCE_S = 20.0
"""A followed log says `tick` every 5 s: after so long without one the link is dead."""


@dataclass
class _Place:
    """Where the next byte comes from.

    With a filter only the host can count: what it sends is held until it has said how far that reaches. Of what was not
    said before a link broke nothing was shown, and it comes again.
    """

    attempt: int | None
    offset: int | None = None
    filtered: bool = False
    _held: bytes = b""

    def take(self, data: bytes) -> bytes:
        """Bytes have come: those of them that may be shown now."""
        if self.filtered:
            self._held += data
            return b""
        self.offset = (self.offset or 0) + len(data)
        return data

    def settle(self, attempt: int | None = None, offset: int | None = None) -> bytes:
        """The host has said where it is, or that it is done: what was held may be shown."""
        held, self._held = self._held, b""
        if attempt is not None:
            self.attempt = attempt
        if offset is not None:
            self.offset = offset
        return held

    def broken(self) -> None:
        """The link broke."""
        self._held = b""


def follow(
    session: Session,
    word: str,
    *,
    follow: bool,
    lines: int | None = None,
    attempt: int | None = None,
    grep: str | None = None,
    since: str | float | None = None,
) -> Iterator[LogPiece]:
    """The pieces of a job's log, newest attempt unless `attempt` is given; the last piece is `end`.

    `since` leaves out what is older: a time (`2026-12-01T09:30:00Z`), or so many seconds ago by the host's clock. With
    `follow` it goes on through retries and lost links until the job is final. Raises NotFoundError for an attempt that
    is not there, HostError if the host does not answer (while following only at the very start).
    """
    if follow:
        session.be_patient()
    id_ = session.ledger.resolve(word)
    row = _with_host(session, id_, wait=follow)
    assert row.host is not None
    place = _Place(attempt, filtered=grep is not None)
    pause, begun = FIRST_PAUSE_S, False
    while True:
        try:
            link = session.link(row.host)
            for piece in _stream(session, link, row, place, follow=follow, lines=lines, grep=grep, since=since):
                begun, pause = True, FIRST_PAUSE_S
                yield piece
                if piece.kind == "end":
                    return
            raise LinkLostError(f"{row.host} ended the log without saying why", host=row.host)
        except (LinkLostError, ConnectError) as error:
            if not follow or not begun:
                session.ledger.mark_unreachable(row.host, error.message, now(), [row.id])
                raise
            yield LogPiece("note", note=f"{error.message}; trying again in {pause:g} s")
            place.broken()
            session.links.forget(row.host)
            time.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE_S)
            if lines is not None and place.offset is not None:
                lines = None


def _with_host(session: Session, id_: str, *, wait: bool) -> JobRow:
    """The row once some host has the job. A job that is being sent is waited for if its log is to be followed."""
    row = session.ledger.get(id_)
    while row.state is JobState.STAGING or row.host is None:
        found = reconcile(session, only=[id_])
        row = session.ledger.get(id_)
        if row.state is not JobState.STAGING and row.host is not None:
            break
        if found.errors:
            raise next(iter(found.errors.values()))
        if not wait or row.state.final:
            raise NotFoundError(
                f"{row.name} ({id_}) has no log: it is {row.state.value}" + (f" ({row.reason})" if row.reason else ""),
                code="no_log",
                remedy="it is still being sent; try again in a moment" if not row.state.final else "submit it again",
            )
        time.sleep(0.5)
    return row


def _stream(
    session: Session, link: HostLink, row: JobRow, place: _Place, *, follow: bool, widen: bool = True, **wanted: Any
) -> Iterator[LogPiece]:
    """One `tail` on the host; `place` moves with every piece. Where much is to come another one goes on with it, over
    the connection for big transfers; if that breaks, this one goes on."""
    lines = wanted["lines"] if place.offset is None else None
    asked: dict[str, Any] = {
        "id": row.id,
        "attempt": place.attempt,
        "offset": place.offset,
        "lines": lines,
        "follow": follow,
    }
    asked["instance"] = session.ledger.detail(row.id).instance  # an alias may lead to another machine by now
    filters: dict[str, Any] = {key: wanted[key] for key in ("grep", "since") if wanted[key] is not None}
    if isinstance(filters.get("since"), float | int):
        filters["since"] = {"ago_s": filters["since"]}
    wider, end = Wider(link), 0
    with link.stream("tail", timeout=SILENCE_S, **asked, **filters) as stream:
        for kind, payload in stream.parts():
            if kind == b"B":
                yield from _data(place.take(payload))
                if widen and not place.filtered and wider(end - (place.offset or 0)):
                    break
                continue
            try:
                message = stream.message(payload)
            except AgentError as error:
                raise _as_error(error) from error
            if "ok" in message:
                yield from _data(place.settle())
                yield _end(session, link, stream.host or link.host_facts, row, message, follow=follow)
                return
            if "attempt" in message:
                yield from _data(place.settle(message["attempt"], message.get("offset")))
            if message.get("size") is not None:
                end = message["size"]
                yield LogPiece("attempt", attempt=place.attempt, offset=place.offset, size=message["size"])
            elif message.get("note"):
                yield LogPiece("note", note=str(message["note"]))
    try:
        yield from _stream(session, wider.bulk, row, place, follow=follow, widen=False, **wanted)
        return
    except (LinkLostError, ConnectError):
        pass  # what the host itself does not give any more shows at once
    yield from _stream(session, link, row, place, follow=follow, widen=False, **wanted)


def _data(data: bytes) -> Iterator[LogPiece]:
    if data:
        yield LogPiece("data", data=data)


def _end(
    session: Session, link: HostLink, host: dict[str, Any], row: JobRow, message: dict[str, Any], *, follow: bool
) -> LogPiece:
    view = message.get("data", {}).get("job")
    if view:
        assert row.host is not None
        if view.get("state") in _FINAL:
            _remember_the_end(session, link, row)
        session.ledger.apply_view(row.host, host["instance"], view, now())
    elif follow:
        reconcile(session, only=[row.id])
    detail = session.ledger.detail(row.id)
    return LogPiece("end", row=detail.row, evidence=evidence_text(detail.evidence))


def _remember_the_end(session: Session, link: HostLink, row: JobRow) -> None:
    """The last lines of the job's journal: once the ledger knows it as final, nobody asks for them again."""
    live = [job for job in session.ledger.live_by_host().get(link.alias, []) if job.id == row.id]
    if live:
        take_over(session, link.alias, look(session, link, live), live, [], set())


def _as_error(error: AgentError) -> HostError | NotFoundError:
    """What the host says of a log that is not there is no trouble with the host."""
    if error.code in ("no_such_attempt", "no_such_job", "no_log"):
        return NotFoundError(error.message, remedy=error.remedy, code=error.code)
    return error
