"""The SSH server in Python does for a command what sshd does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import paramiko
import pytest

from jobrunner.lab.sshd import write_key_pair

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the demo's host needs Linux")
REPOSITORY = Path(__file__).resolve().parents[2]


def until(met: Callable[[], bool], what: str, seconds: float = 15.0) -> None:
    limit = time.monotonic() + seconds
    while not met():
        assert time.monotonic() < limit, f"{what} within {seconds} s"
        time.sleep(0.01)


def alive(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rsplit(")", 1)[1].split()[0] not in ("Z", "X")


class Host(NamedTuple):
    port: int
    folder: Path


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    folder = tmp_path_factory.mktemp("host")
    for name in ("host_key", "user_key", "other_key"):
        write_key_pair(folder / name, "test")
    (folder / "home").mkdir()
    settings = {
        "port": 0,
        "user": "someone",
        "home": str(folder / "home"),
        "shell": "/bin/sh",
        "env": {"HOME": str(folder / "home"), "PATH": "/usr/bin:/bin", "MARK": "a b"},
        "host_key": str(folder / "host_key"),
        "authorized_keys": str(folder / "user_key.pub"),
        "ready": str(folder / "port"),
    }
    (folder / "settings.json").write_text(json.dumps(settings))
    with subprocess.Popen(
        [sys.executable, "-m", "jobrunner.lab.paramikohost", str(folder / "settings.json")], cwd=REPOSITORY
    ) as server:
        try:
            until((folder / "port").exists, "the server is ready")
            yield Host(int((folder / "port").read_text()), folder)
        finally:
            server.terminate()
            assert server.wait(10) == 0


def connect(host: Host, user: str = "someone", key: str = "user_key") -> paramiko.Transport:
    transport = paramiko.Transport(("127.0.0.1", host.port))
    try:
        transport.start_client(timeout=10)
        transport.auth_publickey(user, paramiko.Ed25519Key.from_private_key_file(str(host.folder / key)))
    except BaseException:
        transport.close()
        raise
    return transport


@pytest.fixture
def link(host: Host) -> Iterator[paramiko.Transport]:
    transport = connect(host)
    yield transport
    transport.close()


def run(link: paramiko.Transport, command: str, given: bytes = b"") -> tuple[bytes, bytes, int]:
    channel = link.open_session(timeout=10)
    channel.exec_command(command)

    def feed() -> None:
        channel.sendall(given)
        channel.shutdown_write()

    errors: list[bytes] = []
    threads = [
        threading.Thread(target=feed),
        threading.Thread(target=lambda: errors.append(drain(channel.recv_stderr))),
    ]
    for thread in threads:
        thread.start()
    out = drain(channel.recv)
    for thread in threads:
        thread.join()
    status = channel.recv_exit_status()
    channel.close()
    return out, errors[0], status


def drain(receive: Callable[[int], bytes]) -> bytes:
    pieces = []
    while piece := receive(1 << 16):
        pieces.append(piece)
    return b"".join(pieces)


def test_output_errors_and_status(link: paramiko.Transport) -> None:
    assert run(link, "echo out; echo err >&2; exit 7") == (b"out\n", b"err\n", 7)


def test_megabytes_both_ways_arrive_whole(link: paramiko.Transport) -> None:
    data = os.urandom(6_000_000)
    out, _, status = run(link, "cat", data)
    assert (out == data, status) == (True, 0)


def test_environment_is_the_settings_and_no_more(link: paramiko.Transport) -> None:
    out, _, _ = run(link, "env; pwd")
    lines = out.decode().splitlines()
    assert "MARK=a b" in lines
    assert not [line for line in lines if line.startswith(("PYTEST", "PYTHON"))]
    assert lines[-1].endswith("/home")


def test_quick_commands_are_never_taken_for_refusals(link: paramiko.Transport) -> None:
    assert [run(link, ":")[2] for _ in range(60)] == [0] * 60


def test_many_channels_at_once(link: paramiko.Transport) -> None:
    found: dict[int, bytes] = {}

    def one(number: int) -> None:
        found[number] = run(link, f"read line; echo $line {number}", b"hello\n")[0]

    threads = [threading.Thread(target=one, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert found == {number: b"hello %d\n" % number for number in range(8)}


@pytest.mark.parametrize(("user", "key"), [("someone", "other_key"), ("root2", "user_key")])
def test_strangers_are_turned_away(host: Host, user: str, key: str) -> None:
    with pytest.raises(paramiko.AuthenticationException):
        connect(host, user, key).close()


def test_no_forwarding_through_it(link: paramiko.Transport) -> None:
    with pytest.raises(paramiko.ChannelException):
        link.open_channel("direct-tcpip", ("127.0.0.1", 22), ("127.0.0.1", 1), timeout=10)


def test_a_detached_process_outlives_its_connection(host: Host) -> None:
    link = connect(host)
    out, _, _ = run(link, "setsid sleep 300 </dev/null >/dev/null 2>&1 & echo $!")
    link.close()
    other = connect(host)
    pid = int(out)
    assert run(other, f"kill -0 {pid} && kill {pid}")[2] == 0
    until(lambda: not alive(pid), "the process has ended")
    other.close()


def test_a_command_that_writes_to_nobody_ends(host: Host) -> None:
    link = connect(host)
    channel = link.open_session(timeout=10)
    channel.exec_command("echo $$; while echo more; do sleep 0.05; done")
    pid = int(channel.recv(100).split()[0])
    link.close()
    until(lambda: not alive(pid), "the command has got SIGPIPE")


def test_terminal_has_a_size_and_hangs_up(host: Host) -> None:
    link = connect(host)
    channel = link.open_session(timeout=10)
    channel.get_pty("xterm", 93, 31)
    channel.exec_command("echo $$; stty size; tty; sleep 300")
    text = b""
    while text.count(b"\n") < 3:
        text += channel.recv(1000)
    pid, size, name = text.decode().split("\r\n")[:3]
    assert size == "31 93" and name.startswith("/dev/")
    link.close()
    until(lambda: not alive(int(pid)), "the session has been hung up")


def test_terminal_takes_what_is_typed(link: paramiko.Transport) -> None:
    channel = link.open_session(timeout=10)
    channel.get_pty()
    channel.exec_command("read line; echo got $line; exit 3")
    channel.sendall(b"hello\r")
    assert b"got hello" in drain(channel.recv)
    assert channel.recv_exit_status() == 3
