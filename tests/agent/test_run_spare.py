"""A process that waits to become the next job's supervisor."""

from __future__ import annotations

import contextlib
import json
import os
import random
import resource
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from jobrunner.agent import first, leases, rehearsal, spare, starts
from jobrunner.agent.layout import Layout
from jobrunner.lab.simcards import tools_dir, write_lab
from tests.support.agentproc import agent_host, until
from tests.support.running import FINAL, Runs, gone, kill, of_job, parent


def ended(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_it_is_given_what_a_supervisor_needs(tmp_path: Path) -> None:
    one, names = spare.Spare(), [b"\0jobrunner-test/" + os.urandom(8).hex().encode() for _ in range(3)]
    held = [leases.bind(name) for name in names]
    outlet, inlet = os.pipe()
    out = tmp_path / "out"

    def become(told: object, given: list[int]) -> int:
        os.read(outlet, 1)
        out.write_text(json.dumps([told, [os.get_inheritable(number) for number in given]]))
        return 7

    assert one.give(["x"], held) is None, "there is none yet"
    one.make(lambda: become, [inlet])
    one.make(lambda: become, [])  # one is enough
    assert one.give(["x" * spare.LIMIT], held) is None, "what is too long is no loss"
    pid = one.give(["told", {"é": None}], held)
    assert pid and not one.descriptors() and one.give(["x"], held) is None
    leases.release(held)
    assert all(leases.bind(name) is None for name in names), "it holds them now"
    os.close(inlet)  # it has no copy of this
    assert ended(pid) == 7 and not one.ended(pid)
    assert json.loads(out.read_text()) == [["told", {"é": None}], [False] * 3]
    assert all(name not in leases.held_names() for name in names)
    os.close(outlet)


def test_it_ends_with_its_dispatcher_and_is_not_made_again_once_killed() -> None:
    def become(*_: object) -> int:
        raise AssertionError("nothing was given")

    one = spare.Spare()
    one.make(lambda: become)
    pid = one._pid
    one._socket.close()
    assert ended(pid) == 0 and one.ended(pid) and not one.ended(pid)
    two = spare.Spare()
    two.make(lambda: become)
    pid = two._pid
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert two.give([], []) is None, "who starts forks then"
    assert ended(pid) == -signal.SIGKILL and two.ended(pid)
    two.make(lambda: become)
    assert two.descriptors() == []


def test_it_begins_nothing_without_all_its_descriptors() -> None:
    names = [b"\0jobrunner-test/" + os.urandom(8).hex().encode() for _ in range(3)]

    def become(*_: object) -> int:
        raise AssertionError("some locks are missing")

    def prepare() -> Callable[..., int]:
        resource.setrlimit(resource.RLIMIT_NOFILE, (4, 4))  # beside the standard streams there is place for one
        return become

    one = spare.Spare()
    one.make(prepare)
    held = [leases.bind(name) for name in names]
    pid = one.give([], held)
    leases.release(held)
    assert pid and ended(pid) == spare.NOT_NOW
    assert all(name not in leases.held_names() for name in names)


def test_a_start_for_which_nothing_can_be_forked_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def full() -> int:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", full)
    with pytest.raises(BlockingIOError):
        first.start(None, first.ahead(None), [], [])


def test_a_start_that_failed_gives_the_job_and_its_cards_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full() -> int:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    names = [b"\0jobrunner-test/" + os.urandom(8).hex().encode() for _ in range(3)]
    lock, *held = [leases.bind(name) for name in names]
    monkeypatch.setattr(os, "fork", full)
    with pytest.raises(BlockingIOError):
        starts.start(Layout(os.fsencode(tmp_path), "i1"), {"id": "afull00000"}, [0, 1], lock, held, [])
    again = [leases.bind(name) for name in names]
    assert None not in again
    leases.release(again)


def test_a_rehearsal_reads_and_changes_nothing(tmp_path: Path) -> None:
    with agent_host(tmp_path) as host:
        host.drain()
        runs, touch = Runs(host), f"touch {tmp_path}/was-run"
        runtime = {"setup": [touch], "venv": "gone"}
        runs.submit("arehearse1", touch, device="npu", cards=1, host_setup=[touch], runtime=runtime)
        before = sorted(os.walk(host.job("arehearse1")))
        for rehearse in (rehearsal.of_supervisor, rehearsal.of_command):
            rehearse(host.layout, {"id": "arehearse1"})
        assert before == sorted(os.walk(host.job("arehearse1"))) and not (tmp_path / "was-run").exists()
        rehearsal.quietly(rehearsal.of_command, host.layout, {})  # what is odd is no trouble before the start


@contextmanager
def card(tmp_path: Path) -> Iterator[Runs]:
    """A host with one card."""
    write_lab(tmp_path / "lab", "npu", 1)
    with agent_host(tmp_path) as host:
        yield Runs(host, PATH=f"{tools_dir()}:{os.environ['PATH']}", JOBRUNNER_LAB=str(tmp_path / "lab"))


def go(runs: Runs, *ids: str) -> None:
    """Let jobs end."""
    for id_ in ids:
        (runs.host.job(id_) / "out").mkdir(exist_ok=True)
        (runs.host.job(id_) / "out" / "go").touch()


def waiting(runs: Runs) -> tuple[int, int]:
    """The pids of the processes that wait to become the next supervisor and its command, once they do wait."""

    def pair() -> tuple[int, int] | None:
        spares = runs.agents("jr-spare")
        setups = [pid for pid in runs.agents("jr-setup") if parent(pid) in spares]
        return (spares[0], setups[0]) if len(spares) == len(setups) == 1 and wait_channel(setups[0]) else None

    return until(pair, what="a spare process and its child")


def wait_channel(pid: int) -> bool:
    """True if a process waits for a message on its one descriptor beside the standard streams."""
    folder = Path(f"/proc/{pid}/fd")
    numbers = sorted(int(path.name) for path in folder.iterdir())
    return len(numbers) == 4 and str((folder / str(numbers[-1])).readlink()).startswith("socket:")


def test_a_card_goes_on_to_it_and_to_a_fork_if_it_was_killed(tmp_path: Path) -> None:
    with card(tmp_path) as runs:
        ids = [f"aspare000{number}" for number in range(6)]
        for id_ in ids:
            runs.submit(id_, "until [ -e $JOBRUNNER_OUTPUT_DIR/go ]; do sleep 0.02; done", device="npu", cards=1)
        runs.running(ids[0])
        waits, setup = waiting(runs)
        assert os.getsid(setup) == setup and not of_job(ids[0]).count(setup)
        go(runs, ids[0])
        start = runs.running(ids[1])
        assert start["supervisor"]["pid"] == waits and start["command"]["pid"] == start["command"]["pgid"] == setup
        assert setup in of_job(ids[1])
        assert {path.readlink() for path in Path(f"/proc/{setup}/fd").glob("[12]")} == {runs.host.job(ids[1]) / "1/log"}
        waits, setup = waiting(runs)
        kill(setup)
        go(runs, ids[1])
        start = runs.running(ids[2])
        assert start["supervisor"]["pid"] == waits and start["command"]["pid"] != setup, "another one was forked"
        waits, setup = waiting(runs)
        kill(waits)
        until(lambda: gone(setup), what="its child ends with it")
        for number in (2, 3):
            go(runs, ids[number])
            start = runs.running(ids[number + 1])
        dispatcher = parent(start["supervisor"]["pid"])
        assert dispatcher in runs.agents("jr-dispatch") and not runs.agents("jr-spare", "jr-setup")
        kill(dispatcher)
        go(runs, *ids[4:])
        runs.channel.ask("look", jobs="live")
        assert [runs.final(id_)["state"] for id_ in ids] == ["COMPLETED"] * 6
        until(lambda: all(gone(pid) for pid in runs.agents("jr-spare", "jr-setup", "jr-supervise")))


def test_both_end_with_the_dispatcher(tmp_path: Path) -> None:
    with card(tmp_path) as runs:
        for id_ in ("aspare0010", "aspare0011"):
            runs.submit(id_, "sleep 600", device="npu", cards=1)
        runs.running("aspare0010")
        waits, setup = waiting(runs)
        kill(parent(waits))
        until(lambda: gone(waits) and gone(setup), what="they end")
        runs.channel.ask("stop", ids=["aspare0011", "aspare0010"], wait_s=10)


@pytest.mark.parametrize("seed", range(4))
def test_kills_around_hand_overs_lose_no_job_and_run_none_twice(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    with card(tmp_path) as runs:
        ids = [f"akill{seed}000{number}" for number in range(10)]
        for id_ in ids:
            runs.submit(id_, "echo begun; sleep 0.05; echo ended", device="npu", cards=1)

        def over(id_: str) -> bool:
            return runs.channel.ask("look", jobs=[id_])["jobs"][id_]["state"] in FINAL

        for id_ in ids:
            until(lambda id_=id_: over(id_) or "begun" in runs.log(id_), what=f"{id_} runs")
            time.sleep(dice.random() * 0.08)  # anywhere from its start to the next one's
            for pid in runs.agents(dice.choice(["jr-dispatch", "jr-spare", "jr-setup"])):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        until(lambda: all(map(over, ids)), 40, "the ends of all jobs")
        for id_ in ids:
            view, told = runs.view(id_), runs.log(id_).splitlines()
            assert view["attempt"] == 1 and told.count("begun") <= 1, told
            if view["state"] == "COMPLETED":
                assert told == ["begun", "ended"]
            else:  # it was just becoming the command
                assert (view["state"], view["signal"] or view["reason"]) in (("FAILED", "SIGKILL"), ("LOST", "killed"))
        until(lambda: not runs.agents("jr-spare", "jr-setup", "jr-supervise"), what="nothing is left")
