"""A job's pids are strangers' by the time somebody looks: it is lost, and nobody else is touched. Then the clock is set."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.commands import Laptop
from tests.faults.host import BreakableHost
from tests.support.waiting import eventually

pytestmark = [pytest.mark.needs_sshd, pytest.mark.root]
SLEEP = "device: cpu\ngrace: 1s\ncode: null\ncommand: sleep 600\n"


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BreakableHost]:
    with BreakableHost(tmp_path_factory.mktemp("reused") / "host", own_clock=True) as made:
        yield made


@pytest.fixture
def laptop(host: BreakableHost, tmp_path: Path) -> Laptop:
    return Laptop(tmp_path / "laptop", host, lab={"cpu_jobs": 8})


@pytest.mark.parametrize("words", [("show",), ("cancel", "--grace", "1s"), ("wait",)], ids=lambda words: words[0])
def test_a_pid_that_a_stranger_has_is_nobodys_job(host: BreakableHost, laptop: Laptop, words: tuple[str, ...]) -> None:
    host.part_from_strangers()
    id_ = laptop.submit(SLEEP, words[0])
    laptop.until(id_, "RUNNING")
    eventually(lambda: not host.processes("jr-dispatch"), 10, "the dispatcher has nothing left to do")
    host.kill("jr-supervise")
    host.kill_job(id_)
    assert len(host.reuse_pids()) == 2, "the pids of its supervisor and of its command"
    laptop.run(words[0], id_, *words[1:], code=None)
    row = laptop.row(id_)
    assert (row["state"], row["reason"]) in (("LOST", "killed"), ("CANCELLED", None)), row
    assert host.living_strangers() == host.expected == 5


def test_a_time_limit_and_a_back_off_pass_by_no_clock_on_the_wall(host: BreakableHost, laptop: Laptop) -> None:
    """Set by two days under a job with an hour's limit, and back under one that waits for its next attempt."""
    assert host.clock
    id_ = laptop.submit(f"{SLEEP}timeout: 1h\n", "hour")
    laptop.until(id_, "RUNNING")
    spec = "device: cpu\ncode: null\nretry: {max: 1, on: [exit], backoff: 2s}\ncommand: exit 3\n"
    host.clock.set(2 * 86400)
    assert laptop.row(id_)["state"] == "RUNNING"
    again = laptop.submit(spec, "again")
    eventually(lambda: laptop.row(again)["attempt"] == 2, 10, "the back-off")
    host.clock.set(-3600)
    laptop.run("wait", again, "--timeout", "20s", code=1)
    laptop.run("cancel", id_)
    for each in (id_, again):
        shown = laptop.json("show", each)["job"]
        assert all(attempt["ended_at"] >= attempt["started_at"] for attempt in shown["attempts"]), shown
    assert laptop.row(again)["attempt"] == 2
    host.clock.set(0)
