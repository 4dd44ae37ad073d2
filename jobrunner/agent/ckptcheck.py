"""Is a checkpoint whole? Told by its structure: a torn file or a folder without its last-written marker is not.

| what | whole if |
|---|---|
| zip (`torch.save`, Lightning, `.npz`) | its end record is there and points at its table of contents |
| `.safetensors` | header readable, and exactly as long as the header says |
| `.npy` | as long as its header says |
| `checkpoint-N/` (Hugging Face) | `trainer_state.json`, or accelerate's `random_states_*.pkl`, both written last |
| folder with `latest` (DeepSpeed) or `latest_checkpointed_iteration.txt` (Megatron) | what that names is there |
| `global_stepN/`, `iter_N/` beside such a pointer | the pointer names it or a later one |
| folder with `*.index.json` | every shard that it names |
| folder with `*.distcp` (torch.distributed) | `.metadata`, written last, is in it |
| other folder | not empty, every file of a known kind in it whole |
| other file | not empty, not all zeros |
"""

import json
import os
import re
import struct

from . import inside
from .files import read_file, read_json, to_bytes

ZIPS = (b".npz", b".zip")
TORCH = (b".pt", b".pth", b".ckpt", b".bin", b".tar")
_END, _END64, _LOCATOR, _ENTRY = b"PK\x05\x06", b"PK\x06\x06", b"PK\x06\x07", b"PK\x01\x02"
_TRACKER = b"latest_checkpointed_iteration.txt"


def whole(path):
    """True if the file or folder is a complete checkpoint as far as its structure tells. Reads little."""
    try:
        if os.path.isdir(path):
            return _whole_folder(path)
        return whole_file(path)
    except (OSError, ValueError, struct.error, OverflowError, RecursionError):
        return False


def whole_file(path):
    """`whole` for a file."""
    with open(path, "rb") as handle:
        size = os.fstat(handle.fileno()).st_size
        head = handle.read(512)
        if not head:
            return False
        name = path.lower()
        if name.endswith(b".safetensors"):
            return _whole_safetensors(handle, size)
        if name.endswith(b".npy") and head.startswith(b"\x93NUMPY"):
            return _whole_npy(head, handle, size)
        if head.startswith(b"PK\x03\x04") or name.endswith(ZIPS):
            return _whole_zip(handle, size)
        if not head.strip(b"\0"):
            # After a power cut files may have their length and no content.
            handle.seek(max(0, size - 4096))
            return bool(handle.read(4096).strip(b"\0"))
        return True


def _whole_zip(handle, size):
    start = max(0, size - 65557)
    handle.seek(start)
    tail = handle.read(65557)
    at = tail.rfind(_END)
    if at < 0 or len(tail) - at < 22:
        return False
    count, length, offset, comment = struct.unpack("<HIIH", tail[at + 10 : at + 22])
    if at + 22 + comment != len(tail):
        return False
    limit = start + at
    if at >= 20 and tail[at - 20 : at - 16] == _LOCATOR:
        (limit,) = struct.unpack("<Q", tail[at - 12 : at - 4])
        handle.seek(limit)
        record = handle.read(56)
        if record[:4] != _END64:
            return False
        count, length, offset = struct.unpack("<QQQ", record[32:56])
    if offset + length != limit:
        return False
    handle.seek(offset)
    return count == 0 or handle.read(4) == _ENTRY


def _whole_safetensors(handle, size):
    handle.seek(0)
    (length,) = struct.unpack("<Q", handle.read(8))
    if length > 100 * 1024 * 1024 or 8 + length > size:
        return False
    header = json.loads(handle.read(length).decode("utf-8"))
    ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
    return size == 8 + length + max(ends or [0])


def _whole_npy(head, handle, size):
    wide = head[6:7] > b"\x01"
    (length,) = struct.unpack("<I", head[8:12]) if wide else struct.unpack("<H", head[8:10])
    start = 12 if wide else 10
    if length > 1 << 20:
        return False
    handle.seek(start)
    text = handle.read(length).decode("latin-1")
    kind = re.search(r"'descr': '[<>|=]?([a-zA-Z])(\d+)'", text)
    shape = re.search(r"'shape': \(([\d, ]*)\)", text)
    if kind is None or shape is None:
        return len(text) == length  # a structured or pickled array: its length is not in the header
    count = 1
    for part in shape.group(1).replace(",", " ").split():
        count *= int(part)
    width = int(kind.group(2)) * (4 if kind.group(1) == "U" else 1)
    return size == start + length + count * width


def _whole_folder(path):
    base = os.path.basename(path)
    names = set(os.listdir(path))
    if not names:
        return False
    if re.match(rb"checkpoint-\d+\Z", base):
        state = b"trainer_state.json" in names and read_json(os.path.join(path, b"trainer_state.json")) is not None
        if not state and not any(name.startswith(b"random_states_") for name in names):
            return False
    if b"latest" in names and not _pointed_at(path, read_pointer(path, b"latest")):
        return False
    if _TRACKER in names and not _pointed_at(path, megatron_target(path)):
        return False
    if any(name.endswith(b".distcp") for name in names) and b".metadata" not in names:
        return False
    if not _covered(path, base):
        return False
    return _parts_whole(path)


def read_pointer(folder, name):
    """The first line of a small text file that names another file or folder; empty if there is none."""
    lines = (read_file(os.path.join(folder, name), 4096) or b"").strip().splitlines()
    return lines[0].strip() if lines else b""


def megatron_target(folder):
    """The folder that Megatron's tracker names, e.g. `iter_0000500`."""
    value = read_pointer(folder, _TRACKER)
    return b"iter_%07d" % int(value) if value.isdigit() else value


def _pointed_at(folder, name):
    if not name or b"/" in name or name in (b".", b".."):
        return False
    target = os.path.join(folder, name)
    return any(seen.st_size for _, seen in inside.files_below(target))


def _covered(path, base):
    """For one folder of DeepSpeed or Megatron: its parent's pointer names it, or a later one."""
    above = os.path.dirname(path)
    for pattern, pointer in ((rb"global_step(\d+)\Z", b"latest"), (rb"iter_(\d+)\Z", _TRACKER)):
        match = re.match(pattern, base)
        if not match:
            continue
        if pointer == _TRACKER and not os.path.exists(os.path.join(above, pointer)):
            return True  # others name folders like that too
        value = read_pointer(above, pointer)
        named = re.search(rb"(\d+)\Z", value)
        return value == b"release" or (named is not None and int(named.group(1)) >= int(match.group(1)))
    return True


def _parts_whole(path):
    filled = False
    for relative, seen in inside.files_below(path):
        full = os.path.join(path, relative)
        filled = filled or seen.st_size > 0
        name = relative.lower()
        known = name.endswith((b".safetensors", b".npy", *ZIPS, *TORCH))
        if known and not os.path.islink(full) and not whole_file(full):
            return False
        if name.endswith(b".index.json") and not _shards_there(os.path.dirname(full), full):
            return False
    return filled


def _shards_there(folder, index):
    weights = (read_json(index, {}) or {}).get("weight_map")
    if not isinstance(weights, dict):
        return True
    return all(os.path.isfile(os.path.join(folder, to_bytes(name))) for name in set(weights.values()))
