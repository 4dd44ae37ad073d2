"""The user's own catalogue file: used where it is right, told with file and line where it is not, never a failure."""

from __future__ import annotations

from pathlib import Path

import pytest

from jobrunner.core.catalogue_check import read_user
from jobrunner.core.catalogue_match import diagnose
from jobrunner.core.jobs import JobRow
from jobrunner.core.ranks import Line
from jobrunner.core.states import JobState
from jobrunner.service.catalogue import MOST_WARNINGS, glance, matched, shipped, user

GOOD = """\
entries:
  - id: licence
    kind: cause
    patterns: ['LICENCE (?P<what>\\w+) ran out', "(?i)no licence"]
    devices: npu
    weight: 9
    cause: {en: "{what} has ended", zh: "{what} 已到期"}
    fix: ask Li
  - id: house-code
    patterns: 'HOUSE-(?P<code>\\d+)'
    decode: {code: house}
    cause: "house error {code}: {code_means}"
tables:
  house:
    007: {en: seven, zh: 七}
    "8": eight
"""


def first(catalogue_text: str, line: str, lang: str = "en") -> dict[str, str]:
    catalogue, problems = read_user(catalogue_text, "c.yaml")
    assert problems == []
    row = JobRow("k3f9x2a1", "x", JobState.FAILED, reason="exit", exit_code=1, device="npu")
    return next(iter(matched(row, shipped().joined(catalogue), [Line(1, line)], lang)), {"code": "none"})


def test_entries_and_tables_of_ones_own() -> None:
    assert first(GOOD, "LICENCE magma ran out", "zh")["summary"] == "magma 已到期"
    assert first(GOOD, "LICENCE magma ran out")["remedy"] == "ask Li"
    assert first(GOOD, "HOUSE-007")["summary"] == "house error 007: seven"
    assert first(GOOD, "HOUSE-8", "zh")["summary"] == "house error 8: eight"


def test_the_example_of_the_documentation_is_right() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "explain.md").read_text(encoding="utf-8")
    text = page.split("```yaml\n")[1].split("```")[0]
    assert first(text, "LICENCE magma ran out")["code"] != "licence-expired", "the example's `near` is not there"
    catalogue, problems = read_user(text, "c.yaml")
    assert problems == [] and set(catalogue.entries) == {"licence-expired", "house-code", "killed-by-the-quota-robot"}
    assert first(text, "HOUSE-7")["summary"] == "house error 7: the door is open"


def test_json_and_a_bare_list_do_as_well() -> None:
    assert first('[{"id": "a", "patterns": ["boom"], "cause": "it went boom"}]', "boom")["summary"] == "it went boom"


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        ("entries:\n  - id: a\n    patterns: ['(']\n    cause: x\n", "3:16", "no regular expression"),
        ("entries:\n  - id: a\n    patterns: ['x*']\n    cause: x\n", "3:16", "matches every line"),
        ("entries:\n  - id: a\n    patern: x\n    cause: x\n", "3:5", "did you mean 'patterns'"),
        ("entries:\n  - id: A B\n    patterns: x\n    cause: x\n", "2:9", "write a word"),
        ("entries:\n  - id: a\n    kind: couse\n    patterns: x\n    cause: x\n", "3:11", "did you mean 'cause'"),
        ("entries:\n  - id: a\n    patterns: x\n", "2:5", "cause: found nothing"),
        ("entries:\n  - id: a\n    patterns: x\n    cause: {fr: x}\n", "4:13", "the language 'fr' is not known"),
        ("entries:\n  - id: a\n    cause: x\n", "2:5", "needs `patterns`"),
        ("entries:\n  - id: a\n    patterns: x\n    cause: x\n    weight: 20\n", "5:13", "from 0 to 9"),
        (
            "entries:\n  - id: a\n    patterns: x\n    cause: x\n    devices: [tpu]\n",
            "5:15",
            "npu, mlu, gpu, musa or cpu",
        ),
        ("entries:\n  - just text\n", "2:5", "an entry is a mapping"),
        ("entries: text\n", "1:10", "a list is wanted here"),
        ("entry: []\n", "1:1", "did you mean 'entries'"),
        ("just text\n", "1:1", "a catalogue is a mapping"),
        ("tables: {acl: {1: [2]}}\n", "1:19", "write a text"),
        ("tables: {acl: 3}\n", "1:15", "write codes"),
        ("entries: [\n", "2:1", "never closed"),
        ("entries:\n\t- x\n", "2:1", "tab"),
    ],
)
def test_what_is_wrong_is_told_with_its_place(text: str, place: str, words: str) -> None:
    _, problems = read_user(text, "c.yaml")
    told = [str(problem) for problem in problems]
    assert any(line.startswith(f"c.yaml:{place}: ") and words in line for line in told), told


def test_one_broken_entry_spoils_no_other() -> None:
    catalogue, problems = read_user(GOOD + "  broken: 3\n", "c.yaml")
    assert len(problems) == 1 and set(catalogue.entries) == {"licence", "house-code"} and "house" in catalogue.tables


def test_files_beside_the_hosts_file(tmp_path: Path) -> None:
    warnings: list[str] = []
    assert user(tmp_path, warnings.append).entries == {}
    (tmp_path / "catalogue.yaml").write_text(GOOD, encoding="utf-8")
    (tmp_path / "catalogue.json").write_text('{"entries": [{"id": "j", "patterns": "x", "cause": "y"}]}')
    assert set(user(tmp_path, warnings.append).entries) == {"licence", "house-code", "j"} and warnings == []
    (tmp_path / "catalogue.yaml").write_bytes(b"\xff\xfe\x00")
    assert set(user(tmp_path, warnings.append).entries) == {"j"} and "UTF-16" in warnings[0]
    (tmp_path / "catalogue.yaml").write_text("entries: [1, 2, 3, 4, 5, 6, 7]\n")
    warnings.clear()
    user(tmp_path, warnings.append)
    assert len(warnings) == MOST_WARNINGS + 1 and warnings[-1].endswith("2 further problems")
    (tmp_path / "catalogue.yaml").unlink()
    (tmp_path / "catalogue.yaml").mkdir()
    warnings.clear()
    assert set(user(tmp_path, warnings.append).entries) == {"j"} and "cannot be read" in warnings[0]


def test_a_glance_at_a_logs_end(tmp_path: Path) -> None:
    row = JobRow("k3f9x2a1", "x", JobState.FAILED, reason="exit", exit_code=1, device="cpu")
    log = b"cut off\xff\n  5%|#\r 10%|##\rOSError: [Errno 28] No space left on device\n"
    [finding] = glance(row, log, tmp_path / "hosts.yaml", "zh")
    assert finding["code"] == "no-space" and "磁盘已满" in finding["summary"]
    assert glance(row, b"", tmp_path / "hosts.yaml", "en") == []
    (tmp_path / "catalogue.yaml").write_text(GOOD, encoding="utf-8")
    assert glance(row, b"LICENCE x ran out", tmp_path / "hosts.yaml", "en")[0]["summary"] == "x has ended"


def test_a_stopped_job_is_not_explained_by_its_wrappers() -> None:
    row = JobRow("k3f9x2a1", "x", JobState.TIMEOUT, device="cpu")
    lines = [
        Line(1, "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:"),
        Line(2, "KeyboardInterrupt"),
    ]
    assert matched(row, shipped(), lines, "en") == []
    assert diagnose(shipped(), lines).best is not None
