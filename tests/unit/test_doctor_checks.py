"""Every check of a host: right about a healthy one, and provoked by what goes wrong."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from jobrunner.service.doctor import Check, examine
from jobrunner.service.doctor.finding import applied
from jobrunner.service.doctor.table import RULES

from .doctor_cases import CASES, Case
from .doctor_facts import MISSING, declared, facts

# Checks of which the healthy host (an NPU host without cron) shows nothing, and of which nothing can be wrong here.
NOT_SHOWN = {"on reboot"}
ALWAYS_RIGHT = {"python", "root"}  # that they fail is seen before any fact is there: see test_doctor_reach
DOCS = Path(__file__).resolve().parents[2] / "docs" / "doctor.md"


def check_of(name: str, told: dict[str, Any], **entry: Any) -> tuple[Check, bool]:
    """One check of a host, and whether it stops a job."""
    [rule] = [rule for rule in RULES if rule.name == name]
    found = applied(rule, told, declared(**entry))
    assert found is not None, f"{name} does not concern that host"
    return found


def test_a_healthy_host_passes_every_check() -> None:
    checks, stoppers = examine(facts(), declared())
    assert [check for check in checks if check.ok is not True] == [] and stoppers == []
    assert not any(check.remedy for check in checks) and all(check.found for check in checks)
    assert len(checks) >= 60


@pytest.mark.parametrize("case", CASES, ids=str)
def test_what_goes_wrong_is_said_with_its_remedy(case: Case) -> None:
    check, stops = check_of(case.check, facts(**case.changes), **case.declared)
    assert check.ok is case.ok, check
    assert case.word in f"{check.found} {check.remedy}", check
    assert stops is case.stops, check
    assert check.found and (check.ok is not False or check.remedy), check


def test_every_check_is_provoked_and_has_a_name_of_its_own() -> None:
    names = [rule.name for rule in RULES]
    assert [name for name, count in Counter(names).items() if count > 1] == []
    provoked = {case.check for case in CASES if case.ok is not True}
    assert set(names) - provoked == ALWAYS_RIGHT
    shown = {check.name for check in examine(facts(), declared())[0]}
    assert set(names) - shown == NOT_SHOWN
    assert {case.check for case in CASES} <= set(names)


@pytest.mark.parametrize(
    "answer", [MISSING, {"late": True}, {"error": "OSError: hangs"}], ids=["none", "late", "error"]
)
@pytest.mark.parametrize("rule", [rule for rule in RULES if rule.parts], ids=lambda rule: rule.name)
def test_what_the_host_could_not_tell_is_unknown_and_stops_nothing(rule: Any, answer: Any) -> None:
    for part in rule.parts:
        check, stops = check_of(rule.name, facts(**{f"probe__{part}": answer}), on_reboot="crontab")
        assert check.ok is None and not stops and check.found and check.remedy


def test_a_host_that_told_nothing_at_all_is_judged_without_a_fault() -> None:
    checks, stoppers = examine({"host": {}, "probe": {}, "skew_s": None}, declared(device=None))
    assert len(checks) > 30 and [check.name for check in stoppers] == []


@pytest.mark.parametrize("device", ["mlu", "gpu", "musa", "cpu"])
def test_other_kinds_of_hosts_are_asked_what_concerns_them(device: str) -> None:
    cards = {"device": device, "cards": [], "error": None} if device != "cpu" else None
    checks = {check.name: check for check in examine(facts(cards=cards), declared(device=device))[0]}
    assert len(checks) >= 40
    assert ("plug-in" in checks) is (device != "cpu") is ("device files" in checks)
    assert ("vendor set-up" in checks) is (device in ("mlu", "musa"))


def test_the_page_about_the_doctor_lists_every_check() -> None:
    page = DOCS.read_text(encoding="utf-8")
    rows = [line.split("|")[1:-1] for line in page.splitlines() if line.startswith("| ")]
    told = {cells[0].strip(): (cells[1].strip(), cells[2].strip()) for cells in rows if len(cells) == 3}
    for rule in RULES:
        assert told.get(rule.name) == (rule.about, "yes" if rule.stops else ""), rule.name


@pytest.mark.parametrize(
    ("name", "changes", "found"),
    [
        ("clock", {"skew_s": -0.01}, "agrees with this machine's"),
        ("clock", {"skew_s": 2.0}, "differs from this machine's by +2.0 s"),
        ("agent", {"probe__own__agents": 2}, f"{'a' * 16}; beside it 1 other version"),
        ("disk", {"probe__disk__free_bytes": 5 * 2**30}, "5.0 GB free"),
        ("ports", {}, "free ranges between 20000 and 32000"),
        (
            "queue",
            {"probe__own__queued": 1, "probe__own__dispatcher": False},
            "no dispatcher runs, and 1 job should start",
        ),
    ],
)
def test_numbers_and_their_nouns(name: str, changes: dict[str, Any], found: str) -> None:
    assert check_of(name, facts(**changes))[0].found == found
