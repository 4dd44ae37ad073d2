"""Through a folder: what is sent, what is left out and by which rule.

Who decides, the first that has a word: the spec's `exclude`; the spec's `include` (a folder named there is sent
whole); `.jobrunnerignore` (a line with `!` sends what git ignores); git: what it tracks and what its rules do not
ignore. `.git` is never sent. A folder with nothing in it is sent, although git would not see it.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from dataclasses import field, replace
from enum import Enum

from jobrunner.core.values import dataclass
from jobrunner.upload import gitrepo
from jobrunner.upload.hashing import stamp_of, unreadable
from jobrunner.upload.names import shown, to_text
from jobrunner.upload.patterns import Pattern
from jobrunner.upload.rules import Layer, RuleFile, may_hold
from jobrunner.upload.tree import Entry, Skipped

SKIPPED_MOST = 10_000
"""So many left-out paths are kept for the report; the rest are left out just the same."""


class Mode(Enum):
    """How much of a folder is sent."""

    NORMAL = "what git would see"
    WHOLE = "everything: the spec includes it"
    INCLUDED = "only what the spec includes: the folder itself is left out"


@dataclass(frozen=True)
class GitView:
    """How git sees a part of the tree. `skip` bytes of a path come before the part, `above` stands before the rest.

    `tracked` are the paths in git's index, `folders` those above them; empty where git could not be asked.
    """

    layer: Layer
    above: bytes = b""
    skip: int = 0
    tracked: frozenset[bytes] = frozenset()
    folders: frozenset[bytes] = frozenset()

    def decide(self, path: bytes, name: bytes, is_folder: bool) -> Pattern | None:
        """The rule that makes git ignore a path; None if none does."""
        rule = self.layer.decide(self.above + path[self.skip :], name, is_folder)
        return None if rule is None or rule.negated else rule

    def tracks(self, path: bytes, is_folder: bool) -> bool:
        """True if the path, or something below it, is in git's index."""
        inner = path[self.skip :]
        return inner in self.tracked or (is_folder and inner in self.folders)


@dataclass(frozen=True)
class _Folder:
    """A folder to look into. `prefix` is its path and a slash, `hidden` the rule by which git ignores it as such."""

    prefix: bytes
    mode: Mode
    git: GitView
    own: Layer
    hidden: Pattern | None = None


@dataclass
class Walk:
    """One walk. After `run`, `entries`, `skipped` and `warnings` hold what was found."""

    root: bytes
    include: RuleFile
    exclude: RuleFile
    never: frozenset[bytes] = frozenset()
    ask_git: bool = True
    executable: frozenset[bytes] | None = None
    entries: list[Entry] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    _modes: dict[bytes, int] = field(default_factory=dict)
    _wanted: set[bytes] = field(default_factory=set)

    def run(self, git: GitView) -> None:
        """Walk from the root down."""
        waiting = [_Folder(b"", Mode.NORMAL, git, Layer(b".jobrunnerignore"))]
        while waiting:
            waiting.extend(self._look_into(waiting.pop()))
        for path in self._wanted:
            self.entries.append(Entry("d", to_text(path), self._modes[path]))
        self.entries.sort(key=lambda entry: entry.path.encode("utf-8", "surrogateescape"))

    def _look_into(self, folder: _Folder) -> list[_Folder]:
        here = os.path.join(self.root, folder.prefix)
        try:
            with os.scandir(here) as found:
                children = sorted(found, key=lambda child: child.name)
        except OSError as error:
            raise unreadable([f"{shown(to_text(folder.prefix)) or '.'} ({error.strerror})"]) from error
        names = {child.name for child in children}
        if not names and folder.prefix and folder.mode is not Mode.INCLUDED and folder.hidden is None:
            self._want(folder.prefix[:-1])
        folder = self._with_rules(folder, here, names)
        deeper = []
        for child in children:
            if child.name != b".git":
                below = self._child(folder, child)
                if below is not None:
                    deeper.append(below)
        return deeper

    def _with_rules(self, folder: _Folder, here: bytes, names: set[bytes]) -> _Folder:
        """The folder with the ignore files that lie in it, or as a repository of its own if it is one."""
        prefix, git = folder.prefix, folder.git
        if folder.mode is Mode.NORMAL:
            if prefix and b".git" in names and (repo := gitrepo.repo_at(here)) is not None:
                git, warning = git_view(repo, here, self.ask_git, skip=len(prefix))
                self.warnings += [warning] if warning else []
            base = git.above + prefix[git.skip :]
            source = to_text(prefix + b".gitignore")
            git = replace(git, layer=git.layer.enter(here, base, shown(source), b".gitignore" in names))
        source = to_text(prefix + folder.own.name)
        own = folder.own.enter(here, prefix, shown(source), folder.own.name in names)
        return replace(folder, git=git, own=own)

    def _child(self, folder: _Folder, child: os.DirEntry[bytes]) -> _Folder | None:
        """Take or leave one entry; returns it if it is a folder to look into."""
        path = folder.prefix + child.name
        try:
            seen = child.stat(follow_symlinks=False) if os.name != "nt" else os.lstat(child.path)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise unreadable([f"{shown(to_text(path))} ({error.strerror})"]) from error
        is_folder = stat.S_ISDIR(seen.st_mode)
        mode, hidden, left_out = self._verdict(folder, path, child.name, is_folder)
        if left_out is not None and folder.mode is not Mode.INCLUDED:
            self._skip(path, is_folder, left_out)
        if not is_folder:
            if mode is not None:
                self._take(path, child, seen)
            return None
        self._modes[path] = stat.S_IMODE(seen.st_mode) & 0o777 if os.name == "posix" else 0o755
        if mode is None:
            if not self.include.patterns or not may_hold(self.include, path) or path in self.never:
                return None
            mode = Mode.INCLUDED
        return _Folder(path + b"/", mode, folder.git, folder.own, hidden)

    def _verdict(
        self, folder: _Folder, path: bytes, name: bytes, is_folder: bool
    ) -> tuple[Mode | None, Pattern | None, Pattern | str | None]:
        """How a path is sent (None: not), the rule by which git ignores it as such, and why it is left out."""
        if path in self.never:
            return None, None, "jobrunner's own files"
        excluded = self.exclude.decide(path, name, is_folder)
        if excluded is not None and not excluded.negated:
            return None, None, excluded
        included = self.include.decide(path, name, is_folder)
        if folder.mode is Mode.WHOLE or (included is not None and not included.negated):
            return Mode.WHOLE, None, None
        if folder.mode is Mode.INCLUDED:
            return None, None, "left out with its folder"
        own = folder.own.decide(path, name, is_folder)
        if own is not None and not own.negated:
            return None, None, own
        return self._by_git(folder, path, name, is_folder) if own is None else (Mode.NORMAL, None, None)

    def _by_git(
        self, folder: _Folder, path: bytes, name: bytes, is_folder: bool
    ) -> tuple[Mode | None, Pattern | None, Pattern | None]:
        rule = folder.hidden or folder.git.decide(path, name, is_folder)
        if rule is not None and not folder.git.tracks(path, is_folder):
            return None, None, rule
        return Mode.NORMAL, rule, None

    def _take(self, path: bytes, child: os.DirEntry[bytes], seen: os.stat_result) -> None:
        text = to_text(path)
        if stat.S_ISLNK(seen.st_mode):
            target = os.readlink(child.path)
            if os.name == "nt":
                target = target.replace(b"\\", b"/")
            self.entries.append(Entry("l", text, 0o777, 0, to_text(target)))
        elif stat.S_ISREG(seen.st_mode):
            self.entries.append(Entry("f", text, self._file_mode(path, seen), seen.st_size, "", stamp_of(seen)))
        else:
            kind = _SPECIAL.get(stat.S_IFMT(seen.st_mode), "a special file")
            self.skipped.append(Skipped(text, f"{kind} cannot be sent"))
            self.warnings.append(f"{shown(text)} is {kind} and is not sent")
            return
        self._want(path.rpartition(b"/")[0])

    def _file_mode(self, path: bytes, seen: os.stat_result) -> int:
        if self.executable is not None:
            return 0o755 if path in self.executable else 0o644
        return stat.S_IMODE(seen.st_mode) & 0o777

    def _want(self, path: bytes) -> None:
        """The folder is sent, and those above it."""
        while path and path not in self._wanted:
            self._wanted.add(path)
            path = path.rpartition(b"/")[0]

    def _skip(self, path: bytes, is_folder: bool, why: Pattern | str) -> None:
        if len(self.skipped) < SKIPPED_MOST:
            text = to_text(path) + ("/" if is_folder else "")
            self.skipped.append(Skipped(text, why) if isinstance(why, str) else Skipped(text, why.text, why.source))


_SPECIAL = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def git_view(repo: gitrepo.Repo | None, folder: bytes, ask_git: bool, skip: int = 0) -> tuple[GitView, str]:
    """How git sees a folder, and a warning if it could not be asked. A folder that its repository ignores counts as
    one outside of it."""
    outside = GitView(Layer(b".gitignore"), skip=skip)
    if repo is None:
        return outside, ""
    answer = gitrepo.ask(repo, folder) if ask_git else gitrepo.Answer(problem="git was not asked")
    above = gitrepo.git_layer(repo, folder, answer.excludes)
    if above is None:
        return outside, ""
    view = GitView(*above, skip, answer.tracked, _folders(answer.tracked))
    return view, _NOT_ASKED.format(answer.problem) if answer.problem else ""


_NOT_ASKED = (
    "{}: files that are tracked although an ignore file names them are left out; name them in `code.include` if needed"
)


def _folders(paths: Iterable[bytes]) -> frozenset[bytes]:
    """All folders above some paths."""
    found: set[bytes] = set()
    for path in paths:
        above = path.rpartition(b"/")[0]
        while above and above not in found:
            found.add(above)
            above = above.rpartition(b"/")[0]
    return frozenset(found)
