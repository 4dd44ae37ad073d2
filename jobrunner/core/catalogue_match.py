"""Which known failures a log shows, the likeliest first. Pure: lines and the catalogue in, findings out.

Order: causes before symptoms (something waited in vain), echoes (others tell of an end) and envelopes (a wrapper's
report); the rank that failed first before the others; what ended the log before trouble that the job survived; what
tells much before what tells little; and then the first in time.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import field, replace

from jobrunner.core.catalogue import Catalogue, Entry, Kind
from jobrunner.core.ranks import Failure, Line, failure_of, rank_map, rank_of, stamp_of
from jobrunner.core.values import dataclass

TIERS: dict[str, int] = {"cause": 0, "symptom": 1, "echo": 2, "envelope": 3}
QUIET_LINES = 300
"""After so many lines without trouble the job had gone on: what lies before did not end it."""
NEAR_LINES = 25
MAX_LINES = 20_000
_MILD = re.compile(r"\b(?:WARN|WARNING|INFO|DEBUG|[Ff]uture[Ww]arning|UserWarning|DeprecationWarning)\b|^\[W")
_GRAVE = re.compile(r"\b(?:ERROR|FATAL|CRITICAL)\b|^\[E|Error:")
_ANSI = re.compile("\x1b(?:\\[[0-9;:?]*[ -/]*[@-~]|[\\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\\\)?|[@-Z\\\\-_])")
_ADVICE = re.compile(r"^\s*(?:Possible Cause|Solution|Reason|Suggestion|Suggest)\s*:", re.I)


@dataclass(frozen=True)
class Hit:
    """One line that shows a known failure. `line` is None for one that the job's end alone shows.

    `mild`: the line says of itself that it is a warning. `sure`: the job's end shows the same failure.
    """

    entry: Entry
    kind: Kind
    line: Line | None
    place: int
    values: dict[str, str] = field(default_factory=dict)
    rank: int | None = None
    ranks: tuple[int, ...] = ()
    advice: tuple[str, ...] = ()
    mild: bool = False
    sure: bool = False

    @property
    def level(self) -> int:
        """How much it tells. 3: much · 2: something · 1: an error nobody knows · 0: maybe noise, as any warning."""
        if self.sure:
            return 3
        if self.mild:
            return 0
        return 3 if self.entry.weight >= 4 else min(2, self.entry.weight)


@dataclass(frozen=True)
class Diagnosis:
    """What a log shows: the best hit of each entry, ranked; and what the launcher says about who failed first."""

    hits: tuple[Hit, ...] = ()
    failure: Failure | None = None

    @property
    def best(self) -> Hit | None:
        """The likeliest, or None where nothing is known."""
        return self.hits[0] if self.hits else None

    def only(self, *kinds: Kind) -> Diagnosis:
        """The hits of some kinds."""
        return Diagnosis(tuple(hit for hit in self.hits if hit.kind in kinds))


def clean(text: str) -> str:
    """A line without colours and other escape sequences."""
    return _ANSI.sub("", text) if "\x1b" in text else text


def diagnose(
    catalogue: Catalogue, lines: Iterable[Line], ends: Iterable[str] = (), device: str | None = None
) -> Diagnosis:
    """Match lines (in order; those of the job's own log first) and the words that say how the job ended."""
    known = [replace(line, text=clean(line.text)) for line in _bounded(lines)]
    failure = failure_of(known)
    words = {*ends, *(failure.words if failure else ())}
    hits = [replace(hit, sure=bool(words.intersection(hit.entry.ends))) for hit in _hits(catalogue, known)]
    hits += _by_end(catalogue, words, len(known), failure)
    # What tells little, and of a kind of card that the job did not have, is no explanation.
    hits = [hit for hit in hits if hit.level == 3 or not _foreign(hit, device)]
    ranked = _ranked(_merged(hits), failure, device)
    return Diagnosis(tuple(_one_of_each(ranked)), failure)


def _bounded(lines: Iterable[Line]) -> list[Line]:
    known = list(lines)
    return known if len(known) <= MAX_LINES else known[: MAX_LINES // 2] + known[-MAX_LINES // 2 :]


def _hits(catalogue: Catalogue, lines: Sequence[Line]) -> list[Hit]:
    """Every line with what explains it best: of several entries that of the better kind and the greater weight."""
    text = "\n".join(line.text for line in lines)
    lower = text.lower()
    wanted = [needle for needle in catalogue.needles if needle[2] in (text if needle[3] else lower)]
    compiled = [(entry, literal, cased, re.compile(pattern)) for entry, pattern, literal, cased in wanted]
    pids = rank_map(lines)
    found: list[Hit] = []
    for place, line in enumerate(lines):
        small = line.text.lower()
        best: Hit | None = None
        for entry, literal, cased, pattern in compiled:
            if literal not in (line.text if cased else small):
                continue
            match = pattern.search(line.text)
            if match is None or _excluded(entry, lines, place):
                continue
            hit = _hit(catalogue, entry, lines, place, match, pids)
            if best is None or _telling(hit) > _telling(best):
                best = hit
        if best is not None:
            found.append(best)
    return found


def _telling(hit: Hit) -> tuple[int, int]:
    """What explains one and the same line better: the more specific entry, whatever its kind."""
    return hit.entry.weight, -TIERS.get(hit.kind, 9)


def _excluded(entry: Entry, lines: Sequence[Line], place: int) -> bool:
    if any(re.search(pattern, lines[place].text) for pattern in entry.unless):
        return True
    if not entry.near:
        return False
    around = [line.text for line in lines[max(0, place - NEAR_LINES) : place + NEAR_LINES + 1]]
    return not any(re.search(pattern, text) for pattern in entry.near for text in around)


def _hit(
    catalogue: Catalogue, entry: Entry, lines: Sequence[Line], place: int, match: re.Match[str], pids: dict[int, int]
) -> Hit:
    line = lines[place]
    values = {name: value for name, value in match.groupdict().items() if value}
    kind = entry.kind
    for group, table in entry.decode.items():
        code = catalogue.code(table, values.get(group, ""))
        if code is not None and code.kind is not None:
            kind = code.kind
    advice = []
    for other in lines[place + 1 : place + 4]:
        if not _ADVICE.match(other.text):
            break
        advice.append(other.text.strip())
    mild = bool(_MILD.search(line.text[:160])) and not _GRAVE.search(line.text[:160])
    rank = rank_of(line.text, pids)
    return Hit(entry, kind, line, place, values, rank, () if rank is None else (rank,), tuple(advice), mild)


def _by_end(catalogue: Catalogue, words: set[str], place: int, failure: Failure | None) -> list[Hit]:
    """What the end alone shows, without a line."""
    rank = failure.rank if failure else None
    return [
        Hit(entry, entry.kind, None, place, rank=rank)
        for entry in catalogue.entries.values()
        if entry.kind != "verdict" and words.intersection(entry.ends)
    ]


def _merged(hits: Sequence[Hit]) -> list[Hit]:
    """The same failure on several ranks once each rank is known: every hit knows the others' ranks."""
    ranks: dict[tuple[str, Kind], set[int]] = {}
    for hit in hits:
        if hit.rank is not None:
            ranks.setdefault((hit.entry.id, hit.kind), set()).add(hit.rank)
    return [replace(hit, ranks=tuple(sorted(ranks.get((hit.entry.id, hit.kind), ())))) for hit in hits]


def _foreign(hit: Hit, device: str | None) -> bool:
    return bool(hit.entry.devices) and device is not None and device not in hit.entry.devices


def _ranked(hits: Sequence[Hit], failure: Failure | None, device: str | None) -> list[Hit]:
    first = failure.rank if failure else None
    segments = _segments(hits)
    causes = [segments[id(hit)] for hit in hits if hit.kind == "cause" and hit.level > 1]
    last = max(causes, default=0)

    def group(hit: Hit) -> tuple[int, ...]:
        wrong_rank = int(first is not None and hit.rank is not None and hit.rank != first)
        survived = int(hit.kind == "cause" and segments[id(hit)] < last)
        return TIERS.get(hit.kind, 9), wrong_rank, survived, -hit.level, int(_foreign(hit, device))

    ordered = sorted(hits, key=lambda hit: (*group(hit), hit.place, -hit.entry.weight))
    return _by_time(ordered, [group(hit) for hit in ordered])


def _by_time(ordered: list[Hit], groups: list[tuple[int, ...]]) -> list[Hit]:
    """The best group again by the time that its lines tell, if the first of them tells one."""
    size = sum(1 for other in groups if other == groups[0]) if groups else 0
    best, rest = ordered[:size], ordered[size:]
    stamps = [stamp_of(hit.line.text) if hit.line else "" for hit in best]
    if not best or not stamps[0]:
        return ordered
    told = sorted((pair for pair in zip(stamps, best, strict=True) if pair[0]), key=lambda pair: pair[0])
    silent = [hit for stamp, hit in zip(stamps, best, strict=True) if not stamp]
    return [hit for _, hit in told] + silent + rest


def _segments(hits: Sequence[Hit]) -> dict[int, int]:
    """By identity of a hit, in which stretch of trouble it lies; stretches are parted by many quiet lines."""
    found: dict[int, int] = {}
    segment, before = 0, None
    for hit in sorted(hits, key=lambda hit: hit.place):
        number = hit.line.number if hit.line is not None and not hit.line.source else None
        if number is not None:
            if before is not None and number - before > QUIET_LINES:
                segment += 1
            before = number
        found[id(hit)] = segment
    return found


def _one_of_each(hits: Sequence[Hit]) -> list[Hit]:
    seen: set[str] = set()
    return [hit for hit in hits if not (hit.entry.id in seen or seen.add(hit.entry.id))]  # type: ignore[func-returns-value]
