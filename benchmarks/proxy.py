"""A longer way to hosts on loopback: a process that passes TCP connections on, later and no faster than told.

    python benchmarks/proxy.py ROUND_TRIP_MS MEGABYTES_A_SECOND PORT…      (0: no limit)

It prints the ports to connect to, as JSON, in the order of the PORTs. For every line on its standard input it prints
how many bytes have passed so far, `[to the hosts, back]`; at the end of its input it ends.

What is modelled: each direction holds every byte for half of the round trip; a new connection costs one round trip, as
TCP's handshake does; the rate is that of the whole way in one direction, whatever number of connections shares it. What
is not: lost packets, and TCP's own slow start and windows (either end talks to a peer on loopback), so that whoever is
slow over it is slow by its own protocol.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path

IN_FLIGHT = 64 * 1024 * 1024
"""Bytes that one direction of a connection may hold: more than 50 ms at a gigabyte a second."""


class Way:
    """One direction from here to the hosts or back, shared by all connections."""

    def __init__(self, delay_s: float, rate: float) -> None:
        self.delay_s, self.rate = delay_s, rate
        self.passed = 0
        self._free_at = 0.0

    def due(self, now: float, size: int) -> float:
        """When so many bytes that come now arrive at the other end."""
        self.passed += size
        if not self.rate:
            return now + self.delay_s
        self._free_at = max(self._free_at, now) + size / self.rate
        return self._free_at + self.delay_s


class End(asyncio.Protocol):
    """One end of a connection: what it hears arrives at `other`, when its way says so."""

    def __init__(self, way: Way) -> None:
        self.way = way
        self.loop = asyncio.get_running_loop()
        self.other: End | None = None
        self.transport: asyncio.Transport | None = None
        self.ready = False  # bytes that came before the other end was reached wait
        self._held: deque[tuple[float, bytes | None]] = deque()  # None: the end of the stream
        self._size = 0
        self._timer: asyncio.TimerHandle | None = None
        self._full = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self._hold(data)
        self._size += len(data)
        if self._size > IN_FLIGHT and self.transport is not None:
            self.transport.pause_reading()

    def eof_received(self) -> bool:
        self._hold(None)
        return True  # the other direction may go on

    def connection_lost(self, error: Exception | None) -> None:
        self._hold(None)
        if self.other is not None:
            self.other._forget()

    def pause_writing(self) -> None:
        self._full = True

    def resume_writing(self) -> None:
        self._full = False
        if self.other is not None:
            self.other.pass_on()

    def _hold(self, data: bytes | None) -> None:
        now = self.loop.time()
        self._held.append((self.way.due(now, len(data)) if data is not None else now + self.way.delay_s, data))
        if self._timer is None:
            self.pass_on()

    def _forget(self) -> None:
        """Nobody is at the other end any more."""
        self._held.clear()
        if self.transport is not None:
            self.transport.close()

    def pass_on(self) -> None:
        """Deliver what is due, and come again for the next."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self.ready or self.other is None or self.other.transport is None:
            return
        now = self.loop.time()
        while self._held and not self.other._full and self._held[0][0] <= now + 0.0002:
            _, data = self._held.popleft()
            if data is None:
                with contextlib.suppress(OSError, RuntimeError):
                    self.other.transport.write_eof()
                continue
            self._size -= len(data)
            self.other.transport.write(data)
        if self._size <= IN_FLIGHT // 2 and self.transport is not None and not self.transport.is_closing():
            self.transport.resume_reading()
        if self._held and not self.other._full:
            self._timer = self.loop.call_at(self._held[0][0], self.pass_on)


async def serve(round_trip_s: float, rate: float, targets: Sequence[int]) -> None:
    """Pass connections on until standard input ends."""
    up, down = Way(round_trip_s / 2, rate), Way(round_trip_s / 2, rate)
    loop = asyncio.get_running_loop()
    reaching: set[asyncio.Task[None]] = set()

    async def reach(near: End, target: int) -> None:
        if round_trip_s:
            await asyncio.sleep(round_trip_s)
        try:
            _, far = await loop.create_connection(lambda: End(down), "127.0.0.1", target)
        except OSError:
            near._forget()
            return
        near.other, far.other = far, near
        near.ready = far.ready = True
        near.pass_on(), far.pass_on()

    def accept(target: int) -> End:
        near = End(up)
        task = loop.create_task(reach(near, target))
        reaching.add(task)
        task.add_done_callback(reaching.discard)
        return near

    servers = [
        await loop.create_server(lambda target=target: accept(target), "127.0.0.1", 0, backlog=128)  # type: ignore[misc]
        for target in targets
    ]
    print(json.dumps([server.sockets[0].getsockname()[1] for server in servers]), flush=True)
    while await loop.run_in_executor(None, sys.stdin.readline):
        print(json.dumps([up.passed, down.passed]), flush=True)
    for server in servers:
        server.close()


class Proxy:
    """The process, from outside: `ports` lead to the targets, `passed()` tells the bytes."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.ports: list[int] = self._answer()

    def _answer(self) -> list[int]:
        assert self._process.stdout is not None
        return list(json.loads(self._process.stdout.readline()))

    def passed(self) -> tuple[int, int]:
        """Bytes that have come so far, over all connections: to the hosts, and back."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        up, down = self._answer()
        return up, down


@contextlib.contextmanager
def proxied(targets: Sequence[int], round_trip_ms: float, megabytes_s: float = 0.0) -> Iterator[Proxy]:
    """A way to these ports of loopback that takes so long."""
    argv = [sys.executable, str(Path(__file__).resolve()), str(round_trip_ms), str(megabytes_s), *map(str, targets)]
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stdin is not None and process.stdout is not None
    try:
        yield Proxy(process)
    finally:
        process.stdin.close()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


if __name__ == "__main__":
    asyncio.run(serve(float(sys.argv[1]) / 1000, float(sys.argv[2]) * 1e6, [int(word) for word in sys.argv[3:]]))
