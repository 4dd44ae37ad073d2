"""What the host itself shows: who owns the processes on cards, and who holds the leases of cards."""

import json
import os

from ..files import to_bytes
from ..layout import card_name, lease_scope


def name_processes(cards, proc=b"/proc"):
    """Fill users and missing names from /proc, as far as the tool's pids are surely this /proc's.

    In a container the tool shows the host's pids: a process here may bear the same number by chance. So outside the
    machine's own pid space a pid counts only if the tool's name for it fits."""
    own = _own_pid_space(proc)
    for card in cards:
        for process in card["processes"]:
            folder = os.path.join(proc, str(process["pid"]).encode())
            names = _names(folder)
            if not names or not (own or _fits(process["name"], names)):
                continue
            process["name"] = process["name"] or names[0]
            process["user"] = _owner(folder)


def _own_pid_space(proc):
    """True in the pid namespace that the machine booted with: its inode number is fixed in the kernel."""
    try:
        return os.readlink(os.path.join(proc, b"self/ns/pid")) == b"pid:[4026531836]"
    except OSError:
        return False


def _names(folder):
    """What a process is called: its command name, its command line, the file name of its program."""
    found = []
    for name in (b"comm", b"cmdline"):
        try:
            with open(os.path.join(folder, name), "rb") as handle:
                text = handle.read(4096).replace(b"\0", b" ").decode("utf-8", "replace").strip()
        except OSError:
            text = ""
        if text:
            found.append(_clean(text, 200))
    if len(found) > 1:
        program = found[1].split(" ")[0]
        found += [program, program.rsplit("/", 1)[-1]]
    return found


def _fits(name, names):
    short = (name or "").rsplit("/", 1)[-1]
    return bool(name) and any(
        other.startswith(name) or other.startswith(short) or name.startswith(other) for other in names
    )


def _owner(folder):
    try:
        return user_name(os.stat(folder).st_uid)
    except OSError:
        return None


def user_name(uid):
    """The user's name, or the number as text where the host has no name for it."""
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _clean(text, limit):
    """Text of others, fit to be shown: no control characters, not long."""
    return "".join(sign if sign.isprintable() else "?" for sign in text[:limit])


def read_leases(device, proc=b"/proc", tmp=b"/tmp"):
    """`[{index, user, job, name, since}]` of the cards whose lease somebody holds, as the kernel says.

    Who holds one is what users show in /tmp, for display only: unknown (None) where nobody says so."""
    suffix = to_bytes("@" + lease_scope()) if lease_scope() else b""
    prefix = b"@" + card_name(device, "")[1 : len(card_name(device, "")) - len(suffix)]
    held = set()
    try:
        with open(os.path.join(proc, b"net/unix"), "rb") as handle:
            for line in handle:
                name = line.rstrip(b"\n").split(None, 7)[-1]
                word = name[len(prefix) : len(name) - len(suffix)]
                if name.startswith(prefix) and name.endswith(suffix) and word.isdigit() and len(word) <= 9:
                    held.add(int(word))
    except OSError:
        pass
    shown = {}
    for lease in _shown_leases(device, tmp) if held else ():
        if lease["index"] in held and (lease["since"] or "") >= (shown.get(lease["index"], {}).get("since") or ""):
            shown[lease["index"]] = lease
    nobody = {"user": None, "job": None, "name": None, "since": None}
    return [shown.get(index) or dict(nobody, index=index) for index in sorted(held)]


def _shown_leases(device, tmp):
    """What every user's leases.json says about that device; files of others count only if truly theirs."""
    scope = to_bytes("-" + lease_scope()) if lease_scope() else b""
    start = b".jobrunner-1-"
    try:
        names = os.listdir(tmp)
    except OSError:
        return
    for name in names:
        word = name[len(start) : len(name) - len(scope)]
        if not name.startswith(start) or not name.endswith(scope) or not word.isdigit() or len(word) > 10:
            continue
        value = _owned_json(os.path.join(tmp, name), b"leases.json", int(word))
        leases = value.get("leases") if isinstance(value, dict) else None
        for lease in leases[:1024] if isinstance(leases, list) else ():
            if isinstance(lease, dict) and lease.get("device") == device and type(lease.get("index")) is int:
                found = {"index": lease["index"], "user": user_name(int(word))}
                for key in ("job", "name", "since"):
                    found[key] = _clean(lease[key], 100) if isinstance(lease.get(key), str) else None
                yield found


def _owned_json(folder, name, uid, limit=256 * 1024):
    """The JSON of a regular file in a folder, both really of that user and neither a link; else None."""
    import stat

    handles = []
    try:
        handles.append(os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC))
        handles.append(os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=handles[0]))
        facts = [os.fstat(handle) for handle in handles]
        regular = stat.S_ISREG(facts[1].st_mode) and facts[1].st_size <= limit
        if not regular or any(fact.st_uid != uid for fact in facts):
            return None
        return json.loads(os.read(handles[1], limit).decode("utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    finally:
        for handle in handles:
            os.close(handle)
