"""Which machine this is: a home folder may be seen by many, and each has its own jobs under its own random id.

An instance belongs to a machine if host name, machine-id and lease scope match *and* one of these holds, so that
cloned machines which share a home and even a name stay apart:

* this machine's local disk says so (a small file in /var/tmp or /tmp, ours and writable by nobody else);
* the machine has not been booted since that instance was last seen (the local file was cleaned away);
* they share a hardware network address (the local file was cleaned away, and the machine was booted).
"""

import os
import stat
import sys
import time

from . import clock, leases
from .files import AgentError, make_dir, read_file, read_json, to_bytes, to_text, write_json
from .layout import Layout, lease_scope, lock_name

CREATE_S = 20.0
LOCAL_FOLDERS = (b"/var/tmp", b"/tmp")


class Instance:
    """This machine, as jobs know it: `id`, and the `layout` of its files."""

    def __init__(self, layout, identity):
        self.layout = layout
        self.id = layout.instance
        self.hostname = identity["hostname"]
        self.machine_id = identity["machine_id"]


def identity():
    """What has to match: host name, machine-id, lease scope."""
    machine = b""
    for path in (b"/etc/machine-id", b"/var/lib/dbus/machine-id"):
        try:
            machine = (read_file(path, 4096) or b"").strip()
        except OSError:
            continue
        if machine:
            break
    return {"hostname": os.uname().nodename, "machine_id": to_text(machine), "scope": lease_scope()}


def hardware():
    """Addresses of the physical network interfaces, sorted; empty in most containers."""
    found = []
    top = b"/sys/class/net"
    try:
        names = os.listdir(top)
    except OSError:
        return found
    for name in names:
        if os.path.exists(os.path.join(top, name, b"device")):
            try:
                found.append(to_text((read_file(os.path.join(top, name, b"address"), 100) or b"").strip()))
            except OSError:
                continue
    return sorted(address for address in found if address.strip("0:"))


def choose(candidates, local_id, boot, addresses):
    """The candidate that is this machine, or None. A candidate: `{"id", "boot_id", "addresses"}`, identity matching."""
    by_id = {candidate["id"]: candidate for candidate in candidates}
    if local_id in by_id:
        return local_id
    for candidate in candidates:
        if boot and candidate.get("boot_id") == boot:
            return candidate["id"]
    for candidate in candidates:
        if set(addresses) & set(candidate.get("addresses") or ()):
            return candidate["id"]
    return None


def open_root(root):
    """The root as an absolute path: made if missing, ours, 0700, writable; else AgentError."""
    path = os.path.abspath(os.path.expanduser(to_bytes(root)))
    shown = to_text(path)
    advice = "Set `root` of this host in the hosts file to a folder that you own and can write."
    try:
        make_dir(path)
        seen = os.stat(path)
    except OSError as error:
        raise AgentError("root_not_writable", "{} cannot be made: {}".format(shown, error.strerror), advice) from None
    if seen.st_uid != os.geteuid():
        raise AgentError(
            "root_not_ours", "{} belongs to user {}, not to {}".format(shown, seen.st_uid, os.geteuid()), advice
        )
    if stat.S_IMODE(seen.st_mode) & 0o077:
        os.chmod(path, 0o700)
    read_only = os.statvfs(path).f_flag & os.ST_RDONLY
    if read_only or not os.access(path, os.W_OK | os.X_OK):
        raise AgentError(
            "root_not_writable",
            "{} cannot be written{}".format(shown, ": its file system is read-only" if read_only else ""),
            advice,
        )
    return path


def attach(root):
    """The `Instance` of this machine under `root`, made if this is the first contact. Safe for many at once."""
    path = open_root(root)
    who = identity()
    boot = clock.boot_id()
    found = _find(path, who, boot)
    if found is None:
        lock = leases.bind_patiently(lock_name("instance", _digest(path, who)), CREATE_S)
        if lock is None:
            raise AgentError(
                "busy",
                "another process has been setting up this host for {:.0f} s".format(CREATE_S),
                "Try again; if it stays so, look for a stopped jobrunner process of yours there.",
            )
        try:
            found = _find(path, who, boot) or _create(path, who, boot)
        finally:
            leases.release([lock])
    return Instance(Layout(path, found), who)


def _find(root, who, boot):
    candidates = []
    hosts = os.path.join(root, b"hosts")
    try:
        names = os.listdir(hosts)
    except OSError:
        return None
    for name in sorted(names):
        if name.startswith(b"."):
            continue
        known = read_json(os.path.join(hosts, name, b"instance.json"), {})
        if not isinstance(known, dict) or any(known.get(key) != who[key] for key in who):
            continue
        seen = read_json(os.path.join(hosts, name, b"boot.json"), {})
        candidates.append({"id": to_text(name), "boot_id": seen.get("boot_id"), "addresses": seen.get("addresses")})
    if not candidates:
        return None
    local_id = _read_local(root, who)
    found = choose(candidates, local_id, boot, hardware() if local_id is None else ())
    if found is None:
        return None
    if local_id != found:
        _write_local(root, who, found)
    if [c["boot_id"] for c in candidates if c["id"] == found] != [boot]:
        _note_boot(os.path.join(hosts, to_bytes(found)), boot)
    return found


def _create(root, who, boot):
    fresh = "i" + os.urandom(7).hex()
    hosts = os.path.join(root, b"hosts")
    make_dir(hosts)
    aside = os.path.join(hosts, b".tmp-" + to_bytes(fresh))
    for name in (b"", b"jobs", b"queue"):
        os.mkdir(os.path.join(aside, name) if name else aside, 0o700)
    write_json(os.path.join(aside, b"instance.json"), dict(who, id=fresh, v=1, made_at=clock.stamp()))
    _note_boot(aside, boot)
    os.rename(aside, os.path.join(hosts, to_bytes(fresh)))
    _write_local(root, who, fresh)
    return fresh


def _note_boot(home, boot):
    seen = {"boot_id": boot, "addresses": hardware(), "at": clock.stamp()}
    write_json(os.path.join(home, b"boot.json"), seen, sync=False)


def _digest(root, who):
    """A short name for a root, host name, machine-id and scope together."""
    import hashlib

    parts = [os.path.realpath(root)] + [to_bytes(who[key]) for key in sorted(who)]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]


def _local_name(root, who):
    return ".jobrunner-instance-{}-{}".format(os.geteuid(), _digest(root, who)).encode()


def _read_local(root, who):
    """The id that the local disk keeps for us; None if there is none, or if others could have written it."""
    name = _local_name(root, who)
    for folder in LOCAL_FOLDERS:
        path = os.path.join(folder, name)
        try:
            handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError:
            continue
        try:
            seen = os.fstat(handle)
            if stat.S_ISREG(seen.st_mode) and seen.st_uid == os.geteuid() and not seen.st_mode & 0o022:
                if time.time() - seen.st_mtime > 86400:
                    os.utime(handle)  # cleaners of temporary folders go by age
                return to_text(os.read(handle, 100)).strip() or None
        except OSError:
            continue
        finally:
            os.close(handle)
    return None


def _write_local(root, who, instance_id):
    name = _local_name(root, who)
    for folder in LOCAL_FOLDERS:
        path = os.path.join(folder, name)
        aside = path + b"." + os.urandom(6).hex().encode()
        try:
            handle = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            try:
                os.write(handle, to_bytes(instance_id) + b"\n")
            finally:
                os.close(handle)
            os.rename(aside, path)
            return
        except OSError:
            try:
                os.unlink(aside)
            except OSError:
                continue


def facts(attached, agent_hash):
    """What the first answer on a channel says about this machine."""
    return {
        "instance": attached.id,
        "hostname": attached.hostname,
        "machine_id": attached.machine_id,
        "boot_id": clock.boot_id(),
        "now": clock.stamp(),
        "user": user_name(),
        "python": "{}.{}.{}".format(*sys.version_info[:3]),
        "uid": os.geteuid(),
        "cpus": cpu_count(),
        "agent": agent_hash,
    }


def user_name():
    """The name of the user we are; the number where the host knows no name."""
    import pwd

    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def cpu_count():
    """Cores that we may use."""
    try:
        return len(os.sched_getaffinity(0))
    except (AttributeError, OSError):
        return os.cpu_count() or 1
