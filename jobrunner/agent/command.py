"""The first process of an attempt: makes the work folder and the environment, then becomes the command.

It runs in its own session as the supervisor's child, with its output on the log. On a private descriptor it tells
the supervisor, one JSON line each, which phase it is in and why it could not go on; exec closes that.
"""

import errno
import fcntl
import json
import os
import signal

from . import command_build, env, files, jobs, kernel, runtime
from .files import AgentError

SETUP_EXIT = 125


class Plan:
    """What the supervisor knows about an attempt: ids, cards, port numbers. All plain values."""

    def __init__(self, job_id, attempt, cards, master_port=None, hccl_port=None):
        self.job_id = job_id
        self.attempt = attempt
        self.cards = cards
        self.master_port = master_port
        self.hccl_port = hccl_port


def begin(layout, plan, descriptors):
    """Become the command of a plan (the words of a `Plan`), in a process that has a session of its own.

    `descriptors`: where a byte comes once the start is committed, where to tell the supervisor, what the command writes
    to (if that is a terminal, it is the command's), and what the command inherits.
    """
    wait, status, output, *held = descriptors
    _stand_on(output)
    for descriptor in held:
        os.set_inheritable(descriptor, True)

    def committed():
        if os.read(wait, 1) != b"g":
            os._exit(0)
        os.close(wait)

    become(layout, Plan(*plan), status, committed)


def _stand_on(output):
    """Put the standard streams in place."""
    source = output
    if os.isatty(output):
        import termios

        fcntl.ioctl(output, termios.TIOCSCTTY, 0)
    else:
        source = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
    for number, stream in enumerate((source, output, output)):
        os.dup2(stream, number)
    os.close(output)


def become(layout, plan, status, committed):
    """Set up and exec; never returns. `status` is the private descriptor (not inherited over exec).

    `committed()` waits until the start is committed: before it, files of the job are read, and nothing else is done.
    """
    try:
        try:
            build, others = gather(layout, plan)
        finally:
            committed()
        argv, environment = prepare(build, others)
        os.chdir(build.work)
        _tell(status, phase="command")
        kernel.die_with_parent(0)
        _tell(status, launch="{}".format(_exec(argv, environment)))
        os._exit(SETUP_EXIT)
    except env.SetupFailed as error:
        _tell(status, setup=str(error))
        _say(str(error))
        os._exit(error.code)
    except AgentError as error:
        _tell(status, setup=error.message, full=error.code == "no_space")
        _say(error.message)
    except OSError as error:
        _tell(status, setup=str(error), full=error.errno in (errno.ENOSPC, errno.EDQUOT))
        _say(str(error))
    except BaseException as error:
        _tell(status, setup="{}: {}".format(type(error).__name__, error))
        _say("{}: {}".format(type(error).__name__, error))
    finally:
        os._exit(SETUP_EXIT)


def reset_signals():
    """Signals do to this process what they do to any."""
    for number in (
        signal.SIGHUP,
        signal.SIGINT,
        signal.SIGQUIT,
        signal.SIGTERM,
        signal.SIGPIPE,
        signal.SIGUSR1,
        signal.SIGUSR2,
        signal.SIGCHLD,
        signal.SIGXFSZ,
        signal.SIGTSTP,
        signal.SIGTTIN,
        signal.SIGTTOU,
    ):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _tell(status, **fields):
    try:
        os.write(status, json.dumps(fields).encode("ascii") + b"\n")
    except OSError:
        pass


def _say(text):
    try:
        os.write(2, b"jobrunner: " + files.to_bytes(text) + b"\n")
    except OSError:
        pass


def gather(layout, plan):
    """`(Build, {other job that the command names: its checkpoint})`: what the job's files tell."""
    request = jobs.request(layout, plan.job_id) or {}
    checkpoint, others = _resume(layout, plan.job_id, jobs.run_of(request))
    return command_build.Build(layout, plan, request, checkpoint, _say), others


def prepare(build, others):
    """`(argv, environment)` of the command, in bytes; its work folder is made. Raises SetupFailed, AgentError or
    OSError."""
    from . import worktree

    job_id, attempt = build.plan.job_id, build.plan.attempt
    worktree.materialise(build.layout, job_id, attempt, carry_from=attempt - 1 if attempt > 1 else None)
    docker = build.options.get("docker")
    if docker:
        from . import command_container

        return command_container.prepare(build, docker, others)
    return build.plain(others)


def _resume(layout, job_id, run):
    """`(path to go on from or None, {other job that the command names: path})`: told by a client, or of this host."""
    from . import notes
    from .layout import JOB_ID

    told = (files.read_json(os.path.join(layout.job(job_id), b"after.json")) or {}).get("checkpoints") or {}
    others = {}
    for name in runtime.named_jobs(run):
        path = told.get(name)
        others[name] = path or (notes.newest(layout, name) if JOB_ID.match(name) else None)
    return notes.newest(layout, job_id), others


def _exec(argv, environment):
    """Exec a command, looked up on the environment's PATH. Returns only if it failed: what is wrong, as a text."""
    name = argv[0]
    if b"/" in name:
        tried = [name]
    else:
        tried = [os.path.join(folder or b".", name) for folder in environment.get(b"PATH", b"").split(b":")]
    denied = None
    for path in tried:
        try:
            os.execve(path, argv, environment)
        except OSError as error:
            if error.errno in (errno.EACCES, errno.ENOEXEC) and os.path.isfile(path):
                denied = error
                _exec_by_interpreter(path, argv, environment)
            elif error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.EACCES):
                return "{} cannot be executed: {}".format(files.to_text(path), error.strerror)
    if denied is not None:
        return "{} cannot be executed: {}".format(files.to_text(name), denied.strerror)
    return "there is no {}{}".format(files.to_text(name), "" if b"/" in name else " on the job's PATH")


def _exec_by_interpreter(path, argv, environment):
    """A script without the x bit, or on a file system mounted noexec, through the interpreter that its `#!` names."""
    try:
        with open(path, "rb") as script:
            first = script.readline(512)
    except OSError:
        return
    if first.startswith(b"#!"):
        words = first[2:].strip().split(None, 1)
        try:
            os.execve(words[0], [*words, path, *list(argv[1:])], environment)
        except (OSError, IndexError):
            return
