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
# Files that take long, the longest first: workers take whole files (`--dist loadfile`), and none shall be left with a
# long one while the others have nothing more to do. `pytest --durations=0` tells.
_LONG_FIRST = (
    "faults/test_seeds.py",
    "e2e/test_sweeps.py",
    "faults/test_hostile_host.py",
    "faults/test_pull_faults.py",
    "faults/test_upload_faults.py",
    "agent/test_run_cards.py",
    "e2e/test_life.py",
    "e2e/test_sweep_early.py",
    "faults/test_seeds_too.py",
    "e2e/test_doctor.py",
    "ssh/test_sessions.py",
    "e2e/test_truth_pull.py",
    "e2e/test_schedules.py",
    "e2e/test_interrupted.py",
    "agent/test_share_attacks.py",
    "e2e/test_truth_clients.py",
    "e2e/test_sweep_moves.py",
    "agent/test_share_users.py",
    "e2e/test_job_specs.py",
    "e2e/test_contract_hosts.py",
    "e2e/test_truth_elsewhere.py",
    "e2e/test_contract_fields.py",
    "agent/test_run_kill.py",
    "e2e/test_contract_commands.py",
    "faults/test_ahead_faults.py",
    "agent/test_share_hosts.py",
    "agent/test_data_tail.py",
    "agent/test_probe_python.py",
    "e2e/test_docker.py",
    "faults/test_surroundings.py",
    "e2e/test_users.py",
    "agent/test_cards_read.py",
    "ssh/test_shells.py",
    "ssh/test_dead_links.py",
    "e2e/test_sweep_adaptive.py",
    "faults/test_together.py",
    "ssh/test_conformance.py",
    "e2e/test_accelerators.py",
    "e2e/test_newcomer.py",
    "agent/test_cards_simulated.py",
    "ssh/test_connect.py",
    "e2e/test_ahead.py",
    "agent/test_data_gc.py",
    "ssh/test_shared.py",
    "agent/test_probe.py",
    "ssh/test_hostkeys.py",
    "e2e/test_truth_logs.py",
    "agent/test_truth_retry.py",
    "unit/test_lab_examples.py",
    "e2e/test_truth_reports.py",
    "faults/test_sweep_kills.py",
    "e2e/test_explain.py",
    "agent/test_run_handover.py",
    "e2e/test_metrics.py",
    "faults/test_full_disk.py",
    "unit/test_lab_paramikohost.py",
    "agent/test_data_stage.py",
    "faults/test_reused_pids.py",
    "agent/test_run_queue.py",
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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long files first; all others, and what is within a file, as they were found."""
    places = {name: place for place, name in enumerate(_LONG_FIRST)}
    items.sort(key=lambda item: places.get(f"{item.path.parent.name}/{item.path.name}", len(places)))


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
