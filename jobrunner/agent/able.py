"""What this host must have for the jobs that are being brought to it: asked before they count as submitted."""

import os

from . import blobs
from .files import AgentError, to_bytes, to_text

_PATH = b"/usr/local/bin:/usr/bin:/bin"


def check_launchers(jobs):
    """AgentError `no_tmux` if a job is to be started in tmux and there is none."""
    wanted = [job["request"]["run"].get("launcher") for job in jobs]
    if "tmux" in wanted and not _on_path(b"tmux"):
        raise AgentError(
            "no_tmux",
            "`launcher: tmux` is asked for and this host has no tmux on the PATH of a login",
            "Have tmux installed, or use `launcher: nohup`.",
        )


def _on_path(name):
    folders = os.environb.get(b"PATH", _PATH).split(b":")
    return any(folder and os.access(os.path.join(folder, name), os.X_OK) for folder in folders)


def check_programs(layout, jobs, entries):
    """AgentError `noexec` if a job executes a file of its code, and the jobs' file system executes nothing.

    A script that names its interpreter (`#!`) is started by that, and works there too.
    """
    if not os.statvfs(layout.root).f_flag & os.ST_NOEXEC:
        return
    contents = {to_bytes(entry[1]): entry[4] for entry in entries or () if entry[0] == "f"}
    for job in jobs:
        program = program_of(job["request"]["run"])
        digest = contents.get(os.path.normpath(to_bytes(program))) if program else None
        if digest is not None and not _names_interpreter(layout, digest):
            raise AgentError(
                "noexec",
                "{} cannot be executed: {} is on a file system that is mounted noexec".format(
                    program, to_text(layout.root)
                ),
                "Set `root` of this host to a folder elsewhere, or start the file by an interpreter.",
            )


def program_of(run):
    """The file of the job's code that its command executes directly; None if there is none. Pure."""
    command = run.get("command") or {}
    script = command.get("script")
    if script:
        return None if script.endswith((".py", ".sh")) else script
    first = (command.get("argv") or [""])[0]
    return first if "/" in first and not first.startswith("/") else None


def _names_interpreter(layout, digest):
    try:
        handle, _ = blobs.Source(layout).open(digest)
    except OSError:
        return True  # what is wrong with it is said where it is used
    try:
        return os.read(handle, 2) == b"#!"
    finally:
        os.close(handle)
