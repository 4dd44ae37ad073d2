"""The points of a sweep and where they go: by values."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobrunner.core.errors import UsageError
from jobrunner.core.placement import Demand, HostFacts
from jobrunner.core.points import point_id, points, shares, size, text_of
from jobrunner.core.spread import at_once, spread, starting
from jobrunner.core.sweepspec import Sweep


def sweep(**keys: object) -> Sweep:
    return Sweep.model_validate(keys)


SPACE = {
    "lr": {"min": 1e-5, "max": 1e-2, "scale": "log"},
    "width": {"min": 16, "max": 512, "scale": "log"},
    "drop": {"min": 0.1, "max": 0.5, "step": 0.1},
    "shift": {"min": 1000.0001, "max": 1000.0002},
    "kind": ("sgd", "5e-5"),
}


def test_a_grid_is_every_combination_in_the_order_of_the_spec() -> None:
    found = points(sweep(parameters={"a": ["1", "1.0"], "b": {"min": 0.1, "max": 0.3, "step": 0.1}}))
    assert [tuple(point.values()) for point in found] == [
        ("1", "0.1"), ("1", "0.2"), ("1", "0.3"), ("1.0", "0.1"), ("1.0", "0.2"), ("1.0", "0.3"),
    ]  # fmt: skip


def test_a_list_is_its_rows() -> None:
    assert points(sweep(method="list", parameters=({"a": "1", "b": "2"},))) == [{"a": "1", "b": "2"}]
    columns = points(sweep(method="list", parameters={"a": ["1", "2"], "b": ["3", "4"]}))
    assert columns == [{"a": "1", "b": "3"}, {"a": "2", "b": "4"}]


@pytest.mark.parametrize("method", ["random", "qmc"])
def test_drawn_points_lie_in_the_space_and_stay_when_there_are_more(method: str) -> None:
    pytest.importorskip("scipy")
    few = points(sweep(method=method, parameters=SPACE, trials=7, seed=3))
    many = points(sweep(method=method, parameters=SPACE, trials=200, seed=3))
    assert many[:7] == few and len({point_id(point) for point in many}) == 200
    assert few != points(sweep(method=method, parameters=SPACE, trials=7, seed=4))
    for point in many:
        assert 1e-5 <= float(point["lr"]) <= 1e-2 and 16 <= int(point["width"]) <= 512
        assert point["drop"] in ("0.1", "0.2", "0.3", "0.4", "0.5") and point["kind"] in SPACE["kind"]
        assert 1000.0001 <= float(point["shift"]) <= 1000.0002
    assert len({point["shift"] for point in many}) > 150
    small = sum(float(point["lr"]) < 10**-3.5 for point in many)
    assert 70 < small < 130, "a logarithmic scale gives each factor of ten its share"
    assert sum(int(point["width"]) < 90 for point in many) > 70


def test_a_small_space_is_drawn_to_its_end() -> None:
    space = {"a": {"min": 1, "max": 300, "scale": "log"}, "b": ["x", "y"]}
    found = points(sweep(method="random", parameters=space, trials=600))
    assert len(found) == size(sweep(parameters=space).parameters) == 600  # type: ignore[arg-type]


def test_points_are_the_same_in_another_process() -> None:
    code = (
        "from jobrunner.core.points import *; from jobrunner.core.sweepspec import Sweep;"
        "print(points(Sweep.model_validate(dict(method='random', trials=3, seed=5, parameters={'a': {'min': 0, 'max': 1.5}}))))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    mine = points(sweep(method="random", trials=3, seed=5, parameters={"a": {"min": 0, "max": 1.5}}))
    assert out.strip() == str(mine)


def test_qmc_names_the_extra_where_scipy_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy.stats", None)
    with pytest.raises(UsageError) as caught:
        points(sweep(method="qmc", parameters=SPACE, trials=7))
    assert "pip install 'jobrunner[sweep]'" in caught.value.remedy


def test_a_point_is_known_by_names_and_texts_alone() -> None:
    assert point_id({"a": "1", "b": "2"}) == point_id({"b": "2", "a": "1"}) == "5f13efef7cdd"
    assert point_id({"a": "1"}) != point_id({"a": "1.0"})
    assert text_of(1e-05) == "1e-05" and text_of(3) == "3"


@given(st.integers(1, 40), st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 50)))
@settings(max_examples=100, deadline=None)
def test_shares_never_exceed_what_may_run(parallel: int, counts: dict[str, int]) -> None:
    found = shares(parallel, counts)
    able = [host for host in counts if counts[host]]
    assert sum(found.values()) == (parallel if able else 0)
    assert all(share >= 1 for share in found.values()) and len(found) == min(parallel, len(able))
    assert set(found) <= set(able)


def host(name: str, cards: int = 4, free: int | None = None, **more: object) -> HostFacts:
    all_ = tuple(range(cards))
    return HostFacts(name, device="npu", cards=all_, free=all_ if free is None else all_[:free], **more)  # type: ignore[arg-type]


def test_trials_go_to_free_cards_first_and_then_where_their_turn_comes_soonest() -> None:
    hosts = [host("a", 8), host("b", 4, free=0, queued=4), host("c", 4)]
    assert Counter(spread(Demand("npu", 1), hosts, 12).order) == {"a": 8, "c": 4}
    counts = Counter(spread(Demand("npu", 1), hosts, 160).order)
    assert 74 <= counts["a"] <= 86 and 34 <= counts["b"] <= 42 and 38 <= counts["c"] <= 44


def test_hosts_that_cannot_take_a_trial_get_none() -> None:
    hosts = [host("a", 1), host("b", reachable=False, error="down"), host("c", drained=True), host("d", 4)]
    found = spread(Demand("npu", 2), hosts, 5)
    assert set(found.order) == {"d"} and set(found.placement.reasons) == {"a", "b", "c"}
    none = spread(Demand("npu", 8), hosts, 5)
    assert none.order == () and none.placement.error().code == "unreachable"


def test_parallel_is_shared_out() -> None:
    hosts = [host("a", 8), host("b", 4), host("c", 4)]
    found = spread(Demand("npu", 1), hosts, 40, 4)
    assert found.shares is not None and sum(found.shares.values()) == 4 and set(found.order) == set(found.shares)
    alone = spread(Demand("npu", 1), hosts, 40, 1)
    assert set(alone.order) == {"a"} and alone.shares == {"a": 1}


@given(st.integers(1, 9), st.dictionaries(st.sampled_from("abc"), st.integers(1, 3)), st.integers(1, 30))
@settings(max_examples=100, deadline=None)
def test_later_trials_keep_the_shares_that_hosts_were_told(parallel: int, kept: dict[str, int], count: int) -> None:
    if sum(kept.values()) > parallel:
        kept = {}
    found = spread(Demand("npu", 1), [host("a"), host("b"), host("d")], count, parallel, kept)
    assert found.shares is not None and len(found.order) == count
    assert all(found.shares[name] == share for name, share in kept.items())
    if set(kept) & {"a", "b", "d"} or sum(kept.values()) < parallel:
        assert sum(found.shares.values()) <= parallel
    assert set(found.order) <= set(found.shares)


def test_what_a_host_can_start() -> None:
    demand = Demand("npu", 2)
    assert at_once(demand, host("a", 8, max_cards=5)) == 2 and starting(demand, host("a", 8, max_cards=5)) == 2
    assert starting(demand, host("a", 8, free=3)) == 1 and starting(demand, host("a", 8, queued=1)) == 0
    assert starting(Demand("npu", 1, card_ids=(1,)), host("a", 8)) == 1
    cpu = HostFacts("a", cpu_jobs=3, cpu_running=1)
    assert at_once(Demand("cpu", 0), cpu) == 3 and starting(Demand("cpu", 0), cpu) == 2
