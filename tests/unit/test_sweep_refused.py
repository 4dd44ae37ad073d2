"""What cannot be a sweep is refused before anything is sent: the line, the column, and what is wrong."""

from __future__ import annotations

import pytest

from jobrunner.core.specdoc import read_spec

HEAD = "device: npu\ncommand: [run, --lr, '{lr}']\nmetrics: {loss: 'loss=(.+)'}\n"  # three lines
LR = "{lr: [1, 2]}"
FAULTS = [
    # the sweep's text (line 4 on), line, column, words of the message
    ("sweep: {parameters: {}}", 4, 21, "sweep.parameters is empty"),
    ("sweep: {method: list, parameters: []}", 4, 35, "sweep.parameters is empty"),
    ("sweep: {parameters: {lr: []}}", 4, 26, "has no values"),
    ("sweep: {parameters: {lr: [1, 1]}}", 4, 26, "the same value twice"),
    ("sweep:\n  method: random\n  trials: 3\n  parameters:\n    lr: {min: 2, max: 1}", 8, 15, "must be less than max"),
    ("sweep:\n  method: random\n  trials: 3\n  parameters:\n    lr: {min: 1, max: 1}", 8, 15, "must be less than max"),
    ("sweep: {method: random, trials: 3, parameters: {lr: {min: 0, max: 1, scale: log}}}", 4, 59, "needs min > 0"),
    ("sweep: {method: random, trials: 3, parameters: {lr: {min: -1, max: 1, scale: log}}}", 4, 59, "needs min > 0"),
    ("sweep: {method: random, trials: 3, parameters: {lr: {min: .nan, max: 1}}}", 4, 59, "a number is wanted"),
    ("sweep: {parameters: {lr: {min: 1, max: 2.5}}}", 4, 26, "list its values"),
    ("sweep: {parameters: {lr: {min: 1, max: 2, step: 0}}}", 4, 49, "step must be more than 0"),
    ("sweep: {parameters: {lr: [1, 2], LR: [1, 2]}}", 4, 34, "differ only in case"),
    ("sweep: {parameters: {lr: [1, 2], b: [1, 2]}}", 4, 34, "is used nowhere"),
    (f"sweep: {{parameters: {LR}, trials: 2}}", 4, 35, "remove `trials`"),
    ("sweep: {method: list, trials: 2, parameters: [{lr: 1}]}", 4, 23, "remove `trials`"),
    ("sweep: {method: random, parameters: {lr: [1, 2]}}", 4, 1, "needs `trials`"),
    ("sweep: {method: random, trials: 3, parameters: {lr: [1, 2]}}", 4, 33, "2 different points only"),
    ("sweep: {method: qmc, trials: 9, parameters: {lr: {min: 1, max: 4}}}", 4, 30, "4 different points only"),
    (f"sweep: {{parameters: {LR}, objective: los min}}", 4, 46, "no metric gives 'los'"),
    (f"sweep: {{parameters: {LR}, objective: loss}}", 4, 46, "write a metric and its direction"),
    ("sweep: {method: tpe, trials: 2, parameters: {lr: [1, 2]}}", 4, 1, "needs `objective`"),
    ("sweep: {method: list, parameters: [{lr: 1}, {b: 1}]}", 4, 45, "the same parameters as the first"),
    ("sweep: {method: list, parameters: [{lr: 1}, {lr: 2}, {lr: 1}]}", 4, 54, "the same as point 1"),
    ("sweep: {method: list, parameters: {lr: [1, 2, 1]}}", 4, 35, "the same as point 1"),
    ("sweep: {parameters: [{lr: 1}]}", 4, 21, "needs `method: list`"),
    ("sweep: {parameters: {lr: {min: 1, max: 200000}}}", 4, 26, "list its values"),
    ("sweep: {parameters: {lr: {min: 1, max: 200000, step: 1}}}", 4, 21, "100000 are the most"),
    ("sweep: {parameters: {1r: [1]}}", 4, 22, "cannot be a parameter"),
    ("sweep: {parameters: {checkpoint: [1]}}", 4, 22, "a meaning of its own"),
    (f"sweep: {{parameters: {LR}, parallel: 0}}", 4, 45, "must be at least 1"),
    (f"sweep: {{parameters: {LR}, on_error: halt}}", 4, 45, "continue, stop or {stop_after: N}"),
    (f"sweep: {{parameters: {LR}, on_error: [stop]}}", 4, 45, "continue or stop is wanted here, or {stop_after: N}"),
    (f"sweep: {{parameters: {LR}, on_error: {{stop_after: 0}}}}", 4, 58, "sweep.on_error.stop_after: found the number 0"),
    (f"sweep: {{parameters: {LR}, on_error: {{after: 2}}}}", 4, 46, "the key 'after' is not known in sweep.on_error"),
    ("sweep: {method: grod, parameters: {lr: [1]}}", 4, 17, "grod"),
    (
        f"sweep: {{parameters: {LR}, objective: loss min, early_stop: {{method: asha, step: epoch}}}}",
        4, 89, "no metric gives 'epoch'",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("text", "line", "column", "words"), FAULTS, ids=range(len(FAULTS)))
def test_a_space_that_cannot_be(text: str, line: int, column: int, words: str) -> None:
    document = read_spec(HEAD + text + "\n", "f.yaml")
    found = [(problem.line, problem.column, problem.message) for problem in document.problems]
    assert document.spec is None
    assert any(place[:2] == (line, column) and words in place[2] for place in found), found


WORDS = [
    ("command: [run, '{lr}', '{momentum}']", 2, 24, "no parameter is called 'momentum'"),
    ("script: a.py\nargs: [--lr, '{Lr}']", 3, 14, "no parameter is called 'Lr'"),
    ("command: 'run --lr {lr}'", 2, 10, "$JOBRUNNER_PARAM_LR"),
    ("command: [run]\nenv: {LR: '{learning}'}", 3, 11, "no parameter is called 'learning'"),
]


@pytest.mark.parametrize(("text", "line", "column", "words"), WORDS, ids=range(len(WORDS)))
def test_placeholders_that_do_not_fit(text: str, line: int, column: int, words: str) -> None:
    document = read_spec(f"device: npu\n{text}\nsweep: {{parameters: {{lr: [1, 2]}}}}\n", "f.yaml")
    found = [(problem.line, problem.column, problem.message) for problem in document.problems]
    assert any(place[:2] == (line, column) and words in place[2] for place in found), found


def test_every_fault_of_a_space_is_told_at_once() -> None:
    text = "sweep: {trials: 2, parameters: {lr: [], b: {min: 2, max: 1}}}\n"
    problems = read_spec(HEAD + text, "f.yaml").problems
    assert len(problems) >= 4, problems


def test_a_space_without_placeholders_is_fine() -> None:
    document = read_spec("device: npu\ncommand: run\nsweep: {parameters: {lr: [1], b: [2]}}\n", "f.yaml")
    assert document.spec is not None and not document.problems
