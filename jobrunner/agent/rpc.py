"""One channel: read requests, run operations, write answers. Nothing else can print into the stream.

An operation is a function `run(session, request) -> dict` of a module that is imported only when it is asked for.
"""

import errno
import importlib
import os
import select
import sys
import time

from . import wire
from .files import AgentError, to_bytes, to_text

# operation: module of this package, and the function there
OPERATIONS = {
    "look": "look.run",
    "stage": "stage.run",
    "clone": "stage.run_clone",
    "tombstone": "stage.run_tombstone",
    "take_back": "moved.run_take_back",
    "tail": "tail.run",
    "stop": "stop.run",
    "wish": "wish.run",
    "wait": "wait.run",
    "resolve": "resolve.run",
    "give": "give.run",
    "checkpoints": "checkpoints.run",
    "promote": "promote.run",
    "promoted": "promote.run_promoted",
    "rollback": "promote.run_rollback",
    "collect": "collect.run",
    "ranges": "ranges.run",
    "parts": "parts.run",
    "drain": "drain.run",
    "why": "why.run",
    "attach": "pane.run",
    "records": "records.run",
    "gc": "gc.run",
    "probe": "probe.run",
    "diagnose": "diagnose.run",
}
WARM = ()  # operations that are likely to come first: what they need is loaded while nothing has come yet
IDLE_S = 900.0  # a client that has said nothing for so long is gone, or will open another channel
GATHER_S = 1.0  # frames that are gathered leave after so long at the latest


class ClientGone(Exception):
    """The other end of the channel is closed: there is nobody left to answer."""


class Session:
    """One channel: what an operation needs to talk to its client and to know where it is."""

    def __init__(self, root, agent_hash="", stdin=0, stdout=1, idle_s=IDLE_S):
        self.root = root
        self.agent = agent_hash
        self.stdin = stdin
        self._out = stdout
        self._idle_s = idle_s
        self._buffer = b""
        self._pushed = None
        self._attached = None
        self._greeted_frame = False
        self._greeted_answer = False
        self._reader = wire.Reader(self._read)
        self._kept = None

    @property
    def attached(self):
        """The instance (see `instance.Instance`): made at the first use, so at the host's first contact."""
        if self._attached is None:
            from . import instance

            self._attached = instance.attach(self.root)
        return self._attached

    @property
    def layout(self):
        """Where this instance's files are."""
        return self.attached.layout

    def host(self):
        """The facts about this machine that go with the first answer."""
        from . import instance

        return instance.facts(self.attached, self.agent)

    # reading

    def _read(self, count):
        if not self._buffer:
            ready, _, _ = select.select([self.stdin], [], [], self._idle_s)
            if not ready:
                raise ClientGone("silent for {:.0f} s".format(self._idle_s))
            self._buffer = os.read(self.stdin, max(count, 1 << 16))
        piece, self._buffer = self._buffer[:count], self._buffer[count:]
        return piece

    def pending(self):
        """True if input was read already that no frame was made of yet: `select` would not tell."""
        return bool(self._buffer) or self._pushed is not None

    def gone(self):
        """True if the client has closed its side; nothing is waited for."""
        ready, _, _ = select.select([self.stdin], [], [], 0)
        if ready and not self._buffer:
            self._buffer = os.read(self.stdin, 1 << 16)
            return not self._buffer
        return False

    def read_frame(self):
        """The next `(kind, payload)`, or None when the client has closed its side."""
        if self._pushed is not None:
            frame, self._pushed = self._pushed, None
            return frame
        try:
            return self._reader.frame()
        except wire.WireError as error:
            if "stream ended" in str(error):
                return None
            raise AgentError("bad_frame", "the client sent what is no frame: {}".format(error)) from None

    def push_back(self, frame):
        """Keep a frame for the next `read_frame`."""
        self._pushed = frame

    def read_json(self):
        """The next frame, which has to be a JSON object; None when the client has closed its side."""
        frame = self.read_frame()
        if frame is None:
            return None
        if frame[0] != b"J":
            raise AgentError("bad_frame", "expected a JSON frame, got {!r}".format(frame[0]))
        return parse(frame[1])

    # writing

    def gather(self):
        """From now on small frames leave many at once, until `leave`: a write each would cost more than that. None is
        kept long, since the client waits no longer for a host that says nothing."""
        self._kept, self._left_at = bytearray(), time.monotonic()

    def leave(self):
        """What was gathered leaves, and all that follows at once."""
        kept, self._kept = self._kept, None
        self._write(kept)

    def _write(self, *parts):
        if self._kept is not None:
            self._kept += b"".join(parts)
            if len(self._kept) < wire.CHUNK and time.monotonic() - self._left_at < GATHER_S:
                return
            parts, self._kept, self._left_at = [self._kept], bytearray(), time.monotonic()
        views = [memoryview(part) for part in parts]
        try:
            while views:
                done = os.writev(self._out, views)
                while views and done >= len(views[0]):
                    done -= len(views.pop(0))
                if views:
                    views[0] = views[0][done:]
        except OSError as error:
            if error.errno in (errno.EPIPE, errno.ECONNRESET, errno.EBADF):
                raise ClientGone("the channel is closed") from None
            raise

    def send_json(self, message):
        """Send one J frame. The very first frame of a channel says which host it comes from."""
        if not self._greeted_frame:
            message = dict(message, host=self.host())
            self._greeted_frame = True
        self._write(wire.pack_json(message))

    def send_bytes(self, data):
        """Send a piece of a stream as B frames. An empty piece sends nothing."""
        view = memoryview(data)
        while view:
            piece = view[: wire.BLOCK]
            view = view[wire.BLOCK :]
            self._write(wire.head(b"B", len(piece)), piece)

    def send_range(self, handle, at, count):
        """Send `count` bytes of a file as one B frame, copied by the kernel where it can; False if it was too short
        (the frame is filled up with zeros)."""
        self._write(wire.head(b"B", count))
        left = count
        while left:
            try:
                moved = os.sendfile(self._out, handle, at + count - left, left)
            except OSError as error:
                if error.errno in (errno.EPIPE, errno.ECONNRESET, errno.EBADF):
                    raise ClientGone("the channel is closed") from None
                block = os.pread(handle, min(left, wire.CHUNK), at + count - left)  # not between these two
                self._write(block)
                moved = len(block)
            if not moved:
                self._write(bytes(left))
                return False
            left -= moved
        return True

    def send_end(self):
        """Send the end of a stream."""
        self._write(wire.pack(b"E", b""))

    def reply(self, data):
        """Send the answer that ends a request."""
        self._answer({"v": 1, "ok": True, "data": data})

    def reply_error(self, error):
        """Send the answer that ends a request which failed."""
        self._answer({"v": 1, "ok": False, "error": error.as_json()})

    def _answer(self, message):
        if not self._greeted_answer:
            try:
                message["host"] = self.host()
            except (AgentError, OSError):
                # The root cannot be used: that is what the answer itself says.
                self._greeted_frame = True
            self._greeted_answer = True
            self._greeted_frame = True
        self._write(wire.pack_json(message))


def parse(payload):
    """The JSON object of a J frame, or AgentError."""
    import json

    try:
        message = json.loads(payload.decode("utf-8"))
    except ValueError:
        message = None
    if not isinstance(message, dict):
        raise AgentError("bad_request", "a request has to be a JSON object")
    return message


def operation(name):
    """The function of an operation, or AgentError `unknown_op`."""
    target = OPERATIONS.get(name) if isinstance(name, str) else None
    if target is None:
        raise AgentError(
            "unknown_op",
            "this agent knows no operation {!r}".format(name),
            "Use the same version of jobrunner everywhere, or update the older one.",
        )
    module, function = target.split(".")
    return getattr(importlib.import_module("." + module, __package__), function)


def answer(session, request):
    """Do one request and send its answer. Errors are answers; only a client that is gone is raised."""
    try:
        function = operation(request.get("op"))
        wanted = request.get("instance")
        if wanted and wanted != session.attached.id:
            raise AgentError(
                "other_machine",
                "this is another machine than the one that was asked for: {} has the instance {}, not {}".format(
                    session.attached.hostname, session.attached.id, wanted
                ),
                "Look where the alias leads now; jobs stay with the machine that has them.",
            )
        if request.get("cancel"):
            from . import stop

            stop.apply_wishes(session.layout, request["cancel"])
        session.reply(function(session, request))
    except ClientGone:
        raise
    except AgentError as error:
        session.reply_error(error)
    except OSError as error:
        session.reply_error(from_oserror(error, session.root))
    except Exception as error:  # whatever it is, the client is told, and the channel goes on
        session.reply_error(unexpected(error, request))


def from_oserror(error, root):
    """The named error for what a file system says, with the mount and what is free there."""
    number = error.errno
    path = error.filename if isinstance(error.filename, (str, bytes)) else root
    shown = to_text(path)
    if number in (errno.ENOSPC, errno.EDQUOT):
        from . import blobs

        return blobs.no_space(path, quota=number == errno.EDQUOT)
    if number == errno.EROFS:
        return AgentError(
            "read_only",
            "{} is on a read-only file system".format(shown),
            "Set `root` of this host to a folder that can be written.",
        )
    if number in (errno.EACCES, errno.EPERM):
        return AgentError(
            "permission",
            "{}: {}".format(shown, os.strerror(number)),
            "Give the folder back to the user that jobs run as.",
        )
    if number == errno.ENOENT:
        return AgentError("gone", "{} is not there (any more)".format(shown))
    if number in (errno.EIO, errno.ESTALE):
        return AgentError(
            "storage",
            "{}: {}".format(shown, os.strerror(number)),
            "The host's storage is faulty or was unmounted: ask its administrator.",
        )
    if number in (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN):
        return AgentError(
            "exhausted",
            "the host ran out of {}".format(
                "memory or processes" if number in (errno.ENOMEM, errno.EAGAIN) else "open files"
            ),
        )
    return unexpected(error, {})


def unexpected(error, request):
    """Code `internal`: what kind of error, where in the agent, and its text without any value of an environment."""
    import traceback

    places = []
    for frame in traceback.extract_tb(error.__traceback__)[-5:]:
        places.append("{}:{} {}".format(os.path.basename(frame[0]), frame[1], frame[2]))
    text = scrubbed(str(error)[:300], request)
    message = "the agent failed: {}: {} (at {})".format(type(error).__name__, text, " < ".join(reversed(places)))
    return AgentError("internal", message, "This is a fault of jobrunner: please report it with this text.")


def scrubbed(text, request):
    """`text` without the values of the request's secrets and environments, and of our own environment."""
    values = {to_text(value) for value in os.environb.values()}
    for job in [request] + [job for job in _list(request.get("jobs")) if isinstance(job, dict)]:
        inner = job.get("request") if isinstance(job.get("request"), dict) else {}
        run = inner.get("run") if isinstance(inner.get("run"), dict) else {}
        for table in (job.get("secrets"), run.get("env"), run.get("host_env")):
            if isinstance(table, dict):
                values.update(str(value) for value in table.values())
    for value in sorted(values, key=len, reverse=True):
        if len(value) > 3:
            text = text.replace(value, "…")
    return text


def _list(value):
    return value if isinstance(value, list) else []


def serve(root, agent_hash="", fence="", stdin=None, stdout=None, idle_s=IDLE_S):
    """Answer requests from standard input on standard output until the input ends. Never raises for a client's fault.

    With `fence`, the line that separates us from what a login shell printed is written first.
    """
    os.umask(0o077)
    if stdin is None:
        stdin, stdout = take_streams()
    session = Session(root, agent_hash, stdin, stdout, idle_s)
    if fence:
        session._write(("\n" + fence + "\nH\n").encode("ascii"))
    _mark_agent(session)
    try:
        _get_ready(session, WARM)
        while True:
            frame = session.read_frame()
            if frame is None:
                return
            # Pieces of an upload that failed, and controls of a transfer that ended, may still come in: passed over.
            if frame[0] != b"J":
                continue
            try:
                request = parse(frame[1])
            except AgentError as error:
                session.reply_error(error)
                continue
            if "op" in request:
                answer(session, request)
    except ClientGone:
        return
    except AgentError as error:
        try:
            session.reply_error(error)
        except ClientGone:
            return


def _get_ready(session, warm):
    """Load operations, and what they load when they run. What goes wrong is told when it is asked for."""
    try:
        for name in warm:
            module = sys.modules[operation(name).__module__]
            for inner in getattr(module, "LATER", ()):
                importlib.import_module("." + inner, __package__)
            session.host()
    except (AgentError, ImportError, OSError):
        pass


def take_streams():
    """Move the channel away from descriptors 0 and 1, which become /dev/null: `(stdin, stdout)`, both close-on-exec."""
    stdin, stdout = os.dup(0), os.dup(1)
    null = os.open(b"/dev/null", os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    os.close(null)
    return stdin, stdout


def _mark_agent(session):
    """Note that this version is in use (once a day): cleaning spares agents that somebody used lately."""
    if not session.agent:
        return
    name = b"agent-" + to_bytes(session.agent) + b".pyz"
    path = os.path.join(os.path.expanduser(to_bytes(session.root)), b"agent", name)
    try:
        if time.time() - os.stat(path).st_mtime > 86400:
            os.utime(path)
    except OSError:
        pass


def main(argv):
    """`agent rpc ROOT [HASH [FENCE]]`."""
    serve(argv[0], *argv[1:3])
    return 0
