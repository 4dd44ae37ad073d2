"""A TCP relay on loopback that cuts connections at a chosen byte."""

from __future__ import annotations

import contextlib
import socket
import threading


class Relay:
    """Passes connections on to `target`; each is cut after `limit` bytes in `direction` ("up" is to the host)."""

    def __init__(self, target: int) -> None:
        self.target = target
        self.limit: int | None = None
        self.direction = "up"
        self._server = socket.create_server(("127.0.0.1", 0))
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
        passed = 0
        with contextlib.suppress(OSError):
            while data := source.recv(4096):
                passed += len(data)
                if self.limit is not None and direction == self.direction and passed > self.limit:
                    break
                sink.sendall(data)
        self._cut(source, sink)

    def _cut(self, *ends: socket.socket) -> None:
        for end in ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def cut(self) -> None:
        """Cut every open connection now."""
        self._cut(*tuple(self._open))

    def close(self) -> None:
        """Stop, and wait until every socket is closed."""
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self.cut()
        for thread in self._threads:
            thread.join(5)
