"""For every test: a scrubbed environment, and a loud word about what cannot be tested on this machine."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

_SCRUBBED = (
    "JOBRUNNER_",
    "SSH_",
    "XDG_",
    "TMUX",
    "LC_",
    "GIT_",
    "FABRIC_",
    "INVOKE_",
    "DISPLAY",
    "COLUMNS",
    "NO_COLOR",
)
_ABSENT = pytest.StashKey[set[str]]()


def _has_sshd() -> bool:
    from jobrunner.lab.sshd import SshdMissing, find_sshd

    try:
        find_sshd()
    except SshdMissing:
        return False
    return True


def _has_docker() -> bool:
    from tests.support.engine import missing

    return missing() is None


_NEEDS = {
    "needs_docker": (_has_docker, "no container engine can be started (root, dockerd, docker, unshare, nsenter)"),
    "needs_sshd": (_has_sshd, "OpenSSH's sshd is not installed"),
    "needs_tmux": (lambda: shutil.which("tmux") is not None, "tmux is not installed"),
    "root": (lambda: hasattr(os, "getuid") and os.getuid() == 0, "the tests do not run as root"),
}


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_ABSENT] = set()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip, loudly, what this machine lacks. In CI (CI=true) that is a failure: there everything must be there."""
    for name, (is_there, reason) in _NEEDS.items():
        if item.get_closest_marker(name) and not is_there():
            if os.environ.get("CI") == "true":
                pytest.fail(f"in CI this must be testable: {reason}", pytrace=False)
            item.config.stash[_ABSENT].add(reason)
            pytest.skip(f"NOT TESTED HERE: {reason}")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    for reason in sorted(config.stash[_ABSENT]):
        terminalreporter.write_line(f"NOT TESTED HERE: {reason}; whatever needs it was skipped", red=True, bold=True)


@pytest.fixture(autouse=True)
def scrubbed_environment(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Nothing of the developer's own set-up reaches a test; HOME is an empty folder, which is returned."""
    home = tmp_path_factory.mktemp("home")
    for name in list(os.environ):
        if name.startswith(_SCRUBBED):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    monkeypatch.setenv("TERM", "xterm")
    return home
