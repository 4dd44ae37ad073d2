"""Many small contents in one file: to make a file costs more than to fill it, so a first upload of thousands is packed.

A pack is records one after the other: magic, SHA-256, size, content. A record's head is written once its content is
there and verified; whatever does not begin with a head is the pack's end. So a pack that was cut is as good as it is
long. A record that turned out damaged is struck out. As with single contents nothing is synced: every use verifies.

`<name>.idx` beside a pack says the same in one piece, for the size that the pack then had; else the heads are read.
"""

import os
import struct
import time

from .files import read_file, write_file

_HEAD = struct.Struct(">4s32sQ")
_GOOD, _BAD = b"JRP1", b"JRPx"
_PLACE = struct.Struct(">32sQQ")
_SIZE = struct.Struct(">Q")
LEAST = 64  # so many contents are worth a pack
MOST_BYTES = 256 * 1024  # a bigger content is a file of its own


def paths(layout):
    """Every pack of this root."""
    try:
        return [os.path.join(layout.packs, name) for name in os.listdir(layout.packs) if name.endswith(b".pack")]
    except OSError:
        return []


def records(path):
    """`[(sha256 in hex, offset of the content, size)]` of a pack; empty if it cannot be read."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return []
    try:
        end = os.fstat(handle).st_size
        return _indexed(path, end) or _heads(handle, end)
    except OSError:
        return []
    finally:
        os.close(handle)


def _indexed(path, end):
    data = read_file(path + b".idx") or b""
    if data[: _SIZE.size] != _SIZE.pack(end) or (len(data) - _SIZE.size) % _PLACE.size:
        return None
    return [(digest.hex(), at, size) for digest, at, size in _PLACE.iter_unpack(data[_SIZE.size :])]


def _heads(handle, end):
    found, at = [], 0
    while True:
        head = os.pread(handle, _HEAD.size, at)
        if len(head) < _HEAD.size:
            return found
        magic, digest, size = _HEAD.unpack(head)
        at += _HEAD.size
        if magic not in (_GOOD, _BAD) or at + size > end:
            return found
        if magic == _GOOD:
            found.append((digest.hex(), at, size))
        at += size


class Index:
    """Where contents lie in the packs, as they are when it is made."""

    def __init__(self, layout):
        self._places = {}
        for path in paths(layout):
            for digest, at, size in records(path):
                self._places[digest] = (path, at, size)

    def find(self, digest):
        """`(path, offset, size)`, or None."""
        return self._places.get(digest)


def without(layout, wanted, indices, fresh_s):
    """Those of some indices of `[(sha256, size), …]` that are in no pack. Packs not used for `fresh_s` are touched."""
    index = Index(layout)
    places = {number: index.find(wanted[number][0]) for number in indices}
    gone = set()
    for path in {place[0] for place in places.values() if place}:
        try:
            if time.time() - os.stat(path).st_mtime > fresh_s:
                os.utime(path)
        except OSError:
            gone.add(path)
    return [
        number for number, place in places.items() if place is None or place[0] in gone or place[2] != wanted[number][1]
    ]


class Writer:
    """A new pack. `add` is given a function that writes one content to a descriptor, and raises if it is another."""

    def __init__(self, layout):
        os.makedirs(layout.packs, 0o700, exist_ok=True)
        self.path = os.path.join(layout.packs, os.urandom(8).hex().encode() + b".pack")
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        self._handle = os.open(self.path, flags, 0o600)
        self._at = 0
        self._places = []

    def add(self, digest, size, fill):
        """Append a content; nothing of it is there if `fill(descriptor)` raises."""
        try:
            os.lseek(self._handle, self._at + _HEAD.size, os.SEEK_SET)
            fill(self._handle)
        except BaseException as error:
            if isinstance(error, OSError) and error.filename is None:
                error.filename = self.path
            os.ftruncate(self._handle, self._at)
            raise
        os.pwrite(self._handle, _HEAD.pack(_GOOD, bytes.fromhex(digest), size), self._at)
        self._places.append(_PLACE.pack(bytes.fromhex(digest), self._at + _HEAD.size, size))
        self._at += _HEAD.size + size

    def close(self):
        """No more comes. A pack in which nothing is goes."""
        os.close(self._handle)
        if not self._at:
            os.unlink(self.path)
            return
        try:
            write_file(self.path + b".idx", _SIZE.pack(self._at) + b"".join(self._places), sync=False)
        except OSError:
            pass  # the heads say it, too


def strike(path, offset):
    """A record's content is not what its head says: from now on it is missing."""
    handle = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.pwrite(handle, _BAD, offset - _HEAD.size)
    finally:
        os.close(handle)
    remove(path + b".idx")


def remove(path):
    """Remove a file, quietly if it is not there."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
