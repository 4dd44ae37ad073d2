"""The list of what a tree consists of: `[type, path, mode, size, sha256 or target]`, types f, d, l.

It comes from elsewhere, so nothing in it is believed: names that climb out, names under a link or a file, and
names given twice are refused.
"""

import base64
import json
import zlib

from .files import AgentError, read_file, to_bytes, to_text

MAX_ENTRIES = 2000000
MAX_UNPACKED = 512 * 1024 * 1024
MAX_SIZE = 1 << 50
_HEX = frozenset("0123456789abcdef")


def unpack(packed):
    """The entries from their zlib + base64 form; AgentError `bad_manifest` if it is none, or a bomb."""
    try:
        raw = base64.b64decode(packed.encode("ascii"), validate=True)
        reader = zlib.decompressobj()
        data = reader.decompress(raw, MAX_UNPACKED)
        if reader.unconsumed_tail or not reader.eof:
            raise ValueError("too long, or cut short")
        return json.loads(data.decode("utf-8"))
    except (ValueError, AttributeError, zlib.error, RecursionError) as error:
        raise AgentError("bad_manifest", "the list of files cannot be unpacked: {}".format(error)) from None


def load(path):
    """The entries of a job's `manifest.json`, None if it has none; AgentError `bad_manifest` if it cannot be read."""
    data = read_file(path, 2 * MAX_UNPACKED)
    if data is None:
        return None
    try:
        entries = json.loads(data.decode("utf-8"))
        if not isinstance(entries, list):
            raise ValueError("no list")
        return entries
    except ValueError as error:
        raise AgentError(
            "bad_manifest",
            "{} cannot be read: {}".format(to_text(path), error),
            "Submit the spec again from the folder that holds the code.",
        ) from None


def check(entries):
    """The entries, or AgentError `bad_manifest` with the first that cannot be taken."""
    if not isinstance(entries, list) or len(entries) > MAX_ENTRIES:
        raise AgentError("bad_manifest", "the list of files is no list, or has over {} entries".format(MAX_ENTRIES))
    kinds = {}
    sizes = {}
    for number, entry in enumerate(entries):
        reason = _fault(entry, kinds, sizes)
        if reason:
            raise AgentError("bad_manifest", "entry {} of the list of files is refused: {}".format(number, reason))
        kinds[to_bytes(entry[1])] = entry[0]
    _check_parents(kinds)
    return entries


def _check_parents(kinds):
    fine = set()
    for path in kinds:
        above = path.rpartition(b"/")[0]
        while above and above not in fine:
            if kinds.get(above, "d") != "d":
                raise AgentError("bad_manifest", "{!r} lies under {!r}, which is no folder".format(path, above))
            fine.add(above)
            above = above.rpartition(b"/")[0]


def _fault(entry, kinds, sizes):
    if not isinstance(entry, list) or len(entry) < 5:
        return "not [type, path, mode, size, value]"
    kind, path, mode, size, value = entry[:5]
    if kind not in ("f", "d", "l"):
        return "unknown type {!r}".format(kind)
    if not _plain_int(mode) or not 0 <= mode <= 0o7777:
        return "impossible mode"
    reason = path_fault(path)
    if reason:
        return reason
    if to_bytes(path) in kinds:
        return "{!r} is there twice".format(path)
    if kind == "f":
        return _file_fault(path, size, value, sizes)
    if kind == "l" and (not isinstance(value, str) or not value or "\0" in value or not _encodes(value, 4095)):
        return "{!r} is a link to nothing that can be".format(path)
    return ""


def _file_fault(path, size, value, sizes):
    if not _plain_int(size) or not 0 <= size <= MAX_SIZE:
        return "{!r} has an impossible size".format(path)
    if not isinstance(value, str) or len(value) != 64 or not _HEX.issuperset(value):
        return "{!r} has no SHA-256".format(path)
    if sizes.setdefault(value, size) != size:
        return "{!r}: one SHA-256 with two sizes".format(path)
    return ""


def path_fault(path):
    """Why `path` is no relative path inside a folder; empty if it is one."""
    if not isinstance(path, str) or not path:
        return "a path that is no text, or empty"
    if "\0" in path:
        return "{!r} has a NUL in it".format(path)
    if not _encodes(path, 4095):
        return "a path that is too long or cannot be written"
    for part in path.split("/"):
        if part in ("", ".", ".."):
            return "{!r} is not a plain relative path".format(path)
        if len(to_bytes(part)) > 255:
            return "{!r} has a name of over 255 bytes".format(path)
    return ""


def _encodes(text, limit):
    try:
        return len(to_bytes(text)) <= limit
    except UnicodeEncodeError:
        return False


def _plain_int(value):
    return isinstance(value, int) and not isinstance(value, bool)


def contents(entries):
    """`[(sha256, size), …]`: the distinct contents, in order of first appearance."""
    seen = {}
    order = []
    for entry in entries:
        if entry[0] == "f" and entry[4] not in seen:
            seen[entry[4]] = True
            order.append((entry[4], entry[3]))
    return order


def total(entries):
    """`(bytes, names)` that the tree takes when it is written out."""
    return sum(entry[3] for entry in entries if entry[0] == "f"), len(entries)
