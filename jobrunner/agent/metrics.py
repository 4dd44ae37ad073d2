"""A job's numbers: collected from its log and files into a journal, by short-lived processes, and told to clients.

Nothing of a job is trusted: expressions may never end, lines may have any length, files may be anything. A child with
limits (`bounded`) reads; after three in a row that broke them none is started again for that job.
"""

import base64
import os
import time

from . import bounded, files, inside, jobs, leases, metricjournal, metricread, metricrules
from .layout import JOB_ID, lock_name

AGAIN_S = 0.5  # between two passes that clients cause
RUNNING_S, ENDED_S = 2.0, 8.0  # processor time of a pass
PATIENCE_S, LOOK_S = 20.0, 4.0  # time that whoever waits for a pass has; a client has less
TAIL = 4 * 1024 * 1024  # of a log too big to be read at the end, the last part is
SLOW_S = 0.2
STRIKES = 3
MAX_BOARDS, MAX_FILES = 200, 50_000
ANSWER = 4 * 1024 * 1024


def refresh(layout, wanted, patience_s=PATIENCE_S):
    """Bring the journals of jobs up to date, in one child; those that have nothing new cost a look at a few files.

    `wanted` is `{id: ended}`; `ended`: its newest attempt writes nothing any more. What cannot be read within
    `patience_s` is left for the next time; of a log that has ended its last part is read then.
    """
    due = [(job_id, wanted[job_id]) for job_id in wanted if _due(layout, job_id, wanted[job_id])]
    if not due:
        return
    each = ENDED_S if len(due) == 1 and due[0][1] else RUNNING_S
    cpu_s = min(ENDED_S, each * len(due))

    def work(tell):
        begin = time.monotonic()
        if not any(ended for _, ended in due):
            os.nice(5)
        for job_id, ended in due:
            spent = time.process_time() > cpu_s - each / 2 or time.monotonic() - begin > patience_s / 2
            if spent and job_id != due[0][0]:
                break
            tell(job_id.encode("ascii"))
            until = (time.process_time() + each, begin + patience_s)
            try:
                collect(layout, job_id, ended, until)
            except OSError:
                continue  # a full disk, a file server that is away: the next pass reads the same

    try:
        told = bounded.run(work, cpu_s + 3.0, patience_s + 15.0)
    except OSError:
        return  # no further process may be started here now
    names = [word.decode("ascii") for word in told.words if JOB_ID.match(word.decode("ascii", "replace"))]
    broken = names[-1:] if not told.ok else []
    for job_id in names:
        if job_id in broken:
            _strike(layout, job_id, told.words[-1])
        else:
            _forgive(layout, job_id)


def _tries_path(layout, job_id):
    return os.path.join(layout.job(job_id), b"metrics.tries")


def _strike(layout, job_id, word):
    """A pass came to no end of its own. The last time it is said, and no further one is made."""
    path = _tries_path(layout, job_id)
    tries = (files.read_json(path) or 0) + 1
    try:
        files.write_json(path, tries, sync=False)
    except OSError:
        return
    if tries == STRIKES:
        why = word[1:].decode("utf-8", "replace") if word.startswith(b"!") else "it was ended at its limits"
        text = "its metrics could not be collected and are left alone from now on: {}".format(why)
        jobs.journal(layout, job_id, "warning", text=text)


def _forgive(layout, job_id):
    """A pass came to its end: what broke off an earlier one was this host's load, perhaps."""
    try:
        os.unlink(_tries_path(layout, job_id))
    except OSError:
        pass


def _due(layout, job_id, ended):
    """True if there may be something to read."""
    state = metricjournal.read_state(layout, job_id)
    numbers = jobs.attempts(layout, job_id)
    if not numbers or state.get("ended") == numbers[-1]:
        return False
    if (files.read_json(_tries_path(layout, job_id)) or 0) >= STRIKES:
        return False
    if ended or state.get("attempt") != numbers[-1] or state.get("plain") is not True:
        return ended or abs(time.time() - (state.get("looked") or 0)) >= AGAIN_S
    place = (state.get("sources") or {}).get("{}/log".format(numbers[-1])) or {}
    path = os.path.join(layout.attempt(job_id, numbers[-1]), b"log")
    return metricjournal.size_of(path) != place.get("size")


# the pass itself


def collect(layout, job_id, ended, until):
    """One pass over what a job's attempts have written. `until`: `(this process's time, steady time)` to be done by."""
    lock = leases.bind_patiently(lock_name("metrics", layout.instance, job_id), 10.0 if ended else 0.0)
    if lock is None:
        return
    try:
        request = jobs.request(layout, job_id) or {}
        rules = metricrules.request_rules(request)
        if rules is not None:
            Pass(layout, job_id, rules, until).run(ended)
    finally:
        leases.release([lock])


class Pass:
    """Reads every source of a job once."""

    def __init__(self, layout, job_id, rules, until):
        self.layout, self.job_id, self.rules, self.until = layout, job_id, rules, until
        self.journal = metricjournal.Journal(layout, job_id)
        self.state = self.journal.state
        self.slow = self.state.setdefault("slow", {})
        for name in [name for name in self.slow if self.slow[name] >= STRIKES]:
            rules.drop(name)
        self.dog = bounded.Watchdog(SLOW_S)
        self.now = time.time()

    def run(self, ended):
        """Read; save what was found and how far we came."""
        numbers = jobs.attempts(self.layout, self.job_id)
        if not numbers or not self._room(ended):
            return
        self._say_faults()
        newest = numbers[-1]
        for attempt in [number for number in numbers if number >= (self.state.get("attempt") or 0)]:
            self._attempt(attempt, ended or attempt < newest, attempt == newest)
        self.state.update(attempt=newest, looked=self.now, plain=not (self.rules.files or self.rules.boards))
        self.journal.forget_other_attempts(newest)
        if ended:
            self.state["ended"] = newest
        self.dog.close()
        self.journal.save()

    def _room(self, ended):
        if ended or metricjournal.size_of(metricjournal.journal_path(self.layout, self.job_id)) < metricjournal.LONGEST:
            return True
        self._warn("full", "it has told very many numbers: the rest is read when it has ended")
        return False

    def _say_faults(self):
        for fault in self.rules.faults:
            self._warn(fault, fault)

    def _warn(self, code, text):
        said = self.state.setdefault("said", [])
        if code not in said:
            said.append(code)
            jobs.journal(self.layout, self.job_id, "warning", text=text)

    def _attempt(self, attempt, whole, newest):
        folder = self.layout.attempt(self.job_id, attempt)
        if self.rules.texts or self.rules.keys:
            self._file(attempt, "{}/log".format(attempt), folder, b"log", whole, self._log_line)
        tops = [("{}/work".format(attempt), os.path.join(folder, b"work"))]
        if newest:
            tops.append(("out", os.path.join(self.layout.job(self.job_id), b"out")))
        for label, top in tops:
            for pattern in self.rules.files:
                keys = self.rules.files[pattern]
                for path in _matching(top, pattern):
                    name = "{}/{}".format(label, files.to_text(path))
                    self._file(attempt, name, top, path, whole, lambda *words, keys=keys: self._file_line(keys, *words))
            for board in self.rules.boards:
                self._board(attempt, label, top, board)

    def _open(self, name, top, path):
        try:
            handle = inside.open_at(top, path)
        except (OSError, files.AgentError):
            return None, None
        place = metricread.opened(self.journal.sources.setdefault(name, {}), handle)
        if place is None:
            os.close(handle)
            return None, None
        return handle, place

    def _file(self, attempt, name, top, path, whole, take):
        """Lines of one file. At the end there is no next time: what cannot be read by then is passed over."""
        handle, place = self._open(name, top, path)
        if handle is None:
            return
        try:
            seen = os.fstat(handle)
            place["size"] = -1  # until all of it has been read
            for found in metricread.lines(place, handle, whole):
                for line in found:
                    take(attempt, place, line, min(self.now, seen.st_mtime))
                if self._late():
                    if not whole:
                        return
                    passed = metricread.skip_to_tail(place, handle, TAIL)
                    if passed:
                        text = "{} is too long to be read for metrics: {} MB in its middle were passed over"
                        self._warn("skip " + name, text.format(name, passed >> 20))
            place["size"] = seen.st_size
        finally:
            os.close(handle)

    def _late(self):
        return time.process_time() > self.until[0] or time.monotonic() > self.until[1]

    def _log_line(self, attempt, place, line, seen):
        rules = self.rules
        value = metricrules.object_of(line) if rules.keys else None
        line = metricrules.plain_line(line)
        values = metricrules.by_text(rules, line, self.dog, self._too_slow)
        if value is not None:
            values.update(metricrules.by_key(rules.keys, value))
        self._note(attempt, place, values, seen, line, value)

    def _file_line(self, keys, attempt, place, line, seen):
        value = metricrules.object_of(line)
        if value is not None:
            self._note(attempt, place, metricrules.by_key(keys, value), seen, None, value)

    def _note(self, attempt, place, values, seen, line, value):
        if not values:
            return
        step, every = metricrules.steps_of(self.rules, values, None if value is not None else line, value)
        if step is None:
            step = place.get("step")
        else:
            place["step"] = step
        at = metricjournal.stamp(_told_time(line, value) or seen)
        for name in values:
            own = values[name] if name in metricrules.STEP_WORDS or name == self.rules.step else step
            self.journal.add(attempt, name, values[name], own, every, at)

    def _too_slow(self, name, error):
        if not isinstance(error, bounded.TooLong):
            raise error
        self.slow[name] = self.slow.get(name, 0) + 1
        if self.slow[name] >= STRIKES:
            self.rules.drop(name)
            text = "metrics.{}: the expression takes too long on lines of the log; it is not used any more"
            self._warn("slow " + name, text.format(name))

    def _board(self, attempt, label, top, board):
        tags = [tag.encode("utf-8", "surrogateescape") for tag in self.rules.boards[board] if isinstance(tag, str)]
        for path in _event_files(top, board):
            name = "{}/{}".format(label, files.to_text(path))
            handle, place = self._open(name, top, path)
            if handle is None:
                continue
            try:
                for event in metricread.events(place, handle, tags):
                    text = base64.b64encode(event).decode("ascii")
                    self.journal.add_event(attempt, board, name, text)
                    if self._late():
                        break
            finally:
                os.close(handle)


def _told_time(line, value):
    if value is not None:
        return metricrules.time_of(value)
    from . import logview

    return logview.moment_of(line[:80].encode("utf-8", "replace")) if line else None


def _matching(top, pattern):
    """Paths below a folder that a pattern means; one without wildcards is not looked for."""
    if any(sign in pattern for sign in "*?["):
        try:
            return sorted(inside.find(top, [pattern]))[:MAX_BOARDS]
        except files.AgentError:
            return []
    return [files.to_bytes(pattern)]


def _event_files(top, board):
    """TensorBoard's files in a folder and below, in the order of their names: that is the order of time."""
    folder = os.path.normpath(files.to_bytes(board)).lstrip(b"/")
    found, left = [], MAX_FILES
    if b".." in folder.split(b"/"):
        return found
    for path, _ in inside.files_below(top, b"" if folder == b"." else folder):
        left -= 1
        if b"tfevents" in path.rsplit(b"/", 1)[-1]:
            found.append(path)
        if not left:
            break
    return sorted(found)[:MAX_BOARDS]


# the answer


def answer(layout, wanted):
    """`{id: {next, items, more, end}}` from each offset on, collected anew; None for a job that is not here.

    `end`: the job is final and this is the rest. `more`: ask again, this answer would have been too long.
    """
    offsets = {
        job_id: offset if isinstance(offset, int) and offset >= 0 else 0
        for job_id, offset in (wanted if isinstance(wanted, dict) else {}).items()
        if isinstance(job_id, str) and JOB_ID.match(job_id)
    }
    final = {job_id: jobs.is_final(layout, job_id) for job_id in offsets if jobs.exists(layout, job_id)}
    refresh(layout, final, LOOK_S)
    found, room = {}, ANSWER
    for job_id in sorted(offsets):
        found[job_id] = None
        if job_id in final:
            found[job_id] = _part(metricjournal.journal_path(layout, job_id), offsets[job_id], room)
            whole = final[job_id] and not found[job_id]["more"]
            found[job_id]["end"] = whole and not _due(layout, job_id, True)
            room -= found[job_id]["next"] - found[job_id]["start"]
    return found


def _part(path, offset, room):
    size = metricjournal.size_of(path)
    if offset > size:  # another journal than the one that was read: from its beginning
        offset = 0
    if room <= 0:
        return {"start": offset, "next": offset, "items": [], "more": size > offset}
    try:
        items, following = files.read_lines(path, offset, max(room, 1 << 16))
    except OSError:
        items, following = [], offset
    return {"start": offset, "next": following, "items": items, "more": offset < following < size}
