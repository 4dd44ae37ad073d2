"""What the host itself shows: who owns the processes on cards, and who holds the leases of cards."""

import os

from .. import holders, share
from ..files import to_bytes
from ..layout import card_name, lease_scope


def name_processes(cards, proc=b"/proc"):
    """Fill users and missing names from /proc, as far as the tool's pids are surely this /proc's.

    In a container the tool shows the host's pids: a process here may bear the same number by chance. So outside the
    machine's own pid space a pid counts only if the tool's name for it fits."""
    own = own_pid_space(proc)
    for card in cards:
        for process in card["processes"]:
            folder = os.path.join(proc, str(process["pid"]).encode())
            names = _names(folder)
            if not names or not (own or _fits(process["name"], names)):
                continue
            process["name"] = process["name"] or names[0]
            process["user"] = _owner(folder)


def own_pid_space(proc=b"/proc"):
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
    return share.user_name(uid)


def _clean(text, limit):
    """Text of others, fit to be shown: no control characters, not long."""
    return share.text(text, limit)


def read_leases(device, proc=b"/proc", tmp=b"/tmp", with_holder=False):
    """`[{index, user, job, name, since}]` of the cards whose lease somebody holds, as the kernel says.

    Who holds one is what users show in /tmp, for display only: unknown (None) where nobody says so. With `with_holder`
    the kernel is asked whose each name is: what another user says about it is not believed, and a name that no job is
    shown for has its user and a `holder` (user, process) as a person can find them."""
    held = _held_cards(device, proc)
    owners = holders.uids(held.values()) if with_holder and held else {}
    shown = {}
    for uid, lease in _shown_leases(device, tmp) if held else ():
        index = lease["index"]
        if index not in held or owners.get(held[index], uid) != uid:
            continue
        if (lease["since"] or "") >= (shown.get(index, {}).get("since") or ""):
            shown[index] = lease
    return [shown.get(index) or _unshown(index, held[index], owners, with_holder) for index in sorted(held)]


def _unshown(index, inode, owners, with_holder):
    found = {"index": index, "user": None, "job": None, "name": None, "since": None}
    if with_holder:
        uid = owners.get(inode)
        found["user"] = None if uid is None else user_name(uid)
        found["holder"] = holders.described(inode, uid)
    return found


def _held_cards(device, proc):
    """`{index: inode}` of the cards of that device whose names are bound."""
    suffix = to_bytes("@" + lease_scope()) if lease_scope() else b""
    prefix = b"@" + card_name(device, "")[1 : len(card_name(device, "")) - len(suffix)]
    held = {}
    try:
        with open(os.path.join(proc, b"net/unix"), "rb") as handle:
            for line in handle:
                fields = line.rstrip(b"\n").split(None, 7)
                name = fields[-1]
                word = name[len(prefix) : len(name) - len(suffix)]
                if name.startswith(prefix) and name.endswith(suffix) and word.isdigit() and len(word) <= 9:
                    held[int(word)] = int(fields[6]) if len(fields) > 7 and fields[6].isdigit() else 0
    except OSError:
        pass
    return held


def _shown_leases(device, tmp):
    """`(uid, lease)` of what every user's leases.json says about that device, if the files are truly theirs."""
    scope = to_bytes("-" + lease_scope()) if lease_scope() else b""
    try:
        names = os.listdir(tmp)
    except OSError:
        return
    for name in names:
        word = name[len(share.PREFIX) : len(name) - len(scope)]
        if not name.startswith(share.PREFIX) or not name.endswith(scope) or not word.isdigit() or len(word) > 10:
            continue
        value = share.read(os.path.join(tmp, name), b"leases.json", int(word)) or {}
        for lease in share.entries(value.get("leases")):
            if lease.get("device") == device and type(lease.get("index")) is int:
                found = {"index": lease["index"], "user": user_name(int(word))}
                found.update((key, share.text(lease.get(key))) for key in ("job", "name", "since"))
                yield int(word), found
