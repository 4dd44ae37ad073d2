"""A file that arrives in ranges, from several sides at once; which of its bytes are there is kept behind its end.

The file is cut into chunks, and each is filled from its beginning on. Behind the place where the file will end stand a
mark, its size, a chunk's size, and for each chunk how many bytes of it are there. A byte is counted once it is written,
so whoever goes on after a cut lacks nothing; a power cut may leave less than is counted, which the hash then shows.
Both ends use this: the host for contents that are sent to it, the client for files that it fetches.
"""

import os
import struct
import threading

CHUNK = 4 * 1024 * 1024
_MOST = 65536  # chunks of one file: of a bigger one they are bigger
_HEAD = struct.Struct(">8sQQ")
_COUNT = struct.Struct(">Q")
_MAGIC = b"JRparts1"
_turn = threading.Lock()  # where a system cannot write at a place without going there


class Parted:
    """The file behind a descriptor (open for reading and writing), to become `size` bytes.

    What is there already is found out: by the counts, or in a file without any as far as it goes.
    """

    def __init__(self, handle, size):
        self.handle = handle
        self.size = size
        self.chunk = CHUNK * max(1, -(-size // (CHUNK * _MOST)))
        self._number = -(-size // self.chunk)
        self._full = 0  # chunks up to here are full
        if not self.refresh():
            there = os.fstat(handle).st_size
            there = there if there <= size else 0
            self._counts = [max(0, min(self._length(at), there - at * self.chunk)) for at in range(self._number)]
            os.ftruncate(handle, size)
            counts = b"".join(map(_COUNT.pack, self._counts))
            write_at(handle, _HEAD.pack(_MAGIC, size, self.chunk) + counts, size)

    def _length(self, number):
        return min(self.chunk, self.size - number * self.chunk)

    def refresh(self):
        """Read the counts anew: others may write, too. False if there are none."""
        data = read_at(self.handle, _HEAD.size + self._number * _COUNT.size, self.size)
        if data[: _HEAD.size] != _HEAD.pack(_MAGIC, self.size, self.chunk):
            return False
        if len(data) != _HEAD.size + self._number * _COUNT.size:
            return False
        counts = [count for (count,) in _COUNT.iter_unpack(data[_HEAD.size :])]
        if any(count > self._length(number) for number, count in enumerate(counts)):
            return False
        self._counts = counts
        return True

    def reread(self, at):
        """Read the count of the chunk of a byte anew: somebody else may have filled it meanwhile, or finished all.
        The place up to which the chunk is there."""
        number = at // self.chunk
        if number < self._number:
            data = read_at(self.handle, _COUNT.size, self.size + _HEAD.size + number * _COUNT.size)
            full = self._length(number)
            self._counts[number] = max(self._counts[number], _COUNT.unpack(data)[0]) if data else full
            return number * self.chunk + self._counts[number]
        return self.size

    def missing(self):
        """`[(from, to)]`: for each chunk that is not full, what it lacks; in order."""
        return [
            (number * self.chunk + count, number * self.chunk + self._length(number))
            for number, count in enumerate(self._counts)
            if count < self._length(number)
        ]

    @property
    def there(self):
        """How many bytes there are."""
        return sum(self._counts)

    @property
    def reached(self):
        """How many bytes there are without a gap, from the first one on."""
        while self._full < self._number and self._counts[self._full] == self._length(self._full):
            self._full += 1
        return min(self.size, self._full * self.chunk + (self._counts[self._full] if self._full < self._number else 0))

    def put(self, at, data):
        """Write the next bytes of a chunk. False, and nothing is done, if they are not the next, or too many."""
        number = at // self.chunk
        begin = number * self.chunk
        count = at - begin + len(data)
        if number >= self._number or self._counts[number] != at - begin or count > self._length(number):
            return False
        write_at(self.handle, data, at)
        write_at(self.handle, _COUNT.pack(count), self.size + _HEAD.size + number * _COUNT.size)
        self._counts[number] = count
        return True

    def finish(self):
        """All is there and right: what is behind the end goes."""
        os.ftruncate(self.handle, self.size)

    def shorten(self):
        """Make it a plain beginning of the file, as far as that goes without a gap; returns how far."""
        os.ftruncate(self.handle, self.reached)
        return self.reached


def write_at(handle, data, at):
    """Write all of `data` at a place of a file."""
    view = memoryview(data)
    while view:
        if hasattr(os, "pwrite"):
            done = os.pwrite(handle, view, at)
        else:
            with _turn:
                os.lseek(handle, at, os.SEEK_SET)
                done = os.write(handle, view)
        view = view[done:]
        at += done


def read_at(handle, count, at):
    """Up to `count` bytes from a place of a file on; fewer only at its end."""
    pieces = []
    while count:
        if hasattr(os, "pread"):
            piece = os.pread(handle, count, at)
        else:
            with _turn:
                os.lseek(handle, at, os.SEEK_SET)
                piece = os.read(handle, count)
        if not piece:
            break
        pieces.append(piece)
        count -= len(piece)
        at += len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)
