"""Code that is kept by its content: the same tree comes back, and what is damaged is refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from jobrunner.core.errors import UsageError
from jobrunner.upload import iter_blobs, scan
from jobrunner.upload.pinned import drop_others, keep, kept

pytestmark = pytest.mark.skipif(os.name != "posix", reason="modes and links")


def code(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def test_the_same_tree_comes_back(tmp_path: Path) -> None:
    folder = code(tmp_path / "code", a="one", sub__b="two", sub__c="one", run="#!/bin/sh\n")
    (folder / "run").chmod(0o755)
    (folder / "link").symlink_to("a")
    (folder / "h\u00e9 \n\udcff").write_text("odd")
    (folder / ".gitignore").write_text("none\n")
    tree = scan(folder)
    store = tmp_path / "store"
    digest = keep(tree, store)
    assert keep(tree, store) == digest == tree.digest
    for path in sorted(folder.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
    back = kept(store, digest)
    assert (back.digest, back.manifest, back.size, back.files) == (digest, tree.manifest, tree.size, tree.files)
    got = {back.contents[index][0]: b"".join(pieces) for index, pieces in iter_blobs(back, range(len(back.contents)))}
    assert b"two" in got.values() and len(got) == len(tree.contents)


def test_what_is_damaged_or_gone_is_refused(tmp_path: Path) -> None:
    store = tmp_path / "store"
    digest = keep(scan(code(tmp_path / "code", a="one", b="two")), store)
    with pytest.raises(UsageError, match="cannot be used"):
        kept(store, "0" * 64)
    tree = kept(store, digest)
    blob = store / tree.contents[0][0]
    blob.write_text("ONE")
    with pytest.raises(UsageError, match="other content"):
        [b"".join(pieces) for _, pieces in iter_blobs(tree, [0])]
    blob.unlink()
    with pytest.raises(UsageError, match="is missing"):
        kept(store, digest)


def test_only_what_nobody_needs_is_removed(tmp_path: Path) -> None:
    store = tmp_path / "store"
    first = keep(scan(code(tmp_path / "one", a="same", b="first")), store)
    second = keep(scan(code(tmp_path / "two", a="same", b="second")), store)
    assert len(list(store.iterdir())) == 5
    drop_others(store, [second])
    assert len(list(store.iterdir())) == 3 and kept(store, second).files == 2
    with pytest.raises(UsageError):
        kept(store, first)
    drop_others(store, [])
    assert list(store.iterdir()) == []
    drop_others(tmp_path / "nowhere", [])
