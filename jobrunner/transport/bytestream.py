"""The bytes of one channel both ways: what is sent together, a limit for every wait, and how it ends."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any

from jobrunner.core.errors import HostError, LinkLostError
from jobrunner.transport import failures
from jobrunner.transport.diagnosis import shown
from jobrunner.transport.settings import HostTarget

if TYPE_CHECKING:
    from paramiko import Channel
    from typing_extensions import Self

SLICE_S = 0.25  # how long one wait on the channel lasts before standard error is looked at
KEEP = 8192  # bytes of noise and of standard error that are kept, to be told
PACKET = 32768
READ = 256 * 1024
NEWS_S = 0.3  # a channel that ends without a code may be the first to know that its link is dead
MUCH = 64 * 1024  # bytes of one answer that count as a sign of life
_BYTES = ("collect", "tail", "ranges")  # exchanges whose answers are contents, not work


class ByteStream:
    """A channel of a host. One thread at a time; a context manager.

    `count` is told where the time goes: seconds by phase; `round_trip` is how long the way takes of it. `on_close` is
    told once, with this, when it is closed.
    """

    def __init__(self, channel: Channel, target: HostTarget, on_close: Callable[[Any], None]) -> None:
        self.target = target
        self.op = ""  # the exchange that goes on, so that the shape of its answer is known
        self.count: Callable[[dict[str, float]], None] = lambda _: None
        self.round_trip = 0.0
        self._channel = channel
        self._on_close: Callable[[Any], None] | None = on_close
        self._buffer = b""
        self._at = 0
        self._err = bytearray()
        self._kept = bytearray()
        self._ends: float | None = None
        self._patience: float | None = None  # seconds that much arriving data gives anew, while one long answer comes
        self._arrived = 0
        self._asked = False

    # Sending

    def _gather(self, frame: bytes) -> None:
        """Send frames of a stream together: a packet each would cost more than what is in it."""
        self._kept += frame
        if len(self._kept) >= PACKET:
            self._send(b"")

    def _send(self, data: bytes) -> None:
        """Send all of it, after what was gathered. Waits while the agent takes nothing, as long as the link lives."""
        data = bytes(self._kept) + data if self._kept else data
        self._kept.clear()
        most = getattr(self._channel, "most", PACKET)
        self._push(lambda at: self._channel.send(data[at : at + most]), len(data))

    def _push(self, send: Callable[[int], int], count: int) -> None:
        """Send so many bytes by `send(at)`, which says how many of them were taken."""
        began, self._asked, at = time.monotonic(), True, 0
        with self._told("sending"):
            while at < count:
                self._channel.settimeout(SLICE_S)
                try:
                    sent = send(at)
                except TimeoutError:
                    self._drain_stderr()
                    continue
                if sent == 0:
                    raise self._ended()
                at += sent
        self.count({"transfer" if at > PACKET else "request": time.monotonic() - began})

    # Receiving

    def _limit(self, seconds: float | None) -> None:
        self._ends = None if seconds is None else time.monotonic() + seconds

    def _take(self, count: int) -> bytes:
        """Up to `count` bytes; b"" at the end of the stream."""
        if self._at >= len(self._buffer):
            self._buffer, self._at = self._receive(max(count, READ)), 0
        piece = self._buffer[self._at : self._at + count]
        self._at += len(piece)
        return piece

    def _receive(self, count: int) -> bytes:
        began = time.monotonic()
        try:
            piece = self._next_piece(count)
        finally:
            self._waited(time.monotonic() - began)
        self._arrived += len(piece)
        if self._patience is not None and self._arrived >= MUCH:  # a long answer on a slow way: it does come
            self._arrived = 0
            self._limit(self._patience)
        return piece

    def _waited(self, seconds: float) -> None:
        """Tell for what there was waiting: the agent's start, its work (less the way there and back), or bytes."""
        way = min(seconds, self.round_trip) if self._asked and self.op else 0.0
        self._asked = False
        phase = "request" if not self.op else "transfer" if self.op in _BYTES else "host work"
        self.count({"request": way, phase: seconds - way} if phase != "request" else {phase: seconds})

    def _next_piece(self, count: int) -> bytes:
        with self._told("waiting for an answer"):
            while True:
                left = SLICE_S if self._ends is None else self._ends - time.monotonic()
                if left <= 0:
                    raise failures.too_late(self.target.alias)
                self._channel.settimeout(min(left, SLICE_S))
                try:
                    data: bytes = self._channel.recv(count)
                except TimeoutError:
                    self._drain_stderr()
                    continue
                self._drain_stderr()
                return data

    def _drain_stderr(self) -> None:
        """Standard error shares the channel's window: unread, it would stop the answers."""
        while self._channel.recv_stderr_ready():
            data = self._channel.recv_stderr(65536)
            if not data:
                return
            self._err += data
            del self._err[:-KEEP]

    def _stderr(self) -> str:
        with contextlib.suppress(OSError, EOFError):
            self._channel.settimeout(0.2)
            while data := self._channel.recv_stderr(65536):
                self._err += data
        return bytes(self._err[-KEEP:]).decode("utf-8", "replace").strip()

    # Ends

    def _exit_code(self) -> int:
        self._channel.status_event.wait(2.0)
        return int(self._channel.exit_status)

    def _ended(self) -> HostError:
        """The channel is at its end: did the link die, or the agent?"""
        code = self._exit_code()
        return self._cut(code) or failures.agent_died(self.target.alias, code, shown(self._stderr()))

    def _cut(self, code: int) -> LinkLostError | None:
        """The error for a link that died; None where what ran on the channel has ended by itself, with this code."""
        transport = self._channel.get_transport()
        ends = time.monotonic() + (NEWS_S if code < 0 else 0.0)
        while alive := transport is not None and transport.is_active():
            if time.monotonic() >= ends:
                break
            time.sleep(0.01)
        return None if alive and self._on_close is not None else failures.link_lost(self.target.alias, transport)

    @contextlib.contextmanager
    def _told(self, doing: str) -> Iterator[None]:
        """Let no exception of the layers below through."""
        from jobrunner.transport.connect import mapped

        try:
            with mapped(self.target, doing):
                yield
        except LinkLostError as error:
            if isinstance(error.__cause__, OSError | EOFError):
                raise self._ended() from error.__cause__
            raise

    @property
    def usable(self) -> bool:
        """True if another request may be made on this channel."""
        return self._on_close is not None and not self._channel.closed and not self._channel.eof_received

    @property
    def answered(self) -> bool:
        """True if something has come that was not read yet."""
        return self._at < len(self._buffer) or bool(self._channel.recv_ready())

    def close(self) -> None:
        """Give the channel back. What the agent still does for it, it stops."""
        if self._on_close is None:
            return
        done, self._on_close = self._on_close, None
        try:
            with contextlib.suppress(Exception):
                self._channel.close()
        finally:
            done(self)

    def abandon(self) -> None:
        """`close` for whoever takes the session's place over: nobody is told."""
        if self._on_close is not None:
            self._on_close = lambda _: None
            self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
