"""How hosts, cards and checks look as text."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from typing import Any

from jobrunner.cli.tables import Cell, Column, Table
from jobrunner.cli.views import HEALTH_STYLES
from jobrunner.cli.words import ago, local, numbers, or_dash, size, visible

Row = Mapping[str, Any]


def error_words(error: Any) -> str:
    """A host's error, given as text or as the three keys of `errors[]`."""
    return str(error.get("message") or error.get("code")) if isinstance(error, Mapping) else str(error or "")


def reach_cell(host: Row) -> Cell:
    """Whether the host answered."""
    reachable = host.get("reachable")
    if reachable is None:
        return Cell("-")
    return Cell("yes", "green") if reachable else Cell("no answer", "red")


def host_table(hosts: Iterable[Row], now: datetime) -> Table:
    """Hosts as `hosts ls` shows them: nothing was asked."""
    table = Table(
        [
            Column("HOST"),
            Column("ADDRESS", shrinks=True, leaves=1),
            Column("DEVICE"),
            Column("CARDS"),
            Column("TAGS", shrinks=True, leaves=2),
            Column("LAST SEEN"),
            Column("NOTE", shrinks=True),
        ]
    )
    for host in hosts:
        notes = ["drained"] if host.get("drained") else []
        if host.get("in_file") is False:
            notes.append("not in the hosts file")
        table.add(
            or_dash(host.get("name")),
            or_dash(host.get("address")),
            or_dash(host.get("device")),
            _cards(host.get("cards")),
            ",".join(str(tag) for tag in host.get("tags") or []) or "-",
            ago(host.get("last_seen"), now),
            "; ".join(notes),
        )
    return table


def _cards(value: Any) -> str:
    return numbers(value) if isinstance(value, (list, tuple)) else or_dash(value)


def check_table(hosts: Iterable[Row]) -> Table:
    """Hosts as `hosts check` found them."""
    table = Table(
        [
            Column("HOST"),
            Column("ANSWERS"),
            Column("TIME", right=True, leaves=1),
            Column("PYTHON", leaves=2),
            Column("DEVICE"),
            Column("CARDS"),
            Column("DISK FREE", right=True),
            Column("NOTE", shrinks=True),
        ]
    )
    for host in hosts:
        notes = [error_words(host["error"])] if host.get("error") else []
        if host.get("drained"):
            notes.append("drained")
        skew = host.get("clock_skew_s")
        if isinstance(skew, (int, float)) and abs(skew) >= 5:
            notes.append(f"its clock is {abs(skew):.0f} s {'ahead' if skew > 0 else 'behind'}")
        time = host.get("round_trip_ms")
        table.add(
            or_dash(host.get("name")),
            reach_cell(host),
            f"{time:.0f} ms" if isinstance(time, (int, float)) else "-",
            or_dash(host.get("python")),
            or_dash(host.get("device")),
            _cards(host.get("cards")),
            size(host.get("disk_free_bytes")),
            "; ".join(notes),
        )
    return table


def card_table(hosts: Iterable[Row]) -> Table:
    """Every card of every host that answered."""
    table = Table(
        [
            Column("HOST"),
            Column("CARD", right=True),
            Column("MODEL", shrinks=True, leaves=1),
            Column("HEALTH"),
            Column("MEMORY", right=True),
            Column("USE", right=True),
            Column("TEMP", right=True, leaves=2),
            Column("POWER", right=True, leaves=3),
            Column("TAKEN BY", shrinks=True),
        ]
    )
    for host in hosts:
        for card in host.get("cards") or []:
            health = str(card.get("health") or "unknown")
            table.add(
                or_dash(host.get("name")),
                or_dash(card.get("index")),
                or_dash(card.get("model")),
                Cell(health, HEALTH_STYLES.get(health, "")),
                _memory(card),
                or_dash(card.get("utilization"), " %"),
                or_dash(card.get("temperature_c"), " °C"),
                or_dash(card.get("power_w"), " W"),
                _taken(card),
            )
    return table


def _memory(card: Row) -> str:
    used, total = card.get("memory_used_mb"), card.get("memory_total_mb")
    if used is None and total is None:
        return "-"
    return f"{or_dash(used)}/{or_dash(total)} MB"


def _taken(card: Row) -> Cell:
    """Who has a card: the lease's owner, else the processes seen on it."""
    if card.get("free"):
        return Cell("free", "green")
    lease = card.get("lease")
    if lease and lease.get("job"):
        since = f" since {local(card['since'])}" if card.get("since") else ""
        return Cell(f"{or_dash(lease.get('user'))} job {lease['job']}{since}", "yellow")
    if lease:
        return Cell(str(card.get("why_busy") or or_dash(lease.get("user"))), "yellow")
    processes = [
        f"{or_dash(item.get('user'))}: {or_dash(item.get('name'))} ({or_dash(item.get('pid'))})"
        for item in card.get("processes") or []
    ]
    return Cell(", ".join(processes) or str(card.get("why_busy") or "not free"), "yellow")


def waiting_lines(hosts: Iterable[Row]) -> list[str]:
    """Who waits for cards, host by host, in the order in which they come."""
    lines = []
    for host in hosts:
        for place, entry in enumerate(host.get("waiting") or [], 1):
            who = "my" if entry.get("mine") else f"{visible(entry.get('user'))}'s"
            name = f" ({visible(entry['name'])})" if entry.get("name") not in (None, entry.get("job")) else ""
            many = f"{entry.get('cards')} {visible(entry.get('device'))} card{'' if entry.get('cards') == 1 else 's'}"
            since = f" since {local(entry['since'])}" if entry.get("since") else ""
            job = f"{who} job {visible(entry.get('job'))}{name}"
            lines.append(f"{visible(host.get('name'))}: waiting, number {place}: {job}, {many}{since}")
    return lines


RAW_LINES = 12


def silent_hosts(hosts: Iterable[Row], told: Collection[str] = ()) -> list[str]:
    """What is to be said of hosts without cards: what is wrong, what to do, and what the vendor's tool said instead.

    `told`: errors that are printed anyway.
    """
    lines = []
    for host in hosts:
        error = host.get("error")
        if not error:
            lines += [] if host.get("cards") else [f"{visible(host.get('name'))}: it has no cards that we know of"]
            continue
        if isinstance(error, Mapping) and error.get("message") in told:
            continue
        lines.append(f"{visible(host.get('name'))}: {visible(error_words(error))}")
        if isinstance(error, Mapping) and error.get("remedy"):
            lines.append(f"→ {visible(error['remedy'])}")
        said = [line for line in str(host.get("raw") or "").splitlines() if line.strip()]
        lines += [f"    {visible(line)}" for line in said[:RAW_LINES]]
        if len(said) > RAW_LINES:
            lines.append(f"    … and {len(said) - RAW_LINES} more (`--json` has up to 4,000 characters of it)")
    return lines


def doctor_lines(hosts: Iterable[Row]) -> list[tuple[str, str]]:
    """Checks as (line, style) pairs, host by host; what is wrong comes with its remedy."""
    lines: list[tuple[str, str]] = []
    sums: list[tuple[str, str]] = []
    for host in hosts:
        checks = host.get("checks") or []
        lines.append((visible(host.get("name")), "bold"))
        for check in checks:
            ok = check.get("ok")
            mark, style = ("✓", "green") if ok else ("?", "yellow") if ok is None else ("✗", "red")
            found = check.get("found")
            text = f"  {mark} {visible(check.get('name'))}" + (f": {visible(found)}" if found else "")
            lines.append((text, style))
            if not ok and check.get("remedy"):
                lines.append((f"      → {visible(check['remedy'])}", ""))
        sums.append(_summing_up(visible(host.get("name")), [check.get("ok") for check in checks]))
    return [*lines, ("", ""), *sums]


def _summing_up(name: str, verdicts: list[Any]) -> tuple[str, str]:
    """One host's checks counted, for whoever sees only the last lines: `npu-a: 1 ✗ wrong, 2 ? to know, 40 ✓ fine`."""
    wrong, open_ = verdicts.count(False), verdicts.count(None)
    counts = [(wrong, "✗ wrong"), (open_, "? not known, or not there"), (len(verdicts) - wrong - open_, "✓ fine")]
    text = ", ".join(f"{count} {word}" for count, word in counts if count)
    return f"{name}: {text or 'nothing was checked'}", "red" if wrong else "yellow" if open_ else "green"


def removed_table(hosts: Iterable[Row]) -> Table:
    """What a cleaning removed, or would."""
    table = Table(
        [Column("HOST"), Column("PATH", shrinks=True), Column("SIZE", right=True), Column("WHY", shrinks=True)]
    )
    for host in hosts:
        for item in host.get("removed") or []:
            table.add(
                or_dash(host.get("name")), or_dash(item.get("path")), size(item.get("bytes")), or_dash(item.get("why"))
            )
    return table
