"""A job on a terminal: its log, its survival of the tmux server's death, and a window on it that can type."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.agentproc import AgentFailed, agent_host, job, until
from tests.support.running import Runs, of_job

pytestmark = pytest.mark.needs_tmux
TMUX = ["tmux", "-L", "jobrunner", "-f", "/dev/null"]


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = tmp_path / "t"
    folder.mkdir(mode=0o700)
    with agent_host(tmp_path) as host:
        monkeypatch.setenv("TMUX_TMPDIR", str(folder))
        yield Runs(host, TMUX_TMPDIR=str(folder))
        subprocess.run([*TMUX, "kill-server"], check=False, capture_output=True)


def sessions() -> list[str]:
    answer = subprocess.run(
        [*TMUX, "list-sessions", "-F", "#{session_name}"], capture_output=True, text=True, check=False
    )
    return answer.stdout.split()


TALK = "import sys; print(sys.stdin.isatty(), sys.stdout.isatty()); print('got', input()); print('again', input())"


def test_terminal_survives_its_server(runs: Runs, tmp_path: Path) -> None:
    runs.submit("atmuxjob1", command={"argv": ["python3", "-c", TALK]}, launcher="tmux")
    runs.logged("atmuxjob1", "True True\n")
    until(lambda: sessions() == ["atmuxjob1"], what="its session")
    subprocess.run([*TMUX, "send-keys", "-t", "=atmuxjob1:", "hello", "Enter"], check=True)
    runs.logged("atmuxjob1", "got hello\n")
    subprocess.run([*TMUX, "kill-server"], check=True)
    until(lambda: sessions() == [], what="the server is gone")
    assert runs.view("atmuxjob1")["state"] == "RUNNING"
    argv = runs.channel.ask("attach", id="atmuxjob1")["argv"]
    assert argv[:3] == ["tmux", "-u", "-L"] and "attach-session" in argv
    assert sessions() == ["atmuxjob1"]
    shown = until(lambda: "got hello" in (t := screen()) and t, what="the new window shows what was printed before")
    assert "True True" in shown
    subprocess.run([*TMUX, "send-keys", "-t", "=atmuxjob1:", "once more", "Enter"], check=True)
    view = runs.final("atmuxjob1")
    assert view["state"] == "COMPLETED" and runs.log("atmuxjob1").endswith("again once more\n")
    until(lambda: sessions() == [], what="the session ends with the job")
    assert of_job("atmuxjob1") == []


def screen() -> str:
    return subprocess.run(
        [*TMUX, "capture-pane", "-p", "-t", "=atmuxjob1:"], capture_output=True, text=True, check=False
    ).stdout


def test_ctrl_c_and_size_reach_the_job(runs: Runs) -> None:
    """The pane in a terminal of our own: its size is the job's, Ctrl-C interrupts the job, and leaving leaves it."""
    code = (
        "import os,signal,time\n"
        "signal.signal(signal.SIGINT, lambda *a: print('interrupted', os.get_terminal_size(), flush=True))\n"
        "print('ready', flush=True)\n"
        "while True: time.sleep(0.05)"
    )
    runs.submit("atmuxjob2", command={"argv": ["python3", "-c", code]}, launcher="tmux")
    runs.logged("atmuxjob2", "ready")
    subprocess.run([*TMUX, "kill-server"], check=True)
    master, slave = pty.openpty()
    os.set_blocking(master, True)
    import fcntl
    import struct
    import termios

    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 33, 77, 0, 0))
    start = "import sys; sys.path.insert(0, sys.argv[1]); from jobrunner.agent.pane import main; main(sys.argv[2:])"
    repo = str(Path(__file__).resolve().parents[2])
    words = [sys.executable, "-c", start, repo, str(runs.host.root), runs.host.home.name, "atmuxjob2"]
    environ = {**os.environ, "JOBRUNNER_LEASE_SCOPE": runs.host.scope}
    with subprocess.Popen(
        words, stdin=slave, stdout=slave, stderr=slave, env=environ, start_new_session=True
    ) as window:
        seen = b""
        while b"ready" not in seen:
            seen += os.read(master, 4096)
        os.write(master, b"\x03")
        runs.logged("atmuxjob2", "interrupted os.terminal_size(columns=77, lines=33)")
        window.terminate()
    os.close(master)
    os.close(slave)
    assert runs.view("atmuxjob2")["state"] == "RUNNING"
    assert runs.channel.ask("stop", ids=["atmuxjob2"], wait_s=10)["jobs"]["atmuxjob2"]["state"] == "CANCELLED"
    assert of_job("atmuxjob2") == []


def test_without_tmux(tmp_path: Path) -> None:
    with agent_host(tmp_path) as host:
        bare = tmp_path / "bin"
        bare.mkdir()
        for name in ("bash", "env"):
            (bare / name).symlink_to(f"/usr/bin/{name}")
        runs = Runs(host, PATH=str(bare))
        asked = [job("anotmux01", command={"shell": "true"}, launcher="tmux")]
        with pytest.raises(AgentFailed, match="no_tmux"):
            runs.channel.stage(asked, None)
        assert runs.view("anotmux01") is None
