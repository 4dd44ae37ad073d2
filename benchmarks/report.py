"""What was measured, as rows of a table: ours, the peer's, their ratio, its spread, whether the aim is reached."""

from __future__ import annotations

import os
import platform
import re
import shutil
import statistics
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

HEADER = (
    "| measure | round trip | ours | peer | figure: median (min to max) | of the best | to reach | | load |\n"
    "|---|---|---|---|---|---|---|---|---|"
)
BEGIN, END = "<!-- begin: written by `make bench` -->", "<!-- end -->"


@dataclass(frozen=True)
class Aim:
    """What a figure has to be: at most (or at least) so much. `unit` is that of the figure; a ratio has none."""

    limit: float
    unit: str = ""
    least: bool = False

    def met(self, value: float) -> bool:
        return value >= self.limit if self.least else value <= self.limit

    def __str__(self) -> str:
        return f"{'≥' if self.least else '≤'} {number(self.limit)}{' ' + self.unit if self.unit else ''}"


@dataclass(frozen=True)
class Row:
    """A line of the table. `verdict`: "reached", "not", "" (nothing to reach), or why there is no figure."""

    what: str
    trip: str
    ours: str
    peer: str
    figure: str
    best: str
    aim: str
    verdict: str
    load: str

    def __str__(self) -> str:
        fields = (self.what, self.trip, self.ours, self.peer, self.figure, self.best, self.aim, self.verdict, self.load)
        return "| " + " | ".join(field.replace("|", "\\|") for field in fields) + " |"


def number(value: float) -> str:
    """Three digits that count."""
    if value == 0:
        return "0"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def spread(values: Sequence[float]) -> str:
    """`median (min to max)`."""
    middle = f"**{number(statistics.median(values))}**"
    return middle if len(values) < 2 else f"{middle} ({number(min(values))} to {number(max(values))})"


def _trip(trip_ms: float | None) -> str:
    return "" if trip_ms is None else f"{trip_ms:g} ms"


@dataclass
class Report:
    """The rows of a run; each is printed when it is there."""

    rows: list[Row] = field(default_factory=list)
    started: str = field(default_factory=lambda: time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()))
    load: tuple[float, float, float] = field(default_factory=os.getloadavg)

    def ratio(
        self,
        what: str,
        ours: Sequence[float],
        peer: str,
        theirs: Sequence[float],
        aim: Aim | None,
        *,
        trip: float | None = None,
        unit: str = "s",
    ) -> None:
        """Values of turns that belong together: their ratios are the figure."""
        ratios = [mine / other for mine, other in zip(ours, theirs, strict=True)]
        best = max if aim is not None and aim.least else min
        self._add(
            what,
            trip,
            f"{number(statistics.median(ours))} {unit}",
            f"{peer}: {number(statistics.median(theirs))} {unit}",
            ratios,
            number(best(ours) / best(theirs)),
            aim,
        )

    def value(
        self,
        what: str,
        values: Sequence[float],
        aim: Aim | None,
        *,
        unit: str,
        trip: float | None = None,
        peer: str = "",
    ) -> None:
        """Something that is a figure by itself; `peer` is shown beside."""
        ours = f"{number(statistics.median(values))} {unit}"
        self._add(what, trip, ours, peer, values, number(min(values)), aim)

    def missing(self, what: str, peer: str, *, trip: float | None = None) -> None:
        """There is nobody to compare with."""
        self._put(Row(what, _trip(trip), "", peer, "", "", "", f"no {peer} here", _load()))

    def failed(self, what: str, why: str) -> None:
        """A part of the run ended early."""
        why = " ".join(why.split())
        self._put(Row(what, "", "", "", "", "", "", f"failed: {why[:300]}", _load()))

    def _add(
        self, what: str, trip: float | None, ours: str, peer: str, values: Sequence[float], best: str, aim: Aim | None
    ) -> None:
        verdict = "" if aim is None else "reached" if aim.met(statistics.median(values)) else "not"
        figure = spread(values) + (f", {len(values)} turns" if len(values) > 1 else "")
        self._put(Row(what, _trip(trip), ours, peer, figure, best, "" if aim is None else str(aim), verdict, _load()))

    def _put(self, row: Row) -> None:
        if not self.rows:
            print(HEADER, flush=True)
        self.rows.append(row)
        print(row, flush=True)

    def text(self, minutes: float) -> str:
        """The whole of it, as it stands in RESULTS.md."""
        told = [row for row in self.rows if row.verdict in ("reached", "not")]
        reached = sum(row.verdict == "reached" for row in told)
        head = [
            f"{self.started}, {minutes:.0f} minutes. {machine()}; load {' '.join(f'{item:.1f}' for item in self.load)} "
            f"at the start, beside each row when it was done. {versions()}. Cards are simulated.",
            "",
            f"{reached} of {len(told)} aims reached.",
            "",
            HEADER,
        ]
        return "\n".join([*head, *map(str, self.rows)])

    def write(self, path: Path, minutes: float) -> None:
        """Put the table in its place in RESULTS.md; what else stands there stays."""
        old = path.read_text() if path.exists() else f"# Results\n\n{BEGIN}\n{END}\n"
        before, found, rest = old.partition(BEGIN)
        if not found:
            before, rest = f"{old.rstrip()}\n\n", f"{END}\n"
        after = rest.partition(END)[2]
        path.write_text(f"{before}{BEGIN}\n\n{self.text(minutes)}\n\n{END}{after}")


def _load() -> str:
    return f"{os.getloadavg()[0]:.1f}"


def machine() -> str:
    """A line about this machine."""
    model = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text())
    memory = re.search(r"MemTotal:\s*(\d+)", Path("/proc/meminfo").read_text())
    return (
        f"{os.cpu_count()} cores ({model.group(1) if model else '?'}), "
        f"{int(memory.group(1)) / 2**20:.0f} GB, Linux {platform.release()}"
        if memory
        else f"{os.cpu_count()} cores"
    )


def _says(argv: Sequence[str], pattern: str) -> str | None:
    """A program's version, as it tells it; None where it is not there."""
    program = shutil.which(argv[0], path=os.environ.get("PATH", "") + ":/usr/sbin")
    if program is None:
        return None
    done = subprocess.run([program, *argv[1:]], capture_output=True, text=True, check=False)
    found = re.search(pattern, done.stdout + done.stderr)
    return found.group(1) if found else "?"


def versions() -> str:
    """Whose times these are."""
    told = [f"Python {platform.python_version()}"]
    for package in ("paramiko", "fabric", "cryptography", "pydantic", "typer"):
        try:
            told.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            continue
    for name, argv, pattern in (
        ("OpenSSH", ["ssh", "-V"], r"OpenSSH_(\S+?),? "),
        ("rsync", ["rsync", "--version"], r"version (\S+)"),
        ("task-spooler", ["tsp", "-V"], r"v([\d.]+)"),
        ("Slurm", ["slurmctld", "-V"], r"slurm\S* (\S+)"),
    ):
        said = _says(argv, pattern)
        told.append(f"{name} {said}" if said else f"no {name}")
    return ", ".join(told)
