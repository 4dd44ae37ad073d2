"""What a diagnosis says to a person: findings of `code summary evidence remedy` in English or Chinese. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from jobrunner.core.amounts import size
from jobrunner.core.catalogue import Catalogue, Entry, filled, in_language
from jobrunner.core.catalogue_match import Diagnosis, Hit
from jobrunner.core.ranks import Failure

MOST = 3
"""So many explanations of the best kind are told."""

EVIDENCE_CHARACTERS = 400
_ID = re.compile(r"(jobrunner [a-z]+(?: -f)?) ID\b")

_SAID = {
    "line": {"en": "line {number}", "zh": "第 {number} 行"},
    "end": {"en": "near the end", "zh": "接近末尾处"},
    "rank": {"en": " (rank {rank})", "zh": "（rank {rank}）"},
    "ranks": {"en": "the same on ranks {ranks}", "zh": "rank {ranks} 上也有同样的错误"},
    "how": {"en": "how it ended: {how}", "zh": "结束方式：{how}"},
    "disk": {"en": "now: {mount} has {free} free of {total}", "zh": "当前：{mount} 剩余 {free}，共 {total}"},
    "inodes": {"en": ", no inodes left", "zh": "，inode 已用尽"},
}


def said(word: str, lang: str, **values: object) -> str:
    """One of this module's own phrases."""
    return filled(_SAID[word][lang], {name: str(value) for name, value in values.items()})


def finding(
    entry: Entry, lang: str, job: str, evidence: str, values: Mapping[str, str], code: str = ""
) -> dict[str, Any]:
    """A finding from an entry's texts; `jobrunner … ID` in them names the job."""
    return {
        "code": code or entry.id,
        "summary": _named(filled(in_language(entry.cause, lang), values), job),
        "evidence": evidence,
        "remedy": _named(filled(in_language(entry.fix, lang), values), job),
    }


def _named(text: str, job: str) -> str:
    return _ID.sub(lambda match: f"{match.group(1)} {job}", text)


def findings(
    diagnosis: Diagnosis, catalogue: Catalogue, lang: str, job: str, how: str, skip: Iterable[str] = ()
) -> list[dict[str, Any]]:
    """The hits of the best kind that there is, the likeliest first, at most a few. `skip`: verdicts told already."""
    told = set(skip)
    hits = [hit for hit in diagnosis.hits if not told.intersection(hit.entry.same)]
    first = _first_rank(diagnosis, catalogue, lang, job) if not hits or hits[0].kind in ("echo", "envelope") else []
    if not hits:
        return first
    chosen = [hit for hit in hits if hit.kind == hits[0].kind]
    # What tells little is a guess: told only where it is the best there is, or the second best.
    strong = [hit for hit in chosen if hit.level == hits[0].level]
    return first + [_of_hit(hit, catalogue, lang, job, how, diagnosis.failure) for hit in strong[:MOST]]


def _first_rank(diagnosis: Diagnosis, catalogue: Catalogue, lang: str, job: str) -> list[dict[str, Any]]:
    """Where nothing tells the cause: who failed first, as the launcher says."""
    failure, entry = diagnosis.failure, catalogue.entries.get("first-rank")
    if failure is None or failure.rank is None or entry is None:
        return []
    line = failure.line
    where = said("line", lang, number=line.number) if line.number is not None else said("end", lang)
    values = {"rank": str(failure.rank), "code": "" if failure.exit_code is None else str(failure.exit_code)}
    return [finding(entry, lang, job, f"{where}: {clipped(line.text)}", values)]


def _of_hit(hit: Hit, catalogue: Catalogue, lang: str, job: str, how: str, failure: Failure | None) -> dict[str, Any]:
    return finding(hit.entry, lang, job, evidence(hit, lang, how, failure), values_of(hit, catalogue, lang))


def values_of(hit: Hit, catalogue: Catalogue, lang: str) -> dict[str, str]:
    """What a hit's pattern captured, and what its codes mean (`<group>_means`)."""
    values = dict(hit.values)
    for group, table in hit.entry.decode.items():
        code = catalogue.code(table, values.get(group, ""))
        if code is not None:
            values[f"{group}_means"] = in_language(code.text, lang)
    return values


def evidence(hit: Hit, lang: str, how: str, failure: Failure | None) -> str:
    """The line that showed it, with its number, its writer, what the program itself advises, and who else says so."""
    line = hit.line or (failure.line if failure is not None and failure.line.text else None)
    if line is None:
        return said("how", lang, how=how)
    place = said("line", lang, number=line.number) if line.number is not None else said("end", lang)
    if line.source:
        place = f"{line.source} {place}"
    if hit.rank is not None:
        place += said("rank", lang, rank=hit.rank)
    lines = [f"{place}: {clipped(line.text)}", *(clipped(text) for text in hit.advice)]
    if hit.line is None:
        lines.append(said("how", lang, how=how))
    others = [rank for rank in hit.ranks if rank != hit.rank]
    if others:
        lines.append(said("ranks", lang, ranks=runs(others)))
    return "\n".join(lines)


def clipped(text: str) -> str:
    """A line of bearable length."""
    text = text.strip()
    return text if len(text) <= EVIDENCE_CHARACTERS else text[: EVIDENCE_CHARACTERS - 2] + " …"


def runs(numbers: Iterable[int]) -> str:
    """`0-3, 6`."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ", ".join(str(part[0]) if len(part) == 1 else f"{part[0]}-{part[-1]}" for part in parts)


def disk_lines(disks: Iterable[Mapping[str, Any]], lang: str) -> list[str]:
    """How full the job's disks are now, the fullest first; only those that are short of space or inodes."""
    short = []
    for disk in disks:
        free, total = disk.get("free"), disk.get("total")
        if not isinstance(free, int) or not isinstance(total, int):
            continue
        inodes = disk.get("inodes_free") == 0
        if inodes or free < max(64 << 20, total // 50):
            line = said("disk", lang, mount=disk.get("mount", "?"), free=size(free), total=size(total))
            short.append((free, line + (said("inodes", lang) if inodes else "")))
    return [line for _, line in sorted(short)]
