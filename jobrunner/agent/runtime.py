"""Argument vectors of a job's command, built as data: plain, or by an interpreter. Pure."""

import os

from . import files
from .containers_plan import docker_argv  # noqa: F401 - the third way to run a command
from .files import AgentError


def visible_devices(device, cards, in_container=False):
    """The vendors' variables so that a job sees its own cards and no others. Pure.

    Ascending ids without blanks or ranges; in a container the numbers count from 0. With no cards all are empty.
    """
    from . import accelerators

    if device not in accelerators.KINDS:
        cards = ()
    return accelerators.visible(device, range(len(cards)) if in_container else cards)


def expand_home(path, home):
    """A path with a leading `~/` as the job's user means it."""
    if path == "~":
        return home
    return home.rstrip("/") + path[1:] if path.startswith("~/") else path


def filled(word, checkpoint, others):
    """A word of a command with its placeholders replaced by paths.

    Only a word that holds `{checkpoint` is a template: there `{checkpoint}` is the path to go on from (empty if
    there is none), `{checkpoint:JOB}` that job's in `others`, and `{{` a brace. Every other word is literal.
    """
    if "{checkpoint" not in word:
        return word
    pieces, rest = [], word
    while rest:
        before, brace, rest = rest.partition("{")
        pieces.append(before)
        inner, closed, after = rest.partition("}")
        if brace and rest.startswith("{"):
            pieces.append("{")
            rest = rest[1:]
        elif brace and closed and inner == "checkpoint":
            pieces.append(checkpoint or "")
            rest = after
        elif brace and closed and inner.startswith("checkpoint:"):
            pieces.append(_of_other(inner[len("checkpoint:") :], others))
            rest = after
        else:
            pieces.append(brace)
    return "".join(pieces)


def _of_other(job, others):
    if not others.get(job):
        raise AgentError(
            "no_checkpoint",
            "the command names a checkpoint of {}, and none is known here".format(job),
            "See `jobrunner checkpoints {}`, or submit without it.".format(job),
        )
    return others[job]


def named_jobs(run):
    """The other jobs whose checkpoints a command names."""
    command = run.get("command") or {}
    words = list(command.get("argv") or []) + list(command.get("args") or []) + list(run.get("resume_args") or [])
    found = set()
    for word in words:
        for piece in word.split("{checkpoint:")[1:]:
            found.add(piece.partition("}")[0])
    return sorted(found)


def command_argv(run, work, home="", checkpoint=None, checkpoints=None):
    """The words of a job's command. `work` is its folder, `checkpoint` the path to go on from (or None),
    `checkpoints` paths for `{checkpoint:JOB}`.

    A string is exactly `bash -c STRING`; a script runs by what its name says; a list is words.
    """
    command = run.get("command") or {}
    more = list(run.get("resume_args") or []) if checkpoint else []
    if command.get("shell") is not None:
        words = ["bash", "-c", command["shell"]]
        return words + (["bash", *_filled(more, checkpoint, checkpoints)] if more else [])
    if command.get("argv") is not None:
        words = list(command["argv"])
    elif command.get("script"):
        words = _script_words(command["script"], run.get("runtime") or {}, work, home) + list(command.get("args") or [])
    else:
        raise AgentError("no_command", "the request names no command", "submit the job again")
    return [words[0], *_filled(words[1:] + more, checkpoint, checkpoints)] if words else words


def _filled(words, checkpoint, checkpoints):
    return [filled(word, checkpoint, checkpoints or {}) for word in words]


def _script_words(script, runtime, work, home):
    if script.endswith(".py"):
        return [python_word(runtime, home), script]
    if script.endswith(".sh"):
        return ["bash", script]
    return [files.to_text(os.path.join(files.to_bytes(work), files.to_bytes(script)))]


def python_word(runtime, home):
    """The python that runs scripts: the spec's own, the environment's, else python3."""
    if runtime.get("python"):
        return expand_home(runtime["python"], home)
    return "python" if runtime.get("venv") or runtime.get("conda") else "python3"
