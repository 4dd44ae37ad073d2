"""A job's numbers on disk: `metrics.jsonl`, append-only, and `metrics.state`, how far its sources have been read.

Of a metric with very many values only some are kept, ever fewer as they grow in number; but at the end of each pass
the last value, and the least and the greatest if they are new, are kept as well: `last` and `best` are exact.
"""

import json
import math
import os
import time

from . import clock, files

PLENTY = 4096  # so many values of a name are all kept; of the next as many every second, then every fourth, …
LONGEST = 64 * 1024 * 1024  # a journal that is longer waits for the job's end


def journal_path(layout, job_id):
    """Where a job's numbers are."""
    return os.path.join(layout.job(job_id), b"metrics.jsonl")


def state_path(layout, job_id):
    """Where it says how far they have been read."""
    return os.path.join(layout.job(job_id), b"metrics.state")


def read_state(layout, job_id):
    """The state as it was saved last; an empty one if there is none."""
    state = files.read_json(state_path(layout, job_id))
    return state if isinstance(state, dict) else {}


def size_of(path):
    """Bytes of a file; 0 if there is none."""
    try:
        return os.lstat(path).st_size
    except OSError:
        return 0


def stride(count):
    """Every how manyth value is kept at this count. Pure."""
    return 1 << ((count - 1) // PLENTY).bit_length()


def spelled(value):
    """A number as JSON has it; what JSON has no number for as a text."""
    if math.isfinite(value):
        return int(value) if value == int(value) and abs(value) < 1e15 else value
    return "nan" if math.isnan(value) else ("inf" if value > 0 else "-inf")


class Journal:
    """One pass over a job's sources. What it appends and how far it came is saved at its end, together."""

    def __init__(self, layout, job_id):
        self._path, self._state_path = journal_path(layout, job_id), state_path(layout, job_id)
        self.state = read_state(layout, job_id)
        self.before = json.dumps(self.state, sort_keys=True)
        self.sources = self.state.setdefault("sources", {})
        self._names = self.state.setdefault("names", {})
        self._lines, self._spare = [], {}
        self._known = self._orphans()

    def _orphans(self):
        """What a pass that was killed between its two files has appended: it is not appended again."""
        size = size_of(self._path)
        known = set()
        offset = self.state.get("size") or 0
        while offset < size:
            items, following = files.read_lines(self._path, offset)
            known.update((item.get("attempt"), item.get("name"), item.get("n")) for item in items)
            if following == offset:
                break
            offset = following
        return known

    def add(self, attempt, name, value, step, every, at):
        """One value of a metric, with what the line names as steps."""
        counted = self._names.setdefault("{}/{}".format(attempt, name), {"n": 0, "low": None, "high": None})
        counted["n"] += 1
        line = {"attempt": attempt, "name": name, "n": counted["n"], "value": value, "at": at}
        line["step"] = float(counted["n"]) if step is None else step
        if len(every) > 1:
            line["steps"] = every
        self._take(counted, line, counted["n"] % stride(counted["n"]) == 0)

    def _take(self, counted, line, kept):
        if kept:
            self._lines.append(line)
            _beats(counted, line["value"], "low"), _beats(counted, line["value"], "high")
            return
        spare = self._spare.setdefault((line["attempt"], line["name"]), {"counted": counted})
        spare["last"] = line
        for end in ("low", "high"):
            if _beats(counted, line["value"], end):
                spare[end] = line

    def add_event(self, attempt, board, place, event):
        """An event of TensorBoard's as it stands in its file (base64), for the client to read."""
        counted = self._names.setdefault("{}/{}".format(attempt, place), {"n": 0})
        counted["n"] += 1
        line = {"attempt": attempt, "name": place, "n": counted["n"], "board": board, "event": event}
        if counted["n"] % stride(counted["n"]) == 0:
            self._lines.append(line)
        else:
            self._spare.setdefault((attempt, place), {"counted": counted})["last"] = line

    def forget_other_attempts(self, attempt):
        """Counters and places of attempts that are over are not needed again."""
        mark = "{}/".format(attempt)
        for table in (self._names, self.sources):
            for key in [key for key in table if not key.startswith((mark, "out/"))]:
                del table[key]

    def save(self):
        """Append what was found, then note how far we came. OSError on a full disk: the pass is made again later."""
        lines = self._lines + [
            spare[end] for spare in self._spare.values() for end in ("low", "high", "last") if end in spare
        ]
        chosen = {(line["attempt"], line["name"], line["n"]): line for line in lines}
        ordered = sorted(chosen, key=lambda key: (key[0], key[2]))
        text = b"".join(_encoded(chosen[key]) for key in ordered if key not in self._known)
        if text:
            self._append(text)
        self.state["size"] = size_of(self._path)
        if json.dumps(self.state, sort_keys=True) != self.before:
            self.state.update(v=1, at=time.time())
            files.write_json(self._state_path, self.state, sync=False)

    def _append(self, text):
        handle = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            size = os.fstat(handle).st_size
            if size and os.pread(handle, 1, size - 1) != b"\n":
                text = b"\n" + text
            if os.write(handle, text) != len(text):
                raise OSError(28, "the disk is full")
        finally:
            os.close(handle)


def _beats(counted, value, end):
    """Note a new least or greatest value; True if it is one."""
    old = counted[end]
    if math.isnan(value) or (old is not None and (value >= old if end == "low" else value <= old)):
        return False
    counted[end] = value
    return True


def _encoded(line):
    if "value" in line:
        line = dict(line, value=spelled(line["value"]), step=spelled(line["step"]))
        if "steps" in line:
            line["steps"] = [spelled(step) for step in line["steps"]]
    return json.dumps(line, separators=(",", ":"), sort_keys=True).encode("ascii") + b"\n"


def stamp(seconds):
    """A time as the journal has it; now, where none was told or none can be."""
    try:
        return clock.stamp(seconds)
    except (ValueError, OverflowError, OSError):
        return clock.stamp()
