"""Rules about the kernel and its limits: memory, processes, ids, ports, the network, the clock."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jobrunner.service.doctor.finding import Facts, Finding, bad, good, part, size, unsure

if TYPE_CHECKING:
    from jobrunner.core.inventory import Host

MAX_SKEW_S = 5.0
FEW_FILES, FEW_PROCESSES = 4096, 4096
LITTLE_MEMORY, NO_MEMORY = 2 * 2**30, 300 * 2**20
LITTLE_LOCKED = 64 * 2**20
MANY_ZOMBIES = 1000


def clock(facts: Facts, declared: Host) -> Finding:
    """Times of a job are the host's; those of the ledger this machine's."""
    skew = facts["skew_s"]
    if skew is None:
        return unsure("the host did not tell its time")
    # A tenth of a second is less than asking for it takes; and no `-0.0`.
    found = f"differs from this machine's by {skew:+.1f} s" if abs(skew) >= 0.05 else "agrees with this machine's"
    return good(found) if abs(skew) <= MAX_SKEW_S else bad(found, "set one of the two (chrony, ntp): times mislead")


def locale(facts: Facts, declared: Host) -> Finding:
    """Old Pythons cannot print other than ASCII under the C locale, and GBK stays GBK."""
    told = part(facts, "locale")
    given = {**{key: told.get(key) for key in ("LC_ALL", "LC_CTYPE", "LANG")}, **declared.env}
    name = next((str(given[key]) for key in ("LC_ALL", "LC_CTYPE", "LANG") if given.get(key)), "")
    if "utf" in name.lower() or "PYTHONIOENCODING" in declared.env or declared.env.get("PYTHONUTF8") == "1":
        return good(name or "set for Python in the hosts file")
    remedy = f"`env: {{LANG: C.UTF-8}}` for {declared.name} in the hosts file lets any Python print any text"
    if name and not name.upper().startswith(("C", "POSIX")):
        return bad(f"{name}: text that is not in it cannot be printed", remedy)
    return unsure(name or "none (C)", remedy)


def memory(facts: Facts, declared: Host) -> Finding:
    """What is left of memory, for the machine and for the control group of the session."""
    told = part(facts, "memory")
    free, limit = told.get("available_bytes"), told.get("group_limit_bytes")
    if limit is not None:
        room = told.get("group_free_bytes")
        free = min(value for value in (free, room, limit) if value is not None)
    if free is None:
        return unsure("the kernel does not tell")
    found = f"{size(free)} of {size(told.get('total_bytes'))} can be had"
    found += f", limited to {size(limit)} by the control group" if limit is not None else ""
    if free < NO_MEMORY:
        return bad(found, "end what uses it (`ps aux --sort -rss`): a job would be killed at once", stops=True)
    if free < LITTLE_MEMORY:
        return bad(found, "end what uses it (`ps aux --sort -rss`), or ask for a larger limit")
    return good(found)


def memory_limit(facts: Facts, declared: Host) -> Finding:
    """A control group's limit far below the machine's memory surprises: the kernel kills, not Python."""
    told = part(facts, "memory")
    limit, total = told.get("group_limit_bytes"), told.get("total_bytes")
    if limit is None or not total:
        return good("no control group limits it")
    found = f"{size(limit)} of the machine's {size(total)}"
    if limit < total / 4:
        return unsure(found, "jobs share this; ask for more (`systemctl set-property user-UID.slice MemoryMax=…`)")
    return good(found)


def open_files(facts: Facts, declared: Host) -> Finding:
    """Data loaders and checkpoints of many ranks need descriptors."""
    soft, hard = part(facts, "limits")["limits"]["nofile"]
    if soft is None or soft >= FEW_FILES:
        return good("without a limit" if soft is None else f"{soft} at once")
    raise_it = "`ulimit -n {}` as a line of `setup` in the hosts file"
    if hard is None or hard > soft:
        return unsure(f"{soft} at once (may be raised to {hard or 'any'})", raise_it.format(hard or 65536))
    return bad(f"{soft} at once, and no more may be asked for", "ask for a higher nofile in /etc/security/limits.conf")


def processes(facts: Facts, declared: Host) -> Finding:
    """Threads count as processes here; every rank has dozens. Root is not limited."""
    told = part(facts, "limits")
    soft, used = told["limits"]["nproc"][0], told["processes"]
    if facts["host"].get("uid") == 0:
        soft = None
    limit = min((value for value in (soft, told.get("pids_max")) if value is not None), default=None)
    if limit is None:
        return good(f"{used} in use, without a limit")
    found = f"{used} of {limit} in use"
    remedy = "end old ones (`ps -u $USER -L`), or ask for more (limits.conf nproc, pids.max)"
    if limit - used < 50:
        return bad(found, remedy, stops=True)
    return bad(found, remedy) if limit - used < 500 or limit < FEW_PROCESSES else good(found)


def locked_memory(facts: Facts, declared: Host) -> Finding | None:
    """RDMA between hosts pins memory."""
    if device_of(facts, declared) == "cpu":
        return None
    soft, hard = part(facts, "limits")["limits"]["memlock"]
    if soft is None or soft >= LITTLE_LOCKED:
        return good("without a limit" if soft is None else size(soft))
    if hard is None:
        return unsure(
            size(soft), "`ulimit -l unlimited` as a line of `setup`, for jobs that use RDMA (RoCE, InfiniBand)"
        )
    return unsure(size(soft), "`memlock unlimited` in /etc/security/limits.conf, for jobs that use RDMA")


def core_dumps(facts: Facts, declared: Host) -> Finding:
    """A crash of a process with much memory fills the disk where cores are written into the working folder."""
    told = part(facts, "limits")
    soft, pattern = told["limits"]["core"][0], told.get("core_pattern") or ""
    if soft == 0:
        return good("none are written")
    if pattern.startswith("|"):
        return good(f"handed to {pattern[1:].split(' ')[0]}")
    return unsure(
        f"written to {pattern or 'core'}, up to {size(soft) if soft else 'any size'}",
        "`ulimit -c 0` as a line of `setup`, unless somebody reads them: one crash writes all of a process's memory",
    )


def other_processes(facts: Facts, declared: Host) -> Finding:
    """With hidepid nobody sees whose processes hold a card."""
    told = part(facts, "proc")
    hidden = told.get("hidepid") not in (None, "0", "off")
    if told.get("root") or (not hidden and told.get("sees_first")):
        return good("those of other users can be seen")
    found = (
        f"those of other users are hidden (/proc hidepid={told.get('hidepid')})" if hidden else "process 1 is hidden"
    )
    return unsure(found, "cards in use stay in use, but not by whom; ask for the group that /proc's gid= names")


def init(facts: Facts, declared: Host) -> Finding:
    """In a container without an init, whatever is orphaned stays as a zombie."""
    told = part(facts, "init")
    zombies = told.get("zombies") or 0
    found = f"process 1 is {told.get('first') or '?'}"
    remedy = "start the container with `--init`: ended processes stay in the table until it is full"
    if told.get("reaps") is False or zombies > MANY_ZOMBIES:
        return bad(f"{found} and does not reap orphans ({zombies} zombies)", remedy)
    if told.get("reaps") is None:
        return unsure(f"{found}; whether it reaps orphans could not be seen", remedy)
    return good(f"{found} and reaps orphans")


def user_ids(facts: Facts, declared: Host) -> Finding:
    """Mapped ids show the owners of cards and folders under other names."""
    told = part(facts, "users")
    if told.get("name") is None:
        return bad(
            f"user {told.get('uid')} has no name here", "add it to /etc/passwd: torch and getpass fail without a name"
        )
    if told.get("mapped"):
        return unsure("ids are mapped (a user name space)", "owners of cards may show under other names; jobs do run")
    return good(f"{told.get('name')} ({told.get('uid')})")


def ports(facts: Facts, declared: Host) -> Finding:
    """Each job gets 32 ports for MASTER_PORT and 32 for HCCL."""
    told = part(facts, "ports")
    span = f"{told['first']} and {told['last']}"
    if told["free_ranges"] < 2:
        return bad(
            f"no 32 free ones in a row between {span}", "end what listens there (`ss -ltn`): jobs need two such ranges",
            stops=True,
        )  # fmt: skip
    handed = told.get("handed_out")
    if handed and handed[0] < told["last"] and handed[1] > told["first"]:
        return unsure(
            f"free, but the kernel hands out {handed[0]} to {handed[1]} by itself",
            f"sysctl net.ipv4.ip_local_reserved_ports={told['first']}-{told['last']}",
        )
    return good(f"free ranges between {span}")


def usual_ports(facts: Facts, declared: Host) -> Finding:
    """Programs that ignore MASTER_PORT and HCCL_IF_BASE_PORT take these."""
    told = part(facts, "ports")
    busy = [*told.get("torch_busy", []), *told.get("hccl_busy", [])]
    if not busy:
        return good("29400, 29500 and 60000 to 60031 are free")
    return unsure(
        f"taken: {', '.join(map(str, busy))}",
        "jobs have ports of their own (MASTER_PORT, HCCL_IF_BASE_PORT); a script must not set 29500 or 60000 itself",
    )


def network(facts: Facts, declared: Host) -> Finding:
    """Downloads on a host without a way out hang instead of failing."""
    told = part(facts, "network")
    ways = [*(told.get("proxies") or []), *(told.get("mirror") or [])]
    if told.get("proxies") and not told.get("spares_local"):
        return unsure(
            f"{', '.join(told['proxies'])} set, and no_proxy spares neither localhost nor 127.0.0.1",
            "`env: {no_proxy: 'localhost,127.0.0.1'}` in the hosts file: else the proxy is asked for local services",
        )
    if told.get("offline"):
        return good(f"offline is said ({', '.join(told['offline'])})")
    if told.get("default_route") or ways:
        return good(f"a way out ({', '.join(ways) or 'default route'}); whether it works was not tried")
    return unsure(
        "no default route and no proxy",
        "`env: {HF_HUB_OFFLINE: 1, TRANSFORMERS_OFFLINE: 1}` in the hosts file: downloads then fail at once instead of "
        "hanging; carry models there as files",
    )


def device_of(facts: Facts, declared: Host) -> str:
    """The kind of cards: as the hosts file says, as the vendor's tool answered, or as the host seems to have."""
    seen = (facts.get("cards") or {}).get("device") or facts.get("probe", {}).get("seen_device")
    return declared.device or str(seen or "cpu")
