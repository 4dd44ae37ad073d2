"""The rules of early stopping, by values."""

import math

import pytest

from jobrunner.core.halving import (
    Curve,
    Decision,
    Rule,
    Standing,
    finish,
    halve,
    median_rule,
    rung_results,
    rung_steps,
    sentence,
)

NAN, INF = math.nan, math.inf
ASHA = Rule("asha", "min")
PAUSE = Rule("asha", "min", pause=True)
MEDIAN = Rule("median", "min")


def standings(*results: tuple[float, ...] | float, decided: int = 0, **status: str) -> list[Standing]:
    """Trials 1, 2, …; a status by `t3="paused"`."""
    rows = [value if isinstance(value, tuple) else (value,) for value in results]
    return [
        Standing(number, row, decided, status.get(f"t{number}", "running"))  # type: ignore[arg-type]
        for number, row in enumerate(rows, 1)
    ]


def verdicts(decisions: list[Decision]) -> dict[int, str]:
    return {item.number: item.verdict for item in decisions}


@pytest.mark.parametrize(
    ("rule", "reached", "steps"),
    [
        (Rule("asha", "min"), 30, [1, 3, 9, 27]),
        (Rule("asha", "min", least=4, reduction=2), 32, [4, 8, 16, 32]),
        (Rule("asha", "min", most=9), 100, [1, 3]),
        (Rule("asha", "min", least=5), 4.9, []),
        (Rule("asha", "min", least=5, most=5), 100, []),
        (Rule("asha", "min"), -INF, []),
    ],
)
def test_rungs_are_min_times_powers_of_reduction_below_max(rule: Rule, reached: float, steps: list[int]) -> None:
    assert rung_steps(rule, reached) == steps


def test_a_rung_is_judged_by_what_was_told_first_there_or_beyond() -> None:
    samples = [(None, 0.0), (0.0, 9.0), (2.0, 5.0), (2.0, 4.0), (3.0, 6.0), (NAN, 0.0), (8.0, 3.0)]
    assert rung_results(samples, ASHA) == (5.0, 6.0)
    assert rung_results(samples, Rule("asha", "min", best=True)) == (5.0, 4.0)
    assert rung_results(samples, Rule("asha", "max", best=True)) == (9.0, 9.0)
    assert rung_results([], ASHA) == () and rung_results([(None, 1.0)], ASHA) == ()


def test_the_best_of_a_rung_may_be_no_number_at_all() -> None:
    [value] = rung_results([(1.0, NAN), (2.0, 1.0)], Rule("asha", "min", best=True))
    assert math.isnan(value)
    assert rung_results([(1.0, NAN), (3.0, INF)], Rule("asha", "min", best=True))[1] == INF


def test_stopping_waits_for_as_many_as_reduction_and_keeps_the_best_part() -> None:
    assert verdicts(halve(standings(1.0, 2.0), ASHA)) == {1: "go_on", 2: "go_on"}
    six = halve(standings(6.0, 5.0, 4.0, 3.0, 2.0, 1.0), ASHA)
    assert verdicts(six) == {1: "stop", 2: "stop", 3: "stop", 4: "stop", 5: "go_on", 6: "go_on"}
    assert six[0] == Decision(1, "stop", 0, 1, 6.0, limit=2.0, among=6, best=2)
    most = halve(standings(6.0, 5.0, 4.0, 3.0, 2.0, 1.0), Rule("asha", "max"))
    assert [number for number, word in verdicts(most).items() if word == "go_on"] == [1, 2]


def test_a_rung_decides_once_and_the_ended_count_still() -> None:
    """Trial 1 went on when it was alone; those that are over and those that completed are compared with, too."""
    there = [Standing(1, (9.0,), 1), Standing(2, (1.0,), 1, "over"), Standing(3, (2.0,), 1, "completed")]
    assert halve(there, ASHA) == []
    assert verdicts(halve([*there, Standing(4, (5.0,))], ASHA)) == {4: "stop"}
    assert verdicts(halve([*there, Standing(4, (0.5,))], ASHA)) == {4: "go_on"}


def test_a_trial_that_passed_several_rungs_unseen_is_stopped_at_the_first_that_says_so() -> None:
    field = [Standing(n, (float(n), float(n)), 2, "over") for n in (1, 2, 3)]
    made = halve([*field, Standing(4, (0.5, 7.0, 7.0))], ASHA)
    assert [(item.rung, item.step, item.verdict) for item in made] == [(0, 1, "go_on"), (1, 3, "stop")]


def test_equals_do_not_push_each_other_out() -> None:
    assert set(verdicts(halve(standings(1.0, 1.0, 1.0, 2.0), ASHA)).values()) == {"go_on", "stop"}
    assert verdicts(halve(standings(1.0, 1.0, 1.0, 2.0), ASHA))[3] == "go_on"
    assert set(verdicts(halve(standings(NAN, NAN, NAN), ASHA)).values()) == {"go_on"}  # nothing tells who is better


def test_nan_is_worse_than_infinity() -> None:
    assert verdicts(halve(standings(NAN, INF, 3.0), ASHA)) == {1: "stop", 2: "stop", 3: "go_on"}
    assert verdicts(halve(standings(NAN, INF, INF), ASHA)) == {1: "stop", 2: "go_on", 3: "go_on"}
    assert verdicts(halve(standings(NAN, INF, 3.0), Rule("asha", "max"))) == {1: "stop", 2: "go_on", 3: "stop"}


def test_promotion_pauses_everybody_until_enough_have_come() -> None:
    assert verdicts(halve(standings(1.0, 2.0), PAUSE)) == {1: "pause", 2: "pause"}
    paused = [Standing(1, (1.0,), 1, "paused"), Standing(2, (2.0,), 1, "paused")]
    assert verdicts(halve([*paused, Standing(3, (3.0,))], PAUSE)) == {3: "pause", 1: "promote"}
    assert verdicts(halve([*paused, Standing(3, (0.5,))], PAUSE)) == {3: "go_on"}  # it need not stop to go on


def test_promotion_takes_the_highest_rung_first_and_nobody_twice() -> None:
    low = [Standing(n, (float(n),), 1, "paused") for n in (4, 5, 6, 7, 8, 9)]
    high = [Standing(n, (float(n), float(n)), 2, "paused") for n in (1, 2, 3)]
    made = halve([*low, *high], PAUSE)
    assert [(item.number, item.rung) for item in made] == [(1, 1)]  # 1, 2, 3 left rung 0 before
    gone = [Standing(1, (1.0, 1.0), 2), *high[1:]]
    assert halve([*low, *gone], PAUSE) == []
    assert [
        (d.number, d.rung) for d in halve([*low, *gone, *standings(0.0, 0.0, 0.0, decided=1, t1="over")], PAUSE)
    ] == []


def test_promotion_among_equals_keeps_to_the_part_and_never_takes_nan() -> None:
    ties = [Standing(n, (1.0,), 1, "paused") for n in (1, 2, 3, 4, 5, 6)]
    assert verdicts(halve(ties, PAUSE)) == {1: "promote", 2: "promote"}
    assert halve([Standing(n, (NAN,), 1, "paused") for n in (1, 2, 3)], PAUSE) == []
    assert verdicts(halve(standings(NAN, NAN, NAN), PAUSE)) == {1: "pause", 2: "pause", 3: "pause"}


def test_a_whole_life_by_promotion_gives_each_rung_a_third_of_the_one_below() -> None:
    """27 trials, the best first: in the end 9, 3 and 1 have been promoted, and each of them was the best there."""
    state = {n: Standing(n, ()) for n in range(1, 28)}
    promoted: dict[int, list[int]] = {0: [], 1: [], 2: []}
    for n in state:
        state[n] = Standing(n, (float(n),))
        while made := halve(list(state.values()), PAUSE):
            for item in made:
                old = state[item.number]
                if item.verdict == "pause":
                    state[item.number] = Standing(old.number, old.results, item.rung + 1, "paused")
                else:
                    promoted[item.rung].append(item.number)
                    results = old.results + ((float(old.number),) if item.rung < 2 else ())
                    state[item.number] = Standing(old.number, results, item.rung + 1, "running")
    assert promoted == {0: [1, 2, 3, 4, 5, 6, 7, 8, 9], 1: [1, 2, 3], 2: [1]}


def test_at_the_end_the_best_paused_trial_gets_a_whole_run() -> None:
    paused = [
        Standing(1, (1.0,), 1, "paused"),
        Standing(2, (3.0, 3.0), 2, "paused"),
        Standing(3, (2.0, 2.0), 2, "paused"),
    ]
    found = finish(paused, PAUSE)
    assert found is not None and (found.number, found.verdict, found.step) == (3, "finish", 3)
    assert finish([*paused, Standing(4, (), 0, "running")], PAUSE) is None
    assert finish([*paused, Standing(4, (), 0, "completed")], PAUSE) is None
    assert finish([Standing(1, (NAN,), 1, "paused"), Standing(2, (), 0, "over")], PAUSE) is None


def curve(number: int, *values: float, status: str = "completed", first: int = 1) -> Curve:
    return Curve(number, [(float(step), value) for step, value in enumerate(values, first)], status)  # type: ignore[arg-type]


def test_the_median_rule_compares_the_best_so_far_with_averages_up_to_the_same_step() -> None:
    done = [curve(1, 4.0, 2.0, 0.0), curve(2, 6.0, 4.0, 0.0), curve(3, 8.0, 6.0, 0.0)]  # on average 3, 5, 7 at step 2
    [made] = median_rule([*done, curve(4, 9.0, 5.1, status="running")], MEDIAN)
    assert made == Decision(4, "stop", None, 2.0, 5.1, limit=5.0, among=3)
    assert median_rule([*done, curve(4, 9.0, 5.0, status="running")], MEDIAN) == []
    assert median_rule([*done, curve(4, 1.0, 50.0, status="running")], MEDIAN) == []  # its best counts
    assert median_rule([*done[:2], curve(4, 99.0, status="running")], MEDIAN) == []  # two are too few
    assert median_rule([*done, curve(4, 99.0, status="over"), curve(5, status="running")], MEDIAN) == []
    assert median_rule([*done, curve(4, 9.0, 5.1, status="running")], Rule("median", "max")) == []


def test_the_median_rule_keeps_to_its_steps() -> None:
    done = [curve(n, 1.0, 1.0, 1.0, 1.0) for n in (1, 2, 3)]
    bad = curve(4, 9.0, 9.0, status="running")
    assert median_rule([*done, bad], Rule("median", "min", least=3)) == []
    assert median_rule([*done, bad], Rule("median", "min", most=2)) == []
    assert verdicts(median_rule([*done, bad], Rule("median", "min", least=2, most=3))) == {4: "stop"}
    late = [curve(n, 1.0, first=10) for n in (1, 2, 3)]  # they told nothing up to step 2
    assert median_rule([*late, bad], MEDIAN) == []


def test_the_median_rule_with_nan_and_infinity() -> None:
    done = [curve(1, NAN, NAN), curve(2, 1.0, NAN), curve(3, INF, -INF), curve(4, 2.0)]
    made = median_rule([*done, curve(5, NAN, status="running")], MEDIAN)
    assert verdicts(made) == {5: "stop"} and made[0].limit == INF  # 1, 2, inf, NaN: inf of the two in the middle
    assert median_rule([curve(n, NAN) for n in (1, 2, 3)] + [curve(4, NAN, status="running")], MEDIAN) == []


def test_a_trial_paused_by_the_median_goes_on_when_it_is_no_worse_any_more() -> None:
    rule = Rule("median", "min", pause=True)
    good = [curve(n, 1.0) for n in (1, 2, 3)]
    assert verdicts(median_rule([*good, curve(9, 2.0, status="running")], rule)) == {9: "pause"}
    paused = curve(9, 2.0, status="paused")
    assert median_rule([*good, paused], rule) == []
    assert verdicts(median_rule([*good, *(curve(n, 5.0) for n in (4, 5, 6, 7)), paused], rule)) == {9: "promote"}


def test_decisions_read_well() -> None:
    made = halve(standings(6.0, 5.0, 1.0), ASHA)
    assert (
        sentence(made[0], "asha", "val_loss", "epoch") == "asha, epoch 1: val_loss 6 is not among the best 1 of 3 (1)"
    )
    assert sentence(made[2], "asha", "val_loss", "epoch") == "asha, epoch 1: val_loss 1 is among the best 1 of 3 (1)"
    [alone] = halve(standings(0.25), PAUSE)
    told = "asha, epoch 1: val_loss 0.25; 1 trial has come so far, too few to tell who is good"
    assert sentence(alone, "asha", "val_loss", "epoch") == told
    done = [curve(n, 1.0) for n in (1, 2, 3)]
    [bad] = median_rule([*done, curve(4, 2.0, status="running")], MEDIAN)
    told = "median, epoch 1: its best val_loss 2 is worse than 1, the median of 3 completed trials"
    assert sentence(bad, "median", "val_loss", "epoch") == told
