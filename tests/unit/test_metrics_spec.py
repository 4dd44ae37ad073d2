"""`metrics:` in a spec: what it becomes, and what is refused because no metric gives it."""

import pytest

from jobrunner.core.metricspec import check_source, form_of
from jobrunner.core.spec import spec_from_json
from jobrunner.core.specdoc import read_spec

HEAD = "script: a.py\ndevice: npu\nargs: ['{lr}']\nmetrics: {val_loss: '(x)', epoch: {json: epoch}}\n"
HEAD += "checkpoints: {paths: ['*.pt']}\n"


@pytest.mark.parametrize(
    ("given", "read", "form"),
    [
        ("loss=(.*)", "loss=(.*)", "regex"),
        ({"json": "val.loss"}, {"json": "val.loss"}, "json"),
        ({"key": "loss"}, {"file": "metrics.jsonl", "key": "loss"}, "file"),
        ({"tensorboard": "runs", "tag": "loss"}, {"tensorboard": "runs", "tag": "loss"}, "tensorboard"),
    ],
)
def test_a_source_is_read_and_stays_the_same_in_json(given, read, form):
    assert check_source(given) == read
    assert form_of(read) == form
    spec = read_spec(f"command: x\ndevice: cpu\nmetrics: {{m: {given!r}}}\n", "f.yaml").spec
    assert spec is not None
    assert spec_from_json(spec.as_json()) == spec
    assert spec.metrics == {"m": read}


@pytest.mark.parametrize(
    ("tail", "line", "said"),
    [
        ("sweep: {parameters: {lr: [1]}, objective: val_los min}", 6, "no metric gives 'val_los'"),
        (
            "sweep: {parameters: {lr: [1]}, objective: val_loss min, early_stop: {method: asha, step: epoc}}",
            6,
            "no metric gives 'epoc'",
        ),
        ("sweep: {parameters: {lr: [1]}}\npromote: {metric: val_los max, to: m}", 7, "no metric gives 'val_los'"),
    ],
)
def test_what_no_metric_gives_is_refused_with_its_place(tail, line, said):
    problems = read_spec(f"{HEAD}{tail}\n", "f.yaml", enabled=("sweep", "promote")).problems
    assert [(p.line, said in p.message) for p in problems] == [(line, True)], problems
    assert problems[0].column > 1
    assert problems[0].suggestion in ("val_loss", "epoch")


def test_too_many_metrics_are_refused():
    names = ", ".join(f"m{number}: {{json: a}}" for number in range(101))
    (problem,) = read_spec(f"command: x\ndevice: cpu\nmetrics: {{{names}}}\n", "f.yaml").problems
    assert "100 are the most" in problem.message
