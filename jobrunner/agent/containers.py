"""Containers of jobs: found by their label, reached through the client that started them. A container is no child of
ours, and it outlives everybody.

An attempt that runs in one has `container.json`: `{client, env, image, visible}`; `visible` says that its processes run
as this user, so that /proc shows them, too.
"""

import os

from . import files, jobs, procs

LABEL = "jobrunner.job"
ATTEMPT = "jobrunner.attempt"
CLIENTS = (b"docker", b"podman", b"nerdctl")
LIMIT_S = 20.0
SHORT_S = 5.0  # for the dispatcher, which has others to serve
UNKNOWN = (None, "?")  # stands for containers that may be there: the engine does not answer
# What a client needs to find its engine.
_CLIENT_ENV = (
    b"DOCKER_HOST", b"DOCKER_CONTEXT", b"DOCKER_CONFIG", b"DOCKER_CERT_PATH", b"DOCKER_TLS_VERIFY", b"CONTAINER_HOST",
    b"CONTAINERD_ADDRESS", b"CONTAINERD_NAMESPACE", b"HOME", b"PATH",
)  # fmt: skip


def find_client(environment, exists=os.access):
    """The path of the first container client on an environment's PATH, or None."""
    for name in CLIENTS:
        for folder in environment.get(b"PATH", b"").split(b":"):
            path = os.path.join(folder, name)
            if folder and exists(path, os.X_OK) and not os.path.isdir(path):
                return path
    return None


def engine_of(client, environment):
    """What has to be kept of a client to find the same engine again: `{client, env}`, JSON."""
    kept = {files.to_text(name): files.to_text(environment[name]) for name in _CLIENT_ENV if name in environment}
    return {"client": files.to_text(client), "env": kept}


def record(layout, job_id, attempt, engine, image, visible):
    """Note, before the container is made, through which engine it is found."""
    path = os.path.join(layout.attempt(job_id, attempt), b"container.json")
    files.write_json(path, dict(engine, image=image, visible=visible))
    known = engines(layout)
    if engine not in known:
        files.write_json(os.path.join(layout.home, b"containers"), [*known, engine][-8:], sync=False)


def engines(layout):
    """The engines that jobs were given to here."""
    known = files.read_json(os.path.join(layout.home, b"containers"), [])
    return [entry for entry in known if isinstance(entry, dict) and entry.get("client")] if known else []


def recorded(layout, job_id, attempt=None):
    """`container.json` of an attempt (the newest by default), or None if it never came to a container."""
    numbers = [attempt] if attempt else jobs.attempts(layout, job_id)[-1:]
    return jobs.read_dict(os.path.join(layout.attempt(job_id, numbers[0]), b"container.json")) if numbers else None


def ask(engine, words, limit_s=LIMIT_S):
    """What the engine's client prints for these words, or None if it failed, hung or is not there."""
    environment = procs.own_environment()
    environment.update((files.to_bytes(name), files.to_bytes(value)) for name, value in engine["env"].items())
    status, output = run([engine["client"], *list(words)], environment, limit_s)[:2]
    return output if status == 0 else None


def run(words, environment, limit_s):
    """`(exit status, what it printed, its errors)` of a client; the status is None where it was killed at the limit."""
    import select
    import time

    ends = time.monotonic() + limit_s
    pipes = os.pipe(), os.pipe()
    child = os.fork()
    if not child:
        _become(words, environment, pipes)
    for pair in pipes:
        os.close(pair[1])
    pieces = {pair[0]: [] for pair in pipes}
    poller = select.poll()
    for descriptor in pieces:
        poller.register(descriptor, select.POLLIN | select.POLLHUP)
    open_ends = set(pieces)
    try:
        while open_ends and time.monotonic() < ends:
            for descriptor, _ in poller.poll(max(1, int((ends - time.monotonic()) * 1000))):
                piece = os.read(descriptor, 65536)
                pieces[descriptor].append(piece)
                if not piece:
                    poller.unregister(descriptor)
                    open_ends.discard(descriptor)
        if open_ends:
            os.kill(child, 9)
        status = _status(child)
    finally:
        for descriptor in pieces:
            os.close(descriptor)
    out, err = (b"".join(pieces[pair[0]]) for pair in pipes)
    return (None if open_ends else status), out, err


def _become(words, environment, pipes):
    try:
        os.dup2(os.open("/dev/null", os.O_RDWR), 0)
        for number, pair in zip((1, 2), pipes):
            os.dup2(pair[1], number)
        argv = procs.to_argv(words)
        os.execve(argv[0], argv, environment)
    finally:
        os._exit(127)


def _status(child):
    try:
        status = os.waitpid(child, 0)[1]
    except ChildProcessError:
        return None  # the caller reaps all its children, and was quicker: how it ended is not known
    return os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)


def of_job(layout, job_id, ended=False):
    """`[(engine, container id)]` of a job's live containers (`ended`: and of those that have ended).

    Where the engine does not answer and the processes would not be seen otherwise, `UNKNOWN` stands for them.
    """
    engine = recorded(layout, job_id)
    if engine is None:
        return []
    words = ["ps", "--quiet", "--no-trunc", "--filter", "label={}={}".format(LABEL, job_id)]
    output = ask(engine, words + (["--all"] if ended else []))
    if output is None:
        return [] if engine.get("visible") else [UNKNOWN]
    return [(engine, files.to_text(line)) for line in output.split()]


def living_jobs(layout):
    """The ids of all jobs that have a live container, and of those of which that cannot be ruled out."""
    found, silent = set(), False
    for engine in engines(layout):
        words = ["ps", "--no-trunc", "--filter", "label=" + LABEL, "--format", '{{.Label "%s"}}' % LABEL]
        output = ask(engine, words, SHORT_S)
        silent = silent or output is None
        found.update(files.to_text(line) for line in (output or b"").split())
    if silent:
        found.update(job_id for job_id in jobs.all_ids(layout) if _may_live(layout, job_id))
    return found


def _may_live(layout, job_id):
    if jobs.is_final(layout, job_id):
        return False
    engine = recorded(layout, job_id)
    return engine is not None and not engine.get("visible")


def follow(layout, job_id, log):
    """Bring what a job's container prints from now on into the file `log`: its first client is gone.

    By a process of its own, which ends with the container.
    """
    for engine, container in of_job(layout, job_id):
        if engine is None:
            continue
        child = os.fork()
        if child:
            os.waitpid(child, 0)
            continue
        try:
            os.setsid()
            if os.fork():
                os._exit(0)
            handle = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW)
            procs.close_all_but([handle])
            for number in (1, 2):
                os.dup2(handle, number)
            environment = procs.own_environment()
            environment.update((files.to_bytes(name), files.to_bytes(value)) for name, value in engine["env"].items())
            words = [engine["client"], "attach", "--no-stdin", "--sig-proxy=false", container]
            os.execve(engine["client"], procs.to_argv(words), environment)
        finally:
            os._exit(127)


def signal_job(layout, job_id, name):
    """Send a signal (`TERM`, `KILL`) to a job's containers. Returns how many there were."""
    found = [entry for entry in of_job(layout, job_id) if entry is not UNKNOWN]
    for engine, container in found:
        ask(engine, ["kill", "--signal", name, container])
    return len(found)


def inside(process):
    """True if a process is in another pid name space than we: in a container."""
    try:
        return os.readlink("/proc/{}/ns/pid".format(process.pid)) != os.readlink("/proc/self/ns/pid")
    except OSError:
        return False


def is_init(process):
    """True for the little init that an engine puts in front of a container's command: it passes signals on."""
    try:
        with open("/proc/{}/comm".format(process.pid), "rb") as file:
            return file.read(32).strip() in (b"docker-init", b"tini", b"catatonit", b"podman-init")
    except OSError:
        return False
