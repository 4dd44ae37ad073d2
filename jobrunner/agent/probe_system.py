"""Facts about the kernel and its limits: memory, processes, user ids, ports, the network's settings."""

import os

from . import ports as job_ports
from .files import read_file, to_text
from .probe_deep import asked

HCCL_PORTS = range(60000, 60032)
TORCH_PORTS = (29400, 29500)
_LISTEN = b"0A"


def limits(context):
    """The session's limits `{name: [soft, hard]}` (null: none) and how many processes the user has."""
    import resource

    found = {}
    for name in ("nofile", "nproc", "memlock", "core", "as", "fsize", "stack"):
        pair = resource.getrlimit(getattr(resource, "RLIMIT_" + name.upper()))
        found[name] = [None if value == resource.RLIM_INFINITY else value for value in pair]
    pattern = _line("/proc/sys/kernel/core_pattern")
    numbers = [_number(folder, b"pids.max") for folder in _group_folders("pids")]
    numbers = [number for number in numbers if number is not None]
    return {
        "limits": found, "processes": _own_threads(), "core_pattern": pattern,
        "pids_max": min(numbers) if numbers else None,
    }  # fmt: skip


def _own_threads():
    """How many threads this user has: what the limit on processes counts."""
    count, uid = 0, os.getuid()
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                if os.stat("/proc/" + name).st_uid == uid:
                    count += len(os.listdir("/proc/" + name + "/task"))
            except OSError:
                continue
    return count


def memory(context):
    """Bytes: of the machine (total, available), and of the control group (of ours and those above) with least room."""
    table = {}
    for line in (read_file(b"/proc/meminfo") or b"").splitlines():
        words = line.replace(b":", b" ").split()
        if len(words) >= 2 and words[1].isdigit():
            table[words[0]] = int(words[1]) * 1024
    total = table.get(b"MemTotal")
    limit, free = group_memory(_group_folders("memory"), total)
    return {
        "total_bytes": total, "available_bytes": table.get(b"MemAvailable"), "group_limit_bytes": limit,
        "group_free_bytes": free,
    }  # fmt: skip


def group_memory(folders, total):
    """`(limit, free)` of the control group with the least room; `(None, None)` where none limits it below `total`.

    File contents that the kernel would drop count as room, as they do in MemAvailable.
    """
    least = (None, None)
    for folder in folders:
        limit = _number(folder, b"memory.max", b"memory.limit_in_bytes")
        used = _number(folder, b"memory.current", b"memory.usage_in_bytes")
        if limit is None or used is None or (total is not None and limit >= total):
            continue
        dropped = 0
        for line in (read_file(os.path.join(folder, b"memory.stat")) or b"").splitlines():
            words = line.split()
            if words[:1] in ([b"inactive_file"], [b"total_inactive_file"]):
                dropped = max(dropped, int(words[1]))
        free = max(0, limit - max(0, used - dropped))
        if least[1] is None or free < least[1]:
            least = (limit, free)
    return least


def _number(folder, *names):
    for name in names:
        text = _line(os.path.join(folder, name))
        if text.isdigit():
            return int(text)
    return None


def _group_folders(controller):
    """The folder of our control group and of those above it, ours first."""
    for line in (read_file(b"/proc/self/cgroup") or b"").splitlines():
        number, names, path = [*line.split(b":", 2), b"", b""][:3]
        v2 = number == b"0" and not names
        if not v2 and controller.encode() not in names.split(b","):
            continue
        top = b"/sys/fs/cgroup" if v2 else b"/sys/fs/cgroup/" + controller.encode()
        folder = path.strip(b"/")
        while True:
            yield os.path.join(top, folder)
            if not folder:
                break
            folder = os.path.dirname(folder)


def proc(context):
    """Whether the processes of others can be seen: `hidepid` of /proc, and process 1."""
    hidepid = None
    for line in (read_file(b"/proc/self/mounts") or b"").splitlines():
        words = line.split()
        if len(words) > 3 and words[1] == b"/proc" and words[2] == b"proc":
            options = dict([*option.split(b"="), b""][:2] for option in words[3].split(b","))
            hidepid = to_text(options[b"hidepid"]) if b"hidepid" in options else None
    return {"hidepid": hidepid, "sees_first": os.path.isdir("/proc/1"), "root": os.geteuid() == 0}


def init(context):
    """Who takes over orphans, and whether it reaps them: tried with one that ends at once."""
    answer = asked(["/bin/sh", "-c", "sleep 0.05 >/dev/null 2>&1 & echo $!"], context)
    pid = answer.out.strip()
    reaped = _reaped(pid) if pid.isdigit() else None
    zombies = 0
    for name in os.listdir("/proc"):
        fields = _stat(name) if name.isdigit() else []
        zombies += len(fields) > 1 and fields[0] == b"Z" and fields[1] == b"1"
    return {
        "first": _line("/proc/1/comm") or None, "reaps": reaped, "zombies": zombies,
        "container": os.path.exists("/.dockerenv") or os.path.exists("/run/.containerenv"),
    }  # fmt: skip


def _reaped(pid):
    """True once the process is gone, False if it stays as a zombie for half a second after its end."""
    import time

    zombie_since = None
    until = time.monotonic() + 3.0
    while time.monotonic() < until:
        fields = _stat(pid)
        if not fields:
            return True
        if fields[0] == b"Z":
            zombie_since = zombie_since or time.monotonic()
            if time.monotonic() - zombie_since > 0.5:
                return False
        time.sleep(0.02)
    return None


def _stat(pid):
    """Fields of /proc/PID/stat from the state on."""
    try:
        with open("/proc/{}/stat".format(pid), "rb") as file:
            data = file.read(1024)
    except OSError:
        return []
    return data[data.rfind(b")") + 2 :].split()


def users(context):
    """Whether user ids here are those of the machine (`mapped`: they are not), and who the system says we are."""
    import pwd

    rows = [line.split() for line in (read_file(b"/proc/self/uid_map") or b"").splitlines()]
    whole = rows == [[b"0", b"0", b"4294967295"]] or not rows
    try:
        name = pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        name = None
    return {"mapped": not whole, "name": name, "uid": os.geteuid()}


def ports(context):
    """Ports that jobs use: ranges free for jobs (0 to 4 tried), the vendors' and launchers' own ones that are taken."""
    busy = _listening()
    found = []
    try:
        found = job_ports.take(4)
        free = len(found)
    except OSError:
        free = 0
    finally:
        from . import leases

        leases.release([lock for _, lock in found])
    span = _line("/proc/sys/net/ipv4/ip_local_port_range").split()
    return {
        "free_ranges": free, "first": job_ports.FIRST, "last": job_ports.LAST,
        "hccl_busy": sorted(port for port in HCCL_PORTS if port in busy),
        "torch_busy": sorted(port for port in TORCH_PORTS if port in busy),
        "handed_out": [int(word) for word in span] if len(span) == 2 else None,
    }  # fmt: skip


def _listening():
    """TCP ports on which something listens."""
    found = set()
    for table in (b"/proc/self/net/tcp", b"/proc/self/net/tcp6"):
        for line in (read_file(table) or b"").splitlines()[1:]:
            words = line.split()
            if len(words) > 3 and words[3] == _LISTEN:
                found.add(int(words[1].rsplit(b":", 1)[1], 16))
    return found


def network(context):
    """Names of proxy and offline variables that are set (no values), and whether there is a way out at all."""
    given = context.request.get("env") or {}
    wanted = ("http_proxy", "https_proxy", "all_proxy")
    names = set(os.environ) | set(given)
    value = lambda name: given.get(name, os.environ.get(name))  # noqa: E731
    spared = (value("no_proxy") or value("NO_PROXY") or "").replace(" ", "").split(",")
    route = any(
        line.split()[1:2] == [b"00000000"] for line in (read_file(b"/proc/self/net/route") or b"").splitlines()[1:]
    ) or any(
        line.startswith(b"0" * 32 + b" 00 ") and not line.endswith(b" lo")
        for line in (read_file(b"/proc/self/net/ipv6_route") or b"").splitlines()
    )
    return {
        "proxies": sorted(name for name in names if name.lower() in wanted),
        "spares_local": any(part in ("localhost", "127.0.0.1", "127.0.0.0/8", "*") for part in spared),
        "offline": sorted(
            name for name in names if name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE")
            and str(value(name)).lower() in ("1", "true", "yes", "on")
        ),
        "mirror": sorted(names & {"HF_ENDPOINT", "USE_MODELSCOPE_HUB", "VLLM_USE_MODELSCOPE"}),
        "default_route": route,
    }  # fmt: skip


def _line(path):
    """The first line of a small file; an empty text if it cannot be read."""
    try:
        with open(path, "rb") as file:
            return file.read(4096).decode("utf-8", "replace").split("\n")[0].strip()
    except OSError:
        return ""
