"""Evidence for two ends that an exit code alone does not prove: the host ran out of memory, or a disk was full."""

import os

TAIL = 65536
FULL_TEXTS = (b"No space left on device", b"Disk quota exceeded", b"ENOSPC", b"EDQUOT")
FULL_BYTES = 65536  # a disk with less is full
# How launchers and data loaders say that a process of theirs was ended by SIGKILL, while they themselves end otherwise.
KILLED_TEXTS = (
    b"Signal 9 (SIGKILL)",
    b"signal: Killed",
    b"exitcode: -9",
    b"exitcode  : -9",
    b"return code = -9",
    b"<Signals.SIGKILL: 9>",
)
KMSG = "/dev/kmsg"
_ELSEWHERE = (b"/tmp", b"/dev/shm", b"/var/tmp")


def of_end(attempt, setup_was_full=False):
    """The evidence for what an exit code does not say about a supervised attempt's end: arguments of `classify`."""
    if not attempt.status or attempt.stopped_by:
        return {}
    log = os.path.join(attempt.folder, b"log")
    folders = [attempt.folder, os.path.join(attempt.layout.job(attempt.job_id), b"out")]
    if setup_was_full:
        return {"disk_full": "{} ({})".format(attempt.told.get("setup"), room_of(folders[0]))}
    before = attempt.oom_counted[0]
    # Of the command itself the kernel names the pid; of what it waited for, we know whose it is.
    victim = attempt.child if os.WIFSIGNALED(attempt.status) and own_pids() else None
    return {
        "oom": oom(before.counts, oom_counts(), before.kills(), victim, os.getuid()),
        "worker": worker_killed(log),
        "disk_full": disk_full(log, folders),
    }


# host memory


def oom_counts():
    """`{where: number of OOM kills so far}` as the kernel counts them for our control group and for the whole host."""
    found = {}
    for line in _read("/proc/self/cgroup").splitlines():
        number, controllers, path = ([*line.split(b":", 2), b"", b""])[:3]
        if number == b"0" and not controllers:
            _count(found, b"/sys/fs/cgroup" + path + b"/memory.events")
            _count(found, b"/sys/fs/cgroup/unified" + path + b"/memory.events")
        elif b"memory" in controllers.split(b","):
            _count(found, b"/sys/fs/cgroup/memory" + path + b"/memory.oom_control")
    _count(found, b"/proc/vmstat")
    return found


def _count(found, path):
    for line in _read(path).splitlines():
        words = line.split()
        if len(words) == 2 and words[0] == b"oom_kill" and words[1].isdigit():
            found[path.decode("utf-8", "replace")] = int(words[1])


def _read(path):
    try:
        with open(path, "rb") as handle:
            return handle.read(1 << 18)
    except OSError:
        return b""


class Mark:
    """A moment to which a sudden end is compared: the counts then, and the place in the kernel's log."""

    def __init__(self, path=KMSG):
        self.counts = oom_counts()
        try:
            self._log = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            os.lseek(self._log, 0, os.SEEK_END)
        except OSError:
            self._log = None  # it is for root only, on many hosts

    def kills(self):
        """`[(pid, uid or None, text)]` of the OOM kills in the kernel's log since then, once; None without access."""
        if self._log is None:
            return None
        pieces = []
        while True:
            try:
                piece = os.read(self._log, 8192)  # a record at a time
            except BrokenPipeError:
                continue  # some were overwritten before they were read
            except OSError:
                break
            if not piece:
                break
            pieces.append(piece)
        return [kill for kill in map(_kill, b"".join(pieces).splitlines()) if kill is not None]

    def close(self):
        """Give the log back."""
        if self._log is not None:
            os.close(self._log)
            self._log = None


def _kill(line):
    text = line.partition(b";")[2]
    at = text.find(b"Killed process ")
    pid = text[at + 15 :].split(b" ")[0]
    if at < 0 or not pid.isdigit() or b"ut of memory" not in text:
        return None
    user = text.partition(b"UID:")[2].split(b" ")[0]
    return int(pid), int(user) if user.isdigit() else None, text.strip()[:300].decode("utf-8", "replace")


def own_pids():
    """True if the kernel's log means by a pid what we mean by it: we are in no name space of our own."""
    status = _read("/proc/self/status")
    at = status.find(b"\nNSpid:")
    return at < 0 or len(status[at + 7 :].split(b"\n")[0].split()) == 1


def oom(before, now, kills=None, victim=None, uid=None):
    """A sentence with what shows that the kernel killed processes of ours for want of memory, or None. Pure.

    `before`, `now`: `oom_counts`. `kills`: those of the kernel's log since then, or None. `victim`: the pid that was
    killed, else None: then a process of the user `uid` will do. Counts that other kills explain prove nothing.
    """
    for pid, owner, text in kills or ():
        if pid == victim if victim is not None else owner in (None, uid):
            return "the kernel's log says: " + text
    for where in sorted(now, key=lambda name: name == "/proc/vmstat"):
        if where in before and now[where] - before[where] > len(kills or ()):
            return "the kernel's count of processes killed for want of memory rose from {} to {} ({})".format(
                before[where], now[where], where
            )
    return None


def killed(mark, pid):
    """What the kernel's log says since a mark of the end of one process for want of memory, or None."""
    return oom({}, {}, mark.kills(), pid) if pid is not None and own_pids() else None


def worker_killed(log_path):
    """The line of the log's end in which a launcher says that SIGKILL ended a process of its, or None."""
    for line in reversed(_tail(log_path).splitlines()[-200:]):
        if any(text in line for text in KILLED_TEXTS):
            return line.strip()[:300].decode("utf-8", "replace")
    return None


# full disks


def disk_full(log_path, folders):
    """A sentence with what shows that a disk was full, its mount and what is free there, or None.

    The log says so (then the disk of the path that it names, else one that is full, else that of the first folder), or
    a folder has no room.
    """
    for line in reversed(_tail(log_path).splitlines()[-200:]):
        if any(text in line for text in FULL_TEXTS):
            said = "the log says: " + line.strip()[:300].decode("utf-8", "replace")
            room = room_of(_meant(line, folders))
            return "{} ({})".format(said, room) if room else said
    for folder in folders:
        if is_full(folder):
            return room_of(folder)
    return None


def _tail(path):
    try:
        with open(path, "rb") as handle:
            handle.seek(max(0, os.fstat(handle.fileno()).st_size - TAIL))
            return handle.read(TAIL)
    except OSError:
        return b""


def _meant(line, folders):
    """The path whose disk a line about a full disk is about."""
    for quote in (b"'", b'"'):
        for word in line.split(quote)[1::2]:
            if word.startswith(b"/"):
                return word
    full = [folder for folder in (*folders, *_ELSEWHERE) if is_full(folder)]
    return (full or list(folders) or [b"/"])[0]


def is_full(path):
    """True if the disk of a path (or of what is there of it) has no room or no inodes left."""
    seen = _room(path)
    return seen is not None and (seen.f_bavail * seen.f_frsize < FULL_BYTES or bool(seen.f_files and not seen.f_favail))


def room_of(path):
    """`/data has 0 of 1048576 bytes free`: the mount that a path is on, and its room; None if that cannot be told."""
    seen = _room(path)
    if seen is None:
        return None
    text = "{} has {} of {} bytes free".format(
        mount_of(path).decode("utf-8", "replace"), seen.f_bavail * seen.f_frsize, seen.f_blocks * seen.f_frsize
    )
    return text + ", and no inodes" if seen.f_files and not seen.f_favail else text


def _room(path):
    try:
        seen = os.statvfs(_there(path))
    except OSError:
        return None
    return seen if seen.f_blocks else None


def _there(path):
    """A path, or the nearest folder above it that exists."""
    path = os.path.abspath(path)
    while not os.path.exists(path) and os.path.dirname(path) != path:
        path = os.path.dirname(path)
    return path


def mount_of(path):
    """Where the file system of a path is mounted."""
    path = os.path.realpath(_there(path))
    while not os.path.ismount(path):
        path = os.path.dirname(path)
    return path
