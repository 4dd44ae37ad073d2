"""Rules about disks and folders."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jobrunner.service.doctor.finding import Facts, Finding, bad, good, part, size, unsure

if TYPE_CHECKING:
    from jobrunner.core.inventory import Host

NO_DISK, LOW_DISK = 2**30, 5 * 2**30
NO_FILES, LOW_FILES = 1000, 20_000
LOW_TMP, LOW_SHM = 500 * 2**20, 2**30
SLOW_S = 2.0


def root(facts: Facts, declared: Host) -> Finding:
    """The folder that all of jobrunner's files on the host lie in."""
    told = part(facts, "root")
    return good(f"{told['path']} on {told.get('filesystem') or '?'}")


def root_access(facts: Facts, declared: Host) -> Finding:
    """Whoever may change the root folder, or one above it, may change what our jobs run."""
    told = part(facts, "root_access")
    if told["uid"] != told["own_uid"]:
        return bad(f"{told['path']} belongs to user {told['uid']}", "set `root` to a folder of your own", stops=True)
    if told["mode"] & 0o077:
        return bad(f"{told['path']} is open to others (mode {told['mode']:03o})", f"chmod 700 {told['path']}")
    if told["loose"]:
        return bad(
            f"others may change {', '.join(told['loose'])}, above the root folder",
            f"chmod go-w {told['loose'][0]}, or set `root` elsewhere: others could replace what your jobs run",
        )
    return good("only this user may change it")


def programs_run(facts: Facts, declared: Host) -> Finding:
    """On a noexec mount scripts run by an interpreter and programs that are executed do not."""
    told = part(facts, "root")
    if told.get("noexec") is None:
        return unsure("whether programs can be executed there could not be tried")
    if told["noexec"]:
        return bad(
            f"{told['path']} is mounted noexec",
            "scripts (.py, .sh) work there, programs of the code folder do not: set `root` elsewhere for those",
        )
    return good("programs in the root folder can be executed")


def storage(facts: Facts, declared: Host) -> Finding:
    """A megabyte written, synced, renamed and read: a full quota and a sick disk show here."""
    told = part(facts, "storage")
    if not told["ok"]:
        remedies = {
            "EDQUOT": "your quota is used up: `quota -s` on the host, then `jobrunner gc`",
            "ENOSPC": f"`jobrunner gc {declared.name}` removes what no job needs",
            "EROFS": "the file system is read-only: ask the administrator, or set `root` elsewhere",
        }
        remedy = remedies.get(told.get("errno") or "", "the storage may be faulty: ask the administrator (`dmesg`)")
        return bad(f"a megabyte cannot be written: {told.get('text')}", remedy, stops=True)
    found = f"a megabyte is safe on it in {told['seconds'] * 1000:.0f} ms"
    if told["seconds"] > SLOW_S:
        return bad(found, "the disk or its server is overloaded: starts, logs and checkpoints will wait for it")
    return good(found)


def disk(facts: Facts, declared: Host) -> Finding:
    """Room for code, logs and checkpoints."""
    free = part(facts, "disk")["free_bytes"]
    remedy = f"`jobrunner gc {declared.name}` removes what no job needs"
    if free < NO_DISK:
        return bad(f"{size(free)} free", remedy, stops=True)
    return bad(f"{size(free)} free", remedy) if free < LOW_DISK else good(f"{size(free)} free")


def inodes(facts: Facts, declared: Host) -> Finding:
    """A disk with room and without inodes is full all the same."""
    free = part(facts, "disk").get("files_free")
    if free is None:
        return good("without a limit")
    found = f"{free:,} files can be made"
    if free >= LOW_FILES:
        return good(found)
    return bad(found, f"`jobrunner gc {declared.name}`; remove small files", stops=free < NO_FILES)


def quota(facts: Facts, declared: Host) -> Finding:
    """What the host's `quota` says; the limit may be reached long before the disk is full."""
    told = part(facts, "quota")
    if told.get("error"):
        return unsure(
            f"`quota` gave no answer: {told['error']}", "the quota server may be down; `df` is right meanwhile"
        )
    if told.get("tool") is None:
        return good("no `quota` on this host; a write was tried instead")
    worst = [row for row in told["rows"] if row["over"] or _nearly_full(row)]
    if worst:
        row = worst[0]
        used, soft, hard = row["blocks"]
        text = f"{row['filesystem']}: {size(used * 1024)} of {size((hard or soft) * 1024)}, {row['files'][0]} files"
        hit = any(limit and use >= limit for use, _, limit in (row["blocks"], row["files"]))
        return bad(text, f"`jobrunner gc {declared.name}`, or ask for a larger quota", stops=hit)
    return good("far from reached" if told["rows"] else "none is set")


def _nearly_full(row: Facts) -> bool:
    return any((limit or soft) and used > 0.95 * (limit or soft) for used, soft, limit in (row["blocks"], row["files"]))


def network_home(facts: Facts, declared: Host) -> Finding:
    """A root folder on the network works, more slowly, and may be shared by machines."""
    told = part(facts, "root")
    if told.get("network"):
        return unsure(
            f"{told['path']} is on {told['filesystem']}",
            "works, but slower; a `root:` on a local disk makes starts and logs faster",
        )
    return good("the root folder is on a local disk")


def shared_root(facts: Facts, declared: Host) -> Finding:
    """Several machines may share a root folder; each keeps its own jobs in it."""
    others = facts.get("probe", {}).get("others") or []
    names = ", ".join(sorted({str(item.get("hostname")) for item in others}))
    if not others:
        return good("this machine alone uses the root folder")
    if facts["host"].get("hostname") in {item.get("hostname") for item in others}:
        return unsure(
            f"another machine of the same name ({names}) uses it too, or this one was installed anew",
            "jobs of an earlier installation are under `hosts/` in the root folder; `jobrunner gc` leaves them alone",
        )
    return good(f"also used by {names}; each has its own jobs")


def home(facts: Facts, declared: Host) -> Finding:
    """Caches, conda and the vendors' logs go to the home folder, wherever the root is."""
    told = part(facts, "home")
    if not told["there"]:
        return bad(f"{told['path']} does not exist", "ask for a home folder, or set HOME in the host's `env`")
    if not told["writable"]:
        return bad(f"{told['path']} cannot be written", "caches and logs fail there: set HOME in the host's `env`")
    free = told.get("free_bytes")
    if free is not None and free < LOW_TMP:
        return bad(f"{told['path']}: {size(free)} free", "caches and logs go there: make room, or set HOME in `env`")
    return good(f"{told['path']} on {told.get('filesystem') or '?'}, {size(free)} free")


def tmp(facts: Facts, declared: Host) -> Finding:
    """Temporary files of jobs, and the folder by which users see each other's tickets."""
    told = part(facts, "tmp")
    if not told["writable"]:
        return bad(
            "/tmp cannot be written", "chmod 1777 /tmp (as root): Python, torch and jobrunner use it", stops=True
        )
    if not told["sticky"]:
        return bad(f"/tmp has mode {told['mode']:o}: others may remove your files", "chmod 1777 /tmp (as root)")
    if told["free_bytes"] < LOW_TMP:
        return bad(f"/tmp: {size(told['free_bytes'])} free", "make room there, or set TMPDIR in the host's `env`")
    return good(f"anybody may write, nobody may remove, {size(told['free_bytes'])} free")


def share(facts: Facts, declared: Host) -> Finding:
    """The folder that shows our waiting jobs to the others: without it they do not leave us our turn."""
    told = part(facts, "tmp")
    if told.get("share_ours") is False:
        return bad(
            f"{told['share']} is not a folder that only we can write (user {told.get('share_uid')})",
            "have it removed: colleagues cannot see that your jobs wait, and pass them over",
        )
    return good("colleagues see your waiting jobs" if told.get("share_ours") else "its name in /tmp is free")


def shm(facts: Facts, declared: Host) -> Finding:
    """Data loaders hand over batches through /dev/shm; 64 MB is Docker's default."""
    told = part(facts, "shm")
    remedy = "start the container with `--shm-size 64g` or `--ipc host`; else `num_workers=0`"
    if not told.get("there") or not told.get("writable", True):
        return bad("/dev/shm is not there or cannot be written", remedy)
    found = f"{size(told['free_bytes'])} of {size(told['total_bytes'])} free"
    if told["total_bytes"] < LOW_SHM:
        return bad(found, remedy)
    return good(found) if told["free_bytes"] >= LOW_SHM else bad(found, "remove what ended programs left in /dev/shm")
