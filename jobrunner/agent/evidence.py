"""Evidence for two ends that an exit code alone does not prove: the host ran out of memory, or a disk was full."""

import os

TAIL = 65536
FULL_TEXTS = (b"No space left on device", b"Disk quota exceeded", b"ENOSPC", b"EDQUOT")


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


def oom(before, now):
    """A sentence that names the counter which rose, or None. Pure."""
    for where in sorted(now, key=lambda name: name == "/proc/vmstat"):
        if where in before and now[where] > before[where]:
            return "the kernel's count of processes killed for want of memory rose from {} to {} ({})".format(
                before[where], now[where], where
            )
    return None


def disk_full(log_path, folders):
    """A sentence with what shows that a disk was full, or None: the log says so, or a folder has no room."""
    try:
        with open(log_path, "rb") as handle:
            handle.seek(max(0, os.fstat(handle.fileno()).st_size - TAIL))
            tail = handle.read(TAIL)
    except OSError:
        tail = b""
    for line in reversed(tail.splitlines()[-200:]):
        if any(text in line for text in FULL_TEXTS):
            return "the log says: " + line.strip()[:300].decode("utf-8", "replace")
    for folder in folders:
        try:
            room = os.statvfs(folder)
        except OSError:
            continue
        if room.f_blocks and room.f_bavail * room.f_frsize < 65536:
            return "{} has {} bytes left".format(folder.decode("utf-8", "replace"), room.f_bavail * room.f_frsize)
    return None
