"""The dispatcher's memory of the queue: what waits, and out of a long queue the entries that one decision can be about.

Of jobs that want the same (device, cards, limits), only the first few in one's own order can be the next to start; the
rest would make every decision as slow as the queue is long. A long queue is listed anew only so often that listing
takes a small part of the time, so that neither a start nor an end costs more the more jobs wait. What is about to
start is looked at before (`starts.waits`).
"""

import bisect
import os
import time

from . import order, queue, succession

FEW = 40  # from more on not every entry is looked at
EACH = 32  # so many of each kind are looked at
MOST = 128  # and so many that are not ready are passed over for them, before the rest has to wait for a `whole` look
SHARE = 25.0  # a long queue is listed after so many times the time that the last listing took
SURE_S = queue.SURE_S
LEAST_S = 60.0  # so often it is listed although nothing in it seems to have changed
EDGE_NS = 50 * 1000 * 1000  # a change of the folder that is younger when it is listed may be followed by one unseen


def kind(entry):
    """What a place for this job depends on."""
    return (
        entry["device"],
        entry["cards"],
        str(entry.get("card_ids")),
        entry.get("timeout_s"),
        str(entry.get("limits")),
        str(entry.get("sweep")),
        str(entry.get("after")),
    )


class Line:
    """`entries`: by id, all that wait and that this agent can read; `foreign`: those of a newer format; `delayed`: of
    the entries those that have a time before which they do not start."""

    def __init__(self, layout):
        self._layout = layout
        self._cache = queue.Cache(layout)
        self._kinds = {}
        self._serial = 0
        self._listed = self._due = self._whole = 0.0
        self._seen = None
        self.entries = {}
        self.foreign = []
        self.delayed = []

    def long(self):
        """True for a queue that is too long to be listed each time."""
        return len(self.entries) > queue.LONG

    def refresh(self):
        """List the queue, unless it is long and that was done a moment ago, or nothing in it has changed."""
        began = time.monotonic()
        if self.long() and (began < self._due or not (self.changed() or began - self._listed > LEAST_S)):
            return
        self._seen = _mark(self._layout)
        found = self._cache.entries()
        before, self.entries = self.entries, {entry["id"]: entry for entry in found if succession.readable(entry)}
        self.foreign = [entry for entry in found if not succession.readable(entry)]
        self.delayed = [entry for entry in self.entries.values() if entry.get("not_before")]
        if len(self.entries) <= FEW:
            self._kinds = {}
        else:
            before = before if self._kinds else {}
            for job_id, entry in self.entries.items():
                if before.get(job_id) is not entry:
                    self._add(entry)
        self._listed = time.monotonic()
        self._due = self._listed + SHARE * (self._listed - began)

    def changed(self):
        """True if something may have changed in the queue's folder since it was listed."""
        return self._seen is None or _mark(self._layout) != self._seen

    def pause(self):
        """Seconds after which a long queue that has changed is to be listed again; None if nothing is to be done."""
        return max(0.0, self._due - time.monotonic()) if self.long() and self.changed() else None

    def again(self, job_id):
        """Look at one entry now: it may have changed, gone, or come."""
        entry = self._cache.read(job_id)
        if entry is None or not succession.readable(entry):
            self.entries.pop(job_id, None)
        elif self.entries.get(job_id) is not entry:
            self.entries[job_id] = entry
            if entry.get("not_before"):
                self.delayed.append(entry)
            if self._kinds:
                self._add(entry)

    def _add(self, entry):
        self._serial += 1
        place = self._kinds.setdefault(kind(entry), [])
        bisect.insort(place, (order.own_key(entry), self._serial, entry))

    def pick(self, ready):
        """The entries that are `ready(entry)`, in own order: all of a few, else the first of each kind."""
        if not self._kinds:
            return [entry for entry in order.own_order(self.entries.values()) if ready(entry)]
        now = time.monotonic()
        whole = now - self._whole >= SURE_S
        if whole:
            self._whole = now
        found = []
        for which in list(self._kinds):
            found += self._first(which, ready, None if whole else MOST)
        return [item[2] for item in sorted(found)]

    def _first(self, which, ready, most):
        """The first ready ones of a kind; what waits no longer is dropped on the way."""
        place, found, passed, dead = self._kinds[which], [], 0, 0
        for item in place:
            entry = item[2]
            if self.entries.get(entry["id"]) is not entry:
                dead += 1
                continue
            if ready(entry):
                found.append(item)
                if len(found) == EACH:
                    break
            else:
                passed += 1
                if passed == most:
                    break
        if dead > EACH or (dead and not found):
            self._kinds[which] = place = [item for item in place if self.entries.get(item[2]["id"]) is item[2]]
        if not place:
            del self._kinds[which]
        return found


def _mark(layout):
    try:
        seen = os.stat(layout.queue)
    except OSError:
        return None
    young = time.time() * 1e9 - seen.st_mtime_ns < EDGE_NS
    return None if young else (seen.st_ino, seen.st_mtime_ns)
