"""Facts about cards beside what the vendor's tool tells: device files, groups, versions of drivers, set-up scripts."""

import glob
import os
import re
import stat

from . import env
from .accelerators import KINDS
from .files import to_bytes, to_text
from .probe import which
from .probe_deep import asked

GROUPS = ("HwHiAiUser", "docker", "render", "video")
_VERSION = re.compile(r"(?im)^\s*(?:package_)?version\s*[=:]\s*\[?([0-9][\w.]*)")


def nodes(context):
    """The device files of this host's kind of card: who may use them, and whether we may."""
    found = []
    kind = KINDS.get(context.device)
    for pattern in kind.files if kind else ():
        for path in sorted(glob.glob(pattern)):
            try:
                seen = os.stat(path)
            except OSError:
                continue
            if stat.S_ISCHR(seen.st_mode):
                found.append({"path": path, "mode": stat.S_IMODE(seen.st_mode), "group": _group(seen.st_gid),
                              "ours": os.access(path, os.R_OK | os.W_OK)})  # fmt: skip
    return {"device": context.device, "files": found[:200]}


def _group(number):
    import grp

    try:
        return grp.getgrgid(number).gr_name
    except KeyError:
        return str(number)


def groups(context):
    """Groups of this session, and those that the system's files give to the user (a session keeps its old ones)."""
    import grp
    import pwd

    user = pwd.getpwuid(os.geteuid())
    listed = {_group(user.pw_gid)}
    existing = set()
    for name in GROUPS:
        try:
            entry = grp.getgrnam(name)
        except KeyError:
            continue
        existing.add(name)
        if user.pw_name in entry.gr_mem:
            listed.add(name)
    for number in _listed_numbers(user):
        listed.add(_group(number))
    session = {_group(number) for number in os.getgroups()} | {_group(os.getegid())}
    return {"session": sorted(session), "listed": sorted(listed), "existing": sorted(existing), "user": user.pw_name}


def _listed_numbers(user):
    try:
        return os.getgrouplist(user.pw_name, user.pw_gid)
    except OSError:
        return []


def drivers(context):
    """Versions of driver, firmware and toolkit as the vendor's own files tell them; null where there is none."""
    home = os.path.expanduser(b"~")
    return versions(context.device, home)


def versions(device, home=b"/root", root=b"/"):
    """As `drivers`, below another root (tests)."""
    if device == "npu":
        return _ascend(root, home)
    toolkit = KINDS[device].toolkit if device in KINDS else None
    if toolkit is None:
        return {"driver": None, "firmware": None, "toolkit": None, "toolkit_path": None}
    folder = os.path.join(root, _toolkit_folder(toolkit, os.environb).lstrip(b"/"))
    return {"driver": _told_by(toolkit.driver, root), "firmware": None, "toolkit": _told_by(toolkit.version, folder),
            "toolkit_path": to_text(folder) if os.path.isdir(folder) else None}  # fmt: skip


def _toolkit_folder(toolkit, environ):
    """Where a toolkit lies: where its variable points, else its usual place."""
    named = environ.get(to_bytes(toolkit.variable)) if toolkit.variable else None
    return named or to_bytes(toolkit.folder)


def _told_by(source, folder):
    """The version that a file tells; `source`: the file, and an expression whose first group is the version."""
    if source is None:
        return None
    match = re.search(source[1], _text(os.path.join(folder, to_bytes(source[0].lstrip("/")))))
    return match.group(1) if match else None


def _ascend(root, home):
    top = os.path.join(root, b"usr/local/Ascend")
    install = re.search(r"(?m)^Driver_Install_Path_Param=(/\S+)", _text(os.path.join(root, b"etc/ascend_install.info")))
    base = os.path.join(root, to_bytes(install.group(1)).lstrip(b"/")) if install else top
    path, version = None, None
    tops = [top, os.path.join(home, b"Ascend")]
    tops += sorted(glob.glob(os.path.join(root, b"opt/conda/Ascend/*")), reverse=True)
    for folder in tops:
        for name in (b"cann", b"ascend-toolkit/latest", b"nnae/latest", b""):
            place = os.path.join(folder, name) if name else folder
            version = _cann_version(place)
            if version:
                path = place
                break
        if version:
            break
    return {"driver": _version_in(os.path.join(base, b"driver/version.info")),
            "firmware": _version_in(os.path.join(base, b"firmware/version.info")),
            "toolkit": version, "toolkit_path": to_text(path) if path else None}  # fmt: skip


def _cann_version(place):
    """The version of a CANN below `place`: its install record, else the name of its folder; None if it is none."""
    if not os.path.isdir(place):
        return None
    for pattern in (b"*-linux/ascend_*_install.info", b"ascend_*_install.info", b"*-linux/version.info"):
        for path in sorted(glob.glob(os.path.join(place, pattern))):
            version = _version_in(path)
            if version:
                return version
    match = re.search(r"(?:^|/)(?:cann-|ascend-toolkit/)([0-9][\w.]*)/?$", to_text(os.path.realpath(place)))
    return match.group(1) if match else None


def _version_in(path):
    match = _VERSION.search(_text(path))
    return match.group(1) if match else None


def _text(path):
    try:
        with open(path, "rb") as file:
            return file.read(65536).decode("utf-8", "replace")
    except OSError:
        return ""


def vendor(context):
    """Where the vendor's set-up, its toolkit and conda lie, as a job would find them."""
    environ = dict(os.environb)
    environ.update(env.as_bytes(context.request.get("env")))
    home = environ.get(b"HOME") or os.path.expanduser(b"~")
    kind = KINDS.get(context.device)
    toolkit = _toolkit_folder(kind.toolkit, environ) if kind and kind.toolkit else None
    base = env.conda_base(environ, home)
    return {
        "scripts": [to_text(path) for path in env.vendor_scripts(context.device, home)],
        "toolkit": to_text(toolkit) if toolkit and os.path.isdir(toolkit) else None,
        "conda": to_text(base) if base else None,
    }  # fmt: skip


def runtimes(context):
    """What the container engine tells: its runtimes, its folder and the room there; and who may use its socket."""
    socket = "/var/run/docker.sock"
    found = {"socket": None, "runtimes": None, "root": None, "root_free_bytes": None, "error": None}
    if os.path.exists(socket):
        found["socket"] = {"ours": os.access(socket, os.R_OK | os.W_OK), "group": _group(os.stat(socket).st_gid)}
    docker = which("docker")
    if docker is None:
        return found
    answer = asked([docker, "info", "--format", "{{json .}}"], context, 8.0)
    if answer.hung or answer.failure:
        found["error"] = answer.failure or "no answer in time"
        return found
    import json

    try:
        told = json.loads(answer.out)
    except ValueError:
        found["error"] = (answer.err or answer.out).strip()[:200] or "exit code {}".format(answer.code)
        return found
    if told.get("ServerErrors"):
        found["error"] = str(told["ServerErrors"][0])[:200]
        return found
    found["runtimes"] = sorted(told.get("Runtimes") or {})
    found["root"] = told.get("DockerRootDir")
    if found["root"] and os.path.isdir(found["root"]):
        room = os.statvfs(found["root"])
        found["root_free_bytes"] = room.f_bavail * room.f_frsize
    return found
