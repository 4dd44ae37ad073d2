"""Processes: who they are, which belong to a job, and how one of ours is started.

A pid alone proves nothing. A process is known by pid, start ticks (`/proc/PID/stat`, field 22) and boot id. A job's
processes are found by three marks: `JOBRUNNER_JOB_ID` in their environment, descent from the job's supervisor (a
subreaper, so orphans stay its descendants), and the session that the job's command opened.
"""

import errno
import os
import sys

from . import clock

MARK = b"JOBRUNNER_JOB_ID="
OWN_MARK = b"JOBRUNNER_AGENT"  # in the environment of our own processes, which never belong to a job by descent alone


class Process:
    """One line of `/proc`. `job` is the id in its environment, or None; `own`: it is one of the agent's."""

    __slots__ = ("job", "own", "pgid", "pid", "ppid", "sid", "state", "ticks")

    def __init__(self, pid, state, ppid, pgid, sid, ticks):
        self.pid = pid
        self.state = state
        self.ppid = ppid
        self.pgid = pgid
        self.sid = sid
        self.ticks = ticks
        self.job = None
        self.own = False


def read(pid):
    """The `Process` of a pid, or None if there is none."""
    data = _slurp("/proc/{}/stat".format(pid), 1024)
    if not data:
        return None
    fields = data[data.rfind(b")") + 2 :].split()
    if len(fields) < 20:
        return None
    return Process(int(pid), fields[0], int(fields[1]), int(fields[2]), int(fields[3]), int(fields[19]))


def _slurp(path, limit):
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        pieces = []
        while limit > 0:
            size = min(limit, 8192)
            pieces.append(os.read(handle, size))
            if len(pieces[-1]) < size:
                break  # of these files the kernel gives as much as was asked for, or the rest
            limit -= size
        return b"".join(pieces)
    except OSError:
        return b""
    finally:
        os.close(handle)


def job_of(pid):
    """The job id that a process carries in its environment, or None (also where we may not look)."""
    return _marks(pid)[0]


def _marks(pid):
    data = b"\0" + _slurp("/proc/{}/environ".format(pid), 4 << 20)
    own = b"\0" + OWN_MARK + b"=" in data
    at = data.find(b"\0" + MARK)
    if at < 0:
        return None, own
    at += 1 + len(MARK)
    end = data.find(b"\0", at)
    return data[at : end if end >= 0 else len(data)].decode("ascii", "replace") or None, own


def identity(pid=None):
    """`{pid, ticks, boot_id}` of a process (ours by default), or None if it is gone."""
    process = read(os.getpid() if pid is None else pid)
    if process is None:
        return None
    return {"pid": process.pid, "ticks": process.ticks, "boot_id": clock.boot_id()}


def alive(who):
    """True if the process of an `identity` still runs (a zombie does not)."""
    if not isinstance(who, dict) or who.get("boot_id") not in (None, clock.boot_id()):
        return False
    process = read(who.get("pid") or 0)
    return process is not None and process.ticks == who.get("ticks") and process.state not in (b"Z", b"X")


def scan(with_jobs=True):
    """All live processes that we may see, as a list of `Process`. Zombies are left out."""
    found = []
    mine = os.getuid()
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        process = read(name)
        if process is None or process.state in (b"Z", b"X"):
            continue
        if with_jobs and _uid(name) in (mine, None):
            process.job, process.own = _marks(name)
        found.append(process)
    return found


def _uid(name):
    try:
        return os.stat("/proc/" + name).st_uid
    except OSError:
        return None


def carriers(processes=None):
    """`{job id: [Process]}` of the live processes that carry a job's id in their environment."""
    found = {}
    for process in scan() if processes is None else processes:
        if process.job:
            found.setdefault(process.job, []).append(process)
    return found


def childless():
    """True if this process has no children, ended ones included."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return True
    return False


def carrying(job_id):
    """The live processes with a job's id in their environment, as `of_job` finds them by that mark alone."""
    mark, mine, found = b"\0" + MARK + job_id.encode("ascii") + b"\0", os.getuid(), []
    for name in os.listdir("/proc"):
        if not name.isdigit() or mark not in b"\0" + _slurp("/proc/" + name + "/environ", 4 << 20) + b"\0":
            continue
        if _uid(name) in (mine, None) and int(name) != os.getpid():
            process = read(name)
            if process is not None and process.state not in (b"Z", b"X"):
                process.job = job_id
                found.append(process)
    return found


def of_job(job_id, command=None, supervisor=None, processes=None, spare=()):
    """The live processes of a job (see the module's three marks).

    `command` is the identity of the job's first process (its pid is its session), `supervisor` the pid whose
    descendants belong to the job, `spare` pids (and what descends from them) that never do.
    """
    processes = scan() if processes is None else processes
    spare = set(spare) | {os.getpid()}
    if supervisor is not None:
        spare.add(supervisor)
    session = None
    if isinstance(command, dict) and command.get("boot_id") in (None, clock.boot_id()):
        session = (command.get("pid"), command.get("ticks"))
        if any(process.pid == session[0] and process.ticks != session[1] for process in processes):
            session = None  # the pid is somebody else's by now, and so is the session that bears its number
    family = _descendants(supervisor, processes, spare) if supervisor is not None else set()
    found = []
    for process in processes:
        if process.pid in spare:
            continue
        mine = process.job == job_id or process.pid in family
        if not mine and session is not None and process.sid == session[0]:
            mine = process.pid != session[0] or process.ticks == session[1]
            mine = mine and process.ticks >= session[1]
        if mine:
            found.append(process)
    return found


def _descendants(root, processes, spare):
    children = {}
    for process in processes:
        if not process.own or process.job:
            children.setdefault(process.ppid, []).append(process.pid)
    found, todo = set(), [root]
    while todo:
        for pid in children.get(todo.pop(), ()):
            if pid not in spare and pid not in found:
                found.add(pid)
                todo.append(pid)
    return found


def send(process, number):
    """Signal a process only if it is still the same one. True if it was there."""
    now = read(process.pid)
    if now is None or now.ticks != process.ticks:
        return False
    try:
        os.kill(process.pid, number)
        return True
    except OSError as error:
        if error.errno == errno.ESRCH:
            return False
        if error.errno == errno.EPERM:
            return True
        raise


def command_line(pid):
    """The command of a process for a message: its words, at most 200 characters, control characters replaced."""
    words = _slurp("/proc/{}/cmdline".format(pid), 4096).replace(b"\0", b" ").decode("utf-8", "replace").strip()
    return "".join(c if c.isprintable() else "?" for c in words)[:200]


def empty(descriptor):
    """Read a non-blocking pipe until nothing is in it."""
    try:
        while os.read(descriptor, 4096):
            pass
    except BlockingIOError:
        pass


def close_all_but(keep):
    """Close every descriptor but those; 0, 1 and 2 are opened on /dev/null where they are missing from `keep`."""
    keep = set(keep)
    for name in os.listdir("/proc/self/fd"):
        number = int(name)
        if number not in keep:
            try:
                os.close(number)
            except OSError:
                pass
    for number in (0, 1, 2):
        if number in keep:
            continue
        null = os.open("/dev/null", os.O_RDWR)
        if null != number:
            os.dup2(null, number)
            os.close(null)
        os.set_inheritable(number, True)


_DROPPED = (
    b"JOBRUNNER_JOB_",
    b"JOBRUNNER_ATTEMPT",
    b"JOBRUNNER_DEVICE",
    b"JOBRUNNER_CARDS",
    b"JOBRUNNER_NUM_CARDS",
    b"JOBRUNNER_OUTPUT_DIR",
    b"JOBRUNNER_RESUME_FROM",
    b"SSH_",
    b"TMUX=",
    b"TMUX_PANE=",
    b"DISPLAY",
    b"PYTHON",
)


def own_environment():
    """The environment of our own processes on the host: nothing of a job, nothing of a session."""
    # Every vendor's variable ends so; to ask the registry here would cost long-lived processes its memory.
    kept = {name: value for name, value in os.environb.items() if not name.endswith(b"_VISIBLE_DEVICES")}
    kept = {name: value for name, value in kept.items() if not (name + b"=").startswith(_DROPPED)}
    kept[OWN_MARK] = b"1"
    kept[b"LC_ALL"] = b"C"  # argument words and the vendors' tools read the same everywhere
    return kept


def agent_place():
    """`(path, package, hash)`: what goes on `sys.path` so that this very agent is found, and the hash in its name."""
    package = __name__.rpartition(".")[0]
    place = os.path.abspath(__file__)
    for _ in range(package.count(".") + 2):
        place = os.path.dirname(place)
    name = os.path.basename(place)
    if name.endswith(".pyz"):
        name = name[: -len(".pyz")]
    known = name[len("agent-") :] if name.startswith("agent-") else ""
    return place, package, known


_START = "import sys; sys.path.insert(0, sys.argv[1]); from {}.{} import main; sys.exit(main(sys.argv[3:]))"


def agent_argv(module, words, place=None):
    """The command that runs `main(words)` of one of the agent's modules (of this agent, or of the zipapp `place`)."""
    own, package, _ = agent_place()
    return [
        sys.executable or "python3",
        "-I",
        "-S",
        "-c",
        _START.format(package, module),
        place or own,
        "jobrunner-" + module,
    ] + [str(word) for word in words]


def to_argv(words):
    """Words for exec: text as the bytes it stands for."""
    from .files import to_bytes

    return [to_bytes(word) for word in words]


def spawn_detached(argv, keep=(), errors_to=None):
    """Run a command as nobody's child: own session, no terminal, descriptors closed but `keep`, cwd /.

    `errors_to` (path) gets its standard error. Returns once it has been started; its success shows elsewhere.
    """
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    try:
        os.setsid()
        if os.fork():
            os._exit(0)
        detach(keep, errors_to)
        for lock in keep:
            os.set_inheritable(lock, True)
        words = to_argv(argv)
        os.execve(words[0], words, own_environment())
    finally:
        os._exit(127)


def output(argv, environment, wait=True):
    """`(exit status or None, what it printed)` of a short command, looked up on the environment's PATH; 127: not there.

    Its standard input and error are /dev/null. With `wait=False` it is only started.
    """
    read_end, write_end = os.pipe()
    child = os.fork()
    if not child:
        try:
            null = os.open("/dev/null", os.O_RDWR)
            os.dup2(null, 0)
            os.dup2(write_end if wait else null, 1)
            os.dup2(null, 2)
            words = to_argv(argv)
            for folder in environment.get(b"PATH", b"/usr/local/bin:/usr/bin:/bin").split(b":"):
                try:
                    os.execve(os.path.join(folder, words[0]), words, environment)
                except OSError:
                    continue
        finally:
            os._exit(127)
    os.close(write_end)
    try:
        return _answer_of(child, read_end) if wait else (None, b"")
    finally:
        os.close(read_end)


def _answer_of(child, read_end):
    pieces = []
    while True:
        piece = os.read(read_end, 65536)
        if not piece:
            break
        pieces.append(piece)
    try:
        status = os.waitpid(child, 0)[1]
    except ChildProcessError:
        return 0, b"".join(pieces)
    return os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status), b"".join(pieces)


def detach(keep=(), errors_to=None):
    """Leave the terminal's signals, the working folder and all descriptors but `keep` behind."""
    import signal

    close_all_but(keep)
    os.chdir("/")
    os.umask(0o077)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if errors_to is not None:
        try:
            handle = os.open(errors_to, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
            if os.fstat(handle).st_size > 1 << 20:
                os.ftruncate(handle, 0)
            os.dup2(handle, 2)
            os.close(handle)
        except OSError:
            pass
