"""Running a vendor's tool: find it, give it what it needs, and end it and all it started at the time limit."""

import os
import time

MAX_OUTPUT = 4 * 1024 * 1024


class Answer:
    """What a command gave: exit `code` (None: ended at the limit), `out` and `err`, `failure`: why it did not start."""

    def __init__(self, code, out, err, failure=None):
        self.code = code
        self.out = out
        self.err = err
        self.failure = failure

    @property
    def hung(self):
        return self.code is None and self.failure is None


def find(kind, environ=None):
    """The path of the kind's tool: on PATH, else in the folders where vendors put it; None if it is nowhere."""
    environ = os.environb if environ is None else environ
    folders = [folder for folder in environ.get(b"PATH", b"").split(b":") if folder.startswith(b"/")]
    for folder in folders + [place.encode() for place in kind.places]:
        path = os.path.join(folder, kind.tool.encode())
        if os.path.isfile(path) and os.access(path, os.X_OK):
            return path
    return None


def present(kind, sys=b"/sys", root=b"/"):
    """True if the machine shows cards of this kind without its tool: on the PCI bus, or by device files."""
    if any(os.path.exists(os.path.join(root, node.lstrip("/").encode())) for node in kind.nodes):
        return True
    folder = os.path.join(sys, b"bus/pci/devices")
    try:
        names = os.listdir(folder)
    except OSError:
        return False
    for name in names:
        vendor, sort = _line(os.path.join(folder, name, b"vendor")), _line(os.path.join(folder, name, b"class"))
        if any(vendor == wanted and sort.startswith(tuple(prefixes)) for wanted, prefixes in kind.pci):
            return True
    return False


def _line(path):
    try:
        with open(path, "rb") as handle:
            return handle.read(64).decode("ascii", "replace").strip()
    except OSError:
        return ""


def environment(kind, environ=None):
    """The tool's environment: English, the driver's libraries, and no variable that hides cards from it."""
    found = dict(os.environb if environ is None else environ)
    for name in kind.unset:
        found.pop(name.encode(), None)
    for name in (b"LANGUAGE", b"LC_MESSAGES"):
        found.pop(name, None)
    found[b"LC_ALL"] = found[b"LANG"] = b"C"
    known = [part for part in found.get(b"LD_LIBRARY_PATH", b"").split(b":") if part]
    known += [part.encode() for part in kind.library_path if os.path.isdir(part) and part.encode() not in known]
    if known:
        found[b"LD_LIBRARY_PATH"] = b":".join(known)
    return found


def run(argv, environ, cwd, deadline):
    """The `Answer` of a command; when `deadline` (`time.monotonic`) passes, its whole group is killed."""
    import subprocess

    try:
        child = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environ,
            cwd=cwd,
            start_new_session=True,
            close_fds=True,
        )
    except OSError as error:
        return Answer(None, "", "", failure=os.strerror(error.errno or 0))
    try:
        out, err = _collect(child, deadline)
        code = child.poll()
    finally:
        _end(child)
    return Answer(code, _text(out), _text(err))


def _collect(child, deadline):
    """Both outputs, until the command has ended (and its pipes are empty) or the deadline."""
    import selectors

    pieces = {child.stdout: [], child.stderr: []}
    room = MAX_OUTPUT
    ended_at = None
    with selectors.DefaultSelector() as selector:
        for stream in pieces:
            selector.register(stream, selectors.EVENT_READ)
        while selector.get_map() and time.monotonic() < deadline:
            for key, _ in selector.select(min(0.05, max(0.0, deadline - time.monotonic()))):
                piece = os.read(key.fileobj.fileno(), 65536)
                if not piece:
                    selector.unregister(key.fileobj)
                pieces[key.fileobj].append(piece[: max(0, room)])
                room -= len(piece)
            if child.poll() is not None:
                # Something that the command left running may hold the pipes for ever.
                ended_at = ended_at or time.monotonic()
                if time.monotonic() - ended_at > 0.3:
                    break
    while child.poll() is None and time.monotonic() < deadline:
        time.sleep(0.005)
    return b"".join(pieces[child.stdout]), b"".join(pieces[child.stderr])


def _end(child):
    """Kill what is left of the command's group. A process that hangs in the driver may stay for the kernel to end."""
    import signal

    try:
        os.killpg(child.pid, signal.SIGKILL)
    except OSError:
        pass
    until = time.monotonic() + 1.0
    while child.poll() is None and time.monotonic() < until:
        time.sleep(0.005)
    child.stdout.close()
    child.stderr.close()
    if child.returncode is None:
        # It cannot be waited for; without this subprocess would warn about it for ever.
        child.returncode = -int(signal.SIGKILL)


def _text(data):
    return data.decode("utf-8", "replace")


def private_folder():
    """A new folder of our own for tools that write where they stand; None if there is no place for one."""
    for base in (os.environb.get(b"TMPDIR"), b"/tmp", b"/var/tmp", b"/dev/shm"):
        if base and base.startswith(b"/"):
            path = os.path.join(base, b".jobrunner-cards-" + os.urandom(8).hex().encode())
            try:
                os.mkdir(path, 0o700)
                return path
            except OSError:
                continue
    return None


def remove_folder(path):
    """Remove the private folder and the files that the tool left there."""
    try:
        for name in os.listdir(path):
            os.unlink(os.path.join(path, name))
        os.rmdir(path)
    except OSError:
        pass
