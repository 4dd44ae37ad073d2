"""When a card is free, and why it is not."""

import copy

import pytest

from jobrunner.agent.accelerators.base import new_card
from jobrunner.agent.cards import fallback_report, judge


def card(index=0, **facts):
    idle = {"model": "910B3", "health": "ok", "memory_used_mb": 3314, "memory_total_mb": 65536, "utilization": 0}
    return dict(new_card(index), **{**idle, **facts})


def verdict(leases=(), own=None, settings=None, device="npu", **facts):
    report = {"device": device, "assumed": False, "cards": [card(**facts)]}
    before = copy.deepcopy(report)
    (found,) = judge(report, list(leases), own or {}, settings)["cards"]
    assert report == before, "judging changes no values"
    assert found["free"] == (found["why_busy"] is None)
    return found["why_busy"]


def test_an_idle_card_is_free():
    assert verdict() is None
    assert verdict(health="warning") is None


@pytest.mark.parametrize(("facts", "words"), [
    ({"health": "bad", "health_text": "Alarm 8C084E00"}, "not healthy: Alarm 8C084E00"),
    ({"health": "unknown", "health_text": "UNKNOWN"}, "health is unknown (UNKNOWN)"),
    ({"memory_used_mb": None}, "memory in use is unknown"),
    ({"memory_total_mb": None}, "memory in use is unknown"),
    ({"utilization": None}, "utilization is unknown"),
    ({"memory_used_mb": 30710}, "30710 MB are in use and no process is shown"),
    ({"utilization": 66}, "it is busy (66 %) and no process is shown"),
    ({"doubts": ["the process table ends before this card"]}, "the process table ends before this card"),
    ({"processes": [{"pid": 7, "user": "ann", "name": "python", "memory_mb": 90}]}, "ann runs python (pid 7 90 MB)"),
    ({"processes": [{"pid": 7, "user": None, "name": None, "memory_mb": None}]}, "somebody runs a process (pid 7)"),
])  # fmt: skip
def test_why_a_card_is_busy(facts, words):
    assert words in verdict(**facts)


def test_what_an_idle_gpu_shows_of_its_own_start_is_no_use():
    assert verdict(device="gpu", model="NVIDIA A10", memory_used_mb=4, utilization=99) is None
    assert verdict(device="mlu", model="MLU370-X8", memory_used_mb=0, utilization=99) is not None
    assert verdict(utilization=9) is None


def test_leases_and_own_jobs_are_named():
    lease = {"index": 0, "user": "ann", "job": "abc12345", "name": "train", "since": "2026-12-01T09:30:00.000000Z"}
    assert verdict([lease]) == "leased by ann for job abc12345"
    assert verdict([dict(lease, index=1)]) is None
    unknown = {"index": 0, "user": None, "job": None, "name": None, "since": None}
    assert verdict([unknown]) == "leased by somebody"
    process = {"pid": 7, "user": "me", "name": "python", "memory_mb": 90}
    assert "my job abc12345 runs python" in verdict(own={"abc12345": [6, 7]}, processes=[process])


@pytest.mark.parametrize(("device", "model", "idle", "busy"), [
    ("npu", "910B3", 3500, 4200), ("npu", "Ascend 910B4", 3400, 5000), ("npu", "Ascend910", 3136, 5000),
    ("npu", "910A", 1, 1000), ("npu", "310P3", 1894, 3000), ("npu", "Ascend950PR", 4439, 6000),
    ("npu", "xxx", 3318, 9000), ("mlu", "MLU370-X8", 0, 1024), ("gpu", "NVIDIA RTX A6000", 35, 1000),
])  # fmt: skip
def test_idle_memory_by_model(device, model, idle, busy):
    assert verdict(device=device, model=model, memory_used_mb=idle) is None
    assert "MB are in use" in verdict(device=device, model=model, memory_used_mb=busy)


def test_limits_can_be_set():
    assert verdict(settings={"idle_margin_mb": 0, "idle_mb": {"910B3": 3000}}) is not None
    assert verdict(settings={"idle_mb": {"910B3": 30000}}, memory_used_mb=30200) is None


def test_judging_twice_changes_nothing():
    report = {"device": "npu", "assumed": False, "cards": [card(0), card(1, memory_used_mb=60000)]}
    lease = [{"index": 0, "user": "ann", "job": None, "name": None, "since": None}]
    once = judge(report, lease, {})
    assert judge(once, lease, {}) == once
    assert [found["free"] for found in judge(once, [], {})["cards"]] == [True, False]


def test_a_host_whose_tool_cannot_be_asked_goes_by_leases():
    report = fallback_report("mlu", 3)
    lease = [{"index": 1, "user": "ann", "job": None, "name": None, "since": None}]
    judged = judge(report, lease, {})
    assert [(found["index"], found["free"]) for found in judged["cards"]] == [(0, True), (1, False), (2, True)]
    assert all(found["memory_used_mb"] is None and found["health"] == "unknown" for found in judged["cards"])
