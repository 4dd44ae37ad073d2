"""Every field of a spec has its effect on the host: what runs, after what, how often, from where, for how long."""

from __future__ import annotations

import datetime
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.lab import Client, Lab
from tests.support.quick import QuickClient
from tests.support.waiting import eventually

pytestmark = pytest.mark.needs_sshd
CPU = "device: cpu\ncode: null\n"
LONG = "command: sleep 60\ngrace: 1s\n"


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with Lab(tmp_path_factory.mktemp("lab")) as host:
        yield host


@pytest.fixture
def client(lab: Lab, tmp_path: Path) -> QuickClient:
    """A laptop whose hosts file lets many jobs without cards run at once."""
    return QuickClient(tmp_path / "client", lab, lab={"cpu_jobs": 16})


def moment(text: str) -> float:
    return datetime.datetime.strptime(text, "%Y-%m-%dT%H:%M:%S.%fZ").timestamp()


def ended(client: Client, *ids: str) -> list[dict[str, Any]]:
    client.json("wait", *ids, "--timeout", "40s", code=None)
    return [client.row(id_) for id_ in ids]


def test_what_runs_and_how(client: Client) -> None:
    jobs = {
        "string": (CPU + "command: 'echo $0 $- $#; false; echo on'\n", {}, b"bash hBc 0\non\n"),
        "words": (CPU + "command: [printf, '%s|', 1.10, no, $HOME, '{x}', 'a b']\n", {}, b"1.10|no|$HOME|{x}|a b|"),
        "words-args": (CPU + "command: [echo, a]\nargs: [b, '*']\n", {}, b"a b *\n"),
        "shell": ("device: cpu\nscript: t.sh\nargs: [x]\n", {"t__sh": 'echo "sh $1 ${BASH_VERSION:0:1}"\n'}, b"sh x 5\n"),
        "exec": ("device: cpu\nscript: tool\n", {"tool": "#!/bin/sh\necho tool $0\n"}, b"tool "),
        "folder": ("device: cpu\ncode: src\nscript: a/t.py\n", {"src/a/t__py": "import os; print(os.listdir())\n"}, b"['a']\n"),
        "runtime": (
            f"device: cpu\nscript: t.py\nruntime: {{python: {_old_python()}}}\n",
            {"t__py": "import sys; print(sys.version_info[:2])\n"},
            b"(3, 6)\n",
        ),
        "crlf": (CPU.replace("code: null\n", "") + "command: [cat, f.sh]\n", {"f__sh": "a\r\nb\r\n"}, b"a\r\nb\r\n"),
    }  # fmt: skip
    ids = {name: client.submit(text, name, **files) for name, (text, files, _) in jobs.items()}
    rows = {row["name"]: row for row in ended(client, *ids.values())}
    for name, (_, _, expected) in jobs.items():
        log = client.log(ids[name])
        assert rows[name]["state"] == "COMPLETED" and log.startswith(expected), (name, log)


def _old_python() -> str:
    found = sorted(Path("/root/.pyenv/versions").glob("3.6*/bin/python"))
    if not found:
        pytest.skip("NOT TESTED HERE: no Python 3.6 to be named as runtime.python")
    return str(found[0])


def test_after_ok_any_failed(client: Client) -> None:
    good = client.submit(CPU + "command: sleep 0.5\n", "good")
    bad = client.submit(CPU + "command: sleep 0.5; exit 1\n", "bad")
    last = client.submit(CPU + LONG, "last")
    first = {}
    for name, after in {
        "ok-good": "[good]",
        "ok-bad": f"[{bad}]",
        "any-bad": "[{job: bad, when: any}]",
        "failed-bad": f"[{{job: {bad}, when: failed}}]",
        "failed-good": "[{job: good, when: failed}]",
        "both": f"[{good}, {{job: {bad[:6]}, when: any}}]",
        "never-yet": "[last]",
    }.items():
        first[name] = client.submit(f"{CPU}command: 'true'\nafter: {after}\n", name)
    rows = {row["name"]: row for row in ended(client, *(id_ for name, id_ in first.items() if name != "never-yet"))}
    states = {name: (row["state"], row["reason"]) for name, row in rows.items()}
    assert states == {
        "ok-good": ("COMPLETED", None),
        "ok-bad": ("FAILED", "dependency"),
        "any-bad": ("COMPLETED", None),
        "failed-bad": ("COMPLETED", None),
        "failed-good": ("FAILED", "dependency"),
        "both": ("COMPLETED", None),
    }
    assert all(
        moment(row["started_at"]) >= moment(client.row(bad)["ended_at"])
        for row in rows.values()
        if "any" in row["name"]
    )
    assert rows["ok-bad"]["started_at"] is None and rows["ok-bad"]["exit_code"] is None
    waiting = client.row(first["never-yet"])
    assert waiting["state"] == "QUEUED"
    assert [item["code"] for item in client.json("why", first["never-yet"])["findings"]] == ["after"]
    client.run("cancel", first["never-yet"], last)
    unknown = client.json("submit", str(client.spec(f"{CPU}command: 'true'\nafter: [nosuchjob]\n")), code=None)
    assert unknown["errors"] and "nosuchjob" in unknown["errors"][0]["message"]
    assert [row["name"] for row in client.json("ls", "--all", "--name", "job")["jobs"]] == []


def test_retry_on_each_reason_with_backoff(client: Client, lab: Lab) -> None:
    first = "[ $JOBRUNNER_ATTEMPT = 2 ] && exit 0; "
    commands = {
        "exit": ("exit 3", "", "FAILED"),
        "signal": ("kill -9 $$", "", "FAILED"),
        "timeout": ("sleep 60", "timeout: 1s\ngrace: 0s\n", "TIMEOUT"),
        "lost": ("sleep 60", "", "LOST"),
    }
    ids, plain = {}, {}
    for reason, (command, more, _) in commands.items():
        policy = f"retry: {{max: 1, on: [{reason}], backoff: 1s}}\n"
        ids[reason] = client.submit(f"{CPU}command: '{first}{command}'\n{more}{policy}", reason)
        others = [word for word in ("exit", "signal", "oom", "timeout", "lost") if word != reason]
        policy = f"retry: {{max: 3, on: [{', '.join(others)}], backoff: 0s}}\n"
        plain[reason] = client.submit(f"{CPU}command: '{command}'\n{more}{policy}", f"not-{reason}")
    for id_ in (ids["lost"], plain["lost"]):
        _kill_all_of(client, lab, id_)
    rows = {row["name"]: row for row in ended(client, *ids.values(), *plain.values())}
    for reason, (_, _, state) in commands.items():
        row = client.json("show", ids[reason])["job"]
        assert (row["state"], row["attempt"], row["exit_code"], row["reason"]) == ("COMPLETED", 2, 0, None), row
        one, two = row["attempts"]
        assert one["number"] == 1 and two["number"] == 2
        assert moment(two["started_at"]) - moment(one["ended_at"]) >= 0.99, reason
        assert (rows[f"not-{reason}"]["state"], rows[f"not-{reason}"]["attempt"]) == (state, 1), rows[f"not-{reason}"]
    assert rows["not-lost"]["reason"] in ("killed", "unobserved") and rows["not-signal"]["signal"] == "SIGKILL"
    never = client.submit(
        f"{CPU}command: 'true'\nruntime: {{setup: ['false']}}\nretry: {{max: 3, backoff: 0s}}\n", "set"
    )
    assert [(row["attempt"], row["reason"]) for row in ended(client, never)] == [(1, "setup")]


def _kill_all_of(client: Client, lab: Lab, id_: str) -> None:
    client.until(id_, "RUNNING")
    folder = lab.job_folder(id_)
    supervisor = json.loads((folder / "1" / "start.json").read_text())["supervisor"]["pid"]
    eventually(lambda: lab.carriers(id_), 10, "the command")
    for pid in (supervisor, *lab.carriers(id_)):
        os.kill(pid, signal.SIGKILL)


def test_a_job_in_back_off_is_queued_without_cards_and_can_be_cancelled(client: Client) -> None:
    id_ = client.submit("device: npu\ncards: 2\ncode: null\ncommand: exit 1\nretry: {max: 1, backoff: 1h}\n")
    eventually(lambda: client.row(id_)["attempt"] == 2, 20, "the back-off")
    row = client.row(id_)
    assert (row["state"], row["phase"], row["cards"], row["reason"], row["ended_at"]) == (
        "QUEUED",
        None,
        [],
        None,
        None,
    )
    assert all(card["free"] for card in client.json("cards")["hosts"][0]["cards"])
    assert client.json("why", id_)["findings"][0]["code"] == "backoff"
    stopped = client.json("cancel", id_)["jobs"][0]
    assert (stopped["state"], stopped["reason"]) == ("CANCELLED", None) and stopped["cancel_requested_at"]


def test_the_second_attempt_goes_on_from_a_checkpoint_with_what_it_carries(client: Client) -> None:
    script = (
        "import os, sys, pathlib, time\n"
        "attempt, out = os.environ['JOBRUNNER_ATTEMPT'], pathlib.Path(os.environ['JOBRUNNER_OUTPUT_DIR'])\n"
        "print(sys.argv[1:], os.environ.get('JOBRUNNER_RESUME_FROM', 'nothing'), sorted(os.listdir('.')), flush=True)\n"
        "pathlib.Path('cache').mkdir(exist_ok=True); pathlib.Path('cache/x').write_text(attempt)\n"
        "pathlib.Path('scratch').write_text('')\n"
        "(out / 'ckpt').mkdir(exist_ok=True); (out / 'ckpt' / f'step-{attempt}.pt').write_text('model')\n"
        "sys.exit(attempt == '1')\n"
    )
    text = (
        "device: cpu\nscript: t.py\nargs: [a]\nresume_args: [--resume, '{checkpoint}', '{{x}']\ncarry: ['cache/']\n"
        'checkpoints: {paths: ["ckpt/*.pt"]}\nretry: {max: 1, on: [exit], backoff: 0s}\n'
    )
    id_ = client.submit(text, t__py=script)
    assert [row["state"] for row in ended(client, id_)] == ["COMPLETED"]
    assert client.log(id_, "--attempt", "1") == b"['a'] nothing ['spec.yaml', 't.py']\n"
    second = client.log(id_, "--attempt", "2").decode()
    assert "['a', '--resume', '/" in second and "step-1.pt', '{x}'] /" in second
    assert "['cache', 'spec.yaml', 't.py']" in second
    found = client.json("checkpoints", id_)["checkpoints"]
    assert [(item["name"], item["step"]) for item in found] == [("step-2.pt", 2), ("step-1.pt", 1)]


def test_keep_newest_and_best_by_a_metric_of_the_log(client: Client) -> None:
    script = (
        "import pathlib, time\n"
        "pathlib.Path('ckpt').mkdir()\n"
        "for step, loss in enumerate([3.0, 0.5, 2.0, 1.0], 1):\n"
        "    print(f'epoch {step}: val_loss={loss}', flush=True)\n"
        "    time.sleep(0.1)\n"
        "    pathlib.Path(f'ckpt/m-{step}.pt').write_text('model')\n"
        "    time.sleep(0.1)\n"
    )
    text = (
        'device: cpu\nscript: t.py\nmetrics: {val_loss: "val_loss=([0-9.]+)"}\n'
        'checkpoints: {paths: ["ckpt/*.pt"], keep: {last: 1, best: "val_loss min"}}\n'
    )
    id_ = client.submit(text, t__py=script)
    assert [row["state"] for row in ended(client, id_)] == ["COMPLETED"]
    found = client.json("checkpoints", id_)["checkpoints"]
    assert [(item["name"], item["metrics"]) for item in found] == [
        ("m-4.pt", {"val_loss": 1.0}),
        ("m-2.pt", {"val_loss": 0.5}),
    ]
    two = client.submit(text.replace('{last: 1, best: "val_loss min"}', "2"), "two", t__py=script)
    mute = client.submit(text.replace('best: "val_loss', 'best: "acc'), "mute", t__py=script)
    ended(client, two, mute)
    assert [item["name"] for item in client.json("checkpoints", two)["checkpoints"]] == ["m-4.pt", "m-3.pt"]
    # Nothing tells which is best: none is removed, and that is said.
    assert len(client.json("checkpoints", mute)["checkpoints"]) == 4
    assert "acc" in client.run("show", mute).stderr


def test_time_limit_and_grace(client: Client) -> None:
    stubborn = "command: trap '' TERM; echo up; while true; do sleep 0.05; done\n"
    polite = "command: trap 'echo term; exit 0' TERM; echo up; while true; do sleep 0.05; done\n"
    over = client.submit(f"{CPU}{stubborn}timeout: 1s\ngrace: 1s\n", "over")
    soft = client.submit(f"{CPU}{polite}timeout: 1s\n", "soft")
    long = client.submit(f"{CPU}{stubborn}grace: 1h\n", "long")
    rows = ended(client, over, soft)
    for row, low, high in zip(rows, (1.9, 0.9), (4.0, 3.0), strict=True):
        ran = moment(row["ended_at"]) - moment(row["started_at"])
        assert row["state"] == "TIMEOUT" and row["reason"] is None and low < ran < high, row
    assert client.log(soft).endswith(b"term\n")
    eventually(lambda: client.log(long) == b"up\n", 20, "the job")
    assert client.json("cancel", long, "--grace", "0s")["jobs"][0]["state"] == "CANCELLED"
