"""Which job starts next on which cards, by values: linked cards, wide jobs, colleagues; a host's weeks in seconds."""

from __future__ import annotations

import heapq
import random
from typing import Any

import pytest

from jobrunner.agent import order, situation, usage, yielding


def cards(model: str, count: int, broken: tuple[int, ...] = ()) -> list[dict[str, Any]]:
    return [{"index": n, "model": model, "board": n, "broken": n in broken} for n in range(count)]


def entry(job_id: str, count: int = 1, **more: Any) -> dict[str, Any]:
    return {"id": job_id, "cards": count, "device": "npu", "since": job_id, "waited_s": 1.0, **more}


def made(waiting: list[dict[str, Any]], free: Any, known: list[dict[str, Any]], **more: Any) -> order.Situation:
    return order.Situation(
        order.own_order(waiting),
        free={"npu": set(free)},
        cards={"npu": known},
        choose=situation.choose,
        refuse=situation.refuse,
        **more,
    )


def decided(*words: Any, **more: Any) -> tuple[str | None, list[int] | None, dict[str, tuple[str, str]]]:
    decision = order.decide(made(*words, **more))
    return decision.start["id"] if decision.start else None, decision.cards, decision.why


def other(uid: int, used: float, count: int, **more: Any) -> dict[str, Any]:
    return {"uid": uid, "usage": used, "waiting": [{"cards": count, "device": "npu", "waited_s": 5.0, **more}]}


def test_only_linked_sets_are_given_and_the_next_job_passes() -> None:
    start, chosen, why = decided([entry("a", 4), entry("b", 2)], [0, 1, 4, 5, 6], cards("910A", 8))
    assert (start, chosen) == ("b", [0, 1])
    assert why["a"] == (
        "interconnect",
        "5 of the cards that it may have are free, but no set that works together: 4 linked cards are asked for; "
        "no group of 4 cards has so many free",
    )
    assert decided([entry("a", 4)], [0, 1, 2, 3, 5], cards("910A", 8))[1] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("job", "known", "code", "words"),
    [
        (entry("a", 3), cards("910A", 8), "never", "takes 1, 2, 4, 8 cards, not 3"),
        (entry("a", 9), cards("910B3", 8), "never", "wants 9 cards and this host has 8: it can never start here"),
        (entry("a", 2, limits={"only_cards": [3]}), cards("910B3", 8), "never", "has 1 that it may have"),
        (entry("a", 2, card_ids=[1, 8]), cards("910B3", 8), "never", "wants just the cards 1, 8, and may not have 8"),
        (
            entry("a", 2, card_ids=[1, 3], limits={"only_cards": [1, 2]}),
            cards("910B3", 4),
            "never",
            "may not have 3",
        ),
        (entry("a", 2, limits={"only_cards": [3, 4]}), cards("910A", 8), "never", "no group of 4 cards"),
        (entry("a", 2, card_ids=[3, 4]), cards("910A", 8), "never", "cards 3, 4 are not in one linked group of 4 910A"),
        (entry("a", 3, card_ids=[0, 1, 2]), cards("910A", 8), "never", "takes 1, 2, 4, 8 cards, not 3"),
        (entry("a", 2, card_ids=[7, 8]), cards("910B2C", 16), "never", "cards 7, 8 are not in one linked group of 8"),
        (entry("a", 9, card_ids=[*range(9)]), cards("910B2C", 16), "never", "not in one linked group of 8"),
        (entry("a", 8), cards("910B3", 8, broken=(5,)), "broken", "has 7, while card 5 cannot be given out"),
        (entry("a", 2, limits={"max_cards": 1}), cards("910B3", 8), "max_cards", "it can never start here"),
    ],
)
def test_sets_that_are_never_allowed_are_said_and_keep_nothing(job: Any, known: Any, code: str, words: str) -> None:
    """However long it has waited: the jobs behind it are not held up."""
    job = dict(job, waited_s=1e6)
    start, _, why = decided([job, entry("b", since="z")], range(len(known)), known)
    assert start == "b" and why["a"][0] == code and words in why["a"][1], why


def test_cards_that_are_not_known_forbid_nothing() -> None:
    assert order.impossible(made([], (), []), entry("a", 99)) is None


def test_explicit_cards() -> None:
    start, chosen, _ = decided([entry("a", 2, card_ids=[3, 1])], [0, 1, 2, 3], cards("910B3", 4))
    assert (start, chosen) == ("a", [1, 3])
    start, _, why = decided([entry("a", 2, card_ids=[3, 1])], [0, 1, 2], cards("910B3", 4))
    assert start is None and why["a"] == ("cards", "it wants 2 cards (1, 3), and of those that it may have 1 is free")


def test_a_colleague_takes_in_thought_what_its_job_would_get() -> None:
    """On two rings of four, whose first has three free, a colleague's pair leaves the other ring alone."""
    free = [0, 1, 2, 4, 5]
    start, chosen, _ = decided([entry("a", 2)], free, cards("910A", 8), usage=9.0, others=[other(7, 1.0, 2)])
    assert (start, chosen) == ("a", [0, 1]), "the colleague gets 4 and 5"
    start, _, why = decided([entry("a", 4)], [0, 1, 2, 3], cards("910A", 8), usage=9.0, others=[other(7, 1.0, 2)])
    assert start is None and why["a"][0] == "colleague"
    start, _, _ = decided([entry("a", 2)], [0, 1, 4], cards("910A", 8), usage=9.0, others=[other(7, 1.0, 3)])
    assert start == "a", "what the colleague wants is never given on this host"


@pytest.mark.parametrize(
    ("timeout_s", "left_s", "passes"), [(50, 100.0, True), (150, 100.0, False), (None, 100.0, False), (50, None, False)]
)
def test_passing_a_colleagues_wide_job(timeout_s: Any, left_s: Any, passes: bool) -> None:
    """It keeps the two free cards; two more come free when a third user's job ends, at the latest."""
    ends = [{"cards": [2], "device": "npu", "left_s": left_s}, {"cards": [3], "device": "npu", "left_s": left_s}]
    wide = other(7, 1.0, 4, limits={"wide_after_s": 3})
    facts = made([entry("a", timeout_s=timeout_s)], [0, 1], cards("910B3", 4), usage=9.0, others=[wide], ends=ends)
    decision = order.decide(facts)
    assert (decision.start is not None) is passes
    assert decision.keeps_for == {7} and decision.yields_to == set()
    if not passes:
        text = "2 free cards are kept for a colleague's job (uid 7) that has waited longer and needs more"
        assert decision.why["a"] == ("wide", text)
    young = other(7, 1.0, 4, limits={"wide_after_s": 30})
    assert decided([entry("a")], [0, 1], cards("910B3", 4), usage=9.0, others=[young])[0] == "a"


def test_a_wide_job_waits_for_a_linked_set() -> None:
    """Four cards come free at 100 s, but in two rings; one ring is whole only at 300 s."""
    running = [
        {"cards": [2, 6], "device": "npu", "left_s": 100.0},
        {"cards": [3], "device": "npu", "left_s": 300.0},
        {"cards": [7], "device": "npu", "left_s": None},
    ]
    waiting = [entry("a", 4, waited_s=700), entry("b", timeout_s=290), entry("c", timeout_s=310)]
    facts = made(waiting, [0, 1, 4, 5], cards("910A", 8), running=running)
    assert order.could_start(facts, waiting[0], {0, 1, 4, 5}) == 300.0
    decision = order.decide(facts)
    assert decision.start is not None and decision.start["id"] == "b"
    assert order.decide(facts, {"b"}).why["c"][0] == "wide"


def test_the_line_of_all_and_what_is_shown_of_mine() -> None:
    waiting = [entry("a"), entry("b", 3, limits={"max_cards": 2}), entry("c", 9), entry("d", 0, device="cpu")]
    facts = made(waiting, (), cards("910B3", 8), usage=5.0, others=[other(7, 1.0, 2), other(8, 9.0, 2)], passed={7})
    assert [(uid, found.get("id")) for uid, found in order.line(facts)] == [
        (7, None), (None, "a"), (None, "b"), (None, "c"), (8, None),
    ]  # fmt: skip
    assert [found["id"] for found in order.claimable(facts)] == ["a"]


def test_nobody_holds_cards_up_by_a_claim_alone() -> None:
    patience = yielding.Yielding()
    decision = order.Decision()
    decision.yields_to, decision.keeps_for = {7}, {8}
    for now in range(0, 16):
        assert patience.passed(now, 100.0) == set()
        patience.note(decision, now)
    assert patience.passed(15.5, 100.0) == {7}
    patience.note(order.Decision(), 15.5)
    assert patience.passed(119, 100.0) == {7}, "though nothing is left for it any more"
    patience.note(order.Decision(), 121)
    assert patience.passed(121, 100.0) == set(), "a new chance"
    wide = yielding.Yielding()
    for now in (0, 99, 101):
        wide.passed(now, 100.0)
        wide.note(decision, now)
    assert 8 in wide.passed(101, 100.0)


def simulate(users: dict[int, list[tuple[int, float]]], host: list[dict[str, Any]], seed: int) -> dict[int, Any]:
    """Work off `{uid: [(cards, seconds)]}` on a host, each user deciding for itself as its dispatcher does."""
    chance = random.Random(seed)
    waiting = {uid: [entry(f"{n:06d}", count, run_s=run_s) for n, (count, run_s) in enumerate(jobs)]
               for uid, jobs in users.items()}  # fmt: skip
    now, ends, free = 0.0, [], {card["index"] for card in host}
    spent = dict.fromkeys(users, 0.0)
    held: dict[int, list[tuple[float, int]]] = {uid: [] for uid in users}
    spans: dict[int, list[tuple[float, float, int]]] = {uid: [] for uid in users}

    def used(uid: int) -> float:
        return spent[uid] + sum(count * (now - began) for began, count in held[uid])

    def shown(uid: int) -> dict[str, Any]:
        return {"uid": uid, "usage": used(uid), "waiting": [dict(job, waited_s=now) for job in waiting[uid][:20]]}

    while any(waiting.values()) or ends:
        for uid in chance.sample(sorted(users), len(users)) * 2:
            while waiting[uid]:
                others = [shown(colleague) for colleague in users if colleague != uid and waiting[colleague]]
                mine = [dict(job, waited_s=now) for job in waiting[uid][:20]]
                decision = order.decide(made(mine, free, host, usage=used(uid), others=others))
                if decision.start is None:
                    break
                assert decision.cards is not None and set(decision.cards) <= free, "only what is free"
                free -= set(decision.cards)
                waiting[uid] = [job for job in waiting[uid] if job["id"] != decision.start["id"]]
                count = len(decision.cards)
                assert count == decision.start["cards"]
                heapq.heappush(ends, (now + decision.start["run_s"], uid, now, decision.cards))
                held[uid].append((now, count))
                spans[uid].append((now, now + decision.start["run_s"], count))
        assert ends, "something runs, or nothing waits"
        now, uid, began, given = heapq.heappop(ends)
        free |= set(given)
        held[uid].remove((began, len(given)))
        spent[uid] += len(given) * (now - began)
    return spans


@pytest.mark.parametrize("model", ["910B3", "910A"])
def test_a_thousand_jobs_end_and_users_get_the_same_while_both_wait(model: str) -> None:
    """ann's jobs are wide and long, bob's narrow and short. Hours of a host of eight cards."""
    chance = random.Random(5)
    ann = [(chance.choice((1, 2, 4, 8)), chance.uniform(600, 7200)) for _ in range(200)]
    bob = [(chance.choice((1, 1, 2)), chance.uniform(60, 3600)) for _ in range(800)]
    spans = simulate({1: ann, 2: bob}, cards(model, 8), 9)
    assert [len(spans[uid]) for uid in (1, 2)] == [200, 800]
    both = min(max(began for began, _, _ in spans[uid]) for uid in spans)
    used = {uid: sum(max(0.0, min(end, both) - began) * n for began, end, n in spans[uid]) for uid in spans}
    assert abs(used[1] - used[2]) <= 0.05 * max(used.values()), used
    moments = sorted({began for found in spans.values() for began, _, _ in found})
    for moment in moments[:: len(moments) // 200]:
        running = sum(n for found in spans.values() for began, end, n in found if began <= moment < end)
        assert running <= 8


def test_usage_is_forgotten_by_half_in_a_day() -> None:
    assert usage.decayed(8.0, 2 * 24 * 3600) == 2.0
    shown = {"usage": 100.0, "held": 4, "at": "2026-12-01T09:29:50.000000Z"}
    now = 1796117400.0
    assert situation._usage_of(shown, now) == pytest.approx(140.0, abs=0.1), "what runs goes on counting"
