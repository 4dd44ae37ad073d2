"""Job specs: what is read from a file, what is refused and where, and the way through JSON and back."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobrunner.core.errors import SpecError
from jobrunner.core.spec import JobSpec, spec_from_json
from jobrunner.core.specdoc import read_spec

_spec = importlib.util.spec_from_file_location("core_samples", Path(__file__).with_name("core_samples.py"))
samples = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(samples)


def read(text, *overrides, **options):
    document = read_spec(text, "f.yaml", overrides, **options)
    assert document.problems == [], [str(p) for p in document.problems]
    return document.spec


def test_a_spec_with_every_key():
    spec = read(samples.FULL)
    assert spec.args == ("--lr", "5e-5", "--flag", "true", "no", "1.10", "007", "1_000", '{"a": {"b": 1}}', "{{x}}")
    assert spec.env == {"EPOCHS": "3", "RATE": "1e-05", "ON": "on", "EMPTY": "", "QUOTED": "it's $(id) `x`\n"}
    assert (spec.timeout_s, spec.grace.seconds, spec.retry.backoff.seconds) == (43200, 45, 60)
    assert [(item.job, item.when) for item in spec.after] == [("other-job-id", "ok"), ("second", "any")]
    assert (spec.card_count, spec.card_ids, spec.runtime.vendor) == (2, None, "off")
    assert set(JobSpec.model_fields) - set(spec.model_fields_set) == {"command", "sweep", "schedule", "promote"}


def test_a_spec_with_next_to_nothing():
    spec = read("script: train.py\ndevice: mlu\n", default_name="train")
    assert (spec.name, spec.card_count, spec.code.path, spec.grace, spec.timeout) == ("train", 1, ".", "30s", None)
    assert (spec.launcher, spec.checkpoints.keep, spec.retry.max) == (None, None, 0)


@pytest.mark.parametrize("text", ["cards: 0\n", "device: cpu\n", "device: cpu\ncards: 0\n"])
def test_a_job_without_cards(text):
    spec = read("command: x\n" + text)
    assert (spec.device, spec.card_count) == ("cpu", 0)


def test_no_cards_on_any_device():
    assert read("command: x\ndevice: npu\ncards: 0\n").device == "npu"


def test_chosen_cards_are_told_in_order():
    spec = read("command: x\ndevice: npu\ncards: [3, 1]\n")
    assert (spec.card_count, spec.card_ids) == (2, (1, 3))


@pytest.mark.parametrize(("text", "wanted"), samples.BAD, ids=range(len(samples.BAD)))
def test_a_bad_spec_is_refused_with_place_and_suggestion(text, wanted):
    document = read_spec(text, "f.yaml")
    found = [(p.line, p.column, p.suggestion) for p in document.problems]
    assert document.spec is None
    assert found == [(line, column, near) for line, column, _, near in wanted], [str(p) for p in document.problems]
    for problem, (_, _, piece, _) in zip(document.problems, wanted, strict=True):
        assert piece in problem.message
        assert "pydantic" not in str(problem) and "Input should" not in str(problem)


def test_every_error_of_a_file_at_once():
    text = (
        "nmae: x\nscirpt: a\ndevice: npux\ncards: [1, 1]\nenv: {JOBRUNNER_A: 1}\ntimeout: 1 hour\n"
        "secrets: [B, B]\ncheckpoints: {pull: best}\n"
    )
    lines = [problem.line for problem in read_spec(text, "f").problems]
    assert sorted(set(lines)) == [1, 2, 3, 4, 5, 6, 7, 8]


def test_a_value_of_env_is_never_shown():
    document = read_spec("command: x\ndevice: npu\nenv: {TOKEN: [hunter2]}\nsecrets: [TOKEN]\n", "f")
    assert document.problems and "hunter2" not in "".join(map(str, document.problems))


def test_overrides_are_typed_by_the_model_and_named_in_errors():
    spec = read(samples.FULL, "cards=4", "args.1=1.50", "env.NEW=true", "retry.max=5", "name=a: b", "code.exclude=[x]")
    assert (spec.cards, spec.args[1], spec.env["NEW"], spec.retry.max, spec.name) == (4, "1.50", "true", 5, "a: b")
    assert spec.code.exclude == ("x",)
    document = read_spec(samples.FULL, "f", ["cards=many", "retry.mxa=1"])
    assert [(p.file, p.line) for p in document.problems] == [("--set cards=many", None), ("--set retry.mxa=1", None)]
    assert document.problems[1].suggestion == "max"


def test_a_script_can_be_overridden_by_a_command():
    spec = read("script: a.py\ndevice: cpu\n", "script=null", "command=echo 1 # 2")
    assert (spec.script, spec.command) == (None, "echo 1 # 2")


def test_problem_at_finds_the_nearest_place():
    document = read_spec(samples.FULL, "f.yaml", ["env.X=1"])
    assert str(document.problem_at(("hosts", 1), "no")) == "f.yaml:7:16: no"
    assert str(document.problem_at(("code", "path"), "no", "x")) == "f.yaml:2:14: no (did you mean 'x'?)"
    assert str(document.problem_at(("launcher", "deeper"), "no")) == "f.yaml:17:11: no"
    assert str(document.problem_at(("env", "X"), "no")) == "--set env.X=1: no"


def test_sweeps_and_schedules_can_be_enabled():
    text = "script: a.py\ndevice: npu\nargs: ['{lr}']\nsweep: {parameters: {lr: [1e-3, 007]}}\n"
    spec = read(text, enabled={"sweep"})
    assert spec.sweep.parameters == {"lr": ("1e-3", "007")}
    assert spec_from_json(spec.as_json()) == spec


SWEEPS = [
    ("parameters: {}", "is empty"),
    ("parameters: {lr: []}", "no values"),
    ("parameters: {lr: {min: 2, max: 1, step: 1}}", "less than max"),
    ("parameters: {lr: {min: 1, max: 2}}", "method grid"),
    ("method: random, trials: 3, parameters: {lr: {min: 0, max: 1, scale: log}}", "min > 0"),
    ("trials: 3, parameters: {lr: [1]}", "remove `trials`"),
    ("method: tpe, trials: 3, parameters: {lr: [1]}", "needs `objective`"),
    ("method: random, parameters: {lr: [1]}", "needs `trials`"),
    ("objective: los min, parameters: {lr: [1]}", "no metric gives 'los'"),
    ("parameters: {lr: [1], LR: [2]}", "differ only in case"),
    ("parameters: {batch: [1]}", "no parameter is called 'lr'"),
    ("parameters: {lr: [1], batch: [1]}", "used nowhere"),
    ("parameters: 3", "mapping of parameters"),
    ("parameters: {lr: 3}", "list of values"),
    ("parameters: {lr: [1]}, on_error: stpo", "continue, stop"),
    ("method: list, parameters: [{lr: 1}, {x: 2}]", "same parameters"),
    ("method: cmaes, trials: 3, objective: loss min, parameters: {lr: {min: 0, max: 1}}", "1 of the parameters is one"),
    (
        "parameters: {lr: [1]}, objective: loss min, early_stop: {method: asha, step: loss, min: 3, max: 3}",
        "max (3) must",
    ),
    ("parameters: {lr: [1]}, objective: loss min, early_stop: {method: median, step: loss, pause: true}", "names none"),
]


@pytest.mark.parametrize(("sweep", "piece"), SWEEPS)
def test_a_bad_space_is_refused(sweep, piece):
    text = f"script: a.py\ndevice: npu\nargs: ['{{lr}}']\nmetrics: {{loss: '(x)'}}\nsweep: {{{sweep}}}\n"
    problems = read_spec(text, "f", enabled={"sweep"}).problems
    assert any(piece in p.message and p.line in (3, 5) for p in problems), [str(p) for p in problems]


def test_a_parameter_in_a_text_for_bash_is_refused():
    text = "command: train {lr} ${lr}\ndevice: npu\nsweep: {parameters: {lr: [1]}}\n"
    assert "JOBRUNNER_PARAM_LR" in read_spec(text, "f", enabled={"sweep"}).problems[0].message


WORDS = st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), max_size=12)
NAMES = st.from_regex(r"\A[A-IK-Z_][A-Za-z0-9_]{0,9}\Z").filter(lambda n: not n.endswith("_VISIBLE_DEVICES"))
ARGS = st.lists(WORDS.filter(lambda w: "{checkpoint:" not in w), max_size=4)
DURATIONS = st.builds("{}{}".format, st.integers(1, 999), st.sampled_from("smhd"))
SPECS = st.fixed_dictionaries(
    {"device": st.sampled_from(["npu", "mlu", "gpu"])},
    optional={
        "args": ARGS,
        "cards": st.integers(0, 16) | st.lists(st.integers(0, 15), min_size=1, unique=True),
        "env": st.dictionaries(NAMES, WORDS, max_size=3),
        "timeout": DURATIONS,
        "grace": DURATIONS,
        "hosts": st.lists(st.from_regex(r"\A[a-z][a-z0-9-]{0,8}\Z"), unique=True, max_size=3),
        "priority": st.integers(-100, 100),
        "retry": st.fixed_dictionaries({}, optional={"max": st.integers(0, 9), "backoff": DURATIONS}),
        "checkpoints": st.fixed_dictionaries({"paths": st.just(["a/*"])}, optional={"keep": st.integers(1, 9)}),
        "code": st.just(".") | st.fixed_dictionaries({"path": st.just("src"), "exclude": st.just(["*.o"])}),
    },
)


@settings(max_examples=120, deadline=None)
@given(SPECS)
def test_any_spec_survives_json_and_yaml(data):
    spec = spec_from_json({"script": "train.py", **data})
    plain = spec.as_json()
    assert json.loads(json.dumps(plain)) == plain
    assert spec_from_json(plain) == spec
    assert read(json.dumps(plain)) == spec
    assert list(spec.args) == data.get("args", [])
    assert spec.env == data.get("env", {})


def test_json_of_a_program_may_hold_numbers():
    spec = spec_from_json({"command": ["x", 5, 1e-05, True], "device": "cpu", "env": {"A": 3}})
    assert spec.command == ("x", "5", "1e-05", "true") and spec.env == {"A": "3"}
    with pytest.raises(SpecError) as caught:
        spec_from_json({"command": "x", "device": "npu", "cards": "2", "timeout": 5})
    assert [p.message.split(":")[0] for p in caught.value.problems] == ["cards", "timeout"]


def test_a_spec_is_frozen():
    with pytest.raises(ValueError):
        read(samples.FULL).name = "other"


def test_the_light_modules_stay_light():
    light = ("errors", "states", "jobs", "ids", "placement", "durations")
    code = f"import sys; import {', '.join('jobrunner.core.' + name for name in light)}; "
    code += "sys.exit(bool({'pydantic', 'ruamel', 'ruamel.yaml'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
