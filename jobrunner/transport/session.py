"""One channel with the agent at its other end: frames both ways, bounded memory, a limit for every wait."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from jobrunner.agent import parted
from jobrunner.agent import wire as agent_wire
from jobrunner.core.errors import HostError, LinkLostError
from jobrunner.transport import answers, failures
from jobrunner.transport.bootstrap import AgentImage
from jobrunner.transport.bytestream import KEEP, READ, ByteStream
from jobrunner.transport.diagnosis import Silence, from_status, why_no_agent
from jobrunner.transport.settings import HostTarget

if TYPE_CHECKING:
    from paramiko import Channel

wire: Any = agent_wire  # written for Python 3.6, so without types
read_at: Any = parted.read_at
PIECE = 256 * 1024
SIGNS = 10  # signs of life that may come at once; further ones at most once a second
STREAM_SIGNS = 1000  # the same for a stream, which may be left unread for a while


class Session(ByteStream):
    """A channel on which the agent has been started, to say `fence` first. One thread at a time; a context manager.

    Iterating gives frames `(kind, payload)`, with kind b"J", b"B" or b"E", up to and with the answer that ends the
    request. Every read waits at most `timeout` seconds for the next frame (None: for as long as the link lives).
    """

    def __init__(
        self, channel: Channel, target: HostTarget, image: AgentImage, fence: str, on_close: Callable[[Session], None]
    ) -> None:
        super().__init__(channel, target, on_close)
        self.timeout: float | None = target.settings.request_s
        self.noise = ""
        self.shell = ""
        self.host: dict[str, Any] = {}
        self._image = image
        self._fence = fence
        self._reader = wire.Reader(self._take)
        self._signs, self._began = 0, time.monotonic()

    # Starting

    def start(self) -> None:
        """Wait for the agent, sending it first if the host has not got it. Raises HostSetupError, LinkLostError."""
        target = self.target
        status = self._await_fence(self._fence)
        self._check(status)
        if status.startswith("W"):
            self._limit(max(target.settings.request_s, 60.0))
            self._deliver()
        self.shell = status[2:].strip()

    def _deliver(self) -> None:
        """Send the agent. A host that cannot take it says why and ends at once, maybe while we are still sending."""
        try:
            self._send(self._image.data)
        except HostError:
            self._check(self._line())
            raise
        self._check(self._line())

    def _check(self, status: str) -> None:
        error = from_status(self.target.alias, self.target.root, self.target.python, status)
        if error is not None:
            raise error

    def _await_fence(self, fence: str) -> str:
        """Pass over what the shell prints before us (a part is kept), and return the line after the fence."""
        mark = f"\n{fence}\n".encode()
        began = time.monotonic()
        self._limit(self.target.settings.request_s / 2)
        seen = b""
        kept = bytearray()
        while mark not in seen:
            kept += seen[: -len(mark)] if len(kept) < KEEP else b""
            try:
                piece = self._receive(65536)
            except LinkLostError as error:
                if error.code != "timeout":
                    raise
                raise self._no_agent(bytes(kept) + seen, None, time.monotonic() - began) from None
            if not piece:
                code = self._exit_code()
                raise self._cut(code) or self._no_agent(bytes(kept) + seen, code, time.monotonic() - began)
            seen = seen[-len(mark) :] + piece
        before, _, after = seen.partition(mark)
        self.noise = (bytes(kept) + before)[-KEEP:].decode("utf-8", "replace").strip()
        self._buffer, self._at = after, 0
        return self._line()

    def _no_agent(self, out: bytes, code: int | None, seconds: float) -> HostError:
        silence = Silence(out.decode("utf-8", "replace").strip(), self._stderr(), code, seconds)
        return why_no_agent(self.target.alias, self.target.python, silence)

    def _line(self) -> str:
        line = bytearray()
        while not line.endswith(b"\n"):
            byte = self._take(1)
            if not byte or len(line) > 4096:
                raise self._ended()
            line += byte
        return line.decode("utf-8", "replace").rstrip("\n")

    # Sending

    def send_json(self, message: dict[str, Any]) -> None:
        """Send one J frame."""
        self._send(wire.pack_json(message))

    def add_json(self, message: dict[str, Any]) -> None:
        """Send one J frame together with what is sent or waited for next."""
        self._gather(wire.pack_json(message))

    def send_bytes(self, data: bytes | memoryview) -> None:
        """Send a piece of a byte stream, as B frames of a bounded size. An empty piece sends nothing."""
        for start in range(0, len(data), PIECE):
            self._gather(wire.pack(b"B", bytes(data[start : start + PIECE])))

    def send_range(self, handle: int, at: int, count: int) -> bool:
        """Send bytes of a file at once, as one B frame. False, and the channel is of no use, if it is shorter."""
        head, give = wire.head(b"B", count), getattr(self._channel, "send_file", None)
        if give is None:
            data = read_at(handle, count, at)
            if len(data) == count:
                self._send(head + data)
            return len(data) == count
        self._send(head)
        try:
            self._push(lambda done: give(handle, at + done, count - done), count)
        except HostError:
            if os.fstat(handle).st_size < at + count:
                return False
            raise
        return True

    def send_end(self) -> None:
        """Send the end of a byte stream."""
        self._gather(wire.pack(b"E", b""))

    # Receiving

    def __iter__(self) -> Iterator[tuple[bytes, bytes]]:
        while True:
            frame = self.frame()
            yield frame
            if self._ends_it(*frame):
                return

    def parts(self) -> Iterator[tuple[bytes, bytes]]:
        """As iterating, but a B frame comes in parts, as its bytes come: none is put together."""
        while True:
            kind, length = self._head()
            if kind == b"B":
                for part in self._parts(length):
                    yield kind, self._buffer if len(part) == len(self._buffer) else bytes(part)
                continue
            payload = self._payload(length)
            yield kind, payload
            if self._ends_it(kind, payload):
                return

    @staticmethod
    def _ends_it(kind: bytes, payload: bytes) -> bool:
        """True for the answer that ends a request."""
        if kind != b"J" or b'"ok"' not in payload:
            return False
        message = answers.load(payload)
        return isinstance(message, dict) and "ok" in message

    def frame(self, timeout: float | None = -1.0) -> tuple[bytes, bytes]:
        """The next frame. `timeout` in seconds, None for no limit; by default that of the session.

        Raises LinkLostError (code `timeout` if nothing came in time), AgentError where the agent ended or sent
        something that is no frame.
        """
        if self._kept:
            self._send(b"")
        self._limit(self.timeout if timeout == -1.0 else timeout)
        try:
            frame: tuple[bytes, bytes] | None = self._reader.frame()
        except wire.WireError as error:
            raise self._no_frame(error) from error
        if frame is None:
            raise self._ended()
        return frame

    def _no_frame(self, error: Exception) -> HostError:
        return self._ended() if "ended" in str(error) else failures.no_message(self.target.alias, error)

    def pieces(self, most: int) -> Iterator[memoryview]:
        """The bytes of one stream as they come, up to its end; messages on the way are looked at and passed over.

        Raises AgentError where more than `most` bytes come, or messages without end.
        """
        while True:
            kind, length = self._head()
            if kind == b"E":
                return
            if kind == b"J":
                self.sign_of_life(self.message(self._payload(length)))
            elif not length:
                self.sign_of_life({})
            elif length > most:
                raise failures.odd(self.target.alias, "more bytes than it was asked for")
            else:
                most -= length
                yield from self._parts(length)

    def await_json(self, key: str, timeout: float | None = -1.0) -> dict[str, Any]:
        """The message that has `key`; signs of life before it (the host works) are passed over."""
        while key not in (message := self.read_json(timeout)):
            self.sign_of_life(message)
        return message

    def sign_of_life(self, message: dict[str, Any]) -> None:
        """A message says that the host works. Raises AgentError if it ends the answer, or there is no end of them."""
        if message.get("ok"):
            raise failures.odd(self.target.alias, "the end of an answer of which parts are missing")
        self._signs += 1
        if self._signs > STREAM_SIGNS + time.monotonic() - self._began:
            raise failures.odd(self.target.alias, "messages without end where an answer was due")

    def _head(self) -> tuple[bytes, int]:
        """Kind and length of the next frame, whose payload is still to be read."""
        if self._kept:
            self._send(b"")
        self._limit(self.timeout)
        try:
            head: tuple[bytes, int] = self._reader.head()
        except wire.WireError as error:
            raise self._no_frame(error) from error
        return head

    def _payload(self, length: int) -> bytes:
        try:
            payload: bytes = self._reader.exactly(length)
        except wire.WireError as error:
            raise self._no_frame(error) from error
        return payload

    def _parts(self, left: int) -> Iterator[memoryview]:
        """The next bytes as they come, so many in all."""
        while left:
            if self._at >= len(self._buffer):
                self._limit(self.timeout)
                self._buffer, self._at = self._receive(READ), 0
                if not self._buffer:
                    raise self._ended()
            piece = memoryview(self._buffer)[self._at : self._at + left]
            self._at += len(piece)
            left -= len(piece)
            yield piece

    def read_json(self, timeout: float | None = -1.0) -> dict[str, Any]:
        """The next frame, which has to be a JSON object; an error answer is raised as AgentError."""
        kind, payload = self.frame(timeout)
        if kind != b"J":
            raise failures.odd(self.target.alias, f"a frame of kind {kind!r} where a message was due")
        return self.message(payload)

    def message(self, payload: bytes) -> dict[str, Any]:
        """The message of a J frame; facts about the host are kept, an error answer is raised as AgentError."""
        message = answers.load(payload)
        if not isinstance(message, dict):
            raise failures.odd(self.target.alias, "a message that is no JSON object")
        wrong = answers.fault(self.op, message)
        if wrong:
            raise failures.odd(self.target.alias, f"an answer in which {wrong}")
        if "host" in message:
            self.host = message["host"]
        if message.get("ok") is False:
            raise failures.agent_error(message, self.target.alias)
        if message.get("ok") and not self.host:
            raise failures.odd(self.target.alias, "an answer that does not say which machine it is from")
        return message

    def result(self, timeout: float | None = -1.0, *, silence: float | None = None) -> dict[str, Any]:
        """The data of the answer that ends the request; other frames before it are passed over.

        With `silence` the host has so many seconds for each sign of life instead: it may work long, and has to say so.
        """
        if silence is not None:
            return self._after_signs_of_life(silence)
        limit = self.timeout if timeout == -1.0 else timeout
        ends = None if limit is None else time.monotonic() + limit
        while True:
            if ends is not None and time.monotonic() > ends:
                raise failures.too_late(self.target.alias)  # it talks all the time, and never answers
            kind, payload = self.frame(None if ends is None else ends - time.monotonic())
            if kind == b"J":
                message = self.message(payload)
                if message.get("ok"):
                    return dict(message.get("data", {}))

    def _after_signs_of_life(self, silence: float) -> dict[str, Any]:
        self._patience, began, signs = silence, time.monotonic(), 0
        try:
            while True:
                message = self.read_json(silence)
                if message.get("ok"):
                    return dict(message.get("data", {}))
                signs += 1
                if not message.get("tick") or signs > SIGNS + time.monotonic() - began:
                    raise failures.odd(self.target.alias, "messages without end where an answer was due")
        finally:
            self._patience = None
