"""Code that is kept on this machine by its content: every file once, under its hash, and a list of names per tree.

<folder>/<sha256>          a file's content
<folder>/<digest>.json     a tree: its manifest, in the form of docs/host.md
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import Any

from jobrunner.core.errors import UsageError
from jobrunner.core.values import dataclass
from jobrunner.upload.reader import iter_blobs
from jobrunner.upload.tree import Entry, Tree


@dataclass(frozen=True)
class PinnedTree(Tree):
    """A tree whose contents lie under their hashes in `root`. What of it is damaged is refused when it is sent."""

    rows: tuple[tuple[Any, ...], ...] = ()

    @cached_property
    def manifest(self) -> list[list[Any]]:
        """The entries as they were when the tree was kept."""
        return [list(row) for row in self.rows]

    @cached_property
    def contents(self) -> list[tuple[str, str, int]]:
        """The distinct contents; a content's path is its hash."""
        return [(digest, digest, size) for digest, _, size in super().contents]


def keep(tree: Tree, folder: Path) -> str:
    """Keep a tree; returns its digest, by which `kept` finds it. Raises UsageError if a file changes meanwhile."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    for index, pieces in iter_blobs(tree, range(len(tree.contents))):
        digest = tree.contents[index][0]
        if (folder / digest).exists():
            for _ in pieces:
                pass
            continue
        aside = folder / f".{digest}.{os.getpid()}.part"
        try:
            with aside.open("wb") as out:
                for piece in pieces:
                    out.write(piece)
                out.flush()
                os.fsync(out.fileno())
            os.replace(aside, folder / digest)
        finally:
            aside.unlink(missing_ok=True)
    _write(folder / f"{tree.digest}.json", json.dumps({"v": 1, "manifest": tree.manifest}).encode("ascii"))
    return tree.digest


def _write(path: Path, data: bytes) -> None:
    aside = path.with_name(f".{path.name}.{os.getpid()}.part")
    aside.write_bytes(data)
    os.replace(aside, path)


def kept(folder: Path, digest: str) -> Tree:
    """The tree of a digest. UsageError if it is not there whole."""
    try:
        rows = json.loads((folder / f"{digest}.json").read_bytes())["manifest"]
        entries = tuple(Entry(row[0], row[1], row[2], row[3], row[4] if row[0] == "l" else "") for row in rows)
        missing = [row[1] for row in rows if row[0] == "f" and not (folder / str(row[4])).is_file()]
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise _gone(folder, digest, str(error)) from error
    if missing:
        raise _gone(folder, digest, f"what was {missing[0]} is missing")
    root = os.fsencode(os.path.realpath(folder))
    tree = PinnedTree(root, entries, rows=tuple(tuple(row) for row in rows))
    if tree.digest != digest:
        raise _gone(folder, digest, "its list is damaged")
    return tree


def drop_others(folder: Path, wanted: Iterable[str]) -> None:
    """Remove the trees that are not wanted any more, and contents that no tree needs."""
    names = set(wanted)
    needed: set[str] = set()
    try:
        lists = list(folder.glob("*.json"))
    except OSError:
        return
    for path in lists:
        if path.stem not in names:
            path.unlink(missing_ok=True)
            continue
        try:
            needed.update(str(row[4]) for row in json.loads(path.read_bytes())["manifest"] if row[0] == "f")
        except (OSError, ValueError, LookupError, TypeError):
            return  # one that cannot be read might need anything
    for path in folder.iterdir() if folder.is_dir() else ():
        if len(path.name) == len(hashlib.sha256().hexdigest()) and path.name not in needed:
            path.unlink(missing_ok=True)


def _gone(folder: Path, digest: str, why: str) -> UsageError:
    return UsageError(
        f"the code that was kept as {digest[:12]} in {folder} cannot be used: {why}",
        code="code_gone",
        remedy="`jobrunner schedule rm` and `schedule add` it again, which keeps the code anew",
    )
