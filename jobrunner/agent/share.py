"""What one user shows to the others on the host: a folder in /tmp, of which nothing is trusted or run.

Writers own their folder (0755). Readers check the owner, take only regular files of a sane size, and pass over
everything that does not look as it should.
"""

import os
import stat

from . import files, leases
from .layout import card_name, lease_scope, lock_name

PREFIX = b".jobrunner-1-"
LIMIT = 1 << 20
BASE = b"/tmp"


def folder_name(uid):
    """The name of a user's folder."""
    scope = lease_scope()
    return PREFIX + str(uid).encode() + (b"-" + files.to_bytes(scope) if scope else b"")


def own_folder(create=True):
    """The path of our own folder, made if need be; None if the name is taken by something that is not ours."""
    path = os.path.join(BASE, folder_name(os.getuid()))
    if create:
        try:
            os.mkdir(path, 0o755)
            os.chmod(path, 0o755)  # noqa: S103 - the others are to read it
        except OSError:
            pass
    return path if _owned(path, os.getuid()) else None


def _owned(path, uid):
    try:
        seen = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISDIR(seen.st_mode) and seen.st_uid == uid and not seen.st_mode & 0o022


def folders():
    """`[(uid, path)]` of everybody's folders (of our lease scope) whose owner is the user that they name."""
    suffix = folder_name(0)[len(PREFIX) + 1 :]
    found = []
    try:
        names = os.listdir(BASE)
    except OSError:
        return found
    for name in names:
        if not name.startswith(PREFIX) or not name.endswith(suffix):
            continue
        number = name[len(PREFIX) : len(name) - len(suffix)]
        path = os.path.join(BASE, name)
        if number.isdigit() and _owned(path, int(number)):
            found.append((int(number), path))
    return sorted(found)


def publish(name, value):
    """Show a JSON value to the others under `name`. False if the folder cannot be written: they do not see it."""
    path = own_folder()
    if path is None:
        return False
    try:
        files.write_json(os.path.join(path, files.to_bytes(name)), value, mode=0o644, sync=False)
        return True
    except OSError:
        return False


def withdraw(name):
    """Stop showing `name`."""
    path = own_folder(create=False)
    if path is not None:
        try:
            os.unlink(os.path.join(path, files.to_bytes(name)))
        except OSError:
            pass


def read(path, name):
    """A JSON object that a user shows; None: missing, too large, odd, or not a file of the folder's owner."""
    full = os.path.join(path, files.to_bytes(name))
    try:
        seen = os.lstat(full)
        if not stat.S_ISREG(seen.st_mode) or seen.st_size > LIMIT or seen.st_uid != os.lstat(path).st_uid:
            return None
        value = files.read_json(full)
    except (OSError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def tickets():
    """`[(uid, ticket)]` of the others who wait now: whose dispatcher holds the lock that its ticket names."""
    held = leases.held_names()
    found = []
    for uid, path in folders():
        ticket = read(path, "ticket.json") if uid != os.getuid() else None
        lock = ticket.get("lock") if ticket else None
        if isinstance(lock, str) and lock_name("dispatcher", lock) in held:
            found.append((uid, ticket))
    return found


def publish_leases(layout, running):
    """Show which cards our running jobs hold (`running`: `jobs.running`), and other roots."""
    lock = leases.bind_patiently(lock_name("share", str(os.getuid())), 0.5)
    try:
        path = own_folder()
        if path is None:
            return
        held = leases.held_names()
        ours = [_lease(layout, job_id, start, index) for job_id, start in running for index in start.get("cards") or []]
        taken = {(lease["device"], lease["index"]) for lease in ours}
        old = (read(path, "leases.json") or {}).get("leases")
        for lease in old if isinstance(old, list) else ():
            key = (lease.get("device"), lease.get("index")) if isinstance(lease, dict) else None
            if key and key not in taken and lease.get("root") != layout.instance and card_name(*key) in held:
                ours.append(lease)
        publish("leases.json", {"v": 1, "leases": ours})
    finally:
        if lock is not None:
            leases.release([lock])


def _lease(layout, job_id, start, index):
    return {
        "device": start.get("device"),
        "index": index,
        "job": job_id,
        "name": start.get("name"),
        "user": user_name(),
        "since": start.get("at"),
        "root": layout.instance,
    }


def user_name():
    """The name of the user we are, or the number where it has none."""
    try:
        import pwd

        return pwd.getpwuid(os.getuid()).pw_name
    except (ImportError, KeyError):
        return str(os.getuid())
