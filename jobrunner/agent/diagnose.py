"""What of a job's logs is worth matching against known failures: a few hundred kB at most, of logs of any length.

Chosen are the first lines, the last lines, and lines that look like trouble with those around them. Lines keep their
numbers; a line that a progress bar redrew counts as one; what is overlong is cut around what made it interesting.
"""

import os
import re
import stat
import time
from collections import deque

from . import clock, inside, jobs
from .files import AgentError, to_bytes

LIMIT = 240 * 1024  # bytes of text of one log that travel
HEAD_LINES, TAIL_LINES = 30, 120
HEAD_BYTES, TAIL_BYTES = 4 << 20, 28 << 20  # of a bigger log only so much is read from both ends
BLOCK = 1 << 20
LONGEST = 1000  # characters of one line
BEFORE, AFTER = 1, 3  # lines that travel with one that looks like trouble
ALIKE = 12  # lines that differ in their numbers only
PATIENCE_S = 8.0  # reading ends then, whatever is left

WORDS = (
    "error|fail|traceback|exception|kill|abort|signal|fatal|panic|core dumped|segmentation|bus err|out of memory|oom|"
    "timeout|timed out|times out|refused|denied|not found|no such|not permitted|no space|quota|cannot|can't|could not|"
    "couldn't|unable to|invalid|unsupported|not support|not implement|undefined|unrecognized|unknown|missing|mismatch|"
    "inconsistent|already|in use|busy|is used|occupied|running|alarm|critical|lost|broken|closed|reset|corrupt|"
    "truncated|overflow|nan|terminat|exits|exited|exitcode|exit code|return code|drvret|not loaded|not installed|"
    "not initial|re-initial|initialize|not compiled|not a supported|no module|no device|no npu|no gpu|no cuda|"
    "no kernel|duplicate|not match|temporarily unavailable|variable is not set|"
    "ignoring|fall back|bad |unbound|stale|read-only|too many|too large|insufficient|disconnect|illegal|watchdog|"
    "heartbeat|ecc|uce |conda init|solving|device = cpu|not available|not been properly|expected all tensors|"
    "only_cards|ascending|size mismatch|manifest|x509|glibc|static tls|cann|overwrite|interrupt|"
    "错误|失败|异常|超时|初始化|找不到|无法|不支持"
)
# CANN's and torch_npu's codes, the runtime's numbers, DCMI's: by the character they begin with, in lower case.
_CODES = {
    b"e": rb"[a-z0-9]\d{4}|rr\d{5}",
    b"1": rb"0[07]\d{3}",
    b"2": rb"0[07]\d{3}",
    b"5": rb"0[07]\d{3}",
    b"-": rb"80\d\d",
}
_PLOG_NAME = re.compile(rb"(?:plog|device)-\d+_\d+\.log\Z")
_PLOG_ERROR = re.compile(rb"\[error\]|\[critical\]|\be[a-z0-9]\d{4}:")
PLOG_FILES, PLOG_BYTES, PLOG_LIMIT = 64, 4 << 20, 60 * 1024


def trouble(words=()):
    """The pattern, for lower-case bytes, of what looks like trouble; `words` are a client's own literals."""
    known = {to_bytes(word) for word in WORDS.split("|")}
    known.update(word.encode("gb18030") for word in ("错误", "失败", "异常"))
    known.update(to_bytes(word).lower() for word in words)
    return re.compile(_branches(known, _CODES))


def _branches(words, codes):
    """Alternatives that share their beginnings, which a search passes over several times as quickly."""
    heads = {}
    for word in words:
        heads.setdefault(word[:1], set()).add(word[1:])
    parts = []
    for head in sorted(set(heads) | set(codes)):
        tails = heads.get(head, set())
        inner = [codes[head]] if head in codes else []
        if b"" not in tails:
            inner += [_branches(tails, {})] if tails else []
            parts.append(re.escape(head) + b"(?:" + b"|".join(inner) + b")")
        else:
            parts.append(re.escape(head))
    return b"|".join(parts)


def run(session, request):
    """Operation `diagnose`: `id`, `attempt` (default: the newest with a log), `words` (further literals)."""
    job_id = request.get("id")
    record = jobs.request(session.layout, job_id) if isinstance(job_id, str) else None
    if record is None:
        raise AgentError("no_such_job", "{} is not on this host".format(job_id), "See `jobrunner ls --all`.")
    folder = session.layout.job(job_id)
    wanted = request.get("attempt")
    number = wanted if isinstance(wanted, int) else _newest(folder)
    words = [word for word in request.get("words") or () if isinstance(word, str) and 3 <= len(word) <= 100][:200]
    ends = time.monotonic() + PATIENCE_S
    answer = {"attempt": number, "size": 0, "lines": 0, "picked": [], "tail": [], "cut": False}
    handle = _open(folder, number)
    if handle is not None:
        try:
            answer.update(read_log(handle, trouble(words), ends))
        finally:
            os.close(handle)
    answer["plog"] = plogs(session.layout, job_id, record, number, ends)
    answer["disks"] = disks([folder, os.path.join(folder, b"out"), b"/tmp", b"/dev/shm", os.path.expanduser(b"~")])
    return answer


def _newest(folder):
    names = [name for name in os.listdir(folder) if name.isdigit()]
    logs = [int(name) for name in names if os.path.lexists(os.path.join(folder, name, b"log"))]
    return max(logs) if logs else None


def _open(folder, number):
    """A descriptor of an attempt's log, or None if there is none, or something there that is no plain file."""
    if number is None:
        return None
    try:
        handle = inside.open_at(folder, "{}/log".format(number))
    except OSError:
        return None
    if stat.S_ISREG(os.fstat(handle).st_mode):
        return handle
    os.close(handle)
    return None


def read_log(handle, pattern, ends=None):
    """`{size, lines, picked, tail, cut}` of an open log: `picked` and `tail` hold `[number, text]`, in order.

    The number is None, and so is `lines`, where a log is so long that its middle was not even counted.
    """
    size = os.fstat(handle).st_size
    picker = Picker(pattern)
    if size <= HEAD_BYTES + TAIL_BYTES:
        whole = picker.read(handle, 0, size, ends)
    else:
        whole = False
        picker.read(handle, 0, HEAD_BYTES, ends)
        picker.skip(handle, size - TAIL_BYTES, ends)
        picker.read(handle, size - TAIL_BYTES, size, ends)
    picked, tail = picker.result()
    return {"size": size, "lines": picker.number, "picked": picked, "tail": tail, "cut": not whole or picker.dropped}


class Picker:
    """Goes through a log and keeps what is worth matching, within `limit` bytes."""

    def __init__(self, pattern, limit=LIMIT):
        self._pattern = pattern
        self._room = limit * 3 // 5  # the first trouble is the likeliest cause; the rest is for the latest
        self._early, self._late = [], deque()
        self._late_room = limit - self._room
        self._shapes = {}
        self._tail = deque(maxlen=TAIL_LINES)
        self.number = 0  # lines seen; None once they cannot be counted
        self.dropped = False

    def read(self, handle, at, end, ends=None):
        """Read a part of the file; True if all of it was read in time."""
        rest = b""
        while at < end:
            if ends is not None and time.monotonic() > ends:
                return False
            block = os.pread(handle, min(BLOCK, end - at), at)
            if not block:
                break
            at += len(block)
            block = rest + block
            cut = block.rfind(b"\n") + 1
            if not cut and len(block) < 8 * BLOCK:
                rest = block
                continue
            cut = cut or len(block)
            rest = block[cut:]
            self.feed(block[:cut])
        if rest:
            self.feed(rest)
        return True

    def skip(self, handle, end, ends=None):
        """Pass over a part of the file that ends at `end`, counting its lines as long as there is time."""
        at = HEAD_BYTES
        if self.number is not None and os.pread(handle, 1, at - 1) != b"\n":
            self.number -= 1  # the last line that was read goes on here
        while at < end and self.number is not None:
            block = os.pread(handle, min(BLOCK, end - at), at)
            if not block or (ends is not None and time.monotonic() > ends - PATIENCE_S / 2):
                self.number = None
                return
            self.number += block.count(b"\n")
            at += len(block)

    def feed(self, block):
        """Take whole lines (the last may lack its end)."""
        lines = block.split(b"\n")
        if block.endswith(b"\n"):
            lines.pop()
        base = self.number
        lower = block.lower()
        for index in sorted(self._wanted(lower, lines, base)):
            number = None if base is None else base + index + 1
            for text in shown(lines[index], self._pattern):
                self._keep(number, text)
        first = max(0, len(lines) - TAIL_LINES)
        for index in range(first, len(lines)):
            self._tail.append((None if base is None else base + index + 1, lines[index]))
        if base is not None:
            self.number = base + len(lines)

    def _wanted(self, lower, lines, base):
        """The indices of the lines to keep."""
        wanted = set(range(min(len(lines), HEAD_LINES - base))) if base is not None and base < HEAD_LINES else set()
        place = index = 0
        while True:
            found = self._pattern.search(lower, place)
            if found is None:
                return wanted
            index += lower.count(b"\n", place, found.start())
            wanted.update(range(max(0, index - BEFORE), min(len(lines), index + AFTER + 1)))
            place = lower.find(b"\n", found.end())
            if place < 0:
                return wanted

    def _keep(self, number, text):
        shape = re.sub(r"\d+", "0", text[:160])
        seen = self._shapes.get(shape, 0)
        if len(self._shapes) < 20000 or seen:
            self._shapes[shape] = seen + 1
        if seen >= ALIKE:
            return
        cost = len(text) + 12
        if self._room >= cost and not self._late:
            self._room -= cost
            self._early.append((number, text))
            return
        self._late.append((number, text))
        self._late_room -= cost
        while self._late_room < 0 and self._late:
            self.dropped = True
            self._late_room += len(self._late.popleft()[1]) + 12

    def result(self):
        """`(picked, tail)`, lists of `[number, text]`; no line is in both."""
        tail = [[number, text] for number, line in self._tail for text in shown(line, self._pattern)]
        room = LIMIT // 3
        while tail and sum(len(text) for _, text in tail) > room:
            tail = tail[len(tail) // 4 + 1 :]
        first = tail[0][0] if tail and tail[0][0] is not None else None
        picked = [[number, text] for number, text in self._early + list(self._late)]
        if first is not None:
            picked = [item for item in picked if item[0] is not None and item[0] < first]
        return picked, tail


def shown(line, pattern):
    """The texts of one raw line: its last drawing, and earlier ones that look like trouble; each of bearable length."""
    line = line.rstrip(b"\r")
    parts = [line]
    if b"\r" in line:
        *drawn, last = [part for part in line.split(b"\r") if part.strip()] or [b""]
        parts = [*[part for part in drawn if pattern.search(part.lower())][:3], last]
    return [_clipped(part, pattern) for part in parts]


def _clipped(part, pattern):
    if len(part) <= LONGEST:
        return _decoded(part)
    found = pattern.search(part.lower())
    start = max(0, found.start() - LONGEST // 3) if found else 0
    text = _decoded(part[start : start + LONGEST], errors="ignore")
    return ("… " if start else "") + text + (" …" if start + LONGEST < len(part) else "")


def _decoded(data, errors="strict"):
    """Text of a log: UTF-8, else GB18030, else what can be read of it."""
    for name in ("utf-8", "gb18030"):
        try:
            return data.decode(name, errors if name == "utf-8" else "strict")
        except UnicodeDecodeError:
            pass
    return data.decode("utf-8", "replace")


# CANN's own logs


def plogs(layout, job_id, record, number, ends=None):
    """`[{path, picked}]` from the folder that ASCEND_PROCESS_LOG_PATH names for this job, if it names one.

    Only files that were written while the attempt ran: a folder may be shared by many jobs.
    """
    run_spec = jobs.run_of(record)
    table = dict(run_spec.get("host_env") or {}, **(run_spec.get("env") or {}))
    chosen = table.get("ASCEND_PROCESS_LOG_PATH")
    if not chosen or number is None:
        return []
    attempt = layout.attempt(job_id, number)
    top = os.path.join(attempt, b"work", to_bytes(str(chosen)))
    begun, ended = _span(layout, job_id, number)
    found = []
    for path, modified in _plog_files(top):
        if begun - 1 <= modified <= ended + 60:
            found.append((modified, path))
    answer, room = [], PLOG_LIMIT
    for _, path in sorted(found)[:PLOG_FILES]:
        if room <= 0 or (ends is not None and time.monotonic() > ends):
            break
        picked = _read_plog(path)
        if picked:
            room -= sum(len(text) for _, text in picked)
            answer.append({"path": path.decode("utf-8", "replace"), "picked": picked})
    return answer


def _span(layout, job_id, number):
    """When an attempt began and ended, in seconds since 1970."""
    started = jobs.start(layout, job_id, number) or {}
    ended = jobs.exit_record(layout, job_id, number) or jobs.final(layout, job_id) or {}
    try:
        begun = clock.seconds(started["at"])
    except (KeyError, TypeError, ValueError):
        begun = 0.0
    try:
        return begun, clock.seconds(ended["at"])
    except (KeyError, TypeError, ValueError):
        return begun, time.time()


def _plog_files(top):
    """`(path, modified)` of CANN's log files under a folder, without following links, at most a few thousand."""
    seen = 0
    for folder, folders, names in os.walk(top):
        folders.sort()
        if folder.count(b"/") - top.count(b"/") >= 3:
            folders[:] = []
        for name in sorted(names):
            seen += 1
            if seen > 5000:
                return
            path = os.path.join(folder, name)
            try:
                known = os.lstat(path)
            except OSError:
                continue
            if _PLOG_NAME.match(name) and stat.S_ISREG(known.st_mode):
                yield path, known.st_mtime


def _read_plog(path):
    """`[number, text]` of the errors at the beginning of one file: the first is the one that counts."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return []
    try:
        data = os.pread(handle, PLOG_BYTES, 0)
    finally:
        os.close(handle)
    picked = []
    for index, line in enumerate(data.split(b"\n")):
        if _PLOG_ERROR.search(line.lower()):
            picked.append([index + 1, _clipped(line, _PLOG_ERROR)])
            if len(picked) >= 60:
                break
    return picked


# disks


def disks(folders):
    """`[{mount, free, total, inodes_free}]` of the file systems under some folders, each once."""
    answer, seen = [], set()
    for folder in folders:
        try:
            device, room = os.stat(folder).st_dev, os.statvfs(folder)
        except OSError:
            continue
        if device in seen or not room.f_blocks:
            continue
        seen.add(device)
        answer.append(
            {
                "mount": _mount(folder, device).decode("utf-8", "replace"),
                "free": room.f_bavail * room.f_frsize,
                "total": room.f_blocks * room.f_frsize,
                "inodes_free": room.f_favail if room.f_files else None,
            }
        )
    return answer


def _mount(folder, device):
    path = os.path.realpath(folder)
    while path != b"/":
        above = os.path.dirname(path)
        try:
            if os.stat(above).st_dev != device:
                return path
        except OSError:
            return path
        path = above
    return path
