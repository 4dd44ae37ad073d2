"""Whole sweeps on two hosts: submitted, shown, extended, tried again, ended, brought back; cut anywhere, each point once."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import signal
import sqlite3
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jobrunner.ledger.store import Store
from tests.support.lab import Client, Lab, end
from tests.support.quick import QuickClient
from tests.support.waiting import eventually

pytestmark = pytest.mark.needs_sshd
FULL = os.environ.get("FULL") == "1"

TRAIN = """import json, os, sys
lr = sys.argv[sys.argv.index("--lr") + 1]
with open(os.environ["RAN"], "a") as ran:
    ran.write(lr + "\\n")
assert os.environ["JOBRUNNER_PARAM_LR"] == lr and json.loads(os.environ["JOBRUNNER_PARAMS"]) == {"lr": lr}
print("trial", os.environ["JOBRUNNER_TRIAL"], "of", os.environ["JOBRUNNER_SWEEP_ID"])
if lr == "bad" and not os.path.exists(os.environ["RAN"] + ".mended"):
    sys.exit(3)
print("loss=%s" % ("nan" if lr == "nan" else abs(float(lr if lr != "bad" else 9) - 0.25)))
with open(os.path.join(os.environ["JOBRUNNER_OUTPUT_DIR"], "model.txt"), "w") as model:
    model.write(lr)
"""
SPEC = """device: npu
script: train.py
args: [--lr, "{{lr}}"]
env: {{RAN: {ran}}}
metrics: {{loss: 'loss=(.+)'}}
sweep:
  parameters: {{lr: [{values}]}}
  objective: loss min
"""


@pytest.fixture(scope="module")
def labs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Lab, Lab]]:
    folder = tmp_path_factory.mktemp("labs")
    with Lab(folder / "one", alias="one", cards=4) as one, Lab(folder / "two", alias="two", cards=2) as two:
        yield one, two


@pytest.fixture
def client(labs: tuple[Lab, Lab], tmp_path: Path) -> QuickClient:
    return QuickClient(tmp_path / "client", *labs)


def sweep_spec(client: Client, name: str, *values: str, more: str = "") -> Path:
    text = SPEC.format(ran=client.folder / f"ran-{name}", values=", ".join(values)) + more
    return client.spec(text, name, train__py=TRAIN)


def ran(client: Client, name: str) -> Counter[str]:
    file = client.folder / f"ran-{name}"
    return Counter(file.read_text().split()) if file.exists() else Counter()


def ended(client: Client, word: str, state: str = "done") -> dict[str, Any]:
    def look() -> dict[str, Any] | None:
        data = client.json("sweep", "show", word)
        return data if data["sweep"]["state"] == state else None

    found = eventually(look, 60, f"{word} is {state}")
    assert found is not None
    return found


def forget_numbers(client: QuickClient, job: str) -> None:
    """The ledger of a visit that learned a job's end and none of its numbers."""
    with contextlib.closing(sqlite3.connect(Path(client.env["JOBRUNNER_HOME"]) / "ledger.db")) as ledger, ledger:
        for table in ("metrics", "metric_marks"):
            ledger.execute(f"DELETE FROM {table} WHERE job = ?", (job,))
        ledger.execute("UPDATE metric_offsets SET done = 0, offset = 0 WHERE job = ?", (job,))


def test_a_sweep_from_its_plan_to_its_best(client: QuickClient) -> None:
    spec = str(sweep_spec(client, "grid", "0.1", "3e-1", "nan", "0.9"))
    plan = client.json("submit", spec, "--dry-run")["plans"][0]["sweep"]
    assert [point["lr"] for point in plan["points"]] == ["0.1", "3e-1", "nan", "0.9"] and plan["trials"] == 4
    assert "lr=3e-1" in client.run("submit", spec, "--dry-run").stdout and not client.json("sweep", "ls")["sweeps"]

    data = client.json("submit", spec)
    sweep = data["sweep"]
    assert sweep["state"] == "running" and sweep["planned"] == sweep["made"] == 4
    assert {row["sweep"] for row in data["jobs"]} == {sweep["id"]} and {row["host"] for row in data["jobs"]} == {
        "one",
        "two",
    }
    shown = ended(client, sweep["id"])
    assert ran(client, "grid") == {"0.1": 1, "3e-1": 1, "nan": 1, "0.9": 1}
    ranks = [(item["rank"], item["parameters"]["lr"], item["objective"]) for item in shown["trials"]]
    assert [rank[:2] for rank in ranks] == [(1, "3e-1"), (2, "0.1"), (3, "0.9"), (None, "nan")]
    assert ranks[0][2] == pytest.approx(0.05) and shown["sweep"]["completed"] == 4

    table = list(csv.DictReader(io.StringIO(client.run("sweep", "show", "grid", "--csv").stdout)))
    assert [row["param.lr"] for row in table] == ["3e-1", "0.1", "0.9", "nan"] and table[0]["state"] == "COMPLETED"
    lines = client.run("sweep", "show", "grid", "--offline").stdout.splitlines()
    assert "4 of 4 completed" in lines[0] and lines[1].split()[:4] == ["RANK", "TRIAL", "lr", "LOSS"]
    best = client.json("sweep", "best", "grid", "--pull", "--to", str(client.folder / "best"))
    assert best["best"]["parameters"] == {"lr": "3e-1"} and (client.folder / "best" / "model.txt").read_text() == "3e-1"
    assert f"of {sweep['id']}" in client.run("logs", best["best"]["job"]).stdout
    assert client.json("sweep", "ls")["sweeps"][0]["counts"] == {"COMPLETED": 4}

    forget_numbers(client, best["best"]["job"])  # as where a host was too busy to read on to the end
    assert client.json("sweep", "best", "grid")["best"]["parameters"] == {"lr": "3e-1"}


def test_failed_trials_again_and_more_points(client: QuickClient, labs: tuple[Lab, Lab]) -> None:
    spec = sweep_spec(client, "more", "bad", "0.1", "0.2")
    id_ = client.json("submit", str(spec))["sweep"]["id"]
    shown = ended(client, id_)
    assert shown["sweep"]["failed"] == 1 and shown["trials"][-1]["reason"] == "exit"
    assert client.json("sweep", "retry", id_, "--reason", "oom", code=2)["errors"][0]["code"] == "nothing_to_retry"
    (client.folder / "ran-more.mended").touch()
    again = client.json("sweep", "retry", id_, "--reason", "exit")
    assert [row["retry_of"] for row in again["jobs"]] == [shown["trials"][-1]["job"]]
    ended(client, id_)
    assert ran(client, "more") == {"bad": 2, "0.1": 1, "0.2": 1}

    # Two more values, from a folder that has changed since: only they run, and with the code of the sweep.
    (spec.parent / "train.py").write_text("raise SystemExit('other code')")
    spec.write_text(spec.read_text().replace("[bad, 0.1, 0.2]", "[bad, 0.2, 0.3, 0.4]"))
    more = client.json("sweep", "extend", id_, str(spec))
    assert more["added"] == 2 and len(more["jobs"]) == 2
    shown = ended(client, id_)
    assert ran(client, "more") == {"bad": 2, "0.1": 1, "0.2": 1, "0.3": 1, "0.4": 1}
    assert shown["sweep"]["completed"] == 5 and [t["number"] for t in shown["trials"]] != []
    assert client.json("sweep", "extend", id_, str(spec))["jobs"] == []
    spec.write_text(spec.read_text().replace("device: npu", "device: npu\ntimeout: 1h"))
    assert "timeout" in client.json("sweep", "extend", id_, str(spec), code=2)["errors"][0]["message"]

    # Another machine knows nothing of all this, and learns it from the hosts.
    other = QuickClient(client.folder / "other", *labs)
    other.run("adopt")
    found = other.json("sweep", "show", id_)
    keys = ("number", "point", "parameters", "job", "state", "objective", "rank")
    assert [[item[key] for key in keys] for item in found["trials"]] == [
        [item[key] for key in keys] for item in shown["trials"]
    ]
    assert found["sweep"]["state"] == "done" and found["sweep"]["objective"] == "loss min"
    spec.write_text(spec.read_text().replace("\ntimeout: 1h", "").replace("0.4]", "0.4, 0.5]"))
    assert len(other.json("sweep", "extend", id_, str(spec))["jobs"]) == 1
    ended(other, id_)
    assert ran(client, "more")["0.5"] == 1


@pytest.mark.parametrize("option", ["--wait", "--follow"])
def test_a_submit_that_waits_tells_the_sweep_as_it_ended(client: QuickClient, option: str) -> None:
    data = client.json("submit", str(sweep_spec(client, "waited", "0.1", "bad")), option, code=1)
    assert data["sweep"]["state"] == "done" and data["sweep"]["counts"] == {"COMPLETED": 1, "FAILED": 1}
    assert [row["state"] for row in data["jobs"]] == ["COMPLETED", "FAILED"] and data["timed_out"] is False
    assert {row["sweep"] for row in data["jobs"]} == {data["sweep"]["id"]} and data["upload"]["files"] == 2


def test_a_sweep_is_ended(client: QuickClient) -> None:
    text = "device: npu\ncode: null\ncommand: [sleep, '{s}']\nsweep: {parallel: 2, parameters: {s: [600, 601, 602, 603]}}\n"
    data = client.json("submit", str(client.spec(text, "long")))
    eventually(lambda: client.json("sweep", "show", "long")["sweep"]["counts"].get("RUNNING") == 2, 30, "two run")
    stopped = client.json("sweep", "stop", "long")
    assert stopped["sweep"]["state"] == "stopped" and stopped["sweep"]["counts"] == {"CANCELLED": 4}
    assert {row["id"] for row in stopped["jobs"]} == {row["id"] for row in data["jobs"]}
    assert client.json("sweep", "best", "long", code=5)["errors"][0]["code"] == "no_best"


def test_too_many_failures_over_all_hosts_end_a_sweep(client: QuickClient) -> None:
    text = "device: npu\ncards: {cards}\ncode: null\ncommand: [bash, -c, 'sleep 0.3; exit {{n}}']\n"
    text += "sweep: {{on_error: {{stop_after: 2}}, parallel: 2, parameters: {{n: [1, 2, 3, 4, 5, 6, 7, 8]}}}}\n"
    client.run("submit", str(client.spec(text.format(cards=2), "failing")))
    shown = ended(client, "failing", "stopped")
    count, told = shown["sweep"]["why"].split(" ", 1)
    assert 2 <= int(count) <= 4 and told.startswith("of its trials failed")  # each host ends it by itself after two
    eventually(lambda: not client.json("sweep", "show", "failing")["sweep"]["counts"].get("RUNNING"), 30, "the end")
    assert client.json("sweep", "show", "failing")["sweep"]["counts"]["CANCELLED"] >= 4


class Killed(BaseException):
    """Stands for a kill: nothing catches it."""


def test_cut_at_every_change_of_the_ledger_each_point_runs_once(
    client: QuickClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The submit dies before its first change, before its third, … (FULL=1: before each); the same submit again goes on."""
    real, left = Store.write, [0]

    def write(self: Store, *words: str) -> Any:
        left[0] -= 1
        if left[0] == 0:
            raise Killed
        return real(self, *words)

    monkeypatch.setattr(Store, "write", write)
    names = []
    for moment in range(1, 30, 1 if FULL else 2):
        names.append(f"cut{moment}")
        spec = str(sweep_spec(client, names[-1], "0.1", "0.2", "0.3"))
        left[0] = moment
        try:
            client.run("submit", spec)
            break  # it came to its end before that many changes
        except Killed:
            left[0] = 0
            if len(names) % 3 == 0:
                client.run("ls", code=None)  # which closes the ids of what was being sent
            client.run("submit", spec)
    assert len(names) > (6 if FULL else 3)
    left[0] = 0
    for name in names:
        ended(client, name)
        assert ran(client, name) == {"0.1": 1, "0.2": 1, "0.3": 1}, name
    assert Counter(row["name"] for row in client.json("sweep", "ls")["sweeps"]) == Counter(names)


@pytest.mark.parametrize("seed", range(6) if FULL else [1])
def test_killed_while_it_is_sent(labs: tuple[Lab, Lab], tmp_path: Path, seed: int) -> None:
    client = Client(tmp_path / "client", *labs)
    name = f"kill{seed}"
    spec = str(sweep_spec(client, name, *(f"0.{n}" for n in range(1, 9))))
    process = client.start("submit", spec)
    time.sleep(0.45 + 0.25 * seed)  # the moment is what is tested
    out, _ = end(process, signal.SIGKILL)
    if not out:
        client.run("submit", spec)
    shown = ended(client, name)
    assert ran(client, name) == {f"0.{n}": 1 for n in range(1, 9)}, shown
    assert len(client.json("sweep", "ls")["sweeps"]) == 1 and shown["sweep"]["completed"] == 8


def test_a_host_that_cannot_be_used_gets_no_trial(client: QuickClient) -> None:
    spec = str(sweep_spec(client, "away", *(f"0.{n}" for n in range(1, 7))))
    hosts = json.loads((client.folder / "hosts.yaml").read_text())
    away = {**hosts, "hosts": {**hosts["hosts"], "two": {**hosts["hosts"]["two"], "root": "/proc/none"}}}
    (client.folder / "hosts.yaml").write_text(json.dumps(away))
    first = client.json("submit", spec)
    assert {row["host"] for row in first["jobs"]} == {"one"} and len(first["jobs"]) == 6
    shown = ended(client, "away")
    assert ran(client, "away") == {f"0.{n}": 1 for n in range(1, 7)}, shown
