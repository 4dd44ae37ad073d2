"""The byte stream under SSH: a TCP connection with time limits, or the ProxyCommand of the SSH configuration."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import socket
import subprocess
import threading
import time
from typing import Any

from jobrunner.core.errors import ConnectError
from jobrunner.transport.settings import HostTarget

_FAMILIES = {"inet": socket.AF_INET, "inet6": socket.AF_INET6}
_SHELL_WORD = re.compile(r"[\w.:@%+=,/\[\]-]+\Z")
USER_TIMEOUT_MS = 12_000


def dial(target: HostTarget) -> tuple[socket.socket, float]:
    """A connected socket and the seconds that connecting took (about one round trip).

    Raises ConnectError: dns, refused, timeout, unreachable. The whole takes no longer than the target's limit.
    """
    ends = time.monotonic() + target.connect_limit
    addresses = _look_up(target, ends)
    last: OSError = TimeoutError()
    for index, (family, kind, proto, _, address) in enumerate(addresses):
        left = ends - time.monotonic()
        if left <= 0:
            break
        share = left if index == len(addresses) - 1 else max(left / 2, min(left, 2.0))
        sock = socket.socket(family, kind, proto)
        try:
            sock.settimeout(share)
            began = time.monotonic()
            sock.connect(address)
            took = time.monotonic() - began
            tune(sock)
            return sock, took
        except OSError as error:
            last = error
            sock.close()
        except BaseException:
            sock.close()
            raise
    raise _dial_error(target, last)


def tune(sock: socket.socket) -> None:
    """No waiting for full packets, and a cut link is noticed where the kernel can do that."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, USER_TIMEOUT_MS)


def acknowledge(carrier: Any) -> None:
    """Let the kernel say now that what has come is here, where it can be told to."""
    if hasattr(socket, "TCP_QUICKACK") and isinstance(carrier, socket.socket):
        with contextlib.suppress(OSError):
            carrier.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)


def _look_up(target: HostTarget, ends: float) -> list[Any]:
    """The addresses of the host. The resolver knows no time limit of ours, so it runs in a thread that can be left."""
    config = target.config
    answer: list[Any] = []

    def ask() -> None:
        family = _FAMILIES.get(config.address_family, socket.AF_UNSPEC)
        try:
            answer.append(socket.getaddrinfo(config.hostname, config.port, family, socket.SOCK_STREAM))
        except (OSError, UnicodeError) as error:
            answer.append(error)

    if re.fullmatch(r"[0-9.]+|[0-9a-fA-F:]*:[0-9a-fA-F:.]*", config.hostname):
        ask()  # a numeric address asks nobody
    else:
        thread = threading.Thread(target=ask, name=f"resolve-{target.alias}", daemon=True)
        thread.start()
        thread.join(max(0.0, ends - time.monotonic()))
    if not answer or isinstance(answer[0], Exception):
        said = str(answer[0]) if answer else f"no answer within {target.connect_limit:.0f} s"
        raise ConnectError(
            f"the name {config.hostname} of host {target.alias} cannot be found: {said}",
            host=target.alias,
            code="dns",
            remedy="Check the name, or give `address` in the hosts file or HostName in the SSH configuration.",
        )
    return list(answer[0])


def _dial_error(target: HostTarget, error: OSError) -> ConnectError:
    place = f"{target.alias} ({target.config.hostname} port {target.config.port})"
    if isinstance(error, ConnectionRefusedError):
        return ConnectError(
            f"{place} refused the connection: nothing listens there",
            host=target.alias,
            code="refused",
            remedy="Check the port, and whether the SSH server of that machine runs.",
        )
    if isinstance(error, TimeoutError) or error.errno == errno.ETIMEDOUT:
        return no_answer(target, place)
    return ConnectError(
        f"{place} cannot be reached: {error.strerror or error}",
        host=target.alias,
        code="unreachable",
        remedy="Check the network of this machine and the way to the host.",
    )


class ProxyProcess:
    """A ProxyCommand, as a socket: `recv`, `send`, `settimeout`, `close` are those of one end of a socket pair."""

    def __init__(self, target: HostTarget) -> None:
        config = target.config
        for value in (config.hostname, config.user):
            if not _SHELL_WORD.match(value):
                raise ConnectError(
                    f"{value!r} of host {target.alias} will not be handed to the shell of its ProxyCommand",
                    host=target.alias,
                    code="proxy",
                    remedy="Use a host and user name without special characters.",
                )
        self.command = config.proxy_command
        ours, theirs = socket.socketpair()
        self.sock = ours
        try:
            self._start(theirs)
        except OSError as error:
            ours.close()
            raise ConnectError(
                f"the ProxyCommand of {target.alias} cannot be started: {error}", host=target.alias, code="proxy"
            ) from error
        finally:
            if os.name != "nt":
                theirs.close()

    def _start(self, theirs: socket.socket) -> None:
        if os.name == "nt":  # there a process cannot inherit a socket as its standard input
            self.process = subprocess.Popen(
                self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0
            )
            for pump in (self._pump_in, self._pump_out):
                threading.Thread(target=pump, args=(theirs,), daemon=True).start()
        else:
            # The command is the user's own, from the SSH configuration, and is run as ssh would run it.
            shell = os.environ.get("SHELL") or "/bin/sh"
            argv = [shell, "-c", "exec " + self.command]
            end = theirs.fileno()
            self.process = subprocess.Popen(argv, stdin=end, stdout=end, stderr=subprocess.PIPE, bufsize=0)
        self._said = bytearray()
        self._listener = threading.Thread(target=self._listen, name="proxy-stderr", daemon=True)
        self._listener.start()

    def _pump_in(self, theirs: socket.socket) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(OSError, ValueError):
            while data := theirs.recv(65536):
                self.process.stdin.write(data)
        with contextlib.suppress(OSError):
            self.process.stdin.close()

    def _pump_out(self, theirs: socket.socket) -> None:
        assert self.process.stdout is not None
        with contextlib.suppress(OSError, ValueError):
            while data := self.process.stdout.read(65536):
                theirs.sendall(data)
        theirs.close()

    def _listen(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as stream, contextlib.suppress(OSError, ValueError):
            while data := stream.read(4096):
                self._said += data
                del self._said[:-4096]

    @property
    def said(self) -> str:
        """The last of what the command wrote on its standard error."""
        self._listener.join(0.5)
        return self._said.decode("utf-8", "replace").strip()

    def recv(self, count: int) -> bytes:
        return self.sock.recv(count)

    def send(self, data: bytes) -> int:
        return self.sock.send(data)

    def settimeout(self, seconds: float | None) -> None:
        self.sock.settimeout(seconds)

    @property
    def _closed(self) -> bool:  # paramiko looks at this
        return self.sock.fileno() == -1

    def close(self) -> None:
        """End the command and take its exit status, so that nothing is left of it."""
        self.sock.close()
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(1.0)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self._listener.join(1.0)


def no_answer(target: HostTarget, place: str) -> ConnectError:
    """The error for an address that says nothing at all."""
    return ConnectError(
        f"{place} did not answer within {target.connect_limit:.0f} s",
        host=target.alias,
        code="timeout",
        remedy="The machine may be off, or a VPN or firewall in the way.",
    )
