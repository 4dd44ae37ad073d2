"""Frames: how client and agent talk over one SSH channel (or any pair of byte streams).

A frame is one kind byte, a four-byte big-endian length, and the payload:

    J   one JSON object, UTF-8, lone surrogates escaped as JSON does
    B   a piece of a byte stream
    E   the end of a byte stream (empty payload)

Both sides refuse frames over `MAX_FRAME` bytes: a huge or malformed answer is an error, never memory.
"""

import json
import struct

MAX_FRAME = 64 * 1024 * 1024
CHUNK = 256 * 1024
BLOCK = 1024 * 1024  # a B frame of much holds so many bytes
_HEAD = struct.Struct(">cI")


class WireError(Exception):
    """The other side sent something that is no frame, or ended in the middle of one."""


def pack(kind, payload):
    """The bytes of one frame. `kind` is b"J", b"B" or b"E"."""
    return _HEAD.pack(kind, len(payload)) + payload


def head(kind, length):
    """The bytes before the payload of a frame."""
    return _HEAD.pack(kind, length)


def pack_json(message):
    """The frame of one JSON object."""
    return pack(b"J", json.dumps(message, separators=(",", ":")).encode("ascii"))


def _checked(head):
    kind, length = _HEAD.unpack(head)
    if kind not in (b"J", b"B", b"E"):
        raise WireError("not a frame: kind {!r}".format(kind))
    if length > MAX_FRAME:
        raise WireError("a frame of {} bytes is over the limit of {}".format(length, MAX_FRAME))
    return kind, length


class Reader:
    """Reads frames from `read(n) -> bytes`, which may return fewer bytes, and b"" at the end."""

    def __init__(self, read):
        self._read = read

    def exactly(self, count):
        """Exactly `count` bytes, or WireError where the stream ends before."""
        pieces = []
        while count:
            piece = self._read(min(count, CHUNK))
            if not piece:
                raise WireError("the stream ended inside a frame")
            pieces.append(piece)
            count -= len(piece)
        return b"".join(pieces)

    def frame(self):
        """The next `(kind, payload)`, or None at a clean end of the stream."""
        first = self._read(1)
        if not first:
            return None
        kind, length = _checked(first + self.exactly(_HEAD.size - 1))
        return kind, self.exactly(length)

    def head(self):
        """`(kind, length)` of the next frame: its payload is to be read by `exactly`, or otherwise."""
        return _checked(self.exactly(_HEAD.size))

    def json(self):
        """The next frame, which must be a JSON object; None at a clean end."""
        frame = self.frame()
        if frame is None:
            return None
        kind, payload = frame
        if kind != b"J":
            raise WireError("expected a JSON frame, got {!r}".format(kind))
        message = json.loads(payload.decode("utf-8"))
        if not isinstance(message, dict):
            raise WireError("expected a JSON object")
        return message
