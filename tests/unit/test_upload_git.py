"""Our walk sees a folder as git itself does: hundreds of small trees with hostile ignore files, compared with git."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from pathlib import Path

import pytest

from jobrunner.upload import scan

pytestmark = pytest.mark.skipif(
    shutil.which("git") is None or os.name != "posix", reason="needs git, and any file name"
)

NAMES = [
    b"a", b"b", b"ab", b"a.c", b"foo", b"foo.log", b"bar", b"x y", b" ", b"a ", b"#h", b"!n", b"[a]", b"a*", b"\\",
    b"a\\b", b"\xff", b"n\nl", "检查".encode(), b"-", b"z]", b".h", b"ABC", b"foo\t", b"a\r",
]  # fmt: skip
PIECES = [
    b"a", b"b", b"ab", b"foo", b"bar", b"*", b"**", b"?", b"*.log", b"a*", b"*b", b"***", b"a**", b"**b", b"*a*", b".*",
    b"[a-c]", b"[!a]", b"[^b]*", b"[]]", b"[]a]", b"[a", b"[a-]", b"[--z]", b"[\\]]", b"[c-a]", b"f[o-p]o",
    b"[\x80-\xff]*", b"[[:alpha:]]", b"[[:nope:]]", b"[[:digit:][:space:]]", b"[[:upper:]]*", b"[[.a.]]", b"[:alpha:]",
    b"[a-\\c]",
    b"\\a", b"\\*", b"\\#h", b"\\!n", b"x y", b"x\\ y", b"\\ ", b"\\", b"a\\", b"\\\\", b"\xff", "检*".encode(),
    b"n?l", b"foo\t",
]  # fmt: skip


def ignore_file(chance: random.Random) -> bytes:
    lines = []
    for _ in range(chance.randint(1, 6)):
        parts = [chance.choice(PIECES) for _ in range(chance.choice([1, 1, 1, 2, 2, 3]))]
        line = b"/".join(parts)
        line = chance.choice([b"", b"", b"", b"!", b"/", b"!/", b"#", b"\\", b" "]) + line
        line += chance.choice(
            [b"", b"", b"", b"/", b"/", b" ", b"  ", b"\\ ", b"\t", b"//", b"/*", b"/**", b"\r", b"\0x"]
        )
        lines.append(line)
    return chance.choice([b"", b"", b"\xef\xbb\xbf"]) + b"\n".join(lines) + chance.choice([b"", b"\n", b"\r\n"])


def make_tree(folder: Path, chance: random.Random) -> None:
    folders = [os.fsencode(folder)]
    for _ in range(chance.randint(1, 8)):
        path = os.path.join(chance.choice(folders), chance.choice(NAMES))
        if not os.path.lexists(path):
            os.mkdir(path)
            folders.append(path)
    for _ in range(chance.randint(5, 40)):
        path = os.path.join(chance.choice(folders), chance.choice(NAMES))
        if os.path.lexists(path):
            continue
        if chance.random() < 0.1:
            os.symlink(chance.choice([b".", b"a", b"/nowhere", b"../.."]), path)
        else:
            open(path, "wb").close()
    for path in folders:
        if path == folders[0] or chance.random() < 0.3:
            with open(os.path.join(path, b".gitignore"), "wb") as file:
                file.write(ignore_file(chance))


def git(folder: Path, *words: str, data: bytes = b"") -> bytes:
    done = subprocess.run(["git", *words], cwd=folder, input=data, capture_output=True, check=True, timeout=60)
    return done.stdout


def seen_by_git(folder: Path) -> set[bytes]:
    listed = git(folder, "ls-files", "-co", "--exclude-standard", "-z").split(b"\0")
    here = os.fsencode(folder)
    return {path for path in listed if path and os.path.lexists(os.path.join(here, path))}


def seen_by_us(folder: Path, ask_git: bool) -> set[bytes]:
    return {os.fsencode(entry.path) for entry in scan(folder, ask_git=ask_git).entries if entry.kind != "d"}


@pytest.fixture(autouse=True)
def own_settings(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No settings of this machine's user; an excludes file of our own."""
    home = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home / "xdg"))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    return home


@pytest.mark.parametrize("seed", range(12))
def test_our_walk_is_gits_list(tmp_path: Path, own_settings: Path, seed: int) -> None:
    for number in range(15):
        chance = random.Random(seed * 1000 + number)
        folder = tmp_path / str(number)
        folder.mkdir()
        make_tree(folder, chance)
        git(folder, "init", "-q", "--template=")
        if chance.random() < 0.5:
            (folder / ".git" / "info").mkdir(exist_ok=True)
            (folder / ".git" / "info" / "exclude").write_bytes(ignore_file(chance))
        ignore = own_settings / "xdg" / "git" / "ignore"
        ignore.parent.mkdir(parents=True, exist_ok=True)
        ignore.write_bytes(ignore_file(chance) if chance.random() < 0.5 else b"")
        expected = seen_by_git(folder)
        rules = sorted(folder.rglob(".gitignore"))
        context = (seed, number, [(str(path), path.read_bytes()) for path in rules])
        assert seen_by_us(folder, ask_git=False) == expected, context
        assert seen_by_us(folder, ask_git=True) == expected, context
        every = [entry.path for entry in scan(folder, include=["*"]).entries if entry.kind == "f"]
        tracked = [os.fsencode(path) for path in every if chance.random() < 0.2]
        git(folder, "update-index", "-z", "--add", "--stdin", data=b"".join(path + b"\0" for path in tracked))
        if tracked:
            os.unlink(os.path.join(os.fsencode(folder), tracked[0]))
        assert seen_by_us(folder, ask_git=True) == seen_by_git(folder), context


@pytest.mark.parametrize("seed", range(3))
def test_a_folder_inside_a_repository_follows_the_rules_above_it(tmp_path: Path, seed: int) -> None:
    for number in range(15):
        chance = random.Random(seed * 77 + number)
        top = tmp_path / str(number)
        inner = top / "a" / "b"
        inner.mkdir(parents=True)
        make_tree(inner, chance)
        git(top, "init", "-q", "--template=")
        rules = ignore_file(chance)
        (top / ".gitignore").write_bytes(rules)
        above = subprocess.run(["git", "check-ignore", "-q", "a/b"], cwd=top, check=False, timeout=60).returncode == 0
        if not above:
            assert seen_by_us(inner, ask_git=False) == seen_by_git(inner), (seed, number, rules)
            assert seen_by_us(inner, ask_git=True) == seen_by_git(inner), (seed, number, rules)
