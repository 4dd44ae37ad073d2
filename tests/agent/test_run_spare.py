"""A process that waits to become the next job's supervisor."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

from jobrunner.agent import leases, spare
from jobrunner.lab.simcards import tools_dir, write_lab
from tests.support.agentproc import agent_host, until
from tests.support.running import Runs, gone, kill, parent


def ended(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_it_is_given_what_a_supervisor_needs(tmp_path: Path) -> None:
    one, names = spare.Spare(), [b"\0jobrunner-test/" + os.urandom(8).hex().encode() for _ in range(3)]
    held = [leases.bind(name) for name in names]
    outlet, inlet = os.pipe()
    out = tmp_path / "out"

    def become(told: object, lock: int, rest: list[int]) -> int:
        os.read(outlet, 1)
        out.write_text(json.dumps([told, len(rest), [os.get_inheritable(number) for number in (lock, *rest)]]))
        return 7

    assert one.give(["x"], held[0], []) is None, "there is none yet"
    one.make(become, [inlet])
    one.make(become, [])  # one is enough
    assert one.give(["x" * spare.LIMIT], held[0], []) is None, "what is too long is no loss"
    pid = one.give(["told", {"é": None}], held[0], held[1:])
    assert pid and not one.descriptors() and one.give(["x"], held[0], []) is None
    leases.release(held)
    assert all(leases.bind(name) is None for name in names), "it holds them now"
    os.close(inlet)  # it has no copy of this
    assert ended(pid) == 7 and not one.ended(pid)
    assert json.loads(out.read_text()) == [["told", {"é": None}], 2, [False] * 3]
    assert all(name not in leases.held_names() for name in names)
    os.close(outlet)


def test_it_ends_with_its_dispatcher_and_is_not_made_again_once_killed() -> None:
    def become(*_: object) -> int:
        raise AssertionError("nothing was given")

    one = spare.Spare()
    one.make(become, [])
    pid = one._pid
    one._socket.close()
    assert ended(pid) == 0 and one.ended(pid) and not one.ended(pid)
    two = spare.Spare()
    two.make(become, [])
    pid = two._pid
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert two.give([], 0, []) is None, "who starts forks then"
    assert ended(pid) == -signal.SIGKILL and two.ended(pid)
    two.make(become, [])
    assert two.descriptors() == []


def test_a_card_goes_on_to_it_and_to_a_fork_if_it_was_killed(tmp_path: Path) -> None:
    write_lab(tmp_path / "lab", "npu", 1)
    env = {"PATH": f"{tools_dir()}:{os.environ['PATH']}", "JOBRUNNER_LAB": str(tmp_path / "lab")}
    with agent_host(tmp_path) as host:
        runs = Runs(host, **env)
        ids = [f"aspare000{number}" for number in range(5)]
        for id_ in ids:
            runs.submit(id_, "until [ -e $JOBRUNNER_OUTPUT_DIR/go ]; do sleep 0.02; done", device="npu", cards=1)
        runs.running(ids[0])
        [waits] = until(lambda: runs.agents("jr-spare"))
        (host.job(ids[0]) / "out" / "go").touch()
        assert runs.running(ids[1])["supervisor"]["pid"] == waits
        [waits] = until(lambda: runs.agents("jr-spare"))
        kill(waits)
        for number in (1, 2):
            (host.job(ids[number]) / "out" / "go").touch()
            start = runs.running(ids[number + 1])
        dispatcher = parent(start["supervisor"]["pid"])
        assert dispatcher in runs.agents("jr-dispatch") and not runs.agents("jr-spare")
        kill(dispatcher)
        for id_ in ids[3:]:
            (host.job(id_) / "out").mkdir(exist_ok=True)
            (host.job(id_) / "out" / "go").touch()
        runs.channel.ask("look", jobs="live")
        assert [runs.final(id_)["state"] for id_ in ids] == ["COMPLETED"] * 5
        until(lambda: all(gone(pid) for pid in runs.agents("jr-spare", "jr-supervise")))
