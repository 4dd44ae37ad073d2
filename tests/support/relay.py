"""A TCP relay on loopback that cuts, holds, slows or swallows what passes through it."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.support.lab import Client, Lab

STEP_S = 0.01


class Relay:
    """Passes connections on to `target`. What it does to them may be changed at any moment:

    limit, direction   each connection is cut after so many bytes in that direction ("up" is to the host)
    cuts               only so many are cut that way (None: all of them)
    delay              seconds that every piece of 4 KiB is held
    stalled            nothing passes, and nothing is read: what was sent comes once this is False again
    hole               everything is read and thrown away; a connection that lost something is never sound again
    refusing           new connections are closed at once

    `passed` counts the bytes that came in each direction, over all connections.
    """

    def __init__(self, target: int) -> None:
        self.target = target
        self.limit: int | None = None
        self.cuts: int | None = None
        self.direction = "up"
        self.delay = 0.0
        self.stalled = False
        self.hole = False
        self.refusing = False
        self.passed = {"up": 0, "down": 0}
        self._closed = False
        self._server = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port: int = self._server.getsockname()[1]
        self._threads: list[threading.Thread] = []
        self._open: set[socket.socket] = set()
        self._start(self._accept)

    def _start(self, work: object, *args: object) -> None:
        thread = threading.Thread(target=work, args=args, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._server.accept()
            except OSError:
                return
            if self.refusing:
                near.close()
                continue
            self._start(self._serve, near)

    def _serve(self, near: socket.socket) -> None:
        with near:
            try:
                far = socket.create_connection(("127.0.0.1", self.target), 5)
            except OSError:
                return
            with far:
                far.settimeout(None)
                self._open |= {near, far}
                other = threading.Thread(target=self._pump, args=(far, near, "down"), daemon=True)
                other.start()
                self._pump(near, far, "up")
                other.join()
                self._open -= {near, far}

    def _pump(self, source: socket.socket, sink: socket.socket, direction: str) -> None:
        passed, lost = 0, False
        with contextlib.suppress(OSError):
            while data := source.recv(4096):
                passed += len(data)
                self.passed[direction] += len(data)
                if self.limit is not None and direction == self.direction and passed > self.limit and self.cuts != 0:
                    self.cuts = self.cuts and self.cuts - 1
                    break
                if self.delay:
                    time.sleep(self.delay)
                while self.stalled and not self._closed:
                    time.sleep(STEP_S)
                lost = lost or self.hole
                if not lost:
                    sink.sendall(data)
        while lost and self.hole and not self._closed:
            time.sleep(STEP_S)  # not even the end of a connection passes a black hole
        self._cut(source, sink)

    def _cut(self, *ends: socket.socket) -> None:
        for end in ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    @property
    def open(self) -> bool:
        """True while a connection goes through."""
        return bool(self._open)

    def cut(self) -> None:
        """Cut every open connection now."""
        self._cut(*tuple(self._open))

    def heal(self) -> None:
        """Do nothing more to what passes."""
        self.limit, self.cuts, self.delay = None, None, 0.0
        self.stalled = self.hole = self.refusing = False

    def close(self) -> None:
        """Stop, and wait until every socket is closed."""
        self._closed = True
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self.cut()
        for thread in self._threads:
            thread.join(5)


@contextlib.contextmanager
def relayed(client: Client, lab: Lab) -> Iterator[Relay]:
    """Lead a client's way to one of its hosts through a relay."""
    relay = Relay(lab.sshd.port)
    config = client.folder / "ssh_config"
    blocks = config.read_text().split("Host ")
    for number, block in enumerate(blocks):
        if block.splitlines()[:1] == [lab.alias]:
            block = block.replace(f"Port {lab.sshd.port}\n", f"Port {relay.port}\n")
            blocks[number] = f"{block.rstrip()}\n  HostKeyAlias [127.0.0.1]:{lab.sshd.port}\n"
    config.write_text("Host ".join(blocks))
    try:
        yield relay
    finally:
        relay.close()
