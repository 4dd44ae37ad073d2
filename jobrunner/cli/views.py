"""How results look as text. Each function makes a table or lines from values; nothing here writes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from jobrunner.cli.tables import Cell, Column, Table
from jobrunner.cli.words import ago, lasted, local, numbers, or_dash, size, visible, width, with_local_times
from jobrunner.core.jobs import JobRow
from jobrunner.core.states import JobState

STATE_STYLES = {
    JobState.STAGING: "cyan",
    JobState.QUEUED: "yellow",
    JobState.RUNNING: "bold blue",
    JobState.COMPLETED: "green",
    JobState.FAILED: "red",
    JobState.TIMEOUT: "red",
    JobState.CANCELLED: "bright_black",
    JobState.LOST: "magenta",
}
HEALTH_STYLES = {"ok": "green", "warning": "yellow", "bad": "red"}


def how(row: JobRow | Mapping[str, Any]) -> str:
    """How a job or an attempt ended, in a few words: `exit 1`, `signal SIGKILL`, `oom`; empty if it has not."""
    get = row.get if isinstance(row, Mapping) else lambda name: getattr(row, name)
    reason, code, killer = get("reason"), get("exit_code"), get("signal")
    parts = [str(reason)] if reason and reason not in ("exit", "signal") else []
    if killer:
        parts.append(f"signal {visible(str(killer))}")
    elif code is not None and (code or not reason):
        parts.append(f"exit {code}")
    return ", ".join(parts)


def state_cell(row: JobRow) -> Cell:
    """The state with what makes it precise: the phase while it runs, the reason when it has failed."""
    more = ""
    if row.state is JobState.RUNNING and row.phase == "setup":
        more = " setup"
    elif row.state in (JobState.FAILED, JobState.LOST):
        more = f" {how(row)}" if how(row) else ""
    return Cell(row.state.value + more, STATE_STYLES[row.state])


def row_note(row: JobRow, note: str, now: datetime) -> str:
    """What else a person should know of a row."""
    parts = [with_local_times(note)] if note else []
    if row.unreachable and not row.state.final:
        parts.insert(0, f"no answer, seen {ago(row.last_seen, now)}" if row.last_seen else "no answer")
    if row.cancel_requested_at and not row.state.final:
        parts.append("cancel asked for")
    if row.attempt is not None and row.attempt > 1:
        parts.append(f"attempt {row.attempt}")
    return "; ".join(parts)


def job_table(rows: Iterable[JobRow], now: datetime, notes: Mapping[str, str] | None = None) -> Table:
    """Jobs as `ls` shows them."""
    table = Table(
        [
            Column("ID"),
            Column("NAME", shrinks=True),
            Column("STATE"),
            Column("HOST", shrinks=True),
            Column("CARDS", leaves=2),
            Column("SUBMITTED", leaves=3),
            Column("RAN", leaves=1),
            Column("NOTE", shrinks=True),
        ]
    )
    for row in rows:
        table.add(
            row.id,
            row.name,
            state_cell(row),
            or_dash(row.host),
            numbers(row.cards),
            ago(row.submitted_at, now),
            lasted(row.started_at, row.ended_at, now),
            row_note(row, (notes or {}).get(row.id, ""), now),
        )
    return table


def one_line(row: JobRow) -> str:
    """A job in a sentence, for standard error: `k3f9x2a1 (resnet18) FAILED exit 1`."""
    return f"{row.id} ({visible(row.name)}) {state_cell(row).text}" + (" (host does not answer)" * row.unreachable)


def facts(pairs: Iterable[tuple[str, str]], indent: str = "  ") -> list[str]:
    """Lines of `name  value`, aligned; pairs without a value are left out."""
    known = [(name, value) for name, value in pairs if value and value != "-"]
    columns = max((width(name) for name, _ in known), default=0)
    return [f"{indent}{name:<{columns}}  {visible(value)}" for name, value in known]


def attempts_table(attempts: Iterable[Mapping[str, Any]], now: datetime) -> Table:
    """A job's attempts."""
    table = Table([Column("#", right=True), Column("STARTED"), Column("RAN"), Column("CARDS"), Column("ENDED")])
    for item in attempts:
        table.add(
            or_dash(item.get("number")),
            local(item.get("started_at")),
            lasted(item.get("started_at"), item.get("ended_at"), now),
            numbers(item.get("cards")),
            how(item) or ("-" if item.get("ended_at") else "not yet"),
        )
    return table


def timeline(events: Iterable[Mapping[str, Any]]) -> list[str]:
    """A job's events, one a line, with whatever they carry; what is not known is left out."""
    told = [(local(event.get("at")), str(event.get("kind", "?")), _more(event)) for event in events]
    columns = max((width(visible(kind)) for _, kind, _ in told), default=0)
    return [f"  {at}  {visible(kind):<{columns}}  {visible(more)}".rstrip() for at, kind, more in told]


def _more(event: Mapping[str, Any]) -> str:
    """What an event carries besides its time and kind: `attempt 1, cards 0-3`. Noted by the host needs no word."""
    parts = []
    for key, value in event.items():
        if key in ("at", "kind", "v", "hold") or value is None or value == [] or (key, value) == ("source", "host"):
            continue
        words = numbers(value) if key == "cards" and isinstance(value, list) else with_local_times(_short(value))
        parts.append(words if key == event.get("kind") else f"{key.replace('_', ' ')} {words}")
    return ", ".join(parts)


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 120 else text[:119] + "…"


def checkpoint_table(checkpoints: Iterable[Mapping[str, Any]], now: datetime) -> Table:
    """A job's checkpoints."""
    table = Table(
        [
            Column("NAME", shrinks=True),
            Column("STEP", right=True),
            Column("SIZE", right=True),
            Column("WRITTEN", leaves=1),
            Column("STATE"),
            Column("METRICS", shrinks=True),
            Column("PULLED TO", shrinks=True, leaves=2),
        ]
    )
    for item in checkpoints:
        complete = item.get("complete")
        metrics = item.get("metrics")
        table.add(
            or_dash(item.get("name")),
            or_dash(item.get("step")),
            size(item.get("size")),
            ago(item.get("modified_at"), now),
            Cell("complete", "green") if complete else Cell("unfinished" if complete is False else "-", "yellow"),
            " ".join(f"{key}={value}" for key, value in metrics.items()) if isinstance(metrics, dict) else "-",
            or_dash(item.get("pulled_to")),
        )
    return table


def metrics_table(metrics: Mapping[str, Mapping[str, Any]]) -> Table:
    """What a job told in numbers."""
    table = Table(
        [
            Column("METRIC", shrinks=True),
            Column("LAST", right=True),
            Column("AT STEP", right=True),
            Column("LEAST", right=True, leaves=1),
            Column("GREATEST", right=True, leaves=2),
            Column("VALUES", right=True, leaves=3),
        ]
    )
    for name, told in metrics.items():
        ends = [_number((told.get(key) or {}).get("value")) for key in ("last", "min", "max")]
        step = _number((told.get("last") or {}).get("step"))
        table.add(name, ends[0], step, *ends[1:], or_dash(told.get("count")))
    return table


def _number(value: Any) -> str:
    """A number in a few characters; `-` if it is not known."""
    return f"{value:.6g}" if isinstance(value, float) else or_dash(value)


def file_table(files: Iterable[Mapping[str, Any]]) -> Table:
    """Files that were fetched."""
    table = Table([Column("FILE", shrinks=True), Column("SIZE", right=True), Column("SHA-256", leaves=1)])
    for item in files:
        table.add(or_dash(item.get("path")), size(item.get("size")), str(item.get("sha256") or "-")[:16])
    return table


def yaml_lines(value: Any, indent: str = "") -> list[str]:
    """A spec as YAML for people: unset and empty keys are left out, strings are quoted where they must be."""
    if isinstance(value, Mapping):
        lines = []
        for key, item in value.items():
            if item is None or item == [] or item == {}:
                continue
            if isinstance(item, Mapping):
                lines += [f"{indent}{key}:", *yaml_lines(item, indent + "  ")]
            else:
                lines.append(f"{indent}{key}: {_flow(item)}")
        return lines
    return [f"{indent}{_flow(value)}"]


def _flow(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_flow(str(key))}: {_flow(item)}" for key, item in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_flow(item) for item in value) + "]"
    if isinstance(value, str) and not _is_plain(value):
        return visible(json.dumps(value, ensure_ascii=False))
    return str(value) if isinstance(value, str) else json.dumps(value, default=str)


def _is_plain(text: str) -> bool:
    """True for a word that YAML reads back as this very text without quotes."""
    if not text or (text[0] not in "/_.~$" and not text[0].isalpha()) or visible(text) != text:
        return False
    if text.lower() in ("true", "false", "null", "yes", "no", "on", "off", "~", ".nan", ".inf"):
        return False
    return all(char.isalnum() or char in "/_.~$-+=@%" for char in text) and text not in (".", "~")


def upload_words(report: Mapping[str, Any]) -> str:
    """What an upload did, in a sentence; empty if there is nothing to tell."""
    if "sent" not in report:
        return ""
    sent, files = report["sent"], report.get("files")
    whole = files is None or sent >= files
    text = f"sent {plural(sent, 'file')}" if whole else f"sent {sent} of {plural(files or 0, 'file')}"
    if report.get("sent_bytes") is not None:
        text += f" ({size(report['sent_bytes'])})"
    if not whole:
        text += ", the others were there already" if sent else ": all of it was there already"
    biggest = [f"{path} {size(count)}" for path, count in list(report.get("biggest") or [])[:3]]
    if biggest and sent and whole:
        text += "; biggest: " + ", ".join(biggest)
    if report.get("skipped"):
        text += f"; left out by rule: {_left_out(report['skipped'], report.get('left_out') or [])}"
    if report.get("commit"):
        text += f"; commit {str(report['commit'])[:12]}" + (" with changes" if report.get("dirty") else "")
    return text


def _left_out(count: int, entries: list[Mapping[str, Any]]) -> str:
    named = [f"{entry.get('path')} ({entry.get('rule')})" for entry in entries[:3]]
    more = count - len(named)
    return ", ".join(named) + (f" and {more} more" if named and more > 0 else "" if named else str(count))


def findings_lines(findings: Iterable[Mapping[str, Any]]) -> list[str]:
    """Findings, the likeliest first, each with its evidence and what to do; those of one line stand together."""
    lines: list[str] = []
    short_before = True
    for item in findings:
        more = [f"    {visible(with_local_times(line))}" for line in _evidence(item.get("evidence"))]
        if item.get("remedy"):
            more.append(f"  → {visible(item['remedy'])}")
        if lines and (more or not short_before):
            lines.append("")
        lines += [visible(with_local_times(str(item.get("summary") or item.get("code") or "?"))), *more]
        short_before = not more
    return lines


def _evidence(value: Any) -> list[str]:
    if not value:
        return []
    if isinstance(value, (list, tuple)):
        return [line for item in value for line in _evidence(item)]
    return value.splitlines() if isinstance(value, str) else [_short(value)]


def plural(count: int, word: str) -> str:
    """`1 job`, `3 jobs`."""
    return f"{count} {word}" + ("" if count == 1 else "s")
