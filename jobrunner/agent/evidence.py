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
    counted_at, before = attempt.oom_counted[0]
    mine = [(attempt.command or {}).get("pid")]
    return {
        "oom": oom(before, oom_counts(), oom_kills(counted_at), mine, os.getuid()),
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


def oom_kills(since_s=0.0, path=KMSG):
    """`[(pid, uid or None, text)]` of the OOM kills in the kernel's log since `since_s` (by the monotonic clock).

    None where that log cannot be read.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    pieces = []
    try:
        while True:
            try:
                piece = os.read(handle, 8192)  # one record at a time; one that was overwritten is an error, and skipped
            except BrokenPipeError:
                continue
            except OSError:
                break
            if not piece:
                break
            pieces.append(piece)
    finally:
        os.close(handle)
    found = []
    for line in b"".join(pieces).splitlines():
        kill = _kill(line, since_s)
        if kill is not None:
            found.append(kill)
    return found


def _kill(line, since_s):
    head, _, text = line.partition(b";")
    at = text.find(b"Killed process ")
    if at < 0 or (b"ut of memory" not in text and b"oom" not in text):
        return None
    try:
        if int(head.split(b",")[2]) / 1e6 < since_s - 1.0:  # that clock and ours differ by a little
            return None
        pid = int(text[at + 15 :].split(b" ")[0])
    except (IndexError, ValueError):
        return None
    user = text.partition(b"UID:")[2].split(b" ")[0]
    return pid, int(user) if user.isdigit() else None, text.strip()[:300].decode("utf-8", "replace")


def oom(before, now, kills=None, pids=(), uid=None):
    """A sentence with what shows that the kernel killed processes of ours for want of memory, or None. Pure.

    `before`, `now`: `oom_counts`. `kills`: `oom_kills` since `before`. A count of the whole host that other users'
    kills explain proves nothing about this job.
    """
    for pid, owner, text in kills or ():
        if pid in pids or (owner is not None and owner == uid):
            return "the kernel's log says: " + text
    for where in sorted(now, key=lambda name: name == "/proc/vmstat"):
        if where not in before or now[where] <= before[where]:
            continue
        strangers = len([kill for kill in kills or () if kill[1] is not None]) if where == "/proc/vmstat" else 0
        if now[where] - before[where] > strangers:
            return "the kernel's count of processes killed for want of memory rose from {} to {} ({})".format(
                before[where], now[where], where
            )
    return None


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
