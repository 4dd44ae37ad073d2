"""`scan`: a code folder as a `Tree`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from jobrunner.core.errors import UsageError
from jobrunner.upload import gitrepo
from jobrunner.upload.hashing import HashCache
from jobrunner.upload.names import shown, to_bytes
from jobrunner.upload.rules import spec_rules
from jobrunner.upload.tree import Entry, Tree
from jobrunner.upload.walk import Walk, git_view


def scan(
    code_dir: Path,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    *,
    never: Iterable[Path] = (),
    cache: HashCache | None = None,
    ask_git: bool = True,
) -> Tree:
    """What of a folder is to be sent: what git would see of it, less `.jobrunnerignore` and `exclude`, plus `include`.

    Inside a git work tree the index is asked too (unless `ask_git` is false), so that tracked files go even where
    a rule ignores them; submodules and other repositories inside count as their own files. Outside of one the
    `.gitignore` files are followed all the same. Paths in `never` (our own state) are left out.

    UsageError: `no_code` for no such folder, `unreadable` for what cannot be read.
    """
    root = os.fsencode(os.path.abspath(code_dir))
    if not os.path.isdir(root):
        kind = "is a file" if os.path.exists(root) else "does not exist"
        raise UsageError(
            f"the code folder {code_dir} {kind}",
            code="no_code",
            remedy="Set `code` to a folder (relative to the spec's file), or to null if the job needs none.",
        )
    root = os.path.realpath(root)
    repo = gitrepo.find_repo(root)
    asked = gitrepo.start_state(root) if repo is not None and ask_git else None
    try:
        view, warning = git_view(repo, root, ask_git)
        walk = Walk(
            root,
            spec_rules(include, "code.include"),
            spec_rules(exclude, "code.exclude"),
            never=_inside(root, never),
            ask_git=ask_git,
            executable=frozenset(gitrepo.executables(root)) if os.name == "nt" and repo is not None else None,
        )
        walk.warnings += [warning] if warning else []
        walk.run(view)
    finally:
        git = None if asked is None else gitrepo.state(asked, gitrepo.STATE_LIMIT_S)
    walk.warnings += _odd_links(root, walk.entries)
    return Tree(root, tuple(walk.entries), tuple(walk.skipped), tuple(walk.warnings), git, cache)


def _inside(root: bytes, paths: Iterable[Path]) -> frozenset[bytes]:
    """Those of some paths that lie below the root, relative to it."""
    found = set()
    for path in paths:
        inner = os.path.relpath(os.path.realpath(os.fsencode(path)), root).replace(os.sep.encode(), b"/")
        if inner != b"." and not inner.startswith(b"../"):
            found.add(inner)
    return frozenset(found)


def _odd_links(root: bytes, entries: Sequence[Entry]) -> list[str]:
    """Warnings for links that will lead nowhere on the host: out of the tree, to nothing, or to what is not sent."""
    links = [entry for entry in entries if entry.kind == "l"]
    sent = {entry.path for entry in entries} if links else set()
    warnings = []
    for link in links:
        target = os.path.normpath(os.path.join(os.path.dirname(link.path), link.target)).replace(os.sep, "/")
        words = f"the link {shown(link.path)} -> {shown(link.target)}"
        if os.path.isabs(link.target) or target == ".." or target.startswith("../"):
            warnings.append(f"{words} leads out of the code folder; it is sent as it is")
        elif not os.path.lexists(os.path.join(root, to_bytes(target))):
            warnings.append(f"{words} leads to nothing; it is sent as it is")
        elif target != "." and target not in sent:
            warnings.append(f"{words} leads to something that is not sent")
    return warnings
