"""The harness itself: when what forks its commands dies, that is said with its cause, and costs nothing afterwards."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.faults.commands import Command, forge


def begin(folder: Path, *words: str) -> Command:
    return forge().start(words, {"PATH": os.environ["PATH"], "JOBRUNNER_HOME": str(folder / "home")}, folder, folder)


@pytest.mark.parametrize(("number", "word"), [(signal.SIGKILL, "-9"), (signal.SIGTERM, "ended by signal 15")])
def test_its_death_is_loud_and_the_next_command_has_a_new_one(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], number: int, word: str
) -> None:
    first = forge()
    command = begin(tmp_path, "--version")
    assert command.wait(30) == 0
    hanging = begin(tmp_path, "schema", "spec")
    os.kill(first._process.pid, number)
    assert first._process.wait(10) is not None
    first._reader.join(10)
    assert word in first.death and str(first._process.pid) in capfd.readouterr().err
    if hanging.code is None:  # it was still at work when nobody was left to tell of its end
        with pytest.raises(AssertionError, match="has ended with"):
            hanging.wait(5)
    assert begin(tmp_path, "--version").wait(30) == 0
    assert forge() is not first
