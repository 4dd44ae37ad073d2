"""What has come to a job's sources since they were read last: lines of logs and files, records of event files.

A place is `{"file": [device, inode], "offset", "passing"}`: it belongs to one file; another one in its stead, or one
that has become shorter, is read from its beginning. `passing`: we are inside a line that is too long to be kept.
"""

import os
import re
import stat
import struct

BLOCK = 256 * 1024
MAX_LINE = 1024 * 1024  # of a longer line the head is looked at
MAX_EVENT = 16 * 1024  # a scalar has some hundred bytes; images and graphs have more
MAX_RECORD = 1 << 32
_ENDS = re.compile("[\r\n]+")
_HEADER = struct.Struct("<QI")


def opened(place, handle):
    """The place to go on from in an open file, which may be another than last time; None if it is no plain file."""
    seen = os.fstat(handle)
    if not stat.S_ISREG(seen.st_mode):
        return None
    mark = [seen.st_dev, seen.st_ino]
    if place.get("file") != mark or place.get("offset", 0) > seen.st_size:
        place.clear()
        place.update(file=mark, offset=0, passing=False)
    return place


def lines(place, handle, whole):
    """Lists of lines (text) that have come, a block at a time; `place` is moved on after each.

    A line ends with a newline, or a carriage return as progress bars write it. `whole`: what has no end yet is a line,
    too, because nothing will follow.
    """
    rest, expected = b"", place["offset"]
    while True:
        if place["offset"] != expected:  # the caller has passed over something
            rest = b""
        block = os.pread(handle, BLOCK, place["offset"] + len(rest))
        data = rest + block
        if not block:
            if whole and data:
                found = [] if place["passing"] else _split(data)
                place.update(offset=place["offset"] + len(data), passing=False)
                yield found
            return
        cut = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        if cut:
            found = _split(data[:cut])
            if place["passing"]:
                found = found[1:] if data[:1] not in b"\r\n" else found
            place.update(offset=place["offset"] + cut, passing=False)
            expected = place["offset"]
            yield found
        rest = data[cut:]
        if len(rest) > MAX_LINE:
            found = [] if place["passing"] else _split(rest[:MAX_LINE])
            place.update(offset=place["offset"] + len(rest), passing=True)
            rest, expected = b"", place["offset"]
            yield found


def _split(data):
    return [line for line in _ENDS.split(data.decode("utf-8", "replace")) if line]


def skip_to_tail(place, handle, keep):
    """Pass over all but the last `keep` bytes; how many that are."""
    left = os.fstat(handle).st_size - keep - place["offset"]
    if left <= 0:
        return 0
    place.update(offset=place["offset"] + left, passing=True)
    return left


def events(place, handle, tags):
    """Events (bytes) of a TensorBoard file that may hold one of the tags; `place` is moved on after each record.

    A record is its length (8 bytes), a checksum (4), the event, a checksum (4). What is not whole is left.
    """
    size = os.fstat(handle).st_size
    while True:
        header = os.pread(handle, _HEADER.size, place["offset"])
        if len(header) < _HEADER.size:
            return
        length = _HEADER.unpack(header)[0]
        end = place["offset"] + _HEADER.size + length + 4
        if length > MAX_RECORD or end > size:
            return
        event = os.pread(handle, length, place["offset"] + _HEADER.size) if length <= MAX_EVENT else b""
        place["offset"] = end
        if any(tag in event for tag in tags):
            yield event
