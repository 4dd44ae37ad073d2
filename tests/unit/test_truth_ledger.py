"""Many writers on one ledger while some of them are killed, and its timeline.

`FULL=1` plays the crowd at its full size (64 processes, 200 writes each: about a minute).
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from jobrunner.core.jobs import JobRow
from jobrunner.core.states import JobState
from jobrunner.ledger import EventBatch, Ledger
from tests.unit.test_ledger_processes import start

FULL = os.environ.get("FULL") == "1"


@pytest.mark.skipif(os.name != "posix", reason="SIGKILL")
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("writers", "rounds", "kills"), [pytest.param(64, 200, 12, marks=pytest.mark.slow) if FULL else (10, 40, 4)]
)
def test_a_crowd_of_which_some_are_killed(tmp_path: Path, writers: int, rounds: int, kills: int) -> None:
    """Whoever is not killed gets every write through; the file is sound; readers read all the while."""
    path, chance = tmp_path / "ledger.db", random.Random(5)
    Ledger(path).close()
    crowd = [start(path, me, rounds) for me in range(writers)]
    said: dict[int, bytes] = {}
    listeners = [
        threading.Thread(target=lambda me=me, process=process: said.update({me: process.communicate()[1]}))
        for me, process in enumerate(crowd)
    ]
    for listener in listeners:
        listener.start()
    reads, victims = 0, set[int]()
    while any(process.poll() is None for process in crowd):
        with Ledger(path) as ledger:
            ledger.list(all=True)
            ledger.live_by_host()
        reads += 1
        alive = [me for me, process in enumerate(crowd) if process.poll() is None]
        if alive and len(victims) < kills and reads % 3 == 0:
            victims.add(me := chance.choice(alive))
            crowd[me].send_signal(signal.SIGKILL)
        time.sleep(0.05)
    for listener in listeners:
        listener.join()
    survivors = [me for me, process in enumerate(crowd) if process.returncode == 0]
    failed = {me: said[me].decode() for me, process in enumerate(crowd) if process.returncode not in (0, -9)}
    assert not failed and len(survivors) >= writers - kills and victims
    with Ledger(path) as ledger:
        assert ledger.integrity_check() == []
        rows = ledger.list(all=True)
        for me in survivors:
            mine = [row.id for row in rows if row.id.startswith(f"j{me:03}x")]
            assert len(mine) == rounds // 5
            assert all(len(ledger.checkpoints(id_)) == 5 for id_ in mine)
        assert {len(ledger.checkpoints(row.id)) for row in rows} <= {0, 5}, "a write is whole or not there"


def test_a_reader_is_not_kept_waiting_by_a_writer_that_was_stopped(tmp_path: Path) -> None:
    """A writer hangs in the middle of its transaction: who reads sees what was there before, at once."""
    path = tmp_path / "ledger.db"
    with Ledger(path) as ledger:
        ledger.insert_staging(
            JobRow("aaaaaaaa", "n", JobState.STAGING, host="a", submitted_at="2026-12-01T09:00:00.000000Z"),
            {},
            "s",
            "c",
            {},
        )
    code = (
        "import sqlite3, sys, time\n"
        "db = sqlite3.connect(sys.argv[1], isolation_level=None)\n"
        "db.execute('BEGIN IMMEDIATE')\n"
        "db.execute(\"UPDATE jobs SET state = 'QUEUED'\")\n"
        "print('in it', flush=True)\n"
        "time.sleep(600)\n"
    )

    writer = subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE)
    try:
        assert writer.stdout is not None and writer.stdout.readline()
        began = time.monotonic()
        with Ledger(path) as ledger:
            assert [row.state for row in ledger.list()] == [JobState.STAGING]
        assert time.monotonic() - began < 1
    finally:
        writer.kill()
        writer.communicate()
    with Ledger(path) as ledger:
        assert ledger.get("aaaaaaaa").state is JobState.STAGING


def test_the_timeline_is_the_hosts_order_whatever_its_clock_did(tmp_path: Path) -> None:
    """The host's clock goes back by an hour after the start; what this machine did stands where it fits."""
    at = "2026-12-01T{}:00.000000Z".format
    with Ledger(tmp_path / "ledger.db") as ledger:
        row = JobRow("aaaaaaaa", "n", JobState.STAGING, host="a", submitted_at=at("09:00"))
        ledger.insert_staging(row, {}, "s", "c", {})
        journal = [
            ("queued", "09:01"),
            ("started", "09:02"),
            ("cancel", "08:05"),
            ("ended", "08:06"),
            ("final", "09:06"),
        ]
        items = [{"at": at(when), "kind": kind} for kind, when in journal]
        view = {"id": "aaaaaaaa", "state": "RUNNING", "attempts": [{"number": 1}]}
        ledger.apply_view("a", "m", view, at("09:07"), EventBatch(0, 100, items))
        ledger.add_event("aaaaaaaa", "missing", at("09:05"), {})
        ledger.add_event("aaaaaaaa", "seen", at("09:30"), {})
        kinds = [event.kind for event in ledger.events("aaaaaaaa") if event.source == "host"]
        assert kinds == [kind for kind, _ in journal]
        assert [event.kind for event in ledger.events("aaaaaaaa")][-3:] == ["missing", "final", "seen"]
