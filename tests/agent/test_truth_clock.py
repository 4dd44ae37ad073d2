"""The host's clock is set while jobs wait and run: no length is negative, and the order is that of what happened."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobrunner.agent import clock, conclude, limits, queue
from jobrunner.agent.layout import Layout
from tests.support.agentproc import agent_host, job, until
from tests.support.running import Runs, kill, of_job

DAY = 86400.0


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[Runs]:
    with agent_host(tmp_path) as host:
        yield Runs(host)


@pytest.mark.parametrize(
    ("began", "wall", "now", "ended"),
    [
        (1000.0, 60.0, 1060.0, 1060.0),
        (1000.0, 60.0, 1059.5, 1059.5),  # adjusted, not set
        (1000.0, 60.0, 500.0, 1060.0),  # set back
        (1000.0, 60.0, 9000.0, 9000.0),  # set forward, or it slept: now is now
        (1000.0, 0.0, 999.0, 1000.0),
        (None, 60.0, 500.0, 500.0),
    ],
)
def test_nothing_ends_before_it_began(began: float | None, wall: float, now: float, ended: float) -> None:
    assert conclude.ended_at(began, wall, now) == ended


def test_a_job_that_began_in_the_future(runs: Runs) -> None:
    """The clock was set back by an hour while it ran (its start is moved instead)."""
    runs.submit("afuture01", "sleep 600", timeout_s=3600)
    start = runs.running("afuture01")
    kill(start["supervisor"]["pid"])  # whoever takes over reads the start from the record
    path = runs.host.job("afuture01") / "1" / "start.json"
    until(lambda: runs.start("afuture01")["supervisor"]["pid"] != start["supervisor"]["pid"], what="adopted")
    taken = runs.start("afuture01")
    kill(taken["supervisor"]["pid"])
    later = dict(taken, at=clock.stamp(time.time() + 3600), began=time.time() + 3600)
    path.write_text(json.dumps(later))
    view = runs.channel.ask("stop", ids=["afuture01"], wait_s=10)["jobs"]["afuture01"]
    assert view["state"] == "CANCELLED" and view["ended_at"] >= view["started_at"]
    runs.submit("afuture02", "sleep 600")
    start = runs.running("afuture02")
    path = runs.host.job("afuture02") / "1" / "start.json"
    path.write_text(json.dumps(dict(start, began=time.time() + 3600)))
    for pid in (start["supervisor"]["pid"], *of_job("afuture02")):
        kill(pid)
    view = runs.final("afuture02")
    assert view["state"] == "LOST" and clock.seconds(view["ended_at"]) > time.time() + 3000


def test_a_time_limit_is_by_the_clock_that_cannot_be_set(runs: Runs) -> None:
    runs.submit("alimitclk", "sleep 600", timeout_s=1.0)
    runs.running("alimitclk")
    path = runs.host.job("alimitclk") / "1" / "start.json"
    path.write_text(json.dumps(dict(runs.start("alimitclk"), at=clock.stamp(5.0), began=5.0)))
    began = time.monotonic()
    assert runs.final("alimitclk")["state"] == "TIMEOUT" and time.monotonic() - began < 4


def test_a_back_off_does_not_wait_for_a_clock_that_was_set_back() -> None:
    queued = 1_800_000_000.0
    entry = {"queued_at": clock.stamp(queued), "not_before": clock.stamp(queued + 30)}

    def waits(now: float) -> bool:
        return limits.not_ready(entry, clock.stamp(now), {}, False) is not None

    assert waits(queued + 29) and not waits(queued + 31)
    assert waits(queued - 5), "a clock that was adjusted a little"
    assert not waits(queued - DAY), "a clock that was set back"
    assert limits.not_ready({"not_before": "odd", "queued_at": 5}, clock.stamp(1.0), {}, False)


def test_a_back_off_is_by_the_clock_that_cannot_be_set() -> None:
    queued = 1_800_000_000.0
    entry = {"queued_at": clock.stamp(queued), "not_before": clock.stamp(queued + 30), "steady": ["boot", 530.0, 30.0]}

    def waits(now: float, boot: str, mono: float) -> bool:
        return limits.not_ready(entry, clock.stamp(now), {}, False, (boot, mono)) is not None

    assert waits(queued + DAY, "boot", 529.0), "set forward: it is not early"
    assert not waits(queued - 20, "boot", 531.0), "set back: it is not late"
    assert not waits(queued + 31, "another", 3.0), "after a reboot the other clock is all there is"
    assert waits(queued + 29, "another", 900.0)
    assert not waits(queued + 31, "boot", 400.0), "no clock that we know: it stands before the moment of queueing"
    assert limits.steady_left({"steady": "odd"}, ("boot", 1.0)) is None


def test_ages_of_files_mean_nothing_once_the_clock_was_set(runs: Runs) -> None:
    """A file that is being written looks hours old when the clock is set forward: it has to be seen twice."""
    runs.submit("asettling", "mkdir ckpt; date > ckpt/1.bin; sleep 600", checkpoints={"paths": ["ckpt/*.bin"]})
    runs.running("asettling")
    made = runs.host.job("asettling") / "1" / "work" / "ckpt" / "1.bin"
    until(lambda: made.exists() and made.stat().st_size, what="the checkpoint")
    start = runs.start("asettling")
    os.utime(made, (time.time() - 7200, time.time() - 7200))

    def complete() -> bool:
        [one] = runs.channel.ask("checkpoints", id="asettling")["checkpoints"]
        return bool(one["complete"])

    path = runs.host.job("asettling") / "1" / "start.json"
    path.write_text(json.dumps(dict(start, began=start["began"] - 7200)))
    assert not complete(), "the clock was set by two hours since the start, so its age is no proof"
    until(complete, what="seen twice, it has settled")


def test_the_queue_is_in_the_order_of_coming(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layout = Layout(str(tmp_path).encode(), "i1")
    for number, now in enumerate([1e9, 1e9 + 5, 1e9 - 3000, 1e9 - 2999, 1e9 + 60, 1e9 - 40 * DAY]):
        monkeypatch.setattr(time, "time", lambda now=now: now)
        request = job(f"aorder00{number}")["request"]
        (tmp_path / "hosts" / "i1" / "jobs" / request["id"]).mkdir(parents=True)
        assert queue.enqueue(layout, request["id"], request)
    entries = sorted(queue.Cache(layout).entries(), key=lambda entry: entry["since"])
    ids = [entry["id"] for entry in entries]
    assert ids == ["aorder005", *(f"aorder00{number}" for number in range(5))], "a wrong month is not followed"
