"""Several clients, silent hosts, cut networks: everybody sees the same, nothing is made up, nothing needs a command."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jobrunner.service import control
from tests.support.lab import Client, Lab, gone
from tests.support.quick import QuickClient
from tests.support.relay import Relay, relayed
from tests.support.waiting import eventually

pytestmark = pytest.mark.needs_sshd
SLEEP = "device: cpu\ngrace: 1s\ncommand: sleep 600\n"
CHECKPOINT = "device: cpu\ncommand: mkdir ckpt; echo w > ckpt/m-5.bin; exit %d\ncheckpoints: {paths: ['ckpt/*.bin']}\n"


@pytest.fixture
def quick(lab: Lab, tmp_path: Path) -> QuickClient:
    return QuickClient(tmp_path / "quick", lab, lab={"cpu_jobs": 8})


@pytest.fixture
def client(lab: Lab, tmp_path: Path) -> QuickClient:
    return QuickClient(tmp_path / "client", lab, lab={"cpu_jobs": 8})


def rows(client: Client) -> dict[str, dict[str, Any]]:
    """All rows by id, without what depends on when one looks."""
    return {row["id"]: {**row, "last_seen": None} for row in client.json("ls", "--all", code=None)["jobs"]}


def some_jobs(client: Client) -> list[str]:
    """Jobs of many fates: ended well and badly, tried again, timed out, cancelled, held, running."""
    specs = {
        "good": CHECKPOINT % 0,
        "bad": CHECKPOINT % 7,
        "again": "device: cpu\ncommand: exit 4\nretry: {max: 1, on: [exit], backoff: 0s}\n",
        "late": "device: cpu\ncommand: sleep 60\ntimeout: 1s\ngrace: 1s\n",
        "stopped": SLEEP,
        "runs": SLEEP,
    }
    ids = {name: client.submit(text, name) for name, text in specs.items()}
    client.until(ids["stopped"], "RUNNING")
    client.run("cancel", ids["stopped"])
    client.run("wait", *(id_ for name, id_ in ids.items() if name != "runs"), code=1)
    ids["retried"] = client.json("retry", ids["bad"])["jobs"][0]["id"]
    client.run("wait", ids["retried"], code=1)
    client.until(ids["runs"], "RUNNING")
    return list(ids.values())


def test_two_ledgers_of_one_host_agree_and_a_lost_one_comes_back(quick: QuickClient, lab: Lab, tmp_path: Path) -> None:
    ids = some_jobs(quick)
    other = QuickClient(tmp_path / "other", lab)
    other.run("adopt", lab.alias)
    mine, theirs = rows(quick), rows(other)
    assert set(ids) <= set(mine) and {id_: theirs[id_] for id_ in ids} == {id_: mine[id_] for id_ in ids}
    details = {id_: quick.json("show", id_)["job"] for id_ in ids}
    runs = ids[5]
    other.run("cancel", runs)  # by a client that has only adopted it
    assert quick.row(runs)["state"] == "CANCELLED" == other.row(runs)["state"]
    assert rows(quick)[runs] == rows(other)[runs]
    before = rows(quick)
    shutil.rmtree(quick.folder / "state")
    added = quick.json("adopt", lab.alias)["added"]
    after = rows(quick)
    assert set(ids) <= set(added) and {id_: after[id_] for id_ in ids} == {id_: before[id_] for id_ in ids}
    for id_ in ids[:5]:
        again = quick.json("show", id_)["job"]
        for key in ("spec", "attempts", "checkpoints", "evidence"):
            assert again[key] == details[id_][key], (id_, key)
        kinds = [event["kind"] for event in again["events"] if event["source"] == "host"]
        assert kinds == [event["kind"] for event in details[id_]["events"] if event["source"] == "host"]


def test_show_names_the_evidence(quick: QuickClient, lab: Lab) -> None:
    """In words, for each of the ways to be lost, and for the states on the way there."""
    lost, rebooted, alone = (quick.submit(SLEEP, name) for name in ("lost", "rebooted", "alone"))
    for id_ in (lost, rebooted, alone):
        quick.until(id_, "RUNNING")
    starts = {
        id_: json.loads((lab.job_folder(id_) / "1" / "start.json").read_bytes()) for id_ in (lost, rebooted, alone)
    }
    shown = quick.run("show", alone).stdout
    assert f"its supervisor (pid {starts[alone]['supervisor']['pid']}) holds its lock" in shown
    record = starts[rebooted]
    boot = "00000000-0000-4000-8000-000000000000"
    record["supervisor"]["boot_id"] = record["command"]["boot_id"] = boot
    (lab.job_folder(rebooted) / "1" / "start.json").write_text(json.dumps(record))
    for id_ in (lost, rebooted):
        for pid in (starts[id_]["supervisor"]["pid"], *lab.carriers(id_)):
            os.kill(pid, signal.SIGKILL)
    os.kill(starts[alone]["supervisor"]["pid"], signal.SIGKILL)
    expected = {
        lost: ("killed", f"its supervisor (pid {starts[lost]['supervisor']['pid']}) is gone"),
        rebooted: ("host_reboot", f"boot {boot} then"),
    }
    for id_, (reason, words) in expected.items():
        row = quick.until(id_, "LOST")
        assert row["reason"] == reason, row
        assert words in quick.run("show", id_).stdout
    assert quick.row(alone)["state"] == "RUNNING", "its supervisor alone was killed"
    for pid in lab.carriers(alone):
        os.kill(pid, signal.SIGKILL)
    row = quick.until(alone, "LOST")
    assert row["reason"] == "unobserved" and "no supervisor was its parent" in quick.run("show", alone).stdout


def test_cancel_while_it_is_being_sent(client: QuickClient, lab: Lab) -> None:
    """Whichever the host has first, the job or the wish: it never runs, and its sender learns what became of it."""
    marker = lab.folder / "home" / "ran-sent"
    ballast = {f"data{i}__bin": chr(97 + i) * 300_000 for i in range(6)}
    spec = client.spec("device: cpu\ngrace: 1s\ncommand: sleep 30; echo ran >> ~/ran-sent\n", "sent", **ballast)
    with relayed(client, lab) as relay:
        relay.delay = 0.012
        sending = client.start("submit", str(spec))
        eventually(lambda: client.json("ls", "--offline")["jobs"], 20, "the row")
        [row] = client.json("ls", "--offline")["jobs"]
        assert row["state"] == "STAGING"
        told = client.json("cancel", row["id"])
        relay.delay = 0.0
        sending.communicate(timeout=60)
    assert told["jobs"][0]["state"] == "CANCELLED" and told["jobs"][0]["cancel_requested_at"]
    client.run("wait", row["id"], code=1)
    assert client.row(row["id"])["state"] == "CANCELLED"
    gone(lambda: lab.carriers(row["id"]), 2.0)
    assert not marker.exists()


def test_what_would_not_end_is_an_error_with_its_pid(
    quick: QuickClient, lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "VERIFY_S", 0.3)
    id_ = quick.submit(SLEEP, "stuck")
    quick.until(id_, "RUNNING")
    start = json.loads((lab.job_folder(id_) / "1" / "start.json").read_bytes())
    os.kill(start["supervisor"]["pid"], signal.SIGSTOP)
    try:
        told = quick.json("cancel", id_, "--grace", "0s", code=3)
    finally:
        os.kill(start["supervisor"]["pid"], signal.SIGCONT)
    [error] = told["errors"]
    assert error["code"] == "left_running" and str(start["command"]["pid"]) in error["message"]
    quick.until(id_, "CANCELLED")


@pytest.mark.parametrize("grace", [0, 1])
def test_cancel_takes_the_grace_and_two_seconds_at_most(quick: QuickClient, lab: Lab, grace: int) -> None:
    deaf = "device: cpu\nscript: t.py\n"
    code = "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint(1, flush=True)\ntime.sleep(600)\n"
    id_ = quick.submit(deaf, f"deaf{grace}", t__py=code)
    eventually(lambda: quick.log(id_), 20, "the handler")
    began = time.monotonic()
    data = quick.json("cancel", id_, "--grace", f"{grace}s")
    took = time.monotonic() - began
    print(f"cancel with a grace of {grace} s: {took:.2f} s")
    assert data["jobs"][0]["state"] == "CANCELLED" and not lab.carriers(id_)
    assert grace <= took < grace + 2


@pytest.fixture
def silent() -> Iterator[int]:
    """A port that takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as server:
        yield int(server.getsockname()[1])


def among_ten(client: QuickClient, lab: Lab, last: str, port: int) -> None:
    """Ten hosts: nine that answer (one machine, nine roots), and one at another port."""
    block = (client.folder / "ssh_config").read_text()
    names = [f"host{number}" for number in range(9)]
    config = "".join(block.replace(f"Host {lab.alias}\n", f"Host {name}\n") for name in names)
    config += block.replace(f"Host {lab.alias}\n", f"Host {last}\n").replace(
        f"Port {lab.sshd.port}\n", f"Port {port}\n"
    )
    (client.folder / "ssh_config").write_text(config)
    hosts = {name: {"root": str(lab.root)} for name in (*names, last)}
    settings = {"connect_timeout": "3s", "retry_for": "5s"}
    file = {"ssh_config": str(client.folder / "ssh_config"), "settings": settings, "hosts": hosts}
    (client.folder / "hosts.yaml").write_text(json.dumps(file))


def live_on(client: QuickClient, aliases: list[str]) -> None:
    """Note a live job on each of these hosts, so that `ls` asks them all."""
    from jobrunner.core.jobs import JobRow
    from jobrunner.core.states import JobState
    from jobrunner.ledger import Ledger

    with Ledger(client.folder / "state" / "ledger.db") as ledger:
        for number, alias in enumerate(aliases):
            row = JobRow(
                f"alive{number:05}", alias, JobState.STAGING, host=alias, submitted_at="2026-12-01T09:00:00.0Z"
            )
            ledger.insert_staging(row, {}, "s", None, {"host": "another machine"})
            view = {"id": row.id, "state": "RUNNING", "attempts": [{"number": 1}]}
            ledger.apply_view(alias, "unknown", view, "2026-12-01T09:00:00.000000Z")


def listed_within(client: QuickClient, limit: float) -> None:
    began = time.monotonic()
    data = client.json("ls", code=None)
    took = time.monotonic() - began
    print(f"ls with one of ten hosts silent: {took:.2f} s with a connect limit of 3 s")
    assert took < limit
    assert [error["code"] for error in data["errors"] if error["code"] in ("silent", "timeout")], data["errors"]
    assert {row["host"]: row["state"] for row in data["jobs"]}["gone"] == "RUNNING"


def test_ls_with_one_of_ten_hosts_silent(lab: Lab, tmp_path: Path, silent: int) -> None:
    client = QuickClient(tmp_path / "many", lab)
    among_ten(client, lab, "gone", silent)
    live_on(client, [*(f"host{number}" for number in range(9)), "gone"])
    listed_within(client, 3 + 1)


@pytest.mark.root
def test_ls_with_one_of_ten_hosts_cut_off(lab: Lab, tmp_path: Path, silent: int) -> None:
    """Its packets are dropped: not even a connection comes about."""
    client = QuickClient(tmp_path / "many", lab)
    among_ten(client, lab, "gone", silent)
    live_on(client, [*(f"host{number}" for number in range(9)), "gone"])
    rule = ["INPUT", "-i", "lo", "-p", "tcp", "--dport", str(silent), "-j", "DROP"]
    if shutil.which("iptables") is None or subprocess.run(["iptables", "-I", *rule], check=False).returncode:
        pytest.skip("NOT TESTED HERE: no rule can be set with iptables")
    try:
        listed_within(client, 3 + 1)
    finally:
        subprocess.run(["iptables", "-D", *rule], check=True)


def test_a_lost_network_changes_nothing_and_needs_no_command(client: QuickClient, lab: Lab) -> None:
    """`wait`, `logs -f` and `ls --watch` are under way when everything stops, and go on by themselves afterwards."""
    shell = "while [ ! -e $JOBRUNNER_OUTPUT_DIR/go ]; do echo tick; sleep 0.2; done; echo over"
    with relayed(client, lab) as relay:
        id_ = client.submit(f"device: cpu\ncommand: {shell}\n", "ticking")
        client.until(id_, "RUNNING")
        before = {row["id"]: row for row in client.json("ls")["jobs"]}[id_]
        watchers = [client.start(*words, bufsize=0) for words in (("wait", id_), ("logs", id_, "-f", "--raw"))]
        watching = client.start("ls", "--watch", "--json")
        assert watchers[1].stdout is not None and watchers[1].stdout.readline() == b"tick\n"
        client.settings(retry_for="1s")  # the watchers have read theirs
        break_off(relay)
        during = {row["id"]: row for row in client.json("ls", code=3)["jobs"]}[id_]
        assert during["unreachable"] is True
        same = {"unreachable": None, "last_seen": None}
        assert {**during, **same} == {**before, **same}
        (lab.job_folder(id_) / "out" / "go").touch()
        eventually((lab.job_folder(id_) / "final.json").exists, 10, "the end, which nobody sees")
        relay.heal()
        out = [watcher.communicate(timeout=60) for watcher in watchers]
        assert [watcher.returncode for watcher in watchers] == [0, 0], out
        assert b"COMPLETED" in out[0][0]
        assert b"tick\n" + out[1][0] == (lab.job_folder(id_) / "1" / "log").read_bytes(), out[1][1]
        assert watching.stdout is not None
        lines = (json.loads(line) for line in watching.stdout)
        limit = threading.Timer(30, watching.kill)
        limit.start()
        assert any(row["state"] == "COMPLETED" for line in lines for row in line["data"]["jobs"])
        limit.cancel()
        watching.send_signal(signal.SIGINT)
        watching.communicate(timeout=20)


def break_off(relay: Relay) -> None:
    """Cut what is open and refuse what comes: nobody answers any more."""
    relay.refusing = True
    relay.cut()


def test_a_job_that_was_final_when_first_heard_of_has_its_timeline(quick: QuickClient) -> None:
    """Its end was in an answer that carries no events: `show` reads the journal, once."""
    id_ = quick.submit("device: cpu\ncommand: 'true'\n")
    quick.run("wait", id_)
    whole = quick.json("show", id_)["job"]["events"]
    assert {"started", "final"} <= {event["kind"] for event in whole}
    with sqlite3.connect(quick.folder / "state" / "ledger.db") as base:
        base.execute("DELETE FROM events WHERE job = ? AND source = 'host'", (id_,))
        base.execute("UPDATE jobs SET offset = 0 WHERE id = ?", (id_,))
    base.close()
    assert quick.json("show", id_)["job"]["events"] == whole
