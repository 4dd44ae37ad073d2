"""Showing a log that comes in pieces: as text, as exact bytes, or as JSON."""

from __future__ import annotations

import base64
import codecs
from collections.abc import Iterable
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from jobrunner.cli.language import locale_language
from jobrunner.cli.logview import LogView
from jobrunner.cli.output import Output, understands_escapes
from jobrunner.cli.views import one_line
from jobrunner.cli.words import visible, with_local_times

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jobrunner.core.jobs import JobRow
    from jobrunner.service.results import LogPiece

REMEMBERED = 128 * 1024
"""Bytes of a log's end that are kept while it is shown, to say why the job failed."""


@contextmanager
def looking_only(word: str) -> Iterator[None]:
    """Ctrl-C inside ends the looking, not the job, and says so."""
    try:
        yield
    except KeyboardInterrupt as stop:
        raise KeyboardInterrupt(
            f"stopped looking; the job goes on (jobrunner logs -f {word}; jobrunner cancel {word} ends it)"
        ) from stop


def show_log(out: Output, pieces: Iterable[LogPiece], *, raw: bool = False, follow: bool = False) -> JobRow | None:
    """Show every piece; returns the job as last seen. Closes the source however it ends."""
    show = _as_json_lines if out.json else _as_bytes if raw else _as_text
    try:
        return show(out, pieces, raw, follow)
    finally:
        close = getattr(pieces, "close", None)
        if close is not None:
            close()


def collect_log(pieces: Iterable[LogPiece], *, raw: bool) -> dict[str, Any]:
    """A log so far as the `data` of one document: `job`, `attempt`, and `text` or (raw) `base64`."""
    data: dict[str, Any] = {"job": None, "attempt": None}
    body = bytearray()
    for piece in pieces:
        body += piece.data
        if piece.kind == "attempt":
            data["attempt"] = piece.attempt
        elif piece.kind == "end" and piece.row is not None:
            data["job"] = piece.row.as_json()
    return {**data, **_payload(bytes(body), raw)}


def _payload(body: bytes, raw: bool) -> dict[str, str]:
    if raw:
        return {"base64": base64.b64encode(body).decode("ascii")}
    return {"text": body.decode("utf-8", "replace")}


def _as_text(out: Output, pieces: Iterable[LogPiece], raw: bool, follow: bool) -> JobRow | None:
    terminal = out.terminal and understands_escapes()
    view = LogView(terminal=terminal)
    attempt: int | None = None
    row, last, evidence = None, b"", ""
    for piece in pieces:
        if piece.kind == "data":
            out.write(view.feed(piece.data), flush=True)
            last = piece.data if len(piece.data) > REMEMBERED else (last + piece.data)[-REMEMBERED:]
        elif piece.kind == "attempt" and piece.attempt != attempt:  # the same one again: a link that came back
            out.write(view.close(), flush=True)
            view = LogView(terminal=terminal)
            if attempt is not None:
                out.say(f"--- attempt {piece.attempt} ---")
            attempt, last = piece.attempt, b""
        else:
            row, evidence = _remark(out, piece, row), piece.evidence
    out.write(view.close(), flush=True)
    _farewell(out, row, follow)
    if row is not None and not last and not follow:
        _nothing_shown(out, row)
    if row is not None and attempt in (None, row.attempt):
        _why_it_failed(out, row, last[-REMEMBERED:], evidence)
    return row


def _as_bytes(out: Output, pieces: Iterable[LogPiece], raw: bool, follow: bool) -> JobRow | None:
    row = None
    for piece in pieces:
        if piece.kind == "data":
            out.write_bytes(piece.data)
        elif piece.kind != "attempt":
            row = _remark(out, piece, row)
    _farewell(out, row, follow)
    return row


def _remark(out: Output, piece: LogPiece, row: JobRow | None) -> JobRow | None:
    if piece.kind == "note":
        out.say(piece.note)
        return row
    return piece.row or row


def _farewell(out: Output, row: JobRow | None, follow: bool) -> None:
    if follow and row is not None:
        out.say(one_line(row))


def _nothing_shown(out: Output, row: JobRow) -> None:
    """Silence explained, on standard error: nothing was printed (of what was asked for), or it has not begun."""
    from jobrunner.core.states import JobState

    if row.state is JobState.QUEUED and (row.attempt or 1) < 2:
        out.say(f"{row.id} ({visible(row.name)}) has not begun: it is QUEUED (jobrunner why {row.id})")
    else:
        out.say(f"nothing to show of {row.id} ({visible(row.name)}), which is {row.state.value}")


def _why_it_failed(out: Output, row: JobRow, last: bytes, evidence: str) -> None:
    """For a failed job, on standard error: why its command never ran, what its log's end shows."""
    from jobrunner.core.states import JobState

    if row.state is not JobState.FAILED:
        return
    from jobrunner.service.catalogue import glance

    if row.reason not in ("exit", "signal") and evidence:
        out.say(with_local_times(evidence))
    for item in glance(row, last, out.hosts_file, locale_language()):
        out.say(visible(item["summary"]))
    out.say(f"jobrunner explain {row.id} says more")


def _as_json_lines(out: Output, pieces: Iterable[LogPiece], raw: bool, follow: bool) -> JobRow | None:
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    attempt: int | None = None
    row = None
    for piece in pieces:
        if piece.kind == "data":
            payload = _payload(piece.data, True) if raw else {"text": decoder.decode(piece.data)}
            if any(payload.values()):
                out.document({"attempt": attempt, **payload})
        elif piece.kind == "attempt":
            if piece.attempt != attempt:
                decoder.reset()
            attempt = piece.attempt
            out.document({"attempt": attempt, "offset": piece.offset, "size": piece.size})
        elif piece.kind == "note":
            out.document({"attempt": attempt, "note": piece.note})
        else:
            row = piece.row or row
    out.document({"attempt": attempt, "job": row.as_json() if row else None, "end": True})
    return row
