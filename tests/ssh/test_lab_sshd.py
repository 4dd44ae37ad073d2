"""The loopback server itself: its environment, its end, and what is said where there is none."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from jobrunner.lab.sshd import LoopbackHost, SshdMissing, find_sshd
from jobrunner.transport.diagnosis import Silence, shown, why_no_agent
from tests.support.hosts import loopback

pytestmark = pytest.mark.needs_sshd


def ask(host: LoopbackHost, command: str) -> str:
    argv = ["ssh", "-F", str(host.ssh_config), "-o", "BatchMode=yes", host.alias, command]
    return subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, check=True, text=True).stdout.strip()


def test_the_sessions_environment_is_as_asked(tmp_path: Path) -> None:
    values = {"PATH": "/opt/sim tools:/usr/bin:/bin", "JOBRUNNER_LAB": 'a "quoted" \\ value', "EMPTY": ""}
    with loopback(tmp_path, env=values) as host:
        assert ask(host, 'echo "$HOME|$PATH|$JOBRUNNER_LAB|${EMPTY-unset}"') == (
            f'{tmp_path}/home|/opt/sim tools:/usr/bin:/bin|a "quoted" \\ value|'
        )


def test_it_ends_with_its_sessions_and_leaves_jobs_alone(tmp_path: Path) -> None:
    with loopback(tmp_path) as host:
        argv = [
            "ssh",
            "-F",
            str(host.ssh_config),
            host.alias,
            "sleep 30 >/dev/null 2>&1 </dev/null & echo $!; sleep 30",
        ]
        client = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        assert client.stdout is not None
        job = int(client.stdout.readline())
        assert host.session_pids()
        process = host.process
    assert process is not None
    assert process.poll() is not None
    assert client.wait(5) != 0
    client.stdout.close()
    os.kill(job, 9)
    with pytest.raises(ProcessLookupError):
        os.kill(process.pid, 0)


def test_it_listens_on_loopback_only_and_reads_nothing_of_the_machine(tmp_path: Path) -> None:
    with loopback(tmp_path) as host:
        text = (tmp_path / "sshd_config").read_text("utf-8")
        assert "ListenAddress 127.0.0.1" in text
        assert "/etc/ssh" not in text
        assert oct(host.user_key.stat().st_mode & 0o777) == "0o600"
        assert host.hosts_entry() == {"root": str(tmp_path / "root")}


def test_a_server_that_cannot_start_shows_its_log(tmp_path: Path) -> None:
    from jobrunner.core.errors import HostSetupError

    with pytest.raises(HostSetupError, match="NoSuchOption") as caught:
        loopback(tmp_path, lines=["NoSuchOption yes"])
    assert caught.value.code == "sshd_failed"


def test_no_sshd_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    with pytest.raises(SshdMissing) as caught:
        find_sshd()
    assert "openssh-server" in caught.value.remedy


@pytest.mark.root
def test_an_ordinary_user_can_run_it(tmp_path: Path) -> None:
    """The same, without being root: as the user `nobody`, in a folder of its own."""
    import shutil
    import tempfile

    folder = Path(tempfile.mkdtemp(prefix="lab-nobody-"))
    code = (
        "import encodings.idna, os, pathlib, pwd, sys\n"
        "from jobrunner.lab.sshd import LoopbackHost, write_key_pair\n"
        "write_key_pair(pathlib.Path(sys.argv[1]) / 'unused', 'to have everything imported while that is allowed')\n"
        "user = pwd.getpwnam('nobody')\n"
        "os.setgroups([]); os.setgid(user.pw_gid); os.setuid(user.pw_uid)\n"
        "with LoopbackHost(pathlib.Path(sys.argv[1]) / 'lab') as host:\n"
        "    print(host._answers(), host.user, flush=True)\n"
    )
    try:
        shutil.chown(folder, "nobody")
        env = {"HOME": str(folder), "PATH": os.environ["PATH"], "PYTHONPATH": str(Path(__file__).parents[2])}
        done = subprocess.run(
            [sys.executable, "-c", code, str(folder)], env=env, capture_output=True, check=False, text=True
        )
    finally:
        shutil.rmtree(folder)
    assert done.stdout.split() == ["True", "nobody"], done.stderr


def test_what_is_said_of_a_silent_shell() -> None:
    """The table of diagnoses, by values."""
    cases = [
        (Silence("", "bash: line 1: exec: python3: not found", 127, 1), "no_python"),
        (Silence("", "python3: Command not found.", 1, 1), "no_python"),
        (Silence("", "fish: Unknown command: python3", 127, 1), "no_python"),
        (Silence("", "", 127, 1), "no_python"),
        (Silence("This account is currently not available.", "", 1, 1), "nologin"),
        (Silence("", "", 0, 1), "shell_exits"),
        (Silence("", "", None, 10), "shell_exits"),
        (Silence("Traceback", "", 2, 1), "shell_exits"),
    ]
    for silence, code in cases:
        error = why_no_agent("h", "python3", silence)
        assert error.code == code, silence
        assert error.remedy
    assert shown("\x1b[31mred\x1b[0m\n\n  two\t\x07 \r\n") == "red / two"
    assert shown("x" * 1000, 50) == "…" + "x" * 50
