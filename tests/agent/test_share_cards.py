"""Cards set aside, cards just freed, strays, settings and newer formats, by values."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from jobrunner.agent import cardlog, cards, cardview, jobs, readings, settings, stray, succession
from jobrunner.agent.accelerators.base import new_card
from jobrunner.agent.layout import Layout, card_name

START_S = 60


def record(**more: Any) -> dict[str, Any]:
    return {"reason": "exit", "exit_code": 1, "stopped_by": None, "usage": {"wall_s": 5.0}, **more}


@pytest.mark.parametrize(
    ("end", "died"),
    [
        (record(), True),
        (record(reason="signal", exit_code=None, signal="SIGSEGV"), True),
        (record(usage={"wall_s": 61.0}), False),
        (record(reason=None, exit_code=0), False),
        (record(reason=None, exit_code=0, usage={"wall_s": 0.1}), False),
        (record(reason=None, stopped_by="cancel"), None),
        (record(reason=None, stopped_by="timeout"), None),
        (record(reason="setup"), None),
        (record(reason="oom"), None),
        (record(reason="disk_full"), None),
        (record(reason="launch", exit_code=None), None),
        (record(reason="unobserved", exit_code=None), None),
        (record(usage={}), None),
    ],
)
def test_what_dying_at_start_is(end: dict[str, Any], died: bool | None) -> None:
    assert cardlog.verdict(end, START_S) is died


def word(at: float, job: str, died: bool, width: int = 1) -> list[Any]:
    return [at, job, died, width]


def history(**ends: list[list[Any]]) -> dict[int, dict[str, Any]]:
    return {int(name[1:]): {"ended": last[-1][0], "last": last} for name, last in ends.items()}


DEAD = [word(1, "a", True), word(2, "b", True), word(3, "b", True)]


@pytest.mark.parametrize(
    ("ends", "total", "expected"),
    [
        ({"c0": DEAD}, 8, {0}),
        ({"c0": DEAD}, 1, {0}),
        ({"c0": DEAD[:2]}, 8, set()),
        ({"c0": [*DEAD, word(4, "c", False)]}, 8, set()),
        ({"c0": [word(0, "z", False), *DEAD]}, 8, {0}),
        ({"c0": [word(n, "a", True) for n in range(5)]}, 8, set()),
        # the jobs are to blame: they die elsewhere, too
        ({"c0": DEAD, "c1": [word(4, "c", True)]}, 8, {0}),
        ({"c0": DEAD, "c1": [word(4, "c", True)], "c2": [word(5, "c", True)]}, 8, set()),
        ({"c0": DEAD, "c1": [word(4, "c", True)]}, 2, set()),
        ({"c0": DEAD, "c1": [word(0, "c", True)], "c2": [word(0, "c", True)]}, 8, {0}),
        ({"c0": DEAD, "c1": [word(4, "c", True)], "c2": [word(5, "c", True)], "c3": [word(6, "d", False)]}, 8, {0}),
        # wide jobs: half of the host tells, more does not
        ({"c0": [word(n, job, True, 4) for n, job in enumerate("abc")]}, 8, {0}),
        ({"c0": [word(n, job, True, 5) for n, job in enumerate("abc")]}, 8, set()),
        ({f"c{n}": [word(n, job, True, 8) for n, job in enumerate("abc")] for n in range(8)}, 8, set()),
        ({"c0": [word(1, "a", True), word(2, "b", False, 8), word(3, "c", True), word(4, "d", True)]}, 8, set()),
    ],
)
def test_which_cards_are_set_aside(ends: dict[str, Any], total: int, expected: set[int]) -> None:
    assert set(cardlog.set_aside(history(**ends), range(total), 10.0, 3, 1800)) == expected


def test_a_card_comes_back_by_time_and_goes_at_the_next_death() -> None:
    ends = history(c0=DEAD)
    assert cardlog.set_aside(ends, range(8), 1802.9, 3, 1800) == {0: {"until": 1803.0, "jobs": ["a", "b"]}}
    assert cardlog.set_aside(ends, range(8), 1803.0, 3, 1800) == {}
    ends = history(c0=[*DEAD, word(1810, "c", True)])
    assert cardlog.set_aside(ends, range(8), 1811.0, 3, 1800)[0]["until"] == 3610.0
    assert cardlog.set_aside(ends, range(8), 1811.0, 0, 1800) == {}, "never, if it is set so"
    text = cardlog.text({"until": 1803.0, "jobs": ["a", "b"]}, str)
    assert text.startswith("set aside until 1803.0: the last jobs on it (a, b) died at their start; ")


def test_ends_are_noted_and_forgotten(tmp_path: Path) -> None:
    layout = Layout(os.fsencode(tmp_path), "i1")
    Path(os.fsdecode(layout.home)).mkdir(parents=True)
    for number in range(12):
        cardlog.note(layout, "npu", [0, 3], f"ajob{number:05d}", record(), now=100.0 + number)
    cardlog.note(layout, "npu", [3], "acancel01", record(reason=None, stopped_by="cancel"), now=200.0)
    cardlog.note(layout, "mlu", [1], "aother001", record(), now=300.0)
    cardlog.note(layout, "npu", [], "anocards1", record(), now=400.0)
    found = cardlog.read(layout, "npu")
    assert sorted(found) == [0, 3] and len(found[0]["last"]) == cardlog.KEEP
    assert found[3]["last"] == found[0]["last"] and found[3]["ended"] == 200.0
    assert found[0]["last"][-1] == [111.0, "ajob00011", True, 2]
    assert cardlog.freed_lately(found, 205.0, 20) == {3}
    (tmp_path / "hosts/i1/cardlog.json").write_text('{"npu": {"0": {"last": [1, [2]]}, "x": 3, "1": null}, "mlu": 5}')
    assert cardlog.read(layout, "npu") == {0: {"ended": 0, "last": []}} and cardlog.read(layout, "mlu") == {}
    cardlog.note(layout, "npu", [0], "aagain001", record(), now=500.0)
    assert cardlog.read(layout, "npu")[0]["last"] == [[500.0, "aagain001", True, 1]]
    cardlog.forget(layout)
    cardlog.forget(layout)
    assert cardlog.read(layout, "npu") == {}


def card(index: int, *processes: dict[str, Any], **more: Any) -> dict[str, Any]:
    idle = {"model": "910B3", "health": "ok", "memory_used_mb": 3314, "memory_total_mb": 65536, "utilization": 0}
    return {**new_card(index), **idle, "processes": list(processes), **more}


def process(pid: int, user: str | None = "ann", name: str = "python") -> dict[str, Any]:
    return {"pid": pid, "user": user, "name": name, "memory_mb": 900}


def report(*found: dict[str, Any]) -> dict[str, Any]:
    return {"device": "npu", "assumed": False, "warnings": [], "error": None, "cards": list(found)}


GONE = 4_000_000  # above any pid of this machine


def test_a_card_just_freed_is_no_strangers() -> None:
    """The tool still shows a process that is gone, and its memory."""
    assert int(Path("/proc/sys/kernel/pid_max").read_text()) <= 4_194_304 and not Path(f"/proc/{GONE}").exists()
    lagging = report(card(0, process(GONE, None), memory_used_mb=30000), card(1, process(1, "root")))
    assert stray.gone(lagging) == {GONE}
    assert stray.without(lagging, {GONE}, set()) == lagging, "only on cards that we had a moment ago"
    cleaned = stray.without(lagging, {GONE}, {0})
    assert [len(found["processes"]) for found in cleaned["cards"]] == [0, 1]

    def seen(leased: set[int], text: dict[str, Any]) -> list[tuple[bool, bool]]:
        judged, fit = cards.judge(text, [], {}), cards.judge(readings.unused(text), [], {})
        return [(found["idle"], found["handed"]) for found in readings.compact(text, leased, {}, judged, fit).values()]

    assert seen({0}, cleaned) == [(False, True), (False, False)]
    assert seen(set(), lagging) == [(False, False), (False, False)], "later, it is somebody's"
    bad = stray.without(report(card(0, process(GONE, None), health="bad")), {GONE}, {0})
    assert seen({0}, bad) == [(False, False)]


def test_in_a_container_no_pid_is_known_to_be_gone(tmp_path: Path) -> None:
    (tmp_path / "self/ns").mkdir(parents=True)
    (tmp_path / "self/ns/pid").symlink_to("pid:[4026532000]")
    assert stray.gone(report(card(0, process(GONE))), os.fsencode(tmp_path)) == set()


HOLDER = "ann (uid 61001), process 77 (python x.py)"
LEASE = {"user": "ann", "job": "aann00001", "name": "train", "since": "2026-12-01T09:30:00.000000Z"}


@pytest.mark.parametrize(
    ("facts", "more", "why"),
    [
        ({}, {}, None),
        ({"why_busy": "9 MB are in use and no process is shown"}, {"lingers": True}, None),
        ({"why_busy": "9 MB are in use", "processes": [process(7)]}, {"lingers": True}, "9 MB are in use"),
        ({"why_busy": "not healthy: bad"}, {"lingers": True, "fit": False}, "not healthy: bad"),
        (
            {"lease": LEASE, "why_busy": "leased"},
            {},
            "leased by ann for job aann00001 (train) since 2026-12-01T09:30:00.000000Z",
        ),
        (
            {"lease": dict.fromkeys(LEASE), "why_busy": "leased by somebody"},
            {"holder": HOLDER},
            f"leased by somebody who shows no job for it: {HOLDER}",
        ),
        ({}, {"aside": {"until": 0.0, "jobs": ["a", "b"]}}, "set aside until 1970-01-01T00:00:00.000000Z"),
        ({"why_busy": "in use"}, {"aside": {"until": 0.0, "jobs": ["a"]}}, "in use"),
    ],
)
def test_cards_as_people_see_them(facts: dict[str, Any], more: dict[str, Any], why: str | None) -> None:
    known = {"fit": True, "lingers": False, "aside": None, "holder": None, "now": 0.0, **more}
    shown = cardview.finished({**card(0), "why_busy": None, "lease": None, **facts}, **known)
    assert (shown["why_busy"] or "").startswith(why or "") and bool(shown["why_busy"]) is bool(why)
    assert shown["free"] is (why is None)
    assert shown["broken"] is (not known["fit"] or known["aside"] is not None)


def running(job_id: str, *own: int, device: str = "npu") -> tuple[str, dict[str, Any]]:
    return job_id, {"cards": list(own), "device": device}


def test_strays_and_strangers_are_told_apart() -> None:
    text = report(
        card(0, process(10), process(11)),  # both of job a, whose card it is
        card(1, process(10), process(20)),  # b's card, on which a strays
        card(2, process(30, "bob", "train")),  # nobody's: a stranger on a card that no job of mine has
        card(3, process(31, "bob", "train"), process(32, None)),  # c's, with a stranger, and one that is not known here
        card(4, process(40)),  # a job without cards
    )
    jobs_now = [running("a", 0), running("b", 1), running("c", 3), running("d", device="mlu")]
    owned = {10: "a", 11: "a", 20: "b", 40: "d"}
    assert stray.strays(text, owned, jobs_now) == [
        ("a", "stray", 1, "it uses card 1, which is not its own (it was given 0): python (pid 10)"),
        ("b", "stranger", 1, "on its card 1 runs a process that is not of this job: my job a's python (pid 10)"),
        ("c", "stranger", 3, "on its card 3 runs a process that is not of this job: bob's train (pid 31)"),
        ("d", "stray", 4, "it uses card 4, which is not its own (it was given none): python (pid 40)"),
    ]


def test_cards_that_nothing_uses_are_told() -> None:
    """As after a silent fall-back to the CPU, or with fewer processes than cards."""
    text = report(
        card(0), card(1), card(2, process(10)), card(3), card(4, memory_used_mb=20000), card(5, doubts=["odd"]),
        card(6, utilization=40), card(7, memory_used_mb=None),
    )  # fmt: skip
    began = [
        ("a", [0, 1], 400),
        ("b", [2, 3], 400),
        ("c", [4], 400),
        ("d", [5, 6, 7], 400),
        ("e", [0], 299),
        ("f", [0], None),
    ]
    running_now = [
        (job_id, {"cards": own, "device": "npu", "command_at": None if age is None else 1000.0 - age})
        for job_id, own, age in began
    ]
    running_now.append(("g", {"cards": [0], "device": "mlu", "command_at": 0.0}))
    assert stray.unused(text, running_now, settings.DEFAULTS, 1000.0) == [
        ("a", "unused", None, "nothing uses its cards 0, 1, 6 minutes after its command began: it may compute on the CPU"),
        ("b", "unused", None, "nothing uses 1 of its 2 cards (3), 6 minutes after its command began: "
                              "it may run fewer processes than it has cards"),
    ]  # fmt: skip
    assert stray.unused(text, running_now, {**settings.DEFAULTS, "unused_after_s": 0}, 1000.0) == []


def test_each_is_said_once(tmp_path: Path) -> None:
    layout = Layout(os.fsencode(tmp_path), "i1")
    Path(os.fsdecode(layout.job("astray001"))).mkdir(parents=True)
    for pid in (7, 8):
        stray.warn(
            layout, [("astray001", "stray", 1, f"it uses card 1: pid {pid}"), ("astray001", "stray", 2, "card 2")]
        )
    assert jobs.warnings(layout, "astray001") == ["it uses card 1: pid 7", "card 2"]


def test_a_running_jobs_cards_are_looked_at_often_at_first() -> None:
    guard = stray.Guard(1000.0)
    looks = [second for second in range(0, 2000) if guard.take(1000.0 + second)]
    assert looks == [5, 30, 120, 310, 910, 1510] and guard.due_s(3000.0) == 110.0
    assert guard.take(9000.0) and not guard.take(9000.0), "looks that were slept through are made up for by one"
    assert stray.guard({"device": "cpu"}, 0.0) is None and stray.guard({}, 0.0) is None
    assert stray.guard({"device": "npu", "limits": {"cards": 4}}, 0.0) is None, "no tool to ask"
    assert stray.guard({"device": "npu", "cards": 0}, 0.0) is not None


def test_a_reading_says_nothing_of_what_others_had_since(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JOBRUNNER_LEASE_SCOPE", f"r{os.getpid()}")
    memory = readings.Readings(Layout(os.fsencode(tmp_path), "i1"))
    assert memory.pause("npu", set()) == 0.0 and memory.usable("npu", set()) == set()
    fine = {"idle": True, "handed": False, "why": None, "strangers": [], "model": "m", "board": None, "broken": False}
    state = {"tool_s": 0.1, "took": 0.1, "assumed": False, "error": None, "others": set()}
    memory._last["npu"] = {"mono": time.monotonic(), "cards": {0: dict(fine), 1: dict(fine)}, **state}
    one = card_name("npu", 1)
    assert memory.usable("npu", set()) == {0, 1} and memory.pause("npu", {one}) > 10
    memory.observe({one}, {("npu", 1)})
    assert memory.usable("npu", set()) == {0, 1}, "it was ours"
    memory.observe({one}, set())
    assert memory.usable("npu", {one}) == {0} and memory.usable("npu", set()) == {0}
    assert memory.pause("npu", set()) <= readings.SOON_S, "it is read again at once"
    memory._last["npu"]["assumed"] = True
    assert memory.usable("npu", set()) == {0, 1}, "where no tool is asked, leases decide"


def test_settings_of_the_host(tmp_path: Path) -> None:
    layout = Layout(os.fsencode(tmp_path), "i1")
    home = tmp_path / "hosts/i1"
    home.mkdir(parents=True)
    assert settings.read(layout) == (settings.DEFAULTS, [])
    (tmp_path / "settings.json").write_text(json.dumps({"wide_after_s": 60, "idle_mb": {"910B3": 4000}, "linger_s": 5}))
    (home / "settings.json").write_text(json.dumps({"wide_after_s": 90}))
    values, complaints = settings.read(layout)
    assert (values["wide_after_s"], values["idle_mb"], values["linger_s"], complaints) == (90, {"910B3": 4000}, 5, [])
    (home / "settings.json").write_text(
        json.dumps({"wide_after_s": "90", "idle_mb": {"a": -1}, "colour": 1, "linger_s": True})
    )
    values, complaints = settings.read(layout)
    assert (values["wide_after_s"], values["idle_mb"], values["linger_s"]) == (60, {"910B3": 4000}, 5)
    assert [text.partition(": ")[2] for text in complaints] == [
        "there is no setting 'colour'", "idle_mb cannot be {'a': -1}", "linger_s cannot be True",
        "wide_after_s cannot be '90'",
    ]  # fmt: skip
    (home / "settings.json").write_text("[1, 2")
    assert settings.read(layout)[1] == [f"{home}/settings.json is not a JSON object and is passed over"]


def test_which_agent_takes_over() -> None:
    entries = [
        {"v": 1, "agent": "aa"},
        {"v": 2, "agent": "bb"},
        {"v": 3, "agent": "cc"},
        {"v": 4},
        {"v": "9", "agent": "x"},
    ]
    assert succession.successor(entries, 1) == "cc" and succession.successor(entries, 3) is None
    assert succession.successor(entries[:1], 1) is None and succession.successor([], 1) is None
    assert [succession.readable(entry, 2) for entry in entries] == [True, True, False, False, True]
