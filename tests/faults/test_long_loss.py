"""Three minutes without a network, for real: `make faults` plays it (FULL=1), `make test` loses it for moments only."""

from __future__ import annotations

import os
import sqlite3
import time
from pathlib import Path
from typing import Any

import pytest

from tests.faults.commands import Laptop
from tests.faults.host import BreakableHost
from tests.faults.play import through_relay
from tests.support.relay import Relay
from tests.support.waiting import eventually

pytestmark = [
    pytest.mark.needs_sshd,
    pytest.mark.slow,
    pytest.mark.timeout(500),
    pytest.mark.skipif(os.environ.get("FULL") != "1", reason="three minutes of silence: FULL=1, or `make faults`"),
]
LOSS_S, LOOK_EVERY_S = 180.0, 20.0
SPEC = """device: cpu
grace: 1s
command: n=0; while [ $n -lt 1050 ]; do echo line $n $JOBRUNNER_JOB_ID; n=$((n+1)); sleep 0.2; done; exit 3
"""


def row_of(laptop: Laptop, id_: str) -> dict[str, Any]:
    """Everything that the ledger knows of a job."""
    with sqlite3.connect(laptop.folder / "state" / "ledger.db") as base:
        base.row_factory = sqlite3.Row
        row = dict(base.execute("SELECT * FROM jobs WHERE id = ?", (id_,)).fetchone())
    base.close()
    return row


def changed(before: dict[str, Any], after: dict[str, Any]) -> set[str]:
    return {key for key in before if before[key] != after[key]}


def test_three_minutes_change_nothing_but_when_it_was_seen(tmp_path: Path) -> None:
    """A follower and a waiting command live through it and need no help; looks meanwhile tell what was known."""
    with BreakableHost(tmp_path / "host") as host:
        relay = Relay(host.sshd.port)
        laptop = Laptop(tmp_path / "laptop", host)
        through_relay(laptop, host, relay)
        id_ = laptop.submit(SPEC, "long")
        laptop.until(id_, "RUNNING")
        follower, waiting = laptop.begin("logs", id_, "-f", "--raw"), laptop.begin("wait", id_)
        eventually(lambda: follower.out.stat().st_size > 200, 20, "the first lines")
        before, began = row_of(laptop, id_), time.monotonic()
        relay.hole = True
        looks = 0
        while time.monotonic() < began + LOSS_S:
            _, document = laptop.ask("ls")
            [shown] = document["data"]["jobs"]
            assert (shown["state"], shown["reason"], shown["ended_at"]) == ("RUNNING", None, None)
            assert changed(before, row_of(laptop, id_)) <= {"last_seen", "unreachable", "error", "updated_at"}
            looks += 1
            time.sleep(max(0.0, min(LOOK_EVERY_S, began + LOSS_S - time.monotonic())))
        assert follower.code is None and waiting.code is None, f"{follower.told()}\n{waiting.told()}"
        seen = follower.out.stat().st_size
        relay.hole = False
        relay.cut()
        healed = time.monotonic()
        eventually(lambda: follower.out.stat().st_size > seen, 60, "the follower goes on by itself")
        again = time.monotonic() - healed
        later = row_of(laptop, id_)
        assert changed(before, later) <= {"last_seen", "unreachable", "error", "updated_at", "log_bytes", "offset"}
        assert waiting.wait(120) == 1 and follower.wait(60) == 0
        row = laptop.row(id_)
        assert (row["state"], row["reason"], row["exit_code"], row["attempt"]) == ("FAILED", "exit", 3, 1)
        assert follower.out.read_bytes() == host.log_of(id_, 1) and host.log_of(id_, 1).count(b"\n") == 1050
        print(f"{looks} looks in {LOSS_S:.0f} s of silence; the follower went on {again:.1f} s after its end")
        relay.close()
