"""How a container ended, by the engine's own record and by what the job's shell inside had told; then it is removed."""

import json
import os

from . import containers, files

# The engine's little init, where it cannot execute the command.
_INIT = ("[FATAL tini", "ERROR (catatonit")
NEVER = "0001-01-01T00:00:00Z"


def outcome(layout, job_id, attempt, status):
    """`(exit_code, signal, reason, evidence)` of a container's end, or None where the client's own end says it all.

    `status` is what `wait` gave for the client; None where nobody was there to see it.
    """
    if containers.recorded(layout, job_id, attempt) is None:
        return None
    folder = layout.attempt(job_id, attempt)
    told = _told(os.path.join(folder, b"container"))
    return judged(told, state(layout, job_id, attempt), status, _last_words(os.path.join(folder, b"log")))


def judged(told, seen, status, words):
    """As `outcome`. `told`: what the shell inside noted; `seen`: the engine's state of it, or None; `words`: the
    client's last ones in the log. Pure."""
    client = os.WEXITSTATUS(status) if status is not None and os.WIFEXITED(status) else None
    if "failed" in told:
        code, _, line = told["failed"].partition(" ")
        return int(code), None, "setup", "setup failed with exit code {}: {}".format(code, line)
    if "missing" in told:
        return None, None, "launch", "there is no {} in the image".format(told["missing"])
    if not seen:
        if client == 125 and words:
            return 125, None, "setup", _with_remedy(words)
        return None
    code = seen.get("ExitCode")
    if seen.get("StartedAt", NEVER) == NEVER and seen.get("Status") != "running":
        why = seen.get("Error") or words or "the container was made and never started"
        if status is None and not seen.get("Error"):
            return None
        absent = "executable file not found" in why or ("no such file or directory" in why and "exec" in why)
        return None if absent else 125, None, "launch" if absent else "setup", _with_remedy(why)
    if seen.get("Status") == "running" or not isinstance(code, int):
        return None
    if code in (126, 127) and words.startswith(_INIT):
        return None, None, "launch", words
    if seen.get("OOMKilled"):
        return code, None, "oom", "the engine says that the container ran out of its memory"
    if code == 0:
        return 0, None, None, None
    return code, None, "exit", "the container ended with exit code {}".format(code)


_REMEDIES = (
    ("error gathering device information", "a device file that runtime.docker names is not on this host"),
    ("could not select device driver", "install the NVIDIA container toolkit on the host"),
    ("unknown or invalid runtime", "install that container runtime on the host, or leave --runtime out"),
    ("exec format error", "the image is for another machine type: take the one for this host's"),
    ("invalid mount config", "a folder that runtime.docker.mounts names is not on this host"),
    ("bind source path does not exist", "a folder that runtime.docker.mounts names is not on this host"),
)


def _with_remedy(text):
    text = text.strip()[:600]
    for piece, remedy in _REMEDIES:
        if piece in text:
            return "{} ({})".format(text, remedy)
    return text


def _told(folder):
    found = {}
    for name in ("failed", "missing"):
        data = files.read_file(os.path.join(folder, name.encode()), 4096)
        if data and data.strip():
            found[name] = data.decode("utf-8", "replace").strip()
    if not found.get("failed", "1").partition(" ")[0].isdigit():
        del found["failed"]
    return found


def _last_words(path):
    """The last line of the engine's client in the log, without its name in front; or ''."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        tail = os.pread(handle, 4096, max(0, os.fstat(handle).st_size - 4096)).decode("utf-8", "replace")
    finally:
        os.close(handle)
    for line in reversed(tail.splitlines()):
        for start in ("docker: ", "Error: ", "Error response from daemon: ", "podman: ", *_INIT):
            if line.startswith(start):
                return line[len(start) :] if start not in ("Error: ", *_INIT) else line
    return ""


def _of_attempt(layout, job_id, attempt):
    engine = containers.recorded(layout, job_id, attempt)
    if engine is None:
        return None, []
    words = ["ps", "--all", "--quiet", "--no-trunc"]
    words += ["--filter", "label={}={}".format(containers.LABEL, job_id)]
    words += ["--filter", "label={}={}".format(containers.ATTEMPT, attempt)]
    return engine, [files.to_text(line) for line in (containers.ask(engine, words) or b"").split()]


def state(layout, job_id, attempt):
    """The engine's record of an attempt's container (`State` of `inspect`), or None."""
    engine, found = _of_attempt(layout, job_id, attempt)
    for container in found[:1]:
        out = containers.ask(engine, ["inspect", "--format", "{{json .State}}", container])
        try:
            value = json.loads((out or b"").decode("utf-8", "replace"))
        except ValueError:
            return None
        return value if isinstance(value, dict) else None
    return None


def remove(layout, job_id, attempt):
    """Remove an attempt's container, once its end has been written down."""
    engine, found = _of_attempt(layout, job_id, attempt)
    if found:
        containers.ask(engine, ["rm", "--force", *found])
