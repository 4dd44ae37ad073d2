"""Hashes, the cache of them, limits on size, and contents on demand."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import pytest

from jobrunner.core.errors import UsageError
from jobrunner.upload import ChangedError, Entry, HashCache, Tree, check_size, hashing, iter_blobs, scan
from jobrunner.upload.tree import heaviest

MB = 1024 * 1024


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def rest(path: Path) -> None:
    """Give a file times of an hour ago: it has rested."""
    seen = path.stat()
    os.utime(path, ns=(seen.st_mtime_ns - 3600 * 10**9, seen.st_mtime_ns - 3600 * 10**9))


def test_the_manifest_is_what_the_host_expects_and_its_digest_is_stable(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "a.py").write_bytes(b"one")
    (tmp_path / "sub" / "b.py").write_bytes(b"two")
    (tmp_path / "sub" / "c.py").write_bytes(b"one")
    tree = scan(tmp_path)
    assert [[row[0], row[1], row[3], row[4]] for row in tree.manifest] == [
        ["f", "a.py", 3, sha(b"one")],
        ["d", "sub", 0, ""],
        ["f", "sub/b.py", 3, sha(b"two")],
        ["f", "sub/c.py", 3, sha(b"one")],
    ]  # fmt: skip
    assert tree.contents == [(sha(b"one"), "a.py", 3), (sha(b"two"), "sub/b.py", 3)]
    assert tree.digest == scan(tmp_path).digest
    (tmp_path / "a.py").write_bytes(b"1ne")
    assert tree.digest != scan(tmp_path).digest


def test_the_agent_takes_our_manifest(tmp_path: Path) -> None:
    from jobrunner.agent import manifest

    (tmp_path / "空 文件").touch()
    (tmp_path / "dir" / "empty").mkdir(parents=True)
    if os.name == "posix":
        os.symlink("空 文件", tmp_path / "link")
        open(os.fsencode(tmp_path) + b"/\xff\n", "wb").close()
    tree = scan(tmp_path)
    assert manifest.check(json.loads(json.dumps(tree.manifest))) == tree.manifest
    assert [digest for digest, _ in manifest.contents(tree.manifest)] == [digest for digest, _, _ in tree.contents]


def test_many_files_are_hashed_rightly_in_threads(tmp_path: Path) -> None:
    for number in range(500):
        (tmp_path / f"f{number:03d}").write_bytes(b"%d" % number * (number * 7))
    (tmp_path / "big").write_bytes(b"x" * (9 * MB))
    rows = {row[1]: (row[3], row[4]) for row in scan(tmp_path).manifest}
    assert len(rows) == 501
    for name, (size, digest) in rows.items():
        data = (tmp_path / name).read_bytes()
        assert (size, digest) == (len(data), sha(data))


def test_files_that_did_not_change_are_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = tmp_path / "code"
    code.mkdir()
    (code / "big").write_bytes(b"x" * MB)
    (code / "small").write_bytes(b"y")
    rest(code / "big")
    rest(code / "small")
    cache = tmp_path / "state" / "hashes.json"
    monkeypatch.setattr(hashing, "RESTED_NS", -(10**12))  # a file's ctime cannot be put back
    before = scan(code, cache=HashCache(cache)).manifest
    opened: list[str] = []
    really = hashing.open_file
    monkeypatch.setattr(hashing, "open_file", lambda root, path: (opened.append(path), really(root, path))[1])
    assert scan(code, cache=HashCache(cache)).manifest == before
    assert opened == ([] if os.name == "posix" else ["small"])
    if os.name == "posix":
        assert cache.stat().st_mode & 0o777 == 0o600
    (code / "big").write_bytes(b"z" * MB)
    rest(code / "big")
    changed = {row[1]: row[4] for row in scan(code, cache=HashCache(cache)).manifest}
    assert changed["big"] == sha(b"z" * MB)
    (code / "small").write_bytes(b"w")
    assert {row[1]: row[4] for row in scan(code, cache=HashCache(cache)).manifest}["small"] == sha(b"w")


def test_caches_of_folders_that_were_not_sent_lately_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hashing, "RESTED_NS", -(10**12))
    monkeypatch.setattr(hashing, "_MOST_FOLDERS", 2)
    for number, name in enumerate("abc"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_bytes(b"x" * MB)
        assert scan(tmp_path / name, cache=HashCache.of(tmp_path / "state", tmp_path / name)).manifest
        for file in (tmp_path / "state").iterdir():
            os.utime(file, (number + os.stat(file).st_mtime - 10,) * 2)
    assert len(list((tmp_path / "state").glob("hashes-*.json"))) == 2


def test_a_file_that_was_just_written_is_read_again(tmp_path: Path) -> None:
    """Within the clock's grain a second write may leave size and times as they were."""
    big = tmp_path / "big"
    big.write_bytes(b"a" * MB)
    cache = HashCache(tmp_path / "state" / "hashes.json")
    assert scan(tmp_path, cache=cache).contents[0][0] == sha(b"a" * MB)
    assert cache.find(os.fsencode(big), MB, hashing.stamp_of(big.stat())) is None


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"v": 2, "files": {}}', b'{"v": 1, "files": {"a": 3}}', b"\xff"]
)
def test_a_damaged_cache_is_an_empty_one(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "hashes.json").write_bytes(content)
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "a").write_bytes(b"x" * MB)
    assert scan(tmp_path / "code", cache=HashCache(tmp_path / "hashes.json")).contents[0][0] == sha(b"x" * MB)


def test_a_cache_that_cannot_be_written_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hashing, "RESTED_NS", -(10**12))
    (tmp_path / "file").touch()
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "a").write_bytes(b"x" * MB)
    assert len(scan(tmp_path / "code", cache=HashCache(tmp_path / "file" / "hashes.json")).manifest) == 1


def tree_of(*entries: tuple[str, int]) -> Tree:
    return Tree(b"/", tuple(Entry("f", path, 0o644, size) for path, size in entries))


def test_too_much_is_refused_and_what_weighs_is_named() -> None:
    tree = tree_of(("train.py", 10_000), ("data/raw/a.bin", 900 * MB), ("data/raw/b.bin", 99 * MB), ("ck/x", 26 * MB))
    with pytest.raises(UsageError) as caught:
        check_size(tree, large=False)
    assert caught.value.code == "too_large" and "--large" in caught.value.remedy
    assert "data/raw/ (2 files, 999 MB)" in caught.value.message and "4 files, 1.0 GB" in caught.value.message
    check_size(tree, large=True)
    check_size(tree_of(("a", 1024 * MB)), large=False)


def test_too_many_files_are_refused_too() -> None:
    files = [(f"venv/lib/p{n % 300}/f{n}", 0) for n in range(50_001)]
    with pytest.raises(UsageError, match=r"venv/lib/ \(50,001 files"):
        check_size(tree_of(*files), large=False)
    check_size(tree_of(*files[1:]), large=False)


def test_the_heaviest_come_first_and_a_folder_gives_way_to_what_fills_it() -> None:
    weights = [("a/b/c/x", 100), ("a/b/c/y", 90), ("a/z", 1), ("d/one", 50), ("d/two", 50), ("e", 70)]
    entries = tree_of(*((path, size * MB) for path, size in weights)).entries
    assert heaviest(entries) == [("a/b/c/", 2, 190 * MB), ("d/", 2, 100 * MB), ("e", 1, 70 * MB)]
    assert heaviest(entries, most=1) == [("a/b/c/", 2, 190 * MB)]


def test_the_biggest_files_are_reported(tmp_path: Path) -> None:
    for size in range(1, 8):
        (tmp_path / f"f{size}").write_bytes(b"x" * size)
    report = scan(tmp_path).report()
    assert report["biggest"] == [["f7", 7], ["f6", 6], ["f5", 5], ["f4", 4], ["f3", 3]]
    assert (report["files"], report["bytes"], report["commit"]) == (7, 28, None)


@pytest.fixture
def three(tmp_path: Path) -> Tree:
    (tmp_path / "a").write_bytes(b"a" * 600_000)
    (tmp_path / "b").write_bytes(b"")
    (tmp_path / "c").write_bytes(b"c" * 10)
    tree = scan(tmp_path)
    assert len(tree.manifest) == 3
    return tree


def test_contents_come_in_the_order_that_was_asked_for(three: Tree) -> None:
    got = {index: list(pieces) for index, pieces in iter_blobs(three, [2, 0, 1])}
    assert list(got) == [2, 0, 1]
    assert {index: b"".join(pieces) for index, pieces in got.items()} == {0: b"a" * 600_000, 1: b"", 2: b"c" * 10}
    assert max(len(piece) for piece in got[0]) <= 256 * 1024


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda path: path.write_bytes(b"b" * 600_000), "other content"),
        (lambda path: path.write_bytes(b"a" * 600_001), "it grew"),
        (lambda path: path.write_bytes(b"a" * 599_999), "1 bytes are missing"),
        (lambda path: path.unlink(), "No such file"),
        (lambda path: (path.unlink(), path.mkdir()), "sending a"),
    ],
)
def test_a_file_that_changed_meanwhile_is_noticed(three: Tree, change: object, found: str) -> None:
    path = Path(os.fsdecode(three.root)) / "a"
    assert callable(change)
    change(path)
    given = 0
    with pytest.raises(ChangedError, match=found) as caught:
        for _, pieces in iter_blobs(three, [0]):
            for piece in pieces:
                given += len(piece)
    assert caught.value.path == "a" and caught.value.code == "changed"
    assert given <= 600_000


@pytest.mark.skipif(os.name != "posix", reason="links and pipes")
@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_a_file_that_became_something_else_is_not_followed(three: Tree, tmp_path: Path, kind: str) -> None:
    (tmp_path / "copy").write_bytes(b"a" * 600_000)
    (tmp_path / "a").unlink()
    if kind == "link":
        os.symlink("copy", tmp_path / "a")
    else:
        os.mkfifo(tmp_path / "a")
    with pytest.raises(ChangedError):
        for _, pieces in iter_blobs(three, [0]):
            list(pieces)
