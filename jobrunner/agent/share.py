"""What one user shows to the others on the host: a folder in /tmp, of which nothing is trusted or run.

Writers own their folder (0755). Readers open without following links and without waiting, check the owner of what
they opened, take only regular files of a sane size, and pass over everything that does not look as it should.
"""

import json
import math
import os
import stat
import time

from . import clock, files, leases
from .layout import card_name, lease_scope, lock_name

PREFIX = b".jobrunner-1-"
LIMIT = 1 << 18
BASE = b"/tmp"
MOST = 1024  # entries of a list that are looked at
AGAIN_S = 0.05  # so long the names of everybody's folders are good for
DIGITS = 15  # of a number; longer ones cost time to read and mean nothing


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
        except OSError:
            pass
        else:
            _open_to_all(path)
    return path if _owned(path, os.getuid()) else None


def _open_to_all(path):
    try:
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return
    try:
        if os.fstat(handle).st_uid == os.getuid():
            os.fchmod(handle, 0o755)  # the others are to read it, whatever our umask is
    finally:
        os.close(handle)


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
    for name in _names():
        if not name.startswith(PREFIX) or not name.endswith(suffix):
            continue
        number = name[len(PREFIX) : len(name) - len(suffix)]
        path = os.path.join(BASE, name)
        if number.isdigit() and len(number) <= 10 and _owned(path, int(number)):
            found.append((int(number), path))
    return sorted(found)


_listed = {}


def _names():
    """The names in `BASE` that may be users' folders. There are many others, so one listing serves for a moment."""
    now = time.monotonic()
    known = _listed.get(BASE)
    if known is not None and now - known[0] < AGAIN_S:
        return known[2]
    try:
        changed = os.stat(BASE).st_mtime_ns
        if known is not None and changed == known[1]:
            return known[2]  # nothing came or went since it was listed
        settled = time.time() * 1e9 - changed > AGAIN_S * 1e9  # what changes now may bear the same time
        names = [name for name in os.listdir(BASE) if name.startswith(PREFIX)]
    except OSError:
        return []
    _listed[BASE] = (now, changed if settled else None, names)
    return names


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


def shown(name):
    """True if we show something under `name` now: a cleaned /tmp shows nothing."""
    path = own_folder(create=False)
    return path is not None and os.path.exists(os.path.join(path, files.to_bytes(name)))


def withdraw(name):
    """Stop showing `name`."""
    path = own_folder(create=False)
    if path is not None:
        try:
            os.unlink(os.path.join(path, files.to_bytes(name)))
        except OSError:
            pass


def read(path, name, uid=None):
    """A JSON object that a user shows; None: missing, too large, odd, or folder or file not really that user's.

    `uid` is the user who must own both; without it, the file must be the folder's owner's.
    """
    handles = []
    try:
        handles.append(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC))
        name = files.to_bytes(name)
        handles.append(os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=handles[0]))
        folder, facts = os.fstat(handles[0]), os.fstat(handles[1])
        owner = folder.st_uid if uid is None else uid
        if not stat.S_ISREG(facts.st_mode) or facts.st_size > LIMIT or {folder.st_uid, facts.st_uid} != {owner}:
            return None
        value = json.loads(_contents(handles[1]).decode("utf-8"), parse_int=_whole, parse_float=_fraction)
    except (OSError, ValueError, RecursionError, MemoryError):
        return None
    finally:
        for handle in handles:
            os.close(handle)
    return value if isinstance(value, dict) else None


def _contents(handle):
    """At most LIMIT bytes, however the file grows meanwhile."""
    pieces, left = [], LIMIT
    while left > 0:
        piece = os.read(handle, left)
        if not piece:
            break
        pieces.append(piece)
        left -= len(piece)
    return b"".join(pieces)


def _whole(text):
    if len(text) > DIGITS:
        raise ValueError("a number of {} digits".format(len(text)))
    return int(text)


def _fraction(text):
    value = float(text[:64])
    if not math.isfinite(value):
        raise ValueError("not a finite number")
    return value


def number(value, default=0.0):
    """A finite number of others that is not negative, else `default`."""
    fine = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) and value >= 0
    return float(value) if fine else default


def text(value, limit=100):
    """Text of others, fit to be shown (no control characters, not long); None if it is none."""
    if not isinstance(value, str):
        return None
    return "".join(sign if sign.isprintable() else "?" for sign in value[:limit])


def entries(value):
    """The objects of a list of others, the first `MOST`."""
    return [entry for entry in value[:MOST] if isinstance(entry, dict)] if isinstance(value, list) else []


def tickets():
    """`[(uid, ticket)]` of the others who wait now: whose dispatcher holds the lock that its ticket names."""
    held = leases.held_names()
    found = []
    for uid, path in folders():
        ticket = read(path, "ticket.json", uid) if uid != os.getuid() else None
        lock = ticket.get("lock") if ticket else None
        if isinstance(lock, str) and len(lock) <= 100 and lock_name("dispatcher", lock) in held:
            found.append((uid, ticket))
    return found


def lent():
    """`[(uid, lease)]`: what the others say about the cards that they hold, as far as the names are really held."""
    held = leases.held_names()
    found = []
    for uid, path in folders():
        if uid == os.getuid():
            continue
        for lease in entries((read(path, "leases.json", uid) or {}).get("leases")):
            device, index = lease.get("device"), lease.get("index")
            if isinstance(device, str) and type(index) is int and card_name(device[:20], index) in held:
                found.append((uid, lease))
    return found


def publish_leases(layout, running):
    """Show which cards our running jobs hold (`running`: `jobs.running`), and those of our other roots."""
    lock = leases.bind_patiently(lock_name("share", str(os.getuid())), 0.5)
    try:
        path = own_folder()
        if path is None:
            return
        held = leases.held_names()
        ours = [_lease(layout, job_id, start, index) for job_id, start in running for index in start.get("cards") or []]
        taken = {(lease["device"], lease["index"]) for lease in ours}
        for lease in entries((read(path, "leases.json") or {}).get("leases")):
            key = (str(lease.get("device")), lease.get("index"))
            if key not in taken and lease.get("root") != layout.instance and card_name(*key) in held:
                ours.append(lease)
        publish("leases.json", {"v": 1, "leases": ours})
    finally:
        if lock is not None:
            leases.release([lock])


def _lease(layout, job_id, start, index):
    began, limit = start.get("began"), start.get("timeout_s")
    known = isinstance(began, (int, float)) and limit
    return {
        "device": start.get("device"),
        "index": index,
        "job": job_id,
        "name": start.get("name"),
        "user": user_name(),
        "since": start.get("at"),
        "until": clock.stamp(began + float(limit)) if known else None,
        "root": layout.instance,
    }


def user_name(uid=None):
    """The name of a user (us by default), or the number as text where the host has no name for it."""
    uid = os.getuid() if uid is None else uid
    try:
        import pwd

        return pwd.getpwuid(uid).pw_name
    except (ImportError, KeyError):
        return str(uid)
