"""`jobrunner demo`: the whole thing on this machine alone, with simulated cards."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from jobrunner.service.session import default_home

if TYPE_CHECKING:
    from jobrunner.lab.story import Subject


def demo(keep: bool, stop: bool, subject: Subject = "job") -> int:
    """Bring up the demo's host, show a job, a sweep or a schedule on it, and end the host unless `keep`.

    With `stop` only end a kept one.
    """
    from jobrunner.lab import demo as lab
    from jobrunner.lab.story import check_python, run_demo

    folder = lab.folder_for(default_home(os.environ))
    if stop:
        say("The demo's host is stopped." if lab.stop(folder) else "No demo host was running.")
        return 0
    check_python()
    host = lab.start(folder)
    try:
        return run_demo(_command, host, say=say, keep=keep, subject=subject)
    finally:
        if not keep:
            lab.stop(folder)


def say(text: str) -> None:
    """One line of the story."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _command(words: list[str]) -> int:
    """One jobrunner command in a process of its own, as a person would run it; its exit code."""
    import subprocess

    return subprocess.run([sys.executable, "-m", "jobrunner", *words], check=False).returncode
