"""The folder as it will be sent: entries, what was left out and why, and whether it is too much."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import field
from functools import cached_property
from typing import Any

from jobrunner.core import amounts
from jobrunner.core.errors import UsageError
from jobrunner.core.values import dataclass
from jobrunner.upload.gitrepo import GitState
from jobrunner.upload.hashing import HashCache, hash_files

LARGE_BYTES = 2**30
LARGE_FILES = 50_000


@dataclass(frozen=True)
class Entry:
    """A file ("f"), folder ("d") or link ("l"). `path` is relative, `/` between parts, lone surrogates for odd bytes;
    `stamp` is (mtime ns, ctime ns, inode, device) of a file when it was seen."""

    kind: str
    path: str
    mode: int
    size: int = 0
    target: str = ""
    stamp: tuple[int, int, int, int] = (0, 0, 0, 0)


@dataclass(frozen=True)
class Skipped:
    """Something that is not sent, with all that lies below it: `rule` as written and `source` where
    (`.gitignore:3`), or a reason in plain words and no source."""

    path: str
    rule: str
    source: str = ""


@dataclass(frozen=True)
class Tree:
    """What a folder consists of. Contents are hashed when first asked for (`manifest`, `digest`).

    `root` is the folder's absolute path. Sizes are those seen by the scan until the files are hashed.
    """

    root: bytes
    entries: tuple[Entry, ...]
    skipped: tuple[Skipped, ...] = ()
    warnings: tuple[str, ...] = ()
    git: GitState | None = None
    cache: HashCache | None = field(default=None, repr=False, compare=False)

    @property
    def files(self) -> int:
        """How many files and links there are."""
        return sum(entry.kind != "d" for entry in self.entries)

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(entry.size for entry in self.entries)

    @cached_property
    def manifest(self) -> list[list[Any]]:
        """The entries in the form of docs/host.md: `[type, path, mode, size, sha256 or target]`, parents first.

        UsageError `unreadable` names the files that cannot be read.
        """
        hashed = hash_files(self.root, [entry for entry in self.entries if entry.kind == "f"], self.cache)
        rows: list[list[Any]] = []
        for entry in self.entries:
            if entry.kind == "f":
                size, digest = hashed[entry.path]
                rows.append(["f", entry.path, entry.mode, size, digest])
            else:
                rows.append([entry.kind, entry.path, entry.mode, 0, entry.target])
        return rows

    @cached_property
    def contents(self) -> list[tuple[str, str, int]]:
        """The distinct contents `(sha256, path, size)` in order of first appearance: what `need` counts."""
        seen: dict[str, tuple[str, str, int]] = {}
        for kind, path, _, size, digest in self.manifest:
            if kind == "f" and digest not in seen:
                seen[digest] = (digest, path, size)
        return list(seen.values())

    @cached_property
    def digest(self) -> str:
        """One SHA-256 for the whole tree: the same for the same names, modes and contents."""
        return hashlib.sha256(json.dumps(self.manifest, separators=(",", ":")).encode("ascii")).hexdigest()

    def biggest(self, count: int = 5) -> list[tuple[str, int]]:
        """The biggest files and their bytes."""
        files = sorted(
            (entry for entry in self.entries if entry.kind == "f"), key=lambda entry: (-entry.size, entry.path)
        )
        return [(entry.path, entry.size) for entry in files[:count]]

    def code(self) -> dict[str, Any]:
        """`code` of a job's request (docs/host.md)."""
        git = self.git
        return {
            "files": self.files,
            "bytes": self.size,
            "commit": git.commit if git else None,
            "branch": git.branch if git else None,
            "dirty": git.dirty if git else None,
        }

    def report(self) -> dict[str, Any]:
        """For people and `--json`: how much, what weighs, what was left out by which rule, what to look at."""
        return {
            **self.code(),
            "biggest": [[path, size] for path, size in self.biggest()],
            "left_out": [{"path": skip.path, "rule": skip.rule, "source": skip.source} for skip in self.skipped],
            "warnings": list(self.warnings),
        }


def check_size(tree: Tree, large: bool) -> None:
    """UsageError `too_large` if a tree is over 1 GB or 50,000 files and `large` was not given."""
    count, size = tree.files, tree.size
    if large or (count <= LARGE_FILES and size <= LARGE_BYTES):
        return
    heavy = ", ".join(f"{path} ({_amount(files, octets)})" for path, files, octets in heaviest(tree.entries))
    raise UsageError(
        f"the code folder is {_amount(count, size)}; over {LARGE_FILES:,} files or 1 GB are not sent without asking. "
        f"What weighs: {heavy}",
        code="too_large",
        remedy="Name what is not needed in `.jobrunnerignore` or `code.exclude`, or send all of it with `--large`.",
    )


def heaviest(entries: Sequence[Entry], most: int = 5) -> list[tuple[str, int, int]]:
    """The folders (and files) that make a tree heavy: `(path, files, bytes)`, by their share of the two limits.

    A folder gives way to the folder inside it that holds nearly all of it.
    """
    weights: dict[str, list[int]] = {}
    for entry in entries:
        if entry.kind == "d":
            continue
        path = entry.path
        while path:
            weight = weights.setdefault(path if path == entry.path else path + "/", [0, 0])
            weight[0] += 1
            weight[1] += entry.size
            path = path.rpartition("/")[0]
    inside: dict[str, list[str]] = {}
    for path in weights:
        parent = path.rstrip("/").rpartition("/")[0]
        inside.setdefault(parent + "/" if parent else "", []).append(path)
    found = []
    for path in sorted(inside.get("", []), key=lambda path: -_share(weights[path]))[:most]:
        while deeper := [
            inner
            for inner in inside.get(path, [])
            if inner.endswith("/") and _share(weights[inner]) > 0.9 * _share(weights[path])
        ]:
            path = deeper[0]
        found.append((path, weights[path][0], weights[path][1]))
    return found


def _share(weight: Sequence[int]) -> float:
    return max(weight[0] / LARGE_FILES, weight[1] / LARGE_BYTES)


def _amount(files: int, octets: int) -> str:
    """`12 files, 3.4 GB`."""
    return f"{files:,} file{'' if files == 1 else 's'}, {amounts.size(octets)}"
