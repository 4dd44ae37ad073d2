"""The list of files comes from elsewhere: what climbs out, lies under a link or cannot be is refused."""

from __future__ import annotations

import base64
import json
import os
import tempfile
import zlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jobrunner.agent import manifest, worktree
from jobrunner.agent.files import AgentError, to_bytes, to_text
from jobrunner.agent.layout import Layout
from tests.support.agentproc import Tree

SHA = "a" * 64


def file(path: Any, size: Any = 3, value: Any = SHA, mode: Any = 0o644) -> list[Any]:
    return ["f", path, mode, size, value]


@pytest.mark.parametrize(
    "entries",
    [
        "text",
        [7],
        [["f", "a"]],
        [["x", "a", 0o644, 0, SHA]],
        [file("")],
        [file(None)],
        [file("/etc/passwd")],
        [file("../a")],
        [file("a/../../b")],
        [file("a/./b")],
        [file("a//b")],
        [file("a/")],
        [file("a\0b")],
        [file("n" * 256)],
        [file("a/" * 2100 + "b")],
        [file("\ud800")],
        [file("a"), file("a")],
        [file("é"), file("\udcc3\udca9")],
        [file("a", size=-1)],
        [file("a", size=True)],
        [file("a", size=1.5)],
        [file("a", size=1 << 60)],
        [file("a", size=None)],
        [file("a", value="A" * 64)],
        [file("a", value="a" * 63)],
        [file("a", value=None)],
        [file("a", mode=-1)],
        [file("a", mode=0o10000)],
        [file("a", mode="644")],
        [file("a", size=3), file("b", size=4)],
        [["l", "a", 0o777, 0, ""]],
        [["l", "a", 0o777, 0, "x\0y"]],
        [["l", "a", 0o777, 0, 7]],
        [["l", "a", 0o777, 0, "/tmp"], file("a/b")],
        [file("a/b/c"), ["l", "a", 0o777, 0, "/tmp"]],
        [file("a"), file("a/b")],
        [["l", "é", 0o777, 0, "/tmp"], file("\udcc3\udca9/b")],
    ],
    ids=lambda entries: repr(entries)[:50],
)
def test_refused(entries: Any) -> None:
    with pytest.raises(AgentError) as failed:
        manifest.check(entries)
    assert failed.value.code == "bad_manifest"


def test_taken() -> None:
    entries = [
        ["d", "empty", 0o755, 0, None],
        file("-rf"),
        file("a b/new\nline"),
        file("\udcff.txt", size=3),
        ["l", "out", 0o777, 0, "/etc/passwd"],
        ["l", "loop", 0o777, 0, "loop"],
        file("x" * 255),
    ]
    assert manifest.check(entries) is entries
    assert manifest.contents(entries) == [(SHA, 3)]
    assert manifest.total(entries) == (12, 7)


def test_packed_forms() -> None:
    entries = [file("a")]
    packed = base64.b64encode(zlib.compress(json.dumps(entries).encode())).decode()
    assert manifest.unpack(packed) == entries
    for bad in ["", "!!!", packed[:-8], base64.b64encode(b"plain").decode(), None, 7]:
        with pytest.raises(AgentError):
            manifest.unpack(bad)


def test_a_bomb_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest, "MAX_UNPACKED", 100_000)
    bomb = base64.b64encode(zlib.compress(b"[" + b" " * 1_000_000 + b"]")).decode()
    with pytest.raises(AgentError, match="cannot be unpacked"):
        manifest.unpack(bomb)


@given(
    st.lists(st.lists(st.one_of(st.none(), st.text(max_size=8), st.integers(), st.just(SHA)), max_size=6), max_size=6)
)
def test_anything_is_either_taken_or_refused_by_name(entries: list[Any]) -> None:
    try:
        manifest.check(entries)
    except AgentError as error:
        assert error.code == "bad_manifest"


names = st.binary(min_size=1, max_size=20).filter(lambda b: b not in (b".", b"..") and not set(b) & {0, 0x2F})
paths = st.lists(names, min_size=1, max_size=3).map(b"/".join)
trees = st.dictionaries(
    paths,
    st.one_of(
        st.tuples(st.just("f"), st.binary(max_size=40), st.sampled_from([0o644, 0o755, 0o444, 0o600, 0o4755])),
        st.tuples(st.just("l"), names, st.just(0o777)),
        st.tuples(st.just("d"), st.just(b""), st.sampled_from([0o755, 0o700, 0o555])),
    ),
    max_size=8,
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(trees)
def test_every_tree_that_is_taken_is_written_out_as_it_is(tree: dict[bytes, tuple[str, bytes, int]]) -> None:
    made = Tree()
    for path, (kind, data, mode) in tree.items():
        name = to_text(path)
        if kind == "f":
            made.file(name, data, mode)
        elif kind == "l":
            made.link(name, to_text(data))
        else:
            made.folder(name, mode)
    try:
        manifest.check(made.entries)
    except AgentError:
        return
    with tempfile.TemporaryDirectory() as folder:
        layout = Layout(folder)
        for data, (digest, _) in zip(made.contents, manifest.contents(made.entries), strict=True):
            path = Path(folder) / "blobs" / digest[:2] / digest
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        top = os.path.join(os.fsencode(folder), b"tree")
        os.mkdir(top)
        modes = worktree.write_tree(layout, made.entries, top)
        assert {path[len(top) + 1 :] for path, _ in modes} == {p for p, (kind, _, _) in tree.items() if kind == "d"}
        for path, (kind, data, mode) in tree.items():
            full = os.path.join(top, path)
            if kind == "f":
                assert Path(os.fsdecode(full)).read_bytes() == data
                assert os.stat(full).st_mode & 0o7777 == mode & 0o777
            elif kind == "l":
                assert os.readlink(full) == data
            else:
                assert os.path.isdir(full)
        assert to_bytes(to_text(top)) == top
