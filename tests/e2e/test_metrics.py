"""Metrics through the whole program: declared in a spec, collected on the host, in the ledger, shown, drawn, adopted."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.support.lab import Lab
from tests.support.quick import QuickClient
from tests.support.waiting import eventually

pytestmark = pytest.mark.needs_sshd

SPEC = """device: cpu
script: train.py
metrics:
  val_loss: 'val_loss=([-+.0-9eE]+)'
  epoch: 'epoch (\\d+)'
  acc: {json: acc}
  f1: {file: out.jsonl, key: val.f1}
  board: {tensorboard: runs, tag: val/loss}
checkpoints: {paths: ['*.pt'], keep: {last: 1, best: val_loss min}}
"""
TRAIN = """import json, os, sys, time
from tensorboardX import SummaryWriter
board = SummaryWriter("runs")
for epoch in range(1, 4):
    loss = [0.5, 0.25, float("nan")][epoch - 1]
    print(f"epoch {epoch} val_loss={loss}", end="\\r", flush=True)
    print(json.dumps({"acc": epoch / 4, "step": epoch * 10}))
    with open("out.jsonl", "a") as file:
        file.write(json.dumps({"val": {"f1": epoch}, "epoch": epoch}) + "\\n")
    board.add_scalar("val/loss", loss, epoch)
    board.add_scalar("other", 1, epoch)
    open(f"model_{epoch}.pt", "w").write("x")
    board.flush()
    ends = time.monotonic() + 60
    while epoch == 1 and not os.path.exists("go") and time.monotonic() < ends:
        time.sleep(0.02)
        board.flush()  # what was in its queue still at the flush before is in the file after this one
board.close()
"""


@pytest.fixture
def client(lab: Lab, tmp_path: Path) -> QuickClient:
    return QuickClient(tmp_path / "client", lab, lab={"cpu_jobs": 4})


def values(client: QuickClient, id_: str, metric: str) -> list[tuple[object, object]]:
    [curve] = client.json("plot", f"{id_}:{metric}")["curves"]
    assert (curve["job"], curve["metric"]) == (id_, metric)
    return [(point["step"], point["value"]) for point in curve["points"]]


def test_numbers_of_every_kind_arrive_with_their_steps(lab: Lab, client: QuickClient, tmp_path: Path) -> None:
    id_ = client.submit(SPEC, train__py=TRAIN)
    there = lambda: client.json("show", id_)["job"]["metrics"].get("board")  # noqa: E731
    eventually(there, seconds=45, what="the first event file is read")
    assert values(client, id_, "val_loss") == [(1, 0.5)]
    assert client.json("show", id_)["job"]["metrics"]["f1"]["last"]["step"] == 1
    (lab.job_folder(id_) / "1" / "work" / "go").touch()
    client.run("wait", id_)
    assert values(client, id_, "val_loss") == [(1, 0.5), (2, 0.25), (3, "nan")]
    assert values(client, id_, "acc") == [(10, 0.25), (20, 0.5), (30, 0.75)]
    assert values(client, id_, "f1") == [(1, 1), (2, 2), (3, 3)]
    assert values(client, id_, "board") == [(1, 0.5), (2, 0.25), (3, "nan")]
    told = client.json("show", id_)["job"]["metrics"]["val_loss"]
    assert (told["count"], told["last"]["value"], told["best"]["step"], told["max"]["value"]) == (3, "nan", 2, 0.5)
    shown = client.run("show", id_).stdout
    assert "METRIC" in shown
    assert "val_loss" in shown
    kept = {item["name"]: item["metrics"] for item in client.json("checkpoints", id_)["checkpoints"]}
    assert kept["model_2.pt"] == {"val_loss": 0.25, "epoch": 2, "f1": 2}
    drawn = client.run("plot", id_).stdout
    assert [name for name in ("val_loss", "acc", "f1", "board") if f"{name} over steps" not in drawn] == []
    assert "last nan, 1 nan" in drawn
    assert "no metric 'val_los'" in client.run("plot", f"{id_}:val_los", code=5).stderr
    shutil.rmtree(tmp_path / "client" / "state")
    client.run("adopt")
    assert values(client, id_, "board") == [(1, 0.5), (2, 0.25), (3, "nan")]


def test_two_jobs_share_a_chart_and_one_that_told_nothing_says_so(client: QuickClient) -> None:
    text = "device: cpu\ncommand: for i in 1 2 3; do echo step $i loss=0.$i; done\nmetrics: {loss: 'loss=(.*)'}\n"
    one, two = client.submit(text, "one"), client.submit(text.replace("0.$i", "1.$i"), "two:b")
    silent = client.submit("device: cpu\ncommand: 'true'\nmetrics: {loss: 'loss=(.*)'}\n", "silent")
    plain = client.submit("device: cpu\ncommand: 'true'\n", "plain")
    client.run("wait", one, two, silent, plain)
    drawn = client.run("plot", "one:loss", "two:b:loss").stdout
    assert drawn.count("loss over steps") == 1
    assert f"a one {one}: last 0.3" in drawn
    assert f"b two:b {two}: last 1.3" in drawn
    assert "told no value of 'loss' yet" in client.run("plot", f"{silent}:loss", code=5).stderr
    assert "declares no metrics" in client.run("plot", plain, code=5).stderr
    assert json.loads(client.run("ls", "--json").stdout)["errors"] == []


def test_no_other_round_trip_and_nothing_asked_of_jobs_without_metrics(client: QuickClient, monkeypatch) -> None:
    from jobrunner.transport.link import HostLink

    asked: list[tuple[str, object]] = []
    request = HostLink.request
    monkeypatch.setattr(
        HostLink,
        "request",
        lambda self, op, **more: asked.append((op, more.get("metrics"))) or request(self, op, **more),
    )
    with_, without = (
        client.submit(f"device: cpu\ncommand: echo loss=1\n{more}", name)
        for name, more in (("with", "metrics: {loss: 'loss=(.*)'}\n"), ("without", ""))
    )
    client.run("wait", with_, without)
    asked.clear()
    client.run("ls")
    assert asked == [], "everything is known of jobs that have ended"
    assert values(client, with_, "loss") == [(1, 1)]
    assert client.json("show", without)["job"]["metrics"] == {}
