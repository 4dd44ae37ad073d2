"""What git knows about a folder: its files, its state, and where its ignore rules lie.

`git` is asked where it is installed. Its environment is cleaned (a submit may run inside a git hook), nothing that a
repository configures is run, and nothing is written.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from jobrunner.core.values import dataclass
from jobrunner.upload.rules import Layer, RuleFile, read_rules

STATE_LIMIT_S = 2.0
LIST_LIMIT_S = 120.0
_LOCAL_VARIABLES = (
    "GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX", "GIT_OBJECT_DIRECTORY", "GIT_COMMON_DIR",
    "GIT_NAMESPACE", "GIT_ALTERNATE_OBJECT_DIRECTORIES", "GIT_LITERAL_PATHSPECS", "GIT_GLOB_PATHSPECS",
    "GIT_NOGLOB_PATHSPECS", "GIT_ICASE_PATHSPECS", "GIT_CEILING_DIRECTORIES", "GIT_TRACE",
)  # fmt: skip
_SAFE = ("--no-optional-locks", "-c", "core.fsmonitor=false", "-c", "core.quotePath=false")


@dataclass(frozen=True)
class GitState:
    """The commit that a folder is at; `branch` is None where HEAD is detached, `commit` before the first one."""

    commit: str | None
    branch: str | None
    dirty: bool


@dataclass(frozen=True)
class Repo:
    """A work tree: its top folder, and the folder with `info/exclude`."""

    top: bytes
    common: bytes


def find_repo(folder: bytes) -> Repo | None:
    """The work tree that a folder (an absolute path) is in."""
    here = folder
    while True:
        found = repo_at(here)
        if found is not None:
            return found
        above = os.path.dirname(here)
        if above == here:
            return None
        here = above


def repo_at(folder: bytes) -> Repo | None:
    """The work tree whose top this folder is. `.git` may also be a file that names the real folder."""
    git = os.path.join(folder, b".git")
    if os.path.isfile(git):
        text = _first_line(git)
        if not text.startswith(b"gitdir:"):
            return None
        git = os.path.join(folder, text[7:].strip())
    if not os.path.exists(os.path.join(git, b"HEAD")):
        return None
    common = _first_line(os.path.join(git, b"commondir"))
    return Repo(folder, os.path.normpath(os.path.join(git, common)) if common else git)


def standard_rules(repo: Repo | None, excludes: bytes | None) -> tuple[RuleFile, ...]:
    """The user's own excludes file and the repository's `info/exclude`, the stronger last. None outside of one."""
    if repo is None:
        return ()
    own = _excludes_file(repo) if excludes is None else excludes
    found = [
        read_rules(own, os.fsdecode(own), 0) if own else None,
        read_rules(os.path.join(repo.common, b"info", b"exclude"), ".git/info/exclude", 0),
    ]
    return tuple(rules for rules in found if rules is not None)


def git_layer(repo: Repo | None, folder: bytes, excludes: bytes | None = None) -> tuple[Layer, bytes] | None:
    """The layer of git's rules above `folder`, and the folder's path in its repository ("" or "a/b/"), which stands
    before every path that the layer is asked about. None if the repository ignores the folder itself."""
    layer = Layer(b".gitignore", standard_rules(repo, excludes))
    if repo is None or repo.top == folder:
        return layer, b""
    prefix, here = b"", repo.top
    for part in os.path.relpath(folder, repo.top).replace(os.sep.encode(), b"/").split(b"/"):
        layer = layer.enter(here, prefix, os.fsdecode(os.path.join(here, b".gitignore")), present=True)
        rule = layer.decide(prefix + part, part, is_folder=True)
        if rule is not None and not rule.negated:
            return None
        prefix, here = prefix + part + b"/", os.path.join(here, part)
    return layer, prefix


@dataclass(frozen=True)
class Answer:
    """What git said about a folder: its tracked paths (relative to it), the user's own excludes file, or a problem."""

    tracked: frozenset[bytes] = frozenset()
    excludes: bytes | None = None
    problem: str = ""


def ask(repo: Repo, folder: bytes) -> Answer:
    """Ask git, both questions at once. Without an answer the excludes file is looked up in the usual places."""
    index = _start(folder, "ls-files", "-c", "-z")
    setting = _start(folder, "config", "--path", "--get", "core.excludesFile")
    if index is None or setting is None:
        return Answer(excludes=_excludes_file(repo), problem="git was not found")
    code, out, _ = _finish(setting, LIST_LIMIT_S)
    excludes = out.rstrip(b"\r\n") if code == 0 else _default_excludes() if code == 1 else _excludes_file(repo)
    code, out, errors = _finish(index, LIST_LIMIT_S)
    if code:
        return Answer(excludes=excludes, problem=f"git: {errors.strip().splitlines()[0] if errors.strip() else code}")
    return Answer(frozenset(filter(None, out.split(b"\0"))), excludes)


def git_state(code_dir: Path, limit_s: float = STATE_LIMIT_S) -> GitState | None:
    """Commit, branch and whether anything in the folder differs from the commit. None outside a repository, without
    git, or if git needs longer than `limit_s` seconds."""
    process = start_state(os.fsencode(os.path.abspath(code_dir)))
    return None if process is None else state(process, limit_s)


def start_state(folder: bytes) -> subprocess.Popen[bytes] | None:
    """Start asking git for the state of a folder."""
    return _start(folder, "status", "--porcelain=v2", "--branch", "-z", "--untracked-files=normal", "--", ".")


def state(process: subprocess.Popen[bytes], limit_s: float) -> GitState | None:
    """The answer to `start_state`."""
    code, out, _ = _finish(process, limit_s)
    if code:
        return None
    commit = branch = None
    dirty = False
    for line in out.split(b"\0"):
        if line.startswith(b"# branch.oid "):
            commit = line[13:].decode("ascii", "replace")
        elif line.startswith(b"# branch.head "):
            branch = line[14:].decode("utf-8", "backslashreplace")
        elif line and not line.startswith(b"#"):
            dirty = True
    return GitState(None if commit == "(initial)" else commit, None if branch == "(detached)" else branch, dirty)


def executables(folder: bytes) -> set[bytes]:
    """Tracked files that git's index marks as executable: for systems whose file modes do not tell."""
    process = _start(folder, "ls-files", "-s", "-z")
    if process is None:
        return set()
    _, out, _ = _finish(process, LIST_LIMIT_S)
    lines = (line.partition(b"\t") for line in out.split(b"\0"))
    return {path for head, _, path in lines if head.startswith(b"100755 ")}


def _start(folder: bytes, *words: str) -> subprocess.Popen[bytes] | None:
    git = shutil.which("git")
    if git is None:
        return None
    environment = {key: value for key, value in os.environ.items() if key not in _LOCAL_VARIABLES}
    environment["LC_ALL"] = "C"
    try:
        return subprocess.Popen(
            [git, *_SAFE, *words],
            cwd=os.fsdecode(folder),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
        )
    except OSError:
        return None


def _finish(process: subprocess.Popen[bytes], limit_s: float) -> tuple[int, bytes, str]:
    """Exit code, output and complaints of a process; after `limit_s` seconds it is ended, with nothing but that."""
    try:
        out, errors = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return -1, b"", f"no answer within {limit_s:g} s"
    return process.returncode, out, errors.decode("utf-8", "replace")


def _first_line(path: bytes) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.readline(4096).strip()
    except OSError:
        return b""


def _excludes_file(repo: Repo) -> bytes | None:
    """`core.excludesFile` of the repository or the user, else git's default place for it."""
    home = os.path.expanduser("~")
    own = os.environ.get("XDG_CONFIG_HOME") or os.path.join(home, ".config")
    places = [
        os.path.join(os.fsdecode(repo.common), "config"),
        os.path.join(home, ".gitconfig"),
        os.path.join(own, "git", "config"),
    ]
    for place in places:
        found = _configured(place)
        if found is not None:
            return os.fsencode(os.path.expanduser(found)) if found else None
    return _default_excludes()


def _default_excludes() -> bytes:
    own = os.environ.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
    return os.fsencode(os.path.join(own, "git", "ignore"))


def _configured(place: str) -> str | None:
    """The last `excludesFile` in the `[core]` sections of a git configuration file."""
    try:
        with open(place, encoding="utf-8", errors="surrogateescape") as file:
            lines = file.read(1 << 20).splitlines()
    except OSError:
        return None
    section, found = "", None
    for line in lines:
        head = re.match(r"\s*\[\s*([^\]\s\"]+)", line)
        value = re.match(r"\s*excludesfile\s*=\s*(.*?)\s*$", line, re.IGNORECASE)
        if head:
            section = head.group(1).lower()
        elif value and section == "core":
            text = re.sub(r"\s[#;].*$", "", value.group(1)) if not value.group(1).startswith('"') else value.group(1)
            found = text.strip('"').replace("\\\\", "\\")
    return found
