"""Who wrote a line of a distributed job's log, when, and which rank its launcher says failed first. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from jobrunner.core.values import dataclass

_RANK = re.compile(
    r"^\[rank(?P<a>\d+)\]|\[Rank (?P<b>\d+)\]|\bRankID:(?P<c>\d+)|^\[default(?P<d>\d+)\]:|\[rank (?P<e>\d+)\]"
    r"|^\[(?P<f>\d+)\]<std(?:err|out)>|^[Rr]ank[ _:=]?(?P<g>\d+)\b|\brank=(?P<h>\d+)\b|\[RANK[ :_]?(?P<i>\d+)\]"
    r"|\bglobal_rank[=: ]+(?P<j>\d+)"
)
_PID_AND_RANK = re.compile(r"\bPID:\s?(\d+)\b.*?\bRankID:(\d+)")
_PID = re.compile(r"\[?PID:\s?(\d+)\b|^\[(?:ERROR|CRITICAL)\] \w+\((\d+),")
_STAMP = re.compile(
    r"(?<!\d)(\d{4})[-/](\d\d)[-/](\d\d)[-T _](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,3})(?:\.(\d{1,3}))?)?(?!\d)"
)
_ROOT = re.compile(r"Root Cause \(first observed failure\)")
_ELASTIC = re.compile(r"failed \(exitcode: (?P<code>-?\d+)\) local_rank: (?P<rank>\d+) \(pid: \d+\)")
_SPED = re.compile(r"--local_rank=(?P<rank>\d+).*exits with return code = (?P<code>-?\d+)")
_RANK_LINE = re.compile(r"^\s*rank\s*:\s*(\d+)")
_CODE_LINE = re.compile(r"^\s*exitcode\s*:\s*(-?\d+)")


@dataclass(frozen=True)
class Line:
    """A line of a log: its number from 1 (None if it is not known), and the file if that is not the job's own log."""

    number: int | None
    text: str
    source: str = ""


@dataclass(frozen=True)
class Failure:
    """Who failed first, as a launcher tells it; `exit_code` is negative for a signal."""

    rank: int | None
    exit_code: int | None
    line: Line

    @property
    def words(self) -> tuple[str, ...]:
        """How that rank ended, in the words of an entry's `ends`."""
        return () if self.exit_code is None else (f"rank exit {self.exit_code}",)


def rank_of(text: str, pids: dict[int, int] | None = None) -> int | None:
    """The rank that a line names as its writer; through its process, if another line tells whose that is."""
    match = _RANK.search(text, 0, 400)
    if match is not None:
        return int(next(value for value in match.groups() if value is not None))
    if pids:
        found = _PID.search(text, 0, 400)
        if found is not None:
            return pids.get(int(found.group(1) or found.group(2)))
    return None


def rank_map(lines: Iterable[Line]) -> dict[int, int]:
    """Ranks by process id, from the lines that name both."""
    found: dict[int, int] = {}
    for line in lines:
        if "RankID:" in line.text:
            match = _PID_AND_RANK.search(line.text, 0, 400)
            if match is not None:
                found[int(match.group(1))] = int(match.group(2))
    return found


def stamp_of(text: str) -> str:
    """The time that a line tells, as text that sorts in time; "" without one."""
    match = _STAMP.search(text, 0, 200)
    if match is None:
        return ""
    year, month, day, hour, minute, second, milli, micro = match.groups()
    return f"{year}{month}{day}{hour}{minute}{second}.{(milli or '').ljust(3, '0')}{(micro or '').ljust(3, '0')}"


def failure_of(lines: Sequence[Line]) -> Failure | None:
    """Who failed first, from torchrun's summary, else from the first report of torchrun or DeepSpeed."""
    for place, line in enumerate(lines):
        if "Root Cause" in line.text and _ROOT.search(line.text):
            return _summary(lines, place)
    for line in lines:
        if "local_rank" in line.text:
            match = _ELASTIC.search(line.text) or _SPED.search(line.text)
            if match is not None:
                return Failure(int(match.group("rank")), int(match.group("code")), line)
    return None


def _summary(lines: Sequence[Line], place: int) -> Failure:
    rank = code = None
    for line in lines[place + 1 : place + 14]:
        rank_line, code_line = _RANK_LINE.search(line.text), _CODE_LINE.search(line.text)
        if rank_line is not None and rank is None:
            rank = int(rank_line.group(1))
        if code_line is not None and code is None:
            code = int(code_line.group(1))
    return Failure(rank, code, lines[place])
