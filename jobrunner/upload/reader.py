"""The contents of a tree as a host asks for them, checked while they are read."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator

from jobrunner.core.errors import UsageError
from jobrunner.upload.hashing import open_file
from jobrunner.upload.names import shown
from jobrunner.upload.tree import Tree

PIECE = 256 * 1024


class ChangedError(UsageError):
    """A file is not what the manifest says any more: the folder has to be read anew. `path` names it."""

    default_code = "changed"

    def __init__(self, path: str, found: str) -> None:
        self.path = path
        super().__init__(
            f"sending {shown(path)}: it changed after the folder was read ({found})",
            remedy="Submit again when nothing writes into the code folder, or name the file in `.jobrunnerignore`.",
        )


def iter_blobs(tree: Tree, need: Iterable[int]) -> Iterator[tuple[int, Iterator[bytes]]]:
    """For each index into `tree.contents`, in turn: the index and the content in pieces of at most 256 KiB.

    A content is whole only when its iterator has ended; where the file is not what was hashed, it raises ChangedError
    instead (before any byte beyond the announced size is given out).
    """
    for index in need:
        digest, path, size = tree.contents[index]
        yield index, _pieces(tree.root, path, size, digest)


def _pieces(root: bytes, path: str, size: int, digest: str) -> Iterator[bytes]:
    seen, left = hashlib.sha256(), size
    try:
        handle = open_file(root, path)
    except OSError as error:
        raise ChangedError(path, error.strerror or str(error)) from error
    try:
        while piece := _read(handle, path):
            left -= len(piece)
            if left < 0:
                raise ChangedError(path, "it grew")
            seen.update(piece)
            yield piece
    finally:
        os.close(handle)
    if left:
        raise ChangedError(path, f"{left} bytes are missing")
    if seen.hexdigest() != digest:
        raise ChangedError(path, "other content")


def _read(handle: int, path: str) -> bytes:
    try:
        return os.read(handle, PIECE)
    except OSError as error:
        raise ChangedError(path, error.strerror or str(error)) from error
