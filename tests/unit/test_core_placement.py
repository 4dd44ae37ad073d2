"""Which host a job goes to, and why not to the others."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobrunner.core.errors import HostError, UsageError
from jobrunner.core.placement import Demand, HostFacts, can_start_now, place
from jobrunner.core.specdoc import read_spec


def host(name, **facts):
    return HostFacts(**{"name": name, "device": "npu", "cards": (0, 1, 2, 3), "free": (0, 1, 2, 3), **facts})


def npu(cards=2, **more):
    return Demand("npu", cards, **more)


@pytest.mark.parametrize(
    ("demand", "hosts", "chosen"),
    [
        (npu(), [host("a"), host("b")], "a"),
        (npu(), [host("a", free=(1,)), host("b")], "b"),
        (npu(), [host("a", queued=1), host("b", free=(), queued=0)], "b"),
        (npu(), [host("a", queued=3, free=()), host("b", queued=2, free=())], "b"),
        (npu(1), [host("a", free=(1,)), host("b", free=(1, 2))], "b"),
        (npu(), [host("a", reachable=False), host("b", queued=9)], "b"),
        (npu(), [host("a", drained=True), host("b", queued=9)], "b"),
        (npu(hosts=("b",)), [host("a"), host("b", queued=9)], "b"),
        (npu(tags=("x",)), [host("a", tags=("y",)), host("b", tags=("x", "y"), queued=9)], "b"),
        (npu(hosts=("a",), only="b"), [host("a"), host("b", drained=True)], "b"),
        (npu(card_ids=(1, 3)), [host("a", free=(1, 2)), host("b", free=(1, 3))], "b"),
        (npu(card_ids=(1, 3)), [host("a", only_cards=(0, 1)), host("b", free=())], "b"),
        (npu(), [host("a", max_cards=1), host("b", free=())], "b"),
        (npu(), [host("a", max_cards=3, in_use=2), host("b")], "b"),
        (npu(), [host("a", device="mlu"), host("b", device=None), host("c", free=())], "c"),
        (npu(0), [host("a", device="gpu"), host("b", free=())], "b"),
        (Demand("cpu", 0), [host("a", cpu_jobs=1, cpu_running=1), host("b", device=None, cards=(), cpu_jobs=1)], "b"),
    ],
)
def test_the_choice(demand, hosts, chosen):
    placement = place(demand, hosts)
    assert placement.host == chosen == placement.ranked[0]
    assert set(placement.reasons) == {h.name for h in hosts} - {chosen}
    assert all(placement.reasons.values())


def linked(name, model, count, **facts):
    every = tuple(range(count))
    models = tuple({"index": index, "model": model, "board": index} for index in every)
    return host(name, **{"cards": every, "free": every, "models": models, **facts})


@pytest.mark.parametrize(
    ("demand", "other", "chosen"),
    [
        (npu(3), linked("b", "910B3", 8, queued=9, free=()), "b"),
        (npu(card_ids=(3, 4)), linked("b", "910B3", 8, free=()), "b"),
        (npu(4), linked("b", "910A", 8, free=(0, 1, 2, 3)), "b"),
        (npu(2), linked("b", "910B3", 8, queued=1), "a"),
        (npu(3), linked("b", "910A", 8, reachable=False), "a"),
    ],
)
def test_what_links_the_cards_counts(demand, other, chosen):
    """Host a has six free cards of a 910A, three in each ring."""
    first = linked("a", "910A", 8, free=(0, 1, 2, 4, 5, 6))
    placement = place(demand, [first, other])
    assert placement.host == chosen
    if demand.cards == 3 and chosen == "b":
        assert "takes 1, 2, 4, 8 cards, not 3" in placement.reasons["a"]


@pytest.mark.parametrize(
    ("demand", "hosts", "kind", "piece"),
    [
        (npu(), [], UsageError, "no host is known"),
        (npu(8), [host("a")], UsageError, "a: has 4 cards that may be used, 8 are needed"),
        (npu(2), [host("a", only_cards=(1,))], UsageError, "1 card that"),
        (npu(), [host("a", max_cards=1)], UsageError, "max_cards"),
        (npu(), [host("a", device="gpu")], UsageError, "has gpu cards, not npu"),
        (npu(), [host("a", device=None, cards=())], UsageError, "no cards that we know of, not npu"),
        (npu(tags=("q",)), [host("a")], UsageError, "lacks the tag q"),
        (npu(hosts=("z",)), [host("a")], UsageError, "z: is not known"),
        (npu(only="z"), [host("a")], UsageError, "z: is not known"),
        (npu(), [host("a", drained=True)], UsageError, "is drained"),
        (
            npu(),
            [host("a", reachable=False, error="refused"), host("b", device="gpu")],
            HostError,
            "does not answer (refused)",
        ),
        (npu(card_ids=(1, 9)), [host("a")], UsageError, "has no card 9"),
    ],
)
def test_no_choice_says_why(demand, hosts, kind, piece):
    placement = place(demand, hosts)
    error = placement.error()
    assert placement.host is None and type(error) is kind
    assert piece in error.message and error.remedy


def test_a_tool_that_tells_nothing_now_is_no_host_without_cards():
    silent = host("a", cards=(), free=(), untold="npu-smi gave no answer within 10 s and was ended")
    placement = place(npu(), [silent, host("b", device="mlu")])
    error = placement.error()
    assert placement.host is None and placement.untold == ("a",)
    assert isinstance(error, HostError) and (error.code, error.host) == ("cards_unknown", "a")
    assert "npu-smi gave no answer" in error.message and "has mlu cards" in error.message
    assert "doctor a" in error.remedy and "cards: N" in error.remedy
    assert place(npu(), [silent, host("b", queued=9)]).host == "b"
    assert place(npu(0), [silent]).host == "a"
    for other in (Demand("gpu", 1), npu(tags=("x",)), npu(hosts=("b",))):  # never there, whatever the tool would say
        assert isinstance(place(other, [silent]).error(), UsageError)


def test_a_specs_demand():
    spec = read_spec("command: x\ndevice: mlu\ncards: [3, 1]\nhosts: [a]\ntags: [t]\n", "f").spec
    assert Demand.of(spec, "h") == Demand("mlu", 2, (1, 3), ("a",), ("t",), "h")


SETS = st.sets(st.integers(0, 5)).map(lambda s: tuple(sorted(s)))
HOSTS = st.lists(
    st.builds(
        HostFacts,
        name=st.sampled_from("abcdef"), reachable=st.booleans(), device=st.sampled_from(["npu", "gpu", None]),
        cards=SETS, free=SETS, only_cards=st.none() | SETS, max_cards=st.none() | st.integers(1, 4),
        in_use=st.integers(0, 3), queued=st.integers(0, 2), drained=st.booleans(),
        untold=st.sampled_from(["", "it hangs"]),
    ),
    unique_by=lambda h: h.name, max_size=6,
)  # fmt: skip


@given(HOSTS, st.integers(0, 4))
def test_a_chosen_host_can_hold_the_job_and_none_is_forgotten(hosts, cards):
    demand = npu(cards)
    placement = place(demand, hosts)
    by_name = {h.name: h for h in hosts}
    assert set(placement.reasons) | {placement.host} - {None} == set(by_name)
    if placement.host is None:
        assert placement.error().message
        return
    chosen = by_name[placement.host]
    assert chosen.reachable and not chosen.drained and chosen.device == "npu" and len(chosen.usable) >= cards
    assert not (chosen.untold and cards)
    if any(can_start_now(demand, by_name[name]) for name in placement.ranked):
        assert can_start_now(demand, chosen)
