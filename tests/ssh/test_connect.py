"""Fabric's connections that cannot be made: what is its own business; what both ways share is in test_conformance."""

from __future__ import annotations

import socket
import subprocess
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from jobrunner.core.errors import AuthError, ConnectError, HostError, JobrunnerError
from jobrunner.lab.sshd import LoopbackHost
from jobrunner.transport.connect import open_connection, scan_host_key
from jobrunner.transport.settings import HostTarget, TransportSettings
from jobrunner.transport.sshconfig import resolve
from tests.support.hosts import ServerOf, link_threads, loopback, open_sockets, target_of
from tests.support.waiting import eventually

pytestmark = pytest.mark.needs_sshd


def at_port(port: int, folder: Path, **limits: float) -> HostTarget:
    """A target for whatever listens on a port of this machine."""
    file = folder / "config"
    file.write_text(f"Host odd\n HostName 127.0.0.1\n Port {port}\n UserKnownHostsFile none\n", encoding="utf-8")
    settings = TransportSettings(**{"connect_s": 1.0, "retry_s": 1.0, **limits})
    return HostTarget.of("odd", ssh_config=file, settings=settings)


def failure(target: HostTarget) -> tuple[JobrunnerError, float]:
    before = open_sockets()
    began = time.monotonic()
    with pytest.raises(JobrunnerError) as caught:
        open_connection(target)
    took = time.monotonic() - began
    eventually(lambda: not link_threads(), 3, "the end of the transport's thread")
    eventually(lambda: open_sockets() <= before, 3, "the end of its sockets")
    return caught.value, took


def test_an_unknown_name(tmp_path: Path) -> None:
    file = tmp_path / "config"
    file.write_text("Host *\n", encoding="utf-8")
    error, _ = failure(HostTarget.of("no-such-host.invalid", ssh_config=file))
    assert (type(error), error.code) == (ConnectError, "dns")
    assert "no-such-host.invalid" in error.message


def test_a_server_that_is_busy_at_first_is_reached(tmp_path: Path, host: LoopbackHost) -> None:
    refused = 0

    def relay(sock: socket.socket) -> None:
        nonlocal refused
        if refused < 2:
            refused += 1
            sock.close()
            return
        with socket.create_connection(("127.0.0.1", host.port)) as onward:
            back = threading.Thread(target=_copy, args=(onward, sock), daemon=True)
            back.start()
            _copy(sock, onward)
            back.join(2)

    with ServerOf(relay) as server:
        target = target_of(host)
        config = replace(target.config, port=server.port, host_key_alias=f"[127.0.0.1]:{host.port}")
        open_connection(replace(target, config=config)).close()
    assert server.accepted == 3


def _copy(source: socket.socket, sink: socket.socket) -> None:
    try:
        while data := source.recv(65536):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)
    except OSError:
        pass


def test_many_at_once_against_a_server_that_drops(tmp_path: Path) -> None:
    results: list[object] = []

    def connect(target: HostTarget) -> None:
        try:
            open_connection(target).close()
            results.append("ok")
        except HostError as error:
            results.append(error.message)

    with loopback(tmp_path, max_startups="2:90:4") as host:
        target = target_of(host)
        threads = [threading.Thread(target=connect, args=(target,)) for _ in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert results == ["ok"] * 12


def test_failed_logins_do_not_lock_anybody_out(tmp_path: Path) -> None:
    with loopback(tmp_path, max_startups="3:100:3", lines=["LoginGraceTime 60"]) as host:
        good = target_of(host)
        bad = replace(good, config=replace(good.config, user="nobody-here"))
        sockets = open_sockets()
        for _ in range(11):
            with pytest.raises(AuthError) as caught:
                open_connection(bad)
            assert caught.value.code == "auth"
        eventually(lambda: not link_threads(), 3)
        eventually(lambda: open_sockets() <= sockets, 3, "the end of its sockets")
        began = time.monotonic()
        done = subprocess.run(
            ["ssh", "-F", host.ssh_config, "-o", "BatchMode=yes", host.alias, "echo", "in"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
        )
        assert done.stdout == b"in\n"
        assert time.monotonic() - began < 5


def test_a_hundred_connects_leave_nothing(tmp_path: Path, host: LoopbackHost) -> None:
    good = target_of(host)
    bad = replace(good, config=replace(good.config, user="nobody-here"))
    open_connection(good).close()
    sockets, threads = open_sockets(), threading.active_count()
    for number in range(40):
        if number % 2:
            open_connection(good).close()
        else:
            with pytest.raises(AuthError):
                open_connection(bad)
    eventually(lambda: not link_threads(), 3)
    eventually(lambda: open_sockets() <= sockets, 3, "the end of its sockets")
    assert threading.active_count() <= threads


def test_an_interrupt_while_connecting_closes_everything(host: LoopbackHost, monkeypatch: pytest.MonkeyPatch) -> None:
    import jobrunner.transport.connection as module

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "authenticate", interrupt)
    sockets = open_sockets()
    with pytest.raises(KeyboardInterrupt):
        open_connection(target_of(host))
    eventually(lambda: not link_threads(), 3)
    eventually(lambda: open_sockets() <= sockets, 3, "the end of its sockets")


def test_no_foreign_exception_gets_through(host: LoopbackHost, monkeypatch: pytest.MonkeyPatch) -> None:
    import paramiko

    import jobrunner.transport.connection as module

    target = target_of(host)
    for error in (
        paramiko.SSHException("odd"),
        paramiko.ssh_exception.BadHostKeyException("h", paramiko.RSAKey.generate(1024), paramiko.RSAKey.generate(1024)),
        paramiko.ChannelException(2, "no"),
        paramiko.ProxyCommandFailure("nc", 1),
        paramiko.AuthenticationException("no"),
        EOFError(),
        OSError(5, "I/O error"),
        TimeoutError("late"),
        ConnectionResetError(104, "reset"),
    ):

        def fail(*_: object, error: BaseException = error) -> None:
            raise error

        monkeypatch.setattr(module, "authenticate", fail)
        with pytest.raises(HostError) as caught:
            open_connection(target)
        assert caught.value.host == "lab"
        assert caught.value.remedy


def test_scanning_gives_the_key_and_leaves_nothing(host: LoopbackHost) -> None:
    sockets = open_sockets()
    target = target_of(host)
    unknown = replace(target, config=replace(target.config, known_hosts=()))
    assert scan_host_key(unknown).fingerprint == host.fingerprint
    eventually(lambda: not link_threads(), 3)
    eventually(lambda: open_sockets() <= sockets, 3, "the end of its sockets")


def test_the_banner_is_kept_for_showing(tmp_path: Path) -> None:
    text = "欢迎\nkeep out\n"
    (tmp_path / "banner").write_text(text, encoding="utf-8")
    with loopback(tmp_path, lines=[f"Banner {tmp_path / 'banner'}"]) as host:
        connection = open_connection(target_of(host))
        try:
            assert connection.banner == text
        finally:
            connection.close()


def test_fabric_decides_nothing_by_itself(host: LoopbackHost, scrubbed_environment: Path) -> None:
    """Neither a fabric.yaml nor an odd ~/.ssh/config has a say, and nothing is taken from our standard input."""
    (scrubbed_environment / ".fabric.yaml").write_text("user: mallory\nport: 1\n", encoding="utf-8")
    (scrubbed_environment / ".ssh").mkdir()
    (scrubbed_environment / ".ssh" / "config").write_bytes(b"Host *\n Port 1 # \xc4\xe3\xba\xc3\n Foo bar\n")
    connection = open_connection(target_of(host))
    try:
        assert connection.run("echo $LOGNAME", hide=True, in_stream=False).stdout.strip() == host.user
    finally:
        connection.close()
    assert resolve(host.alias, ssh_config=host.ssh_config).port == host.port
