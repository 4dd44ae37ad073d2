"""Every entry of the catalogue: right by itself, in both languages, and found in a log that shows it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from jobrunner.agent.diagnose import trouble
from jobrunner.core.catalogue import LANGUAGES, literal_of
from jobrunner.core.catalogue_check import read_user
from jobrunner.core.catalogue_match import diagnose
from jobrunner.core.ranks import Line
from jobrunner.service.catalogue import shipped

LOGS = Path(__file__).resolve().parents[1] / "data" / "logs"
DATA = Path(__file__).resolve().parents[2] / "jobrunner" / "core" / "data" / "catalogue"
SAMPLES = sorted((LOGS / "entries").glob("*.log"))
WHOLE = json.loads((LOGS / "whole" / "expected.json").read_text(encoding="utf-8"))
ENTRIES = list(shipped().entries.values())
TROUBLE = trouble()


def lines_of(path: Path) -> list[Line]:
    text = path.read_text(encoding="utf-8")
    return [Line(number, line) for number, line in enumerate(text.splitlines(), 1)]


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_a_sample_is_explained_by_its_entry(path: Path) -> None:
    found = diagnose(shipped(), lines_of(path))
    assert found.best is not None, "nothing was found"
    assert found.best.entry.id == path.name.split(".")[0], [hit.entry.id for hit in found.hits]
    line = found.best.line
    assert line is not None and TROUBLE.search(line.text.lower().encode()), "the host would not have sent this line"


@pytest.mark.parametrize("name", sorted(WHOLE))
def test_a_whole_log_is_explained_by_its_cause(name: str) -> None:
    found = diagnose(shipped(), lines_of(LOGS / "whole" / name))
    best = found.best
    assert best is not None
    told = {"code": best.entry.id, "line": best.line.number if best.line else None, "rank": best.rank}
    assert told == WHOLE[name], [(hit.entry.id, hit.kind, hit.rank) for hit in found.hits]


def test_every_entry_has_a_sample() -> None:
    shown = {path.name.split(".")[0] for path in SAMPLES}
    assert {entry.id for entry in ENTRIES if entry.kind != "verdict"} - shown == set()
    assert len(ENTRIES) > 200


@pytest.mark.parametrize("path", sorted(DATA.glob("*.json")), ids=lambda path: path.stem)
def test_the_data_passes_the_check_of_users_files(path: Path) -> None:
    _, problems = read_user(path.read_text(encoding="utf-8"), path.name)
    assert [str(problem) for problem in problems if "fix" not in problem.message] == []
    ids = [item["id"] for item in json.loads(path.read_text(encoding="utf-8")).get("entries", [])]
    assert len(set(ids)) == len(ids)


def test_every_text_is_there_in_both_languages() -> None:
    for entry in ENTRIES:
        for text in (entry.cause, entry.fix):
            assert set(text) == set(LANGUAGES), entry.id
        assert entry.cause["en"] and entry.cause["zh"], entry.id
        assert bool(entry.fix["en"]) == bool(entry.fix["zh"]) and (entry.fix["en"] or entry.kind == "verdict"), entry.id
        assert re.search("[一-鿿]", entry.cause["zh"]), f"{entry.id} is not Chinese"
        assert not re.search("[一-鿿]", entry.cause["en"] + entry.fix["en"]), f"{entry.id} is not English"
    for name, codes in shipped().tables.items():
        for code, meaning in codes.items():
            assert set(meaning.text) == set(LANGUAGES) and all(meaning.text.values()), (name, code)


def test_what_texts_name_is_captured_or_known() -> None:
    known = {"exit_code", "signal", "rank", "code"}
    for entry in ENTRIES:
        groups = {name for pattern in entry.patterns for name in re.compile(pattern).groupindex}
        means = {f"{group}_means" for group in entry.decode}
        assert set(entry.decode) <= groups and set(entry.decode.values()) <= set(shipped().tables), entry.id
        for text in (*entry.cause.values(), *entry.fix.values()):
            assert set(re.findall(r"\{(\w+)\}", text)) <= groups | means | known, entry.id


def test_ids_are_unique_over_all_files() -> None:
    ids = [item["id"] for path in DATA.glob("*.json") for item in json.loads(path.read_text()).get("entries", [])]
    assert sorted(ids) == sorted(set(ids))


@pytest.mark.parametrize(
    ("pattern", "literal", "cased"),
    [
        (r"No module named '?torch_npu'?", "No module named ", True),
        (r"(?i)Address already in USE", "address already in use", False),
        (r"a|b long enough", "", True),
        (r"(?:x|y) out of memory\.? Tried", " out of memory", True),
        (r"ab[c|d]efgh\d+ijkl", "efgh", True),
        (r"colou?r of the sky", "r of the sky", True),
        (r"\bEI0006\b", "EI0006", True),
        (r"x{3}abc", "abc", True),
        (r"tail\+plus", "tail+plus", True),
        (r"aa+bcd", "bcd", True),
    ],
)
def test_the_literal_of_a_pattern(pattern: str, literal: str, cased: bool) -> None:
    assert literal_of(pattern) == (literal, cased)


def test_the_literal_stands_in_all_that_matches() -> None:
    for path in SAMPLES:
        for line in path.read_text(encoding="utf-8").splitlines():
            for entry, pattern, literal, cased in shipped().needles:
                if re.search(pattern, line):
                    assert literal in (line if cased else line.lower()), (entry.id, pattern)
