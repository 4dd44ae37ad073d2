"""A disk that was full leaves nothing behind that hurts when there is room again."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobrunner.agent.files import append_line, read_lines
from tests.support.agentproc import REPO, pythons

pytestmark = pytest.mark.root
IMPORT_ALL = """
import sys, os, importlib
sys.path.insert(0, sys.argv[1])
for name in sorted(os.listdir(sys.argv[1] + "/jobrunner/agent")):
    if name.endswith(".py") and name not in ("__main__.py", "bytecode.py"):
        importlib.import_module("jobrunner.agent." + name[:-3])
"""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A folder with room for 3 MiB."""
    place = tmp_path / "disk"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "faults", str(place)], check=True)
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def fill(disk: Path, leave: int) -> Path:
    """Take all room but so many bytes."""
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as stream:
        try:
            while stream.write(b"\0" * 4096):
                pass
        except OSError:
            pass
        stream.truncate(stream.tell() - leave)
    return ballast


@pytest.mark.parametrize("python", pythons())
def test_compiled_modules_are_whole_or_not_there(disk: Path, python: str) -> None:
    """Python itself may keep half of one, which then breaks every later start of the agent."""
    tree = disk / "agent" / "agent-0123456789abcdef"
    ignore = shutil.ignore_patterns("__pycache__")
    shutil.copytree(REPO / "jobrunner" / "agent", tree / "jobrunner" / "agent", ignore=ignore)
    (tree / "jobrunner" / "__init__.py").touch()
    for leave in (4096, 20480):  # nothing of most modules, half of a big one
        for compiled in list(tree.rglob("__pycache__")):
            shutil.rmtree(compiled)
        ballast = fill(disk, leave)
        command = [python, "-I", "-S", "-c", IMPORT_ALL, str(tree)]
        assert subprocess.run(command, capture_output=True).returncode == 0
        ballast.unlink()
        again = subprocess.run(command, capture_output=True, text=True)
        assert again.returncode == 0, again.stderr
    assert list(tree.rglob("*.pyc")) and not list(tree.rglob("*.pyc.*"))


def test_a_line_that_was_cut_spoils_no_other(disk: Path) -> None:
    path = bytes(disk / "events.jsonl")
    append_line(path, {"n": 1, "text": "x" * 3000})
    ballast = fill(disk, 0)
    with pytest.raises(OSError, match="No space left"):
        append_line(path, {"n": 2, "text": "y" * 3000})
    ballast.unlink()
    append_line(path, {"n": 3})
    append_line(path, {"n": 4})
    assert [entry["n"] for entry in read_lines(path)[0]] == [1, 3, 4]
