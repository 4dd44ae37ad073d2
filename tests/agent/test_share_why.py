"""Why a job waits, by values: one sentence about the host, one about its place, one for each card."""

from __future__ import annotations

from typing import Any

import pytest

from jobrunner.agent import cardview, order, situation, why
from jobrunner.agent.accelerators.base import new_card
from jobrunner.agent.cards import judge

NOW = "2026-12-01T09:30:00.000000Z"
LEASE = {"user": "bob", "job": "abob00001", "name": "train", "since": "2026-12-01T09:00:00.000000Z"}
MINE = {"user": "ann", "job": "amine0001", "name": "mine", "since": "2026-12-01T09:10:00.000000Z"}


def card(index: int, **more: Any) -> dict[str, Any]:
    idle = {"model": "910A", "health": "ok", "memory_used_mb": 0, "memory_total_mb": 32768, "utilization": 0}
    return {**new_card(index), **idle, "board": index, **more}


def report(*cards: dict[str, Any], **aside: Any) -> dict[str, Any]:
    """The cards as the host shows them; `lease` on a card is a held name, `holder` one that no job is shown for."""
    leases = [
        {"index": one["index"], **(one["lease"] or dict.fromkeys(LEASE))}
        for one in cards
        if one["lease"] or "holder" in one
    ]
    judged = judge({"device": "npu", "assumed": False, "cards": list(cards)}, leases, {})["cards"]
    found = []
    for one in judged:
        gone = {"until": 1796117400.0, "jobs": ["a", "b"]} if one["index"] == aside.get("aside") else None
        fit = one["health"] == "ok"
        found.append(cardview.finished(one, fit, False, gone, one.get("holder"), 0.0))
    return {"device": "npu", "error": None, "cards": found}


def entry(job_id: str, cards: int = 1, **more: Any) -> dict[str, Any]:
    return {"id": job_id, "cards": cards, "device": "npu", "since": job_id, "waited_s": 5.0, **more}


def found(
    job: dict[str, Any], text: dict[str, Any], waiting: tuple[dict[str, Any], ...] = (), **more: Any
) -> list[dict[str, Any]]:
    free, known = cardview.summary(text)
    facts = order.Situation(
        order.own_order([*waiting, job]),
        free={"npu": free},
        cards={"npu": known},
        choose=situation.choose,
        refuse=situation.refuse,
        **more,
    )
    return why.findings(job, facts, {}, text, {7: "bob"}.get)


def pairs(findings: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(finding["code"], finding["summary"]) for finding in findings]


def test_a_sentence_for_each_card() -> None:
    text = report(
        card(0, lease=MINE),
        card(1, lease=LEASE),
        card(2, processes=[{"pid": 9, "user": "cid", "name": "python", "memory_mb": 900}]),
        card(3, health="bad", health_text="Alarm 8C084E00"),
        card(4, lease=None, holder="eve (uid 5), process 6 (x)"),
        card(5),
        card(6, memory_used_mb=9000),
        card(7),
        aside=5,
    )
    findings = found(entry("a", 2), text)
    assert pairs(findings) == [
        ("cards", "it wants 2 cards, and of those that it may have 1 is free"),
        ("place", "it is number 1 of 1 that waits for npu cards here"),
        ("card", "card 0: leased by ann for job amine0001 (mine) since 2026-12-01T09:10:00.000000Z"),
        ("card", "card 1: leased by bob for job abob00001 (train) since 2026-12-01T09:00:00.000000Z"),
        ("foreign", "card 2: in use: cid runs python (pid 9 900 MB)"),
        ("health", "card 3: not healthy: Alarm 8C084E00"),
        ("unshown", "card 4: leased by somebody who shows no job for it: eve (uid 5), process 6 (x)"),
        ("aside", "card 5: set aside until 2026-12-01T09:30:00.000000Z: the last jobs on it (a, b) died at their "
                  "start; `jobrunner hosts undrain` ends that"),
        ("card", "card 6: 9000 MB are in use and no process is shown (idle: up to 356 MB)"),
        ("free", "card 7: free"),
    ]  # fmt: skip
    assert all(finding["remedy"] for finding in findings if finding["code"] in why.REMEDIES)


IDLE = report(*(card(n) for n in range(8)))
BIG = {"job": "abob00002", "name": "big", "cards": 8, "device": "npu", "since": NOW, "waited_s": 5.0}
OTHERS = [{"uid": 7, "usage": 0.0, "waiting": [BIG]}]
RUNS = [{"cards": [8, 9], "device": "npu", "left_s": None}]
CPU = [{"cards": [], "device": "cpu", "left_s": None}]


def leased(*taken: int) -> dict[str, Any]:
    """The report of a host of which some cards are a colleague's."""
    return report(*(card(n, lease=LEASE if n in taken else None) for n in range(8)))


PAIR = leased(1, 2, 5, 6, 7)
ALARM = report(*(card(n, health="bad" if n == 1 else "ok") for n in range(8)))
LIMITED = entry("a", limits={"max_cards": 2})
OLD = (entry("a", 8, waited_s=601),)


@pytest.mark.parametrize(
    ("code", "words", "job", "text", "more"),
    [
        ("turn", "it is next", entry("a"), IDLE, {}),
        ("interconnect", "no set that works together: 4 linked cards", entry("a", 4), leased(0, 4), {}),
        ("interconnect", "no group of 4 cards has so many", entry("a", 2), leased(1, 2, 3, 4, 5, 6), {}),
        ("never", "takes 1, 2, 4, 8 cards, not 3", entry("a", 3), IDLE, {}),
        ("never", "may not have 9", entry("a", 1, card_ids=[9]), IDLE, {}),
        ("never", "cards 3, 4 are not in one linked group of 4 910A cards", entry("a", 2, card_ids=[3, 4]), IDLE, {}),
        ("broken", "while card 1 cannot be given out", entry("a", 8), ALARM, {}),
        ("max_cards", "I hold 2 cards, this job wants 1, and", LIMITED, IDLE, {"running": RUNS}),
        ("colleague", "a colleague (uid 7) who used", entry("a"), IDLE, {"usage": 9.0, "others": OTHERS}),
        ("wide", "4 free cards are kept for a job of mine", entry("b"), leased(4, 5, 6, 7), {"waiting": OLD}),
        ("cards", "1 card (2), and of those that it may have 0", entry("a", card_ids=[2]), PAIR, {}),
        ("cards", "until enough have come free at once", entry("a", 8, waited_s=601), PAIR, {}),
    ],
)
def test_the_sentence_about_the_host(code: str, words: str, job: Any, text: Any, more: dict[str, Any]) -> None:
    first = found(job, text, **more)[0]
    assert first["code"] == code and words in first["summary"], first


def test_jobs_that_are_not_considered_say_only_that() -> None:
    facts = order.Situation([])
    for code in ("drained", "hold", "backoff", "after"):
        (only,) = why.findings(entry("a"), facts, {"a": (code, "because")}, IDLE)
        assert (only["code"], only["summary"]) == (code, "because") and only["remedy"]


def test_jobs_without_cards_hear_of_no_cards() -> None:
    job = {"id": "a", "cards": 0, "device": "cpu", "waited_s": 1.0}
    facts = order.Situation([job], running=CPU, cores=4)
    assert pairs(why.findings(job, facts, {}, None)) == [
        ("cpu_jobs", "1 job without cards runs here, and at most 1 at once is allowed")
    ]


def test_the_place_in_the_queue_of_all() -> None:
    waiting = tuple(entry(f"b{n}", since=f"b{n}") for n in range(6))
    findings = found(entry("c", since="c"), PAIR, waiting, usage=9.0, others=OTHERS)
    place = next(finding for finding in findings if finding["code"] == "place")
    assert place["summary"] == "it is number 8 of 8 that wait for npu cards here"
    words = place["evidence"].split("; ")
    assert words[0] == f"bob's job abob00002 (big): 8 cards since {NOW}"
    assert words[1] == "my job b0: 1 card since b0" and words[-1] == "and 2 more"


def test_free_cards_that_a_job_before_takes() -> None:
    findings = found(entry("z", 4), PAIR, (entry("a", 2),))
    assert findings[0]["code"] == "cards"
    assert "card 0: free, and job a before it takes it" in [finding["summary"] for finding in findings]
    findings = found(entry("z", limits={"only_cards": [1]}), PAIR)
    assert "card 0: not one of `only_cards` of this host" in [finding["summary"] for finding in findings]
    findings = found(entry("z", 2, card_ids=[1, 2]), PAIR)
    assert [finding["summary"][:6] for finding in findings[2:]] == ["card 1", "card 2"], "only the cards that it wants"


def test_a_tool_that_says_nothing() -> None:
    broken = {"device": "npu", "cards": [], "error": {"code": "x", "message": "npu-smi hangs", "remedy": "do this"}}
    findings = found(entry("a"), broken)
    last = findings[-1]
    assert (last["code"], last["summary"], last["remedy"]) == (
        "tool",
        "the cards cannot be read: npu-smi hangs",
        "do this",
    )
