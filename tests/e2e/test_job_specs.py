"""Every example spec is planned by the commands, and the demo's own really runs on the demo's host."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jobrunner.lab import demo
from jobrunner.lab.examples import example, examples_folder
from jobrunner.lab.story import settings_of
from tests.support.quick import run_within

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the demo's host needs Linux")
QUICK = ["--set", "args=[--lr, 5e-2, --epochs, 3, --pace, 0]"]


def jobrunner(host: demo.DemoHost, *words: str, code: int = 0) -> dict[str, Any]:
    """One command with --json: its `data`."""
    done = run_within((*words, "--json"), {**os.environ, **settings_of(host)}, Path.cwd())
    assert done.returncode == code, f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    document: dict[str, Any] = json.loads(done.stdout)
    assert document["v"] == 1
    return dict(document["data"])


def start(folder: Path, device: str, cards: int) -> Iterator[demo.DemoHost]:
    host = demo.start(folder, device, cards)
    try:
        yield host
    finally:
        demo.stop(folder, grace=1.0)


@pytest.fixture(scope="module")
def npu(tmp_path_factory: pytest.TempPathFactory) -> Iterator[demo.DemoHost]:
    yield from start(tmp_path_factory.mktemp("npu"), "npu", 4)


@pytest.fixture(scope="module")
def mlu(tmp_path_factory: pytest.TempPathFactory) -> Iterator[demo.DemoHost]:
    yield from start(tmp_path_factory.mktemp("mlu"), "mlu", 8)


def test_every_spec_has_a_plan(npu: demo.DemoHost, mlu: demo.DemoHost) -> None:
    planned = set()
    for path in sorted(examples_folder().glob("*.yaml")):
        planned.add(path.stem)
        host = mlu if path.stem.endswith("mlu") else npu
        if "\nschedule:" in path.read_text(encoding="utf-8"):
            (made,) = jobrunner(host, "schedule", "add", str(path))["schedules"]
            assert jobrunner(host, "schedule", "rm", made["id"])["schedules"][0]["state"] == "removed"
            continue
        (plan,) = jobrunner(host, "submit", str(path), "--dry-run")["plans"]
        assert plan["host"] == "demo"
    others = {"resnet18_npu", "resnet18_mlu", "llama_factory_mlu"}
    assert planned == {"digits", "digits_sweep", "digits_retrain", *others}
    assert jobrunner(npu, "ls", "--all")["jobs"] == [], "a dry run sends nothing"


def test_a_spec_for_another_device_is_not_placed(npu: demo.DemoHost) -> None:
    jobrunner(npu, "submit", str(example("resnet18_mlu")), "--dry-run", code=2)


def test_digits_from_submit_to_its_checkpoint(npu: demo.DemoHost, tmp_path: Path) -> None:
    (row,) = jobrunner(npu, "submit", str(example("digits")), *QUICK, "--wait")["jobs"]
    assert (row["state"], row["exit_code"], len(row["cards"])) == ("COMPLETED", 0, 1)
    found = jobrunner(npu, "checkpoints", row["id"], "--pull", "last", "--to", str(tmp_path / "ckpt"))["checkpoints"]
    assert [one["step"] for one in found] == [69, 46, 23]
    assert found[0]["complete"] and found[0]["pulled_to"]
    assert [path.name for path in (tmp_path / "ckpt").rglob("*") if path.is_file()] == ["step-000069.npz"]
    jobrunner(npu, "pull", row["id"], "metrics.json", "--to", str(tmp_path / "out"))
    assert json.loads((tmp_path / "out" / "metrics.json").read_text())["step"] == 69


def test_a_retry_goes_on_from_the_checkpoint(npu: demo.DemoHost) -> None:
    words = ["--set", "args=[--epochs, 3, --pace, 0, --lr, nonsense]"]
    (row,) = jobrunner(npu, "submit", str(example("digits")), *words, "--wait", code=1)["jobs"]
    assert (row["state"], row["reason"], row["exit_code"]) == ("FAILED", "exit", 2)
    (whole,) = jobrunner(npu, "submit", str(example("digits")), *QUICK, "--wait")["jobs"]
    (again,) = jobrunner(npu, "retry", whole["id"])["jobs"]
    assert again["retry_of"] == whole["id"]
    (last,) = jobrunner(npu, "wait", again["id"])["jobs"]
    assert last["state"] == "COMPLETED"
    log = jobrunner(npu, "logs", again["id"])
    assert "going on from" in json.dumps(log)


def test_the_sweep_finds_what_suits_digits(npu: demo.DemoHost, tmp_path: Path) -> None:
    """Its real space, fewer and shorter trials: the best one is the best by what its own output says, and comes home."""
    short = 'args=[--lr, "{lr}", --hidden, "{hidden}", --batch, "{batch}", --epochs, "3"]'
    spec = str(example("digits_sweep"))
    data = jobrunner(npu, "submit", spec, "--set", short, "--set", "sweep.trials=5", "--wait")
    assert {row["state"] for row in data["jobs"]} == {"COMPLETED"} and len(data["jobs"]) == 5
    shown = jobrunner(npu, "sweep", "show", "digits-sweep")
    assert shown["sweep"]["state"] == "done" and shown["sweep"]["completed"] == 5
    losses = [item["objective"] for item in shown["trials"]]
    assert losses == sorted(losses) and losses[0] < 0.6 * losses[-1], "the space has better and worse points"
    plotted = jobrunner(npu, "sweep", "plot", "digits-sweep", "--html", "--to", str(tmp_path / "sweep.html"))
    assert len(plotted["curves"]["shown"]) == 5 and min(step["best"] for step in plotted["history"]) == losses[0]
    assert "digits-sweep" in (tmp_path / "sweep.html").read_text(encoding="utf-8")
    best = jobrunner(npu, "sweep", "best", "digits-sweep", "--pull", "--to", str(tmp_path / "best"))["best"]
    assert best["parameters"] == shown["trials"][0]["parameters"] and best["step"] == 3
    assert list((tmp_path / "best").rglob("*.npz"))
    jobrunner(npu, "pull", best["job"], "metrics.json", "--to", str(tmp_path / "out"))
    told = json.loads((tmp_path / "out" / "metrics.json").read_text())
    assert told["val_loss"] == pytest.approx(losses[0], abs=1e-4)


def test_retraining_keeps_the_better_model(npu: demo.DemoHost) -> None:
    short = "args=[--kept, ~/models/digits/current, --images, 300, --lr, 2e-2, --epochs, 3]"
    jobrunner(npu, "schedule", "add", str(example("digits_retrain")), "--set", short)
    decisions = []
    for _ in range(2):
        (row,) = jobrunner(npu, "schedule", "run", "digits-retrain")["jobs"]
        (ended,) = jobrunner(npu, "wait", row["id"])["jobs"]
        assert ended["state"] == "COMPLETED"
        decisions += jobrunner(npu, "tick")["promotions"]
    assert [item["decision"] for item in decisions] == ["promoted", "promoted"], decisions
    assert 0.6 < decisions[0]["value"] < decisions[1]["value"] < 1
    assert decisions[1]["against"] == decisions[0]["value"] and Path(decisions[1]["pulled_to"]).is_file()
    assert "going on from" in json.dumps(jobrunner(npu, "logs", row["id"]))
    runs = jobrunner(npu, "schedule", "history", "digits-retrain")["runs"]
    assert [run["promoted"] for run in runs] == [True, True]
