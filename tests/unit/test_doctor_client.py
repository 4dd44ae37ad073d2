"""Checks of this machine: judged from facts, and looked at for real."""

from __future__ import annotations

import copy
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from jobrunner.service.doctor import doctor
from jobrunner.service.doctor.client import RULES, examine, facts_of
from jobrunner.service.session import Session, open_session

HEALTHY: dict[str, Any] = {
    "python": {"version": [3, 12, 1], "path": "/usr/bin/python3"},
    "state": {"path": "/s", "error": None, "remote": None, "free_bytes": 10**11, "mode": 0o700},
    "ledger": {"error": None, "path": "/s/ledger.db"},
    "hosts": {"path": "/h.yaml", "there": True, "count": 2, "problems": []},
    "secrets": {"path": "/secrets.env", "there": True, "mode": 0o600, "ours": True, "posix": True},
    "programs": {"ssh": "/usr/bin/ssh", "git": "/usr/bin/git"},
    "ssh_agent": {"path": "/a", "answers": True},
    "ssh_config": {"path": "/c", "named": False, "there": True, "error": None, "mode": 0o600},
}
CASES = [
    ("python", {"python": {"version": [3, 9, 0], "path": "/p"}}, False, "3.10 or newer", 0),
    ("state folder", {"state__error": "Read-only file system"}, False, "JOBRUNNER_HOME", 4),
    ("state folder", {"state__mode": 0o777}, False, "chmod 700", 0),
    ("ledger disk", {"state__remote": "nfs4"}, None, "local disk", 0),
    ("ledger disk", {"state__free_bytes": 1000}, False, "make room", 0),
    ("ledger", {"ledger": {"error": "not a database"}}, False, "adopt", 0),
    ("hosts file", {"hosts__problems": ["/h.yaml:3:5: the key 'adress' is not known"]}, False, "3:5", 0),
    ("hosts file", {"hosts__there": False}, None, "init", 0),
    ("hosts file", {"hosts__count": 0}, None, "hosts add", 0),
    ("secrets file", {"secrets__mode": 0o644}, False, "chmod 600", 2),
    ("secrets file", {"secrets__ours": False}, False, "chmod 600", 2),
    ("secrets file", {"secrets": {"path": "/x", "there": False}}, True, "environment", 0),
    ("ssh program", {"programs__ssh": None}, None, "not needed", 0),
    ("git", {"programs__git": None}, None, "commit", 0),
    ("ssh agent", {"ssh_agent__answers": False}, False, "unset SSH_AUTH_SOCK", 0),
    ("ssh agent", {"ssh_agent": {"path": None, "answers": None}}, True, "files", 0),
    ("ssh configuration", {"ssh_config__error": "Permission denied"}, False, "chmod 600", 0),
    ("ssh configuration", {"ssh_config__there": False}, None, "address", 0),
    ("ssh configuration", {"ssh_config__there": False, "ssh_config__named": True}, False, "does not exist", 0),
    ("ssh configuration", {"ssh_config__mode": 0o666}, False, "changed by others", 0),
]


def changed(changes: dict[str, Any]) -> dict[str, Any]:
    """The facts of a healthy machine with changes."""
    found = copy.deepcopy(HEALTHY)
    for path, value in changes.items():
        *folders, name = path.split("__")
        place: Any = found
        for folder in folders:
            place = place[folder]
        place[name] = value
    return found


def test_a_healthy_machine_passes_every_check() -> None:
    checks, errors = examine(HEALTHY)
    assert [check for check in checks if check.ok is not True] == [] and errors == []
    assert {case[0] for case in CASES} == {rule.name for rule in RULES}


@pytest.mark.parametrize(("name", "changes", "ok", "word", "code"), CASES, ids=[f"{c[0]}-{c[3]}" for c in CASES])
def test_what_is_wrong_here_is_said(name: str, changes: dict[str, Any], ok: bool | None, word: str, code: int) -> None:
    checks, errors = examine(changed(changes))
    [check] = [check for check in checks if check.name == name]
    assert check.ok is ok and word in f"{check.found} {check.remedy}", check
    assert [error.exit_code for error in errors] == ([code] if code else [])


def session(folder: Path, **environ: str) -> Session:
    """A session in a folder of its own."""
    return open_session(
        home=folder / "state", hosts_file=folder / "hosts.yaml", environ={"HOME": str(folder), **environ}
    )


def names(result: Any) -> dict[str, Any]:
    """The checks of this machine by name."""
    assert result.hosts[0]["name"] == "this machine"
    return {check["name"]: check for check in result.hosts[0]["checks"]}


def test_without_any_host_this_machine_is_checked(tmp_path: Path) -> None:
    with session(tmp_path) as opened:
        result = doctor(opened, [])
    checks = names(result)
    assert result.exit_code == 0 and [row["name"] for row in result.hosts] == ["this machine"]
    assert checks["ledger"]["ok"] is True and checks["hosts file"]["ok"] is None
    assert all(set(check) == {"name", "ok", "found", "remedy"} for check in checks.values())


def test_the_ssh_configuration_that_is_told_is_the_one_that_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pwd = pytest.importorskip("pwd")
    monkeypatch.setenv("HOME", str(tmp_path))  # which OpenSSH does not go by
    with session(tmp_path) as opened:
        facts, _ = facts_of(opened)
    assert facts["ssh_config"]["path"] == f"{pwd.getpwuid(os.getuid()).pw_dir}/.ssh/config"


def test_a_hosts_file_with_faults_is_told_and_ends_with_2(tmp_path: Path) -> None:
    (tmp_path / "hosts.yaml").write_text("hosts:\n  a: {adress: x}\n")
    with session(tmp_path) as opened:
        result = doctor(opened, ["a"])
    assert result.exit_code == 2 and len(result.hosts) == 1
    assert "hosts.yaml:2:" in names(result)["hosts file"]["found"]


def test_a_hosts_file_that_is_no_text_is_told(tmp_path: Path) -> None:
    (tmp_path / "hosts.yaml").write_bytes(b"\xff\xfe\x00")
    with session(tmp_path) as opened:
        result = doctor(opened, [])
    assert result.exit_code == 2 and names(result)["hosts file"]["ok"] is False


def test_a_damaged_ledger_is_told_and_hosts_are_checked_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "ledger.db").write_bytes(b"this is no database" * 200)
    (tmp_path / "ssh_config").write_text("Host gone\n  HostName 127.0.0.1\n  Port 1\n")
    with session(tmp_path, JOBRUNNER_SSH_CONFIG=str(tmp_path / "ssh_config")) as opened:
        result = doctor(opened, ["gone"])
    assert result.exit_code == 4 and names(result)["ledger"]["ok"] is False
    assert [row["name"] for row in result.hosts] == ["this machine", "gone"]


def test_a_state_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file")
    with session(tmp_path) as opened:
        result = doctor(opened, [])
    assert result.exit_code == 4 and names(result)["state folder"]["ok"] is False


@pytest.mark.skipif(os.name != "posix", reason="modes are POSIX")
def test_open_secrets_are_refused_and_never_shown(tmp_path: Path) -> None:
    secrets = tmp_path / "secrets.env"
    secrets.write_text("TOKEN=do-not-show\n")
    secrets.chmod(0o644)
    with session(tmp_path) as opened:
        result = doctor(opened, [])
    assert result.exit_code == 2 and names(result)["secrets file"]["ok"] is False
    assert "do-not-show" not in str(result)


@pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="no Unix sockets")
def test_an_agent_that_is_named_and_dead_is_told(tmp_path: Path) -> None:
    with session(tmp_path, SSH_AUTH_SOCK=str(tmp_path / "gone")) as opened:
        assert facts_of(opened)[0]["ssh_agent"]["answers"] is False
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(tmp_path / "a"))
        sock.listen(1)
        with session(tmp_path, SSH_AUTH_SOCK=str(tmp_path / "a")) as opened:
            assert facts_of(opened)[0]["ssh_agent"]["answers"] is True
