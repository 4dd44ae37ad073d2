"""The long-lived processes stay small and idle, from the zipapp that hosts get, under old and new Python."""

from __future__ import annotations

import shutil
import zipapp
from pathlib import Path

import pytest

from tests.support.agentproc import REPO, agent_host, pythons, until
from tests.support.running import Runs, cpu_s, private_dirty_kb, settle_down

LIMIT_KB = 8 * 1024


def build(folder: Path) -> Path:
    """A zipapp of the agent as hosts have it: sources only."""
    tree = folder / "tree"
    ignore = shutil.ignore_patterns("__pycache__")
    shutil.copytree(REPO / "jobrunner" / "agent", tree / "jobrunner" / "agent", ignore=ignore)
    (tree / "jobrunner" / "__init__.py").write_text("")
    path = folder / "agent-0123abcd.pyz"
    zipapp.create_archive(tree, path, main="jobrunner.agent.__main__:main")
    return path


def idle_for(seconds: float, *pids: int) -> bool:
    """True if none of the processes used any CPU time in such a span."""
    before = [cpu_s(pid) for pid in pids]
    settle_down(seconds)
    return [cpu_s(pid) for pid in pids] == before


@pytest.mark.parametrize("python", sorted({pythons()[0], pythons()[-1]}))
def test_small_and_idle(tmp_path: Path, python: str) -> None:
    with agent_host(tmp_path, python=python, place=build(tmp_path)) as host:
        runs = Runs(host)
        runs.submit("asmalljob", "sleep 600", timeout_s=3600, limits={"cpu_jobs": 1})
        runs.running("asmalljob")
        until(lambda: not runs.dispatcher(), what="the end of the first dispatcher, as nothing waits")
        runs.submit("asmallwai", "true", limits={"cpu_jobs": 1})
        dispatcher = until(runs.dispatcher, what="a dispatcher")
        supervisor = runs.start("asmalljob")["supervisor"]["pid"]
        runs.channel.close()
        until(lambda: idle_for(1.5, dispatcher, supervisor), what="both are idle for a second and a half")
        sizes = private_dirty_kb(dispatcher), private_dirty_kb(supervisor)
        print(f"{python}: Private_Dirty of dispatcher and supervisor: {sizes} kB")
        assert max(sizes) < LIMIT_KB, sizes
        runs = Runs(host)
        kill_first = runs.channel.ask("stop", ids=["asmallwai", "asmalljob"], wait_s=10)["jobs"]
        assert {view["state"] for view in kill_first.values()} == {"CANCELLED"}
