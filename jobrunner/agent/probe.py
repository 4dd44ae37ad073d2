"""What this host is like: facts for `hosts check` and `doctor`. Writes one small file, which it removes again."""

import os
import stat
import sys

from . import instance
from .files import read_file, read_json, to_bytes, to_text

TOOL_S = 5.0
NETWORK = frozenset(
    ("nfs", "nfs4", "cifs", "smb3", "lustre", "gpfs", "beegfs", "ceph", "glusterfs", "fuse.sshfs", "9p", "afs")
)


def run(session, request):
    """Operation `probe`; with `deep` also the parts of `probe_deep`, which are asked meanwhile."""
    layout = session.layout
    if not request.get("deep"):
        return basic(layout)
    from . import probe_deep

    gathering = probe_deep.Gathering(session, request)
    facts = basic(layout)
    facts.update(gathering.result())
    return facts


def basic(layout):
    """The facts that take no time."""
    kind = filesystem_of(layout.root)
    return {
        "python": {"path": sys.executable, "version": "{}.{}.{}".format(*sys.version_info[:3])},
        "tmux": _tool("tmux", ["-V"]),
        "docker": _docker(),
        "disk": disk(layout.root),
        "root": {
            "path": to_text(layout.root),
            "filesystem": kind,
            "network": kind in NETWORK,
            "noexec": noexec(layout.root),
        },
        "locale": {name: os.environ.get(name) for name in ("LANG", "LC_ALL", "LC_CTYPE")},
        "login": _login(),
        "cpus": instance.cpu_count(),
        "memory_mb": _memory_mb(),
        "shell": _shell(),
        "path": os.environ.get("PATH"),
        "kernel": " ".join(os.uname()[i] for i in (0, 2, 4)),
        "os": _os_name(),
        "notify": _notify(layout.root),
        "container": os.path.exists("/.dockerenv") or os.path.exists("/run/.containerenv"),
        "others": _others(layout),
    }


def disk(path):
    """Space and names of the file system that holds `path`, for this user; `files_*` are null without a limit."""
    seen = os.statvfs(path)
    return {
        "total_bytes": seen.f_blocks * seen.f_frsize,
        "free_bytes": seen.f_bavail * seen.f_frsize,
        "files_total": seen.f_files or None,
        "files_free": seen.f_favail if seen.f_files else None,
    }


def filesystem_of(path):
    """The kind of file system that holds `path` (`ext4`, `nfs4`), or an empty text."""
    target = os.path.realpath(path)
    best, kind = b"", ""
    for line in (read_file(b"/proc/self/mounts") or b"").splitlines():
        words = line.split()
        if len(words) < 3:
            continue
        mount = words[1]
        for code, byte in ((b"\\040", b" "), (b"\\011", b"\t"), (b"\\012", b"\n"), (b"\\134", b"\\")):
            mount = mount.replace(code, byte)
        if (target == mount or target.startswith(mount.rstrip(b"/") + b"/")) and len(mount) >= len(best):
            best, kind = mount, to_text(words[2])
    return kind


def noexec(folder):
    """True if programs in `folder` cannot be executed; None if that could not be tried."""
    import subprocess

    path = os.path.join(folder, b".probe-" + os.urandom(4).hex().encode())
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o700)
        try:
            os.write(handle, b"#!/bin/sh\nexit 0\n")
        finally:
            os.close(handle)
        return (
            subprocess.call(
                [path], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=TOOL_S
            )
            != 0
        )
    except PermissionError:
        return True
    except (OSError, subprocess.TimeoutExpired):
        return None
    finally:
        try:
            os.unlink(path)
        except OSError:
            pass


def which(name):
    """The path of a program as a job would find it, or None."""
    for folder in os.environb.get(b"PATH", b"/usr/bin:/bin").split(b":"):
        path = os.path.join(folder or b".", to_bytes(name))
        if os.path.isfile(path) and os.access(path, os.X_OK):
            return to_text(path)
    return None


def _tool(name, words):
    path = which(name)
    if path is None:
        return {"path": None, "version": None, "error": None}
    text, error = _ask([path, *words])
    return {"path": path, "version": text.split("\n")[0].strip() or None, "error": error}


def _docker():
    found = _tool("docker", ["--version"])
    if found["path"]:
        text, error = _ask([found["path"], "version", "--format", "{{.Server.Version}}"])
        found.update(server=text.strip() or None, error=error)
    return found


def _ask(words):
    """`(standard output, error or None)` of a program that must not take long."""
    import subprocess

    try:
        done = subprocess.run(
            [to_bytes(word) for word in words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            timeout=TOOL_S,
        )
    except subprocess.TimeoutExpired:
        return "", "no answer within {:.0f} s".format(TOOL_S)
    except OSError as error:
        return "", error.strerror
    text = done.stdout.decode("utf-8", "replace")
    complaint = done.stderr.decode("utf-8", "replace").strip()[-300:]
    return text, (complaint or "exit code {}".format(done.returncode)) if done.returncode else None


def _login():
    """Whether processes survive the end of a session: logind's KillUserProcesses, and linger."""
    kill = None
    for path in _logind_files():
        try:
            data = read_file(path) or b""
        except OSError:
            continue
        for line in data.splitlines():
            word, _, value = line.strip().partition(b"=")
            if word.strip() == b"KillUserProcesses":
                kill = value.strip().lower() in (b"yes", b"true", b"1", b"on")
    user = instance.user_name()
    return {
        "kill_user_processes": bool(kill),
        "linger": os.path.exists(b"/var/lib/systemd/linger/" + to_bytes(user)),
        "logind": os.path.isdir("/run/systemd/seats") or os.path.isdir("/run/systemd/sessions"),
    }


def _logind_files(places=(b"/usr/lib/systemd", b"/run/systemd", b"/etc/systemd")):
    """logind's configuration in the order in which later values win: the main file, then its drop-ins by name."""
    mains = [os.path.join(place, b"logind.conf") for place in places]
    found = [path for path in mains if os.path.exists(path)][-1:]
    drops = {}
    for place in places:
        folder = os.path.join(place, b"logind.conf.d")
        try:
            names = os.listdir(folder)
        except OSError:
            continue
        drops.update((name, os.path.join(folder, name)) for name in names if name.endswith(b".conf"))
    return found + [drops[name] for name in sorted(drops)]


def _memory_mb():
    for line in (read_file(b"/proc/meminfo") or b"").splitlines():
        if line.startswith(b"MemTotal:"):
            return int(line.split()[1]) // 1024
    return None


def _shell():
    import pwd

    try:
        return pwd.getpwuid(os.geteuid()).pw_shell or "/bin/sh"
    except KeyError:
        return os.environ.get("SHELL")


def _os_name():
    for path in (b"/etc/os-release", b"/usr/lib/os-release"):
        for line in (read_file(os.path.realpath(path)) or b"").splitlines():
            if line.startswith(b"PRETTY_NAME="):
                return to_text(line.partition(b"=")[2].strip(b"\"'"))
    return None


def _notify(folder):
    """True if the kernel tells about changes in a folder; without, waiting is done by looking again and again."""
    from .watch import Watch

    watch = Watch()
    try:
        watch.folders([folder])
        return watch.notified
    finally:
        watch.close()


def _others(layout):
    """Other machines that share this root: their names."""
    found = []
    for name in sorted(os.listdir(layout.hosts)):
        path = os.path.join(layout.hosts, name)
        if name != to_bytes(layout.instance) and not name.startswith(b".") and stat.S_ISDIR(os.lstat(path).st_mode):
            known = read_json(os.path.join(path, b"instance.json"), {})
            found.append({"instance": to_text(name), "hostname": known.get("hostname")})
    return found
