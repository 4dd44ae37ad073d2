"""Many processes on one ledger, and processes that die in the middle of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from jobrunner.ledger import Ledger

WRITER = """
import random, sys
from pathlib import Path
from jobrunner.core.jobs import JobRow
from jobrunner.core.states import JobState
from jobrunner.ledger import EventBatch, Ledger

path, me, rounds = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
chance = random.Random(me)
ledger = Ledger(path)
at = "2026-12-01T09:00:00.{:06d}Z".format
for n in range(rounds):
    id_ = "j%03dx%06d" % (me, n)
    kind = n % 5
    if kind == 0:
        row = JobRow(id_, "n", JobState.STAGING, host="a", submitted_at=at(n))
        ledger.insert_staging(row, {}, "s", "c", {"pid": me})
    elif kind == 1:
        view = {"state": "RUNNING", "attempts": [{"number": 1}]}
        ledger.apply_views("a", "m", {"j%03dx%06d" % (me, n - 1): view}, at(n))
    elif kind == 2:
        ledger.mark_unreachable("a", "silent", at(n))
        ledger.list(); ledger.live_by_host()
    elif kind == 3:
        ledger.replace_checkpoints("j%03dx%06d" % (me, n - 3), [{"name": str(k), "path": "p"} for k in range(5)])
        ledger.request_cancel(["j%03dx%06d" % (me, n - 3)], at(n), 1)
    else:
        ledger.add_event("j%03dx%06d" % (me, n - 4), "seen", at(n), {"n": n})
    print(n, flush=True)
"""


def start(path: Path, me: int, rounds: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path), str(me), str(rounds)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def test_sixteen_processes_write_at_once_to_a_ledger_that_they_also_make(tmp_path: Path) -> None:
    path = tmp_path / "state" / "ledger.db"
    writers = [start(path, me, 50) for me in range(16)]
    for writer in writers:
        _, errors = writer.communicate(timeout=100)
        assert writer.returncode == 0, errors.decode()
    with Ledger(path) as ledger:
        assert len(ledger.list(all=True)) == 16 * 10
        assert all(len(ledger.checkpoints(row.id)) == 5 for row in ledger.list(all=True))
        assert len(ledger.pending_wishes("a")) == 16 * 10
        assert ledger.integrity_check() == []


@pytest.mark.skipif(os.name != "posix", reason="SIGKILL")
def test_writers_that_are_killed_leave_a_sound_ledger_and_whole_transactions(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    Ledger(path).close()
    victims = [start(path, me, 1_000_000) for me in range(4)]
    try:
        for turn in range(20):
            victim = victims[turn % 4]
            assert victim.stdout is not None
            for _ in range(1 + turn % 7):  # it is at work, somewhere else each time
                assert victim.stdout.readline(), victim.stderr and victim.stderr.read().decode()
            time.sleep(turn / 5000)
            os.kill(victim.pid, signal.SIGKILL)
            victim.communicate()
            victims[turn % 4] = start(path, 10 + turn, 1_000_000)
            with Ledger(path) as ledger:
                ledger.set_meta("turn", str(turn))
                assert ledger.integrity_check() == []
                for job in ledger.unsent():
                    assert job.submitter, "the row and its request are one transaction"
                assert {len(ledger.checkpoints(row.id)) for row in ledger.list(all=True)} <= {0, 5}
    finally:
        for victim in victims:
            victim.kill()
            victim.communicate()
