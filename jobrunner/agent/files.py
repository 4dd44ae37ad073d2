"""Files on the host: published by rename, read with tolerance, never followed out of their folder."""

import errno
import json
import os


class AgentError(Exception):
    """An error that the client shows to a person: a stable code, one sentence, and what to do now."""

    def __init__(self, code, message, remedy=""):
        Exception.__init__(self, message)
        self.code = code
        self.message = message
        self.remedy = remedy

    def as_json(self):
        return {"code": self.code, "message": self.message, "remedy": self.remedy}


def to_bytes(text):
    """A path or value as the bytes it stands for (UTF-8, lone surrogates are the bytes they escape)."""
    return text if isinstance(text, bytes) else text.encode("utf-8", "surrogateescape")


def to_text(data):
    """The text of a path or value, from which `to_bytes` gives the same bytes again."""
    return data if isinstance(data, str) else data.decode("utf-8", "surrogateescape")


def make_dir(path, mode=0o700):
    """Create a folder and its parents (0700), quietly if it is there already."""
    try:
        os.makedirs(path, mode)
    except OSError as error:
        if error.errno != errno.EEXIST or not os.path.isdir(path):
            raise


def write_file(path, data, mode=0o600, sync=True):
    """Publish `data` under `path`: written aside, synced, renamed. Readers see the old file or the new one."""
    aside = _aside(path)
    try:
        write_new(aside, data, mode, sync)
        os.rename(aside, path)
    except BaseException:
        try:
            os.unlink(aside)
        except OSError:
            pass
        raise


def write_new(path, data, mode=0o600, sync=False):
    """Write a file that is not there yet, where nobody looks before it is whole: aside, or in a folder of our own."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        if mode & 0o077:
            os.fchmod(handle, mode)  # what others are to read, they can, whatever our umask is
        view = memoryview(data)
        while view:
            view = view[os.write(handle, view) :]
        if sync:
            os.fsync(handle)
    finally:
        os.close(handle)


def _aside(path):
    return path + b"." + str(os.getpid()).encode() + os.urandom(3).hex().encode() + b".tmp"


def json_bytes(value):
    """A JSON value as our files have it."""
    return json.dumps(value, separators=(",", ":"), sort_keys=True).encode("ascii")


def secure(path):
    """Make sure that a file which was published without `sync`, and its name, are on the disk."""
    for place, flags in ((path, 0), (os.path.dirname(path), os.O_DIRECTORY)):
        handle = os.open(place, os.O_RDONLY | os.O_CLOEXEC | flags)
        try:
            os.fsync(handle)
        except OSError as error:
            if error.errno != errno.EINVAL or not flags:  # some file systems cannot sync a folder
                raise
        finally:
            os.close(handle)


_PROMISING = (b"ext4", b"ext3", b"xfs", b"btrfs", b"f2fs", b"tmpfs", b"overlay", b"zfs", b"bcachefs")
_known = {}


def promises_room(path):
    """True for a file system that takes the room for what is written at once, so that no later sync can find it full.

    Of a network's file system that is not known: there a write that went well may still fail.
    """
    device = os.stat(path).st_dev
    if device not in _known:
        number = b"%d:%d" % (os.major(device), os.minor(device))
        try:
            with open("/proc/self/mountinfo", "rb") as table:
                lines = [line.split() for line in table]
        except OSError:
            lines = []
        kinds = {line[line.index(b"-") + 1] for line in lines if len(line) > 4 and line[2] == number and b"-" in line}
        _known[device] = bool(kinds) and kinds <= set(_PROMISING)
    return _known[device]


def write_json(path, value, mode=0o600, sync=True):
    """`write_file` for a JSON value."""
    write_file(path, json_bytes(value), mode, sync)


def create_json(path, value, mode=0o600):
    """Publish a JSON file only if nothing has that name yet. True if it is ours, False if one was there before."""
    aside = _aside(path)
    try:
        write_new(aside, json_bytes(value), mode, sync=True)
        os.link(aside, path)
        return True
    except FileExistsError:
        return False
    finally:
        try:
            os.unlink(aside)
        except FileNotFoundError:
            pass


def read_file(path, limit=64 * 1024 * 1024):
    """The bytes of a regular file, or None if it is missing. A link in the last place is not followed."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        if error.errno == errno.ELOOP:
            return None
        raise
    try:
        pieces = []
        while limit > 0:
            piece = os.read(handle, min(limit, 1 << 20))
            if not piece:
                break
            pieces.append(piece)
            limit -= len(piece)
        return b"".join(pieces)
    finally:
        os.close(handle)


def digest(data):
    """SHA-256 of some bytes as text. Unlike `hashlib` its module costs neither time nor memory."""
    for name in ("_sha2", "_sha256"):  # of Python 3.12 and newer; of older ones
        try:
            return __import__(name).sha256(data).hexdigest()
        except (ImportError, AttributeError):
            continue
    import hashlib

    return hashlib.sha256(data).hexdigest()


def read_json(path, default=None):
    """The JSON value of a file; `default` if it is missing, empty, cut short or not JSON."""
    data = read_file(path)
    if not data:
        return default
    try:
        return json.loads(data.decode("utf-8"))
    except ValueError:
        return default


def append_line(path, value, mode=0o600):
    """Append one JSON value as a line, in a single write (whole lines even from several processes).

    A line that a full disk has cut is left as it is, and the next one begins on a line of its own.
    """
    line = json.dumps(value, separators=(",", ":")).encode("ascii") + b"\n"
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, mode)
    try:
        size = os.fstat(handle).st_size
        if size and os.pread(handle, 1, size - 1) != b"\n":
            line = b"\n" + line
        if os.write(handle, line) != len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
    finally:
        os.close(handle)


def read_lines(path, offset=0, limit=16 * 1024 * 1024):
    """`(values, next_offset)` of the whole JSON lines of a file from a byte offset on; odd lines are passed over."""
    values = []
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return values, offset
    try:
        data = os.pread(handle, limit, offset)
    finally:
        os.close(handle)
    end = data.rfind(b"\n") + 1
    for line in data[:end].splitlines():
        try:
            values.append(json.loads(line.decode("utf-8")))
        except ValueError:
            continue
    return values, offset + end
