"""Both transports give the same verdicts: what cannot be connected to has one name, whatever carries it."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from jobrunner.core.errors import AuthError, ConnectError, HostKeyError, JobrunnerError, LinkLostError
from jobrunner.lab.sshd import LoopbackHost, write_key_pair
from jobrunner.transport import sockets
from jobrunner.transport.link import HostLink
from jobrunner.transport.settings import HostTarget, TransportSettings
from tests.support.hosts import ServerOf, end_shared, link_threads, loopback, open_sockets, test_agent
from tests.support.relay import Relay
from tests.support.waiting import eventually

pytestmark = pytest.mark.needs_sshd
LIMITS = {"connect_s": 1.0, "retry_s": 1.0}


@pytest.fixture
def at(transport: str, tmp_path: Path) -> Iterator[Callable[..., HostTarget]]:
    """A target by lines of an SSH configuration, and the limits of its connects."""

    def target(lines: str, **limits: float) -> HostTarget:
        file = tmp_path / "config"
        name = "" if "HostName" in lines.partition("Host ")[0] else " HostName 127.0.0.1\n"
        file.write_text(f"Host odd\n{name} GlobalKnownHostsFile none\n{lines}", encoding="utf-8")
        settings = TransportSettings(sockets=tmp_path / "shared", **{**LIMITS, **limits})
        return HostTarget.of("odd", ssh_config=file, settings=settings, transport=transport)

    yield target
    end_shared(tmp_path / "shared")


def of_host(host: LoopbackHost, **other: str) -> str:
    """The lines for a loopback host, some of them changed."""
    lines = {
        "Port": host.port,
        "User": host.user,
        "IdentityFile": host.user_key,
        "IdentitiesOnly": "yes",
        "IdentityAgent": "none",
        "UserKnownHostsFile": host.known_hosts,
        **other,
    }
    return "".join(f" {name} {value}\n" for name, value in lines.items())


def failure(target: HostTarget) -> tuple[JobrunnerError, float]:
    """The error of a request, and how long it took; no thread and no socket is left of it."""
    before, began = open_sockets(), time.monotonic()
    with HostLink(target, image=test_agent()) as link, pytest.raises(JobrunnerError) as caught:
        link.request("echo")
    took = time.monotonic() - began
    assert caught.value.remedy
    eventually(lambda: not link_threads(), 3, "the end of the transport's thread")
    eventually(lambda: open_sockets() <= before, 3, "the end of its sockets")
    return caught.value, took


def nothing(sock: socket.socket) -> None:
    """A server that says nothing."""


def greets(sock: socket.socket) -> None:
    sock.sendall(b"SSH-2.0-Slow\r\n")


def web(sock: socket.socket) -> None:
    sock.recv(100)
    sock.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/html\r\n\r\n<html>no</html>\r\n")
    sock.close()


@pytest.mark.parametrize(("serve", "code"), [(nothing, "silent"), (greets, "silent"), (web, "not_ssh")])
def test_what_is_no_ssh_server(at: Any, serve: Any, code: str) -> None:
    with ServerOf(serve) as server:
        error, took = failure(at(f" Port {server.port}\n UserKnownHostsFile none\n"))
    assert (type(error), error.code) == (ConnectError, code)
    assert took < 4
    assert server.accepted == 1, "it is not tried again"
    if code == "not_ssh":
        assert "HTTP/1.1 400 Bad Request" in error.message


@pytest.mark.parametrize("greeting", [b"", b"Exceeded MaxStartups\r\n", b"Not allowed at this time\r\n"])
def test_a_busy_server_is_tried_again_for_a_while(at: Any, greeting: bytes) -> None:
    def turn_away(sock: socket.socket) -> None:
        sock.sendall(greeting)
        sock.close()

    with ServerOf(turn_away) as server:
        error, took = failure(at(f" Port {server.port}\n UserKnownHostsFile none\n", retry_s=1.5))
        assert server.accepted > 1
    assert (type(error), error.code) == (ConnectError, "throttled")
    assert took < 4


def test_a_port_where_nothing_listens(at: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    error, took = failure(at(f" Port {port}\n"))
    assert (type(error), error.code) == (ConnectError, "refused") and str(port) in error.message
    assert took < 1.5
    assert not list(sockets.existing(at("").settings.sockets)), "nothing is left of it"


def test_an_address_that_does_not_answer(at: Any) -> None:
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(0)
    place = listener.getsockname()
    waiting = []
    try:
        for _ in range(4):  # once the queue is full, the kernel answers no further connection
            sock = socket.socket()
            sock.setblocking(False)
            sock.connect_ex(place)
            waiting.append(sock)
        time.sleep(0.05)
        error, took = failure(at(f" Port {place[1]}\n", connect_s=0.7))
    finally:
        for sock in (listener, *waiting):
            sock.close()
    assert (type(error), error.code) == (ConnectError, "timeout")
    assert took < 2.5


def test_a_name_that_nobody_knows(at: Any) -> None:
    error, _ = failure(at(" HostName no-such-host.invalid\n"))
    assert (type(error), error.code) == (ConnectError, "dns") and "no-such-host.invalid" in error.message


def test_host_keys_get_the_same_verdicts(at: Any, host: LoopbackHost, tmp_path: Path) -> None:
    known = tmp_path / "known"
    error, _ = failure(at(of_host(host, UserKnownHostsFile=str(known))))
    assert (type(error), error.code) == (HostKeyError, "hostkey_unknown")
    assert host.fingerprint in error.message and "hosts add" in error.remedy
    write_key_pair(tmp_path / "other", "other")
    other = " ".join((tmp_path / "other.pub").read_text("ascii").split()[:2])
    known.write_text(f"# a comment\n[127.0.0.1]:{host.port} {other}\n", encoding="ascii")
    error, _ = failure(at(of_host(host, UserKnownHostsFile=str(known))))
    assert (type(error), error.code) == (HostKeyError, "hostkey_changed")
    assert host.fingerprint in error.message and f"{known}:2" in error.message
    error, _ = failure(at(of_host(host, UserKnownHostsFile=str(known), StrictHostKeyChecking="no")))
    assert error.code == "hostkey_changed", "a changed key is refused whatever the configuration says"
    known.write_text(f"@revoked * {host.host_public}\n", encoding="ascii")
    error, _ = failure(at(of_host(host, UserKnownHostsFile=str(known))))
    assert (type(error), error.code) == (HostKeyError, "hostkey_revoked")
    known.write_text("", encoding="ascii")
    trusting = at(of_host(host, UserKnownHostsFile=str(known), StrictHostKeyChecking="accept-new"), connect_s=10.0)
    with HostLink(trusting, image=test_agent()) as link:
        link.request("echo")
    assert host.host_public in known.read_text("ascii")


def test_logins_that_are_turned_down(at: Any, host: LoopbackHost, tmp_path: Path) -> None:
    write_key_pair(tmp_path / "wrong", "wrong")
    error, _ = failure(at(of_host(host, IdentityFile=str(tmp_path / "wrong")), connect_s=10.0))
    assert (type(error), error.code) == (AuthError, "auth") and str(tmp_path / "wrong") in error.message
    error, _ = failure(at(of_host(host, IdentityFile=str(tmp_path / "missing")), connect_s=10.0))
    assert (type(error), error.code) == (AuthError, "no_keys")
    locked = tmp_path / "locked"
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", "secret", "-f", locked], check=True, stdin=subprocess.DEVNULL
    )
    error, _ = failure(at(of_host(host, IdentityFile=str(locked)), connect_s=10.0))
    assert (type(error), error.code) == (AuthError, "passphrase") and str(locked) in error.message


@pytest.mark.parametrize(
    ("lines", "code"),
    [
        (["MaxAuthTries 1"], "too_many_keys"),
        (["AuthenticationMethods publickey,password", "PasswordAuthentication yes", "PermitRootLogin yes"],
         "second_factor"),
    ],
)  # fmt: skip
def test_servers_that_want_more(at: Any, tmp_path: Path, lines: list[str], code: str) -> None:
    with loopback(tmp_path / "host", lines=lines) as strict:
        keys = {}
        if code == "too_many_keys":
            for name in ("one", "two", "three"):
                write_key_pair(tmp_path / name, name)
            keys["IdentityFile"] = "\n IdentityFile ".join(str(tmp_path / name) for name in ("one", "two", "three"))
        error, _ = failure(at(of_host(strict, **keys), connect_s=10.0))
    assert (type(error), error.code) == (AuthError, code)


def test_a_jump_host_is_gone_through(at: Any, host: LoopbackHost) -> None:
    way = of_host(host, ProxyJump="jump") + f"Host jump\n HostName 127.0.0.1\n{of_host(host)}"
    with HostLink(at(way, connect_s=10.0), image=test_agent()) as link:
        assert link.request("echo", value=1)["value"] == 1


def test_a_shell_that_ends_is_told_and_a_program_that_is_missing(host: LoopbackHost, reach: Any) -> None:
    error, _ = failure(replace(reach(host), python="no-such-python"))
    assert error.code == "no_python"


@pytest.mark.parametrize("direction", ["up", "down"])
def test_a_way_that_is_cut_at_any_byte_is_a_lost_link(at: Any, host: LoopbackHost, direction: str) -> None:
    """Whether it broke while keys were exchanged, while logging in, or while the agent started."""
    relay, codes = Relay(host.port), []
    name = f"[127.0.0.1]:{host.port}"
    target = at(of_host(host, Port=str(relay.port), HostKeyAlias=name), connect_s=10.0, retry_s=0.0)
    target = replace(target, root="~/cut")
    try:
        relay.direction = direction
        for relay.limit in range(300, 1_000_000, 300):
            try:
                with HostLink(target, image=test_agent()) as link:
                    link.request("echo")
                break
            except (LinkLostError, ConnectError) as error:
                codes.append(error.code)
                assert error.remedy, error
            assert target.settings.sockets is not None
            end_shared(target.settings.sockets)
    finally:
        relay.close()
    assert len(codes) > 5 and set(codes) <= {"link_lost", "throttled", "unreachable"}, codes
