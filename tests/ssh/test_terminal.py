"""A live terminal: keys, sizes and exit codes go through; without one there is a clear word."""

from __future__ import annotations

import os
import pty
import select
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from jobrunner.core.errors import UsageError
from jobrunner.lab.sshd import LoopbackHost
from jobrunner.transport.link import HostLink
from jobrunner.transport.settings import HostTarget

pytestmark = pytest.mark.needs_sshd
Reach = Callable[..., HostTarget]

SCRIPT = """
import sys
from jobrunner.transport.link import HostLink
from pathlib import Path
from jobrunner.transport.settings import HostTarget, TransportSettings
settings = TransportSettings(sockets=Path(sys.argv[2]))
with HostLink(HostTarget.of("lab", ssh_config=sys.argv[1], transport=sys.argv[3], settings=settings)) as link:
    code = link.interactive(sys.argv[4:])
print("ended", code, flush=True)
"""


class Terminal:
    """A program at a terminal of the test's own."""

    def __init__(self, target: HostTarget, *words: str) -> None:
        self.ours, theirs = pty.openpty()
        self.resize(31, 97)
        env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "COLUMNS": "", "LINES": ""}
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-c",
                SCRIPT,
                str(target.ssh_config),
                str(target.settings.sockets),
                target.transport,
                *words,
            ],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=env,
            start_new_session=True,
        )
        os.close(theirs)
        self.seen = b""

    def resize(self, rows: int, columns: int) -> None:
        import fcntl
        import termios

        fcntl.ioctl(self.ours, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def wait_for(self, text: bytes, seconds: float = 15.0) -> None:
        ends = time.monotonic() + seconds
        while text not in self.seen:
            assert time.monotonic() < ends, f"{text!r} did not come: {self.seen!r}"
            if select.select([self.ours], [], [], 0.1)[0]:
                try:
                    self.seen += os.read(self.ours, 4096)
                except OSError:
                    time.sleep(0.05)

    def type(self, text: bytes) -> None:
        os.write(self.ours, text)

    def close(self) -> int:
        try:
            code = self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
            raise
        finally:
            os.close(self.ours)
        return code


def test_keys_size_and_exit_code(host: LoopbackHost, reach: Reach) -> None:
    terminal = Terminal(reach(host), "sh", "-c", 'stty size; read line; echo "got <$line>"; stty size; exit 7')
    terminal.wait_for(b"31 97")
    terminal.resize(20, 60)
    time.sleep(0.5)  # the size is looked at four times a second
    terminal.type("é b\r".encode())
    terminal.wait_for("got <é b>".encode())
    terminal.wait_for(b"20 60")
    terminal.wait_for(b"ended 7")
    assert terminal.close() == 0


def test_control_keys_go_to_the_host(host: LoopbackHost, reach: Reach) -> None:
    terminal = Terminal(
        reach(host), "sh", "-c", "trap 'echo caught; exit 3' INT; echo ready; while :; do sleep 0.05; done"
    )
    terminal.wait_for(b"ready")
    terminal.type(b"\x03")
    terminal.wait_for(b"caught")
    terminal.wait_for(b"ended 3")
    assert terminal.close() == 0


def test_a_cut_link_gives_the_terminal_back(host: LoopbackHost, reach: Reach) -> None:
    terminal = Terminal(reach(host), "sh", "-c", "echo ready; sleep 60")
    terminal.wait_for(b"ready")
    host.drop_sessions()
    terminal.wait_for(b"the link to lab was lost")
    assert terminal.close() == 1
    assert b"\r\n" in terminal.seen, "the terminal is itself again"


def test_without_a_terminal_it_says_so(link: HostLink, monkeypatch: pytest.MonkeyPatch) -> None:
    with open(os.devnull, encoding="ascii") as nothing:
        monkeypatch.setattr("sys.stdin", nothing)
        with pytest.raises(UsageError) as caught:
            link.interactive(["sh"])
    assert caught.value.code == "no_terminal"
