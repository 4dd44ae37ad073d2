"""The life of a job over a real sshd: submitted, queued, run, looked at, steered, ended."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import pytest

from tests.support.lab import Client, Lab, end, gone
from tests.support.quick import QuickClient
from tests.support.waiting import eventually

pytestmark = pytest.mark.needs_sshd
HELLO = "device: cpu\ncommand: [echo, hello]\n"
SLEEP = "device: npu\ncommand: [sleep, '60']\ngrace: 2s\n"


@pytest.mark.parametrize("launcher", ["nohup", pytest.param("tmux", marks=pytest.mark.needs_tmux)])
def test_a_script_with_a_card_runs_and_tells(program: Client, launcher: str) -> None:
    script = (
        "import os, sys\n"
        "print('cards', os.environ['JOBRUNNER_CARDS'], os.environ['ASCEND_RT_VISIBLE_DEVICES'])\n"
        "print('cuda', repr(os.environ.get('CUDA_VISIBLE_DEVICES')))\n"
        "print(sys.argv[1:])\n"
        "print('to stderr', file=sys.stderr)\n"
    )
    text = f"script: train.py\nargs: [--lr, 5e-5, 'a b', \"it's $(id)\"]\ndevice: npu\ncards: 2\nlauncher: {launcher}\n"
    id_ = program.submit(text, train__py=script)
    done = program.json("wait", id_)
    row = done["jobs"][0]
    assert row["state"] == "COMPLETED" and row["exit_code"] == 0 and len(row["cards"]) == 2 and row["device"] == "npu"
    cards = ",".join(map(str, row["cards"]))
    log = program.log(id_).replace(b"\r\n", b"\n").decode()
    assert f"cards {cards} {cards}\n" in log
    assert "['--lr', '5e-5', 'a b', \"it's $(id)\"]\n" in log and "to stderr\n" in log
    assert [row["id"] for row in program.json("ls", "--all")["jobs"]] == [id_]


def test_values_arrive_byte_for_byte(program: Client) -> None:
    value = "q'\"$(touch /tmp/x)`id`\n!\\ é中文🙂 %s # & \t end "
    text = f"device: cpu\nscript: show.py\nenv: {{V: {json.dumps(value)}}}\nargs: [{json.dumps(value)}]\n"
    id_ = program.submit(text, show__py="import json, os, sys\nprint(json.dumps([os.environ['V'], sys.argv[1]]))\n")
    program.run("wait", id_)
    assert json.loads(program.log(id_)) == [value, value]


def test_exit_codes_and_signals_are_told_apart(client: Client) -> None:
    ends = {
        "exit": ("command: exit 3\n", {"state": "FAILED", "reason": "exit", "exit_code": 3, "signal": None}),
        "sig": ("command: kill -SEGV $$\n", {"state": "FAILED", "reason": "signal", "signal": "SIGSEGV"}),
        "setup": ("command: 'true'\nruntime: {setup: ['exit 7']}\n", {"state": "FAILED", "reason": "setup"}),
        "limit": ("command: sleep 60\ntimeout: 1s\ngrace: 1s\n", {"state": "TIMEOUT"}),
    }
    ids = {name: client.submit("device: cpu\n" + text, name) for name, (text, _) in ends.items()}
    client.run("wait", *ids.values(), code=1)
    for name, (_, expected) in ends.items():
        row = client.row(ids[name])
        assert {key: row[key] for key in expected} == expected, name


def test_jobs_wait_for_cards_and_start_without_a_client(client: Client, lab: Lab) -> None:
    first = client.submit(SLEEP + "cards: 4\n", "first")
    client.until(first, "RUNNING")
    second = client.submit("device: npu\ncards: 4\ncommand: echo ran\n", "second")
    assert client.row(second)["state"] == "QUEUED"
    why = client.json("why", second)["findings"]
    assert why and any(first in json.dumps(item) or "first" in json.dumps(item) for item in why), why
    stopped = client.json("cancel", first)
    assert stopped["jobs"][0]["state"] == "CANCELLED"
    final = lab.job_folder(second) / "final.json"
    eventually(final.exists, 10, "the second job's end with no client connected")
    assert client.row(second)["state"] == "COMPLETED"


def test_a_card_with_a_strangers_process_is_not_taken(client: Client, lab: Lab) -> None:
    lab.cards(cards={0: {"processes": [{"pid": 1, "name": "python", "memory_mb": 20000}]}})
    try:
        shown = client.json("cards")["hosts"][0]["cards"]
        assert [card["free"] for card in shown] == [False, True, True, True], shown
        id_ = client.submit("device: npu\ncards: 3\ncommand: 'true'\n")
        client.run("wait", id_)
        assert client.row(id_)["cards"] == [1, 2, 3]
    finally:
        lab.cards()


def test_cancel_ends_the_whole_tree_and_frees_the_cards(client: Client, lab: Lab) -> None:
    script = (
        "import os, signal, subprocess, sys, time\n"
        "subprocess.Popen(['setsid', 'sleep', '600'])\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    if os.fork() == 0:\n"
        "        signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "        time.sleep(600)\n"
        "    os._exit(0)\n"
        "print('up', flush=True)\n"
        "time.sleep(600)\n"
    )
    id_ = client.submit("script: tree.py\ndevice: npu\ngrace: 1s\n", tree__py=script)
    eventually(lambda: b"up" in client.log(id_), 20, "the tree")
    data = client.json("cancel", id_)
    assert data["jobs"][0]["state"] == "CANCELLED" and data["jobs"][0]["cancel_requested_at"]
    gone(lambda: lab.carriers(id_), 1.0)
    assert all(card["free"] for card in client.json("cards")["hosts"][0]["cards"])
    again = client.json("cancel", id_)
    assert again["already_final"] == [id_]


def test_follow_shows_every_byte_and_ends_with_the_job(client: Client) -> None:
    id_ = client.submit("device: cpu\ncommand: for i in 1 2 3 4 5; do echo line $i; sleep 0.2; done; printf end\n")
    done = client.run("logs", id_, "-f", "--raw")
    assert done.stdout == "".join(f"line {i}\n" for i in range(1, 6)) + "end"
    assert client.run("logs", id_, "-n", "2", "--raw").stdout == "line 5\nend"
    assert client.run("logs", id_, "--grep", "[24]$").stdout == "line 2\nline 4\n"


def test_interrupting_a_follower_leaves_the_job_alone(client: Client) -> None:
    id_ = client.submit("device: cpu\ngrace: 1s\ncommand: echo up; sleep 60\n")
    eventually(lambda: b"up" in client.log(id_), 20, "the job")
    viewer = client.start("logs", id_, "-f")
    assert viewer.stdout is not None and viewer.stdout.readline() == b"up\n"
    began = time.monotonic()
    _, err = end(viewer, signal.SIGINT)
    assert time.monotonic() - began < 3 and viewer.returncode == 130 and b"goes on" in err
    assert client.row(id_)["state"] == "RUNNING"
    client.run("cancel", id_)


def test_hold_release_priority_drain(client: Client, lab: Lab) -> None:
    client.run("hosts", "drain", "lab")
    try:
        refused = client.json("submit", str(client.spec(HELLO, "nowhere")), code=2)
        assert refused["errors"][0]["code"] == "no_host"
        low, high = (client.submit(HELLO, name, "--host", "lab") for name in ("low", "high"))
        client.run("hold", low)
        client.run("priority", high, "5")
        assert client.row(low)["state"] == client.row(high)["state"] == "QUEUED"
    finally:
        client.run("hosts", "undrain", "lab")
    client.run("wait", high)
    assert client.row(low)["state"] == "QUEUED"
    client.run("release", low)
    client.run("wait", low)


def test_retry_on_the_host_and_by_hand(client: Client) -> None:
    script = (
        "import os, sys\n"
        "attempt = int(os.environ['JOBRUNNER_ATTEMPT'])\n"
        "open('made.txt', 'a').write('x')\n"
        "print(attempt, len(open('made.txt').read()), sys.argv[1:])\n"
        "sys.exit(0 if attempt == 2 else 9)\n"
    )
    text = "device: cpu\nscript: t.py\nargs: [a]\nretry: {max: 2, on: [exit], backoff: 0s}\n"
    id_ = client.submit(text, t__py=script)
    client.run("wait", id_)
    row = client.json("show", id_)
    assert row["job"]["state"] == "COMPLETED" and row["job"]["attempt"] == 2 and len(row["job"]["attempts"]) == 2
    assert client.log(id_) == b"2 1 ['a']\n" and client.log(id_, "--attempt", "1") == b"1 1 ['a']\n"
    again = client.json("retry", id_)["jobs"][0]
    assert again["retry_of"] == id_ and again["id"] != id_
    client.run("wait", again["id"])


def test_checkpoints_are_listed_pulled_and_resumed_from(client: Client, tmp_path: Path) -> None:
    script = (
        "import os, pathlib, time\n"
        "pathlib.Path('ckpt').mkdir(exist_ok=True)\n"
        "print('from', os.environ.get('JOBRUNNER_RESUME_FROM'))\n"
        "for step in (10, 20):\n"
        "    path = pathlib.Path(f'ckpt/model-step{step}.bin')\n"
        "    path.with_suffix('.tmp').write_bytes(os.urandom(70000))\n"
        "    path.with_suffix('.tmp').rename(path)\n"
        "    time.sleep(0.05)\n"
        "open('metrics.json', 'w').write('{}')\n"
    )
    text = 'device: cpu\nscript: t.py\ncheckpoints: {paths: ["ckpt/*.bin"]}\noutputs: [metrics.json]\n'
    id_ = client.submit(text, t__py=script)
    client.run("wait", id_)
    found = client.json("checkpoints", id_)["checkpoints"]
    assert [(item["step"], item["size"], item["complete"]) for item in found] == [(20, 70000, True), (10, 70000, True)]
    pulled = client.json("checkpoints", id_, "--pull", "last", "--to", str(tmp_path / "got"))
    [path] = [path for path in (tmp_path / "got").rglob("*") if path.is_file()]
    assert path.name == "model-step20.bin" and path.stat().st_size == 70000 and pulled["files"][0]["size"] == 70000
    client.run("pull", id_, "--to", str(tmp_path / "out"))
    assert (tmp_path / "out" / "metrics.json").read_text() == "{}"
    retried = client.json("retry", id_)
    assert retried["resume_from"].endswith("/ckpt/model-step20.bin")
    again = retried["jobs"][0]["id"]
    client.run("wait", again)
    assert b"model-step20.bin" in client.log(again)
    fresh = client.json("retry", id_, "--fresh")["jobs"][0]["id"]
    client.run("wait", fresh)
    assert client.log(fresh) == b"from None\n"


def test_secrets_are_in_the_job_and_nowhere_else(client: Client, lab: Lab) -> None:
    client.env["MY_TOKEN"] = "canary-31415926"
    id_ = client.submit("device: cpu\nsecrets: [MY_TOKEN]\ncommand: 'echo ${#MY_TOKEN}; sleep 1'\n")
    client.run("wait", id_)
    assert client.log(id_) == b"15\n"
    places = [lab.root, client.folder / "state"]
    for path in (path for place in places for path in place.rglob("*") if path.is_file()):
        assert b"canary-31415926" not in path.read_bytes(), path


def test_the_ledger_comes_back_from_the_host(client: Client, lab: Lab, tmp_path: Path) -> None:
    ids = [client.submit(HELLO, name) for name in ("one", "two")]
    client.run("wait", *ids)
    before = {row["id"]: row for row in client.json("ls", "--all")["jobs"]}
    other = QuickClient(tmp_path / "other", lab)
    adopted = other.json("adopt", "lab")
    assert set(ids) <= set(adopted["added"])
    after = {row["id"]: row for row in other.json("ls", "--all")["jobs"]}
    for id_ in ids:
        assert {**after[id_], "last_seen": None} == {**before[id_], "last_seen": None}


def test_checkpoints_come_home_when_the_spec_asks_for_it(client: Client) -> None:
    text = 'device: cpu\ncommand: mkdir ckpt; echo model > ckpt/m-7.bin\ncheckpoints: {paths: ["ckpt/*.bin"], pull: last}\n'
    id_ = client.submit(text)
    told = client.run("wait", id_).stderr
    home = client.folder / "state" / "artifacts" / id_ / "checkpoints" / "m-7.bin"
    assert home.read_text() == "model\n" and str(home.parent) in told
    [item] = client.json("checkpoints", id_)["checkpoints"]
    assert item["pulled_to"] == str(home) and item["name"] == "m-7.bin" and len(item["sha256"]) == 64
