"""What of a folder is sent, what is not, and how the report says so."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from jobrunner.core.errors import UsageError
from jobrunner.upload import Tree, git_state, scan

posix = pytest.mark.skipif(os.name != "posix", reason="POSIX file system")
needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="needs git")


@pytest.fixture(autouse=True)
def own_settings(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home / "xdg"))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")


def fill(folder: Path, *paths: str, **texts: str) -> Path:
    for path in paths:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        if path.endswith("/"):
            (folder / path).mkdir(exist_ok=True)
        else:
            (folder / path).write_text("x")
    return folder


def git(folder: Path, *words: str) -> str:
    who = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "protocol.file.allow=always"]
    done = subprocess.run(["git", *who, *words], cwd=folder, capture_output=True, text=True, check=True, timeout=60)
    return done.stdout.strip()


def sent(tree: Tree) -> list[str]:
    return [entry.path + ("/" if entry.kind == "d" else "") for entry in tree.entries]


def left_out(tree: Tree) -> dict[str, tuple[str, str]]:
    return {skip.path: (skip.rule, skip.source) for skip in tree.skipped}


def test_the_report_names_the_rule_and_its_line_for_each_path_that_is_left_out(tmp_path: Path) -> None:
    fill(tmp_path, "train.py", "a.log", "data/big.bin", "src/x.pyc", "src/x.py", "old/y", "note.md", "deep/er/z.tmp")
    (tmp_path / ".gitignore").write_text("# comment\n*.log\n/data/\n")
    (tmp_path / "src" / ".gitignore").write_text("*.pyc\n")
    (tmp_path / ".jobrunnerignore").write_text("old/\n")
    (tmp_path / "deep" / ".jobrunnerignore").write_text("\n*.tmp\n")
    tree = scan(tmp_path, exclude=["*.md"])
    assert sent(tree) == [
        ".gitignore", ".jobrunnerignore", "deep/", "deep/.jobrunnerignore", "src/", "src/.gitignore", "src/x.py",
        "train.py",
    ]  # fmt: skip
    assert left_out(tree) == {
        "a.log": ("*.log", ".gitignore:2"),
        "data/": ("/data/", ".gitignore:3"),
        "src/x.pyc": ("*.pyc", "src/.gitignore:1"),
        "old/": ("old/", ".jobrunnerignore:1"),
        "note.md": ("*.md", "code.exclude[0]"),
        "deep/er/z.tmp": ("*.tmp", "deep/.jobrunnerignore:2"),
    }
    assert tree.warnings == () and tree.git is None


@pytest.mark.parametrize(
    ("include", "more"),
    [
        ([], []),
        (["data/"], ["data/", "data/a.bin", "data/in/", "data/in/b.bin", "data/in/c.log"]),
        (["data/in/b.bin"], ["data/", "data/in/", "data/in/b.bin"]),
        (["/data/in"], ["data/", "data/in/", "data/in/b.bin", "data/in/c.log"]),
        (["*.bin"], ["data/", "data/a.bin", "data/in/", "data/in/b.bin"]),
        (["data/*/*.bin", "!c.log"], ["data/", "data/in/", "data/in/b.bin"]),
        (["other/*.bin"], []),
        (["*.log"], ["data/", "data/in/", "data/in/c.log", "x.log"]),
    ],
)
def test_include_sends_what_is_ignored_and_only_that(tmp_path: Path, include: list[str], more: list[str]) -> None:
    fill(tmp_path, "train.py", "x.log", "data/a.bin", "data/in/b.bin", "data/in/c.log")
    (tmp_path / ".gitignore").write_text("data/\n*.log\n")
    assert sent(scan(tmp_path, include=include)) == sorted([".gitignore", "train.py", *more])


def test_exclude_wins_over_include_and_a_negated_line_changes_nothing(tmp_path: Path) -> None:
    fill(tmp_path, "data/a", "data/b", "c")
    (tmp_path / ".gitignore").write_text("data/\n")
    assert sent(scan(tmp_path, include=["data/"], exclude=["data/b", "!c"])) == [".gitignore", "c", "data/", "data/a"]


def test_jobrunnerignore_stands_above_gitignore(tmp_path: Path) -> None:
    fill(tmp_path, "data/a", "data/b.log", "weights.pt", "notes.txt")
    (tmp_path / ".gitignore").write_text("data/\n*.pt\n*.log\n")
    (tmp_path / ".jobrunnerignore").write_text("!data/\n!weights.pt\nnotes.txt\n")
    tree = scan(tmp_path)
    assert sent(tree) == [".gitignore", ".jobrunnerignore", "data/", "data/a", "weights.pt"]
    assert set(left_out(tree)) == {"data/b.log", "notes.txt"}


def test_empty_folders_are_sent_unless_ignored(tmp_path: Path) -> None:
    fill(tmp_path, "out/", "a/b/c/", "cache/", "full/x.log")
    (tmp_path / ".gitignore").write_text("cache/\n*.log\n")
    assert sent(scan(tmp_path)) == [".gitignore", "a/", "a/b/", "a/b/c/", "out/"]


@posix
def test_names_modes_and_links_arrive_as_they_are(tmp_path: Path) -> None:
    names = [b"\xff\xfe", b"new\nline", "训练 脚本.py".encode(), b" ", b"-rf", b"a\\b", b"Readme", b"README"]
    for name in names:
        with open(os.path.join(os.fsencode(tmp_path), name), "wb") as file:
            file.write(name)
    os.chmod(tmp_path / "README", 0o755)
    os.chmod(tmp_path / "Readme", 0o4640)
    (tmp_path / "sub").mkdir(mode=0o750)
    os.symlink("../README", tmp_path / "sub" / "link")
    rows = {row[1]: row for row in scan(tmp_path).manifest}
    assert {name.encode("utf-8", "surrogateescape") for name in rows} == {*names, b"sub", b"sub/link"}
    assert rows["README"][:4] == ["f", "README", 0o755, 6]
    assert rows["Readme"][2] == 0o640
    assert rows["sub"][:3] == ["d", "sub", 0o750]
    assert rows["sub/link"][0] == "l" and rows["sub/link"][4] == "../README"
    assert [row[1] for row in scan(tmp_path).manifest] == sorted(
        rows, key=lambda name: name.encode("utf-8", "surrogateescape")
    )


@posix
def test_links_that_will_lead_nowhere_are_sent_with_a_warning(tmp_path: Path) -> None:
    code = fill(tmp_path / "code", "a/x", "hidden.log")
    fill(tmp_path, "outside")
    (code / ".gitignore").write_text("*.log\n")
    links = {
        "abs": "/etc/passwd",
        "up": "../outside",
        "gone": "nothing",
        "ignored": "hidden.log",
        "fine": "a/x",
        "dir": "a",
        "top": ".",
    }
    for name, target in links.items():
        os.symlink(target, code / name)
    tree = scan(code)
    assert {entry.path: entry.target for entry in tree.entries if entry.kind == "l"} == links
    assert sorted(warning.split()[2] for warning in tree.warnings) == ["abs", "gone", "ignored", "up"]


@posix
def test_what_is_neither_file_nor_folder_is_left_out_with_a_warning(tmp_path: Path) -> None:
    fill(tmp_path, "train.py")
    os.mkfifo(tmp_path / "pipe")
    os.mkfifo(tmp_path / "ignored.pipe")
    (tmp_path / ".gitignore").write_text("ignored.pipe\n")
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(os.path.relpath(tmp_path / "sock"))
        tree = scan(tmp_path)
    assert sent(tree) == [".gitignore", "train.py"]
    assert sorted(tree.warnings) == ["pipe is a named pipe and is not sent", "sock is a socket and is not sent"]


@contextmanager
def as_an_ordinary_user() -> Iterator[Path]:
    """A folder of one's own; root, who can read everything, becomes nobody for a while."""
    folder = Path(tempfile.mkdtemp(prefix="code-"))
    root = os.geteuid() == 0
    try:
        if root:
            os.chown(folder, 65534, 65534)
            os.seteuid(65534)
        yield folder
    finally:
        if root:
            os.seteuid(0)
        shutil.rmtree(folder)


@posix
def test_what_cannot_be_read_is_an_error_that_names_it() -> None:
    with as_an_ordinary_user() as folder:
        fill(folder, "ok", "secret", "closed/x")
        os.chmod(folder / "secret", 0)
        with pytest.raises(UsageError, match=r"secret \(Permission denied\)") as caught:
            _ = scan(folder).manifest
        assert caught.value.code == "unreadable"
        os.chmod(folder / "closed", 0)
        with pytest.raises(UsageError, match=r"closed/ \(Permission denied\)"):
            scan(folder)
        assert sent(scan(folder, exclude=["closed/", "secret"])) == ["ok"]
        os.chmod(folder / "closed", 0o700)


@posix
def test_a_file_that_is_no_file_any_more_is_an_error_that_names_it(tmp_path: Path) -> None:
    fill(tmp_path, "a", "b")
    tree = scan(tmp_path)
    (tmp_path / "b").unlink()
    os.mkfifo(tmp_path / "b")  # opening it must not hang
    with pytest.raises(UsageError, match=r"b \(it is no regular file any more\)"):
        _ = tree.manifest


@pytest.mark.parametrize("what", ["nothing", "file"])
def test_a_code_folder_must_be_a_folder(tmp_path: Path, what: str) -> None:
    fill(tmp_path, "file")
    with pytest.raises(UsageError) as caught:
        scan(tmp_path / what)
    assert caught.value.code == "no_code"


def test_our_own_state_is_never_sent(tmp_path: Path) -> None:
    fill(tmp_path, "train.py", "state/ledger.db", "state/logs/x")
    tree = scan(tmp_path, include=["*"], never=[tmp_path / "state", tmp_path.parent / "elsewhere"])
    assert sent(tree) == ["train.py"]
    assert left_out(tree) == {"state/": ("jobrunner's own files", "")}


@needs_git
def test_in_a_repository_tracked_files_go_even_if_ignored_and_deleted_ones_do_not(tmp_path: Path) -> None:
    fill(tmp_path, "tracked.log", "other.log", "build/kept", "build/junk", "gone", "new.py")
    (tmp_path / ".gitignore").write_text("*.log\nbuild/\n")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", "-f", "tracked.log", "build/kept", "gone", ".gitignore")
    (tmp_path / "gone").unlink()
    tree = scan(tmp_path)
    assert sent(tree) == [".gitignore", "build/", "build/kept", "new.py", "tracked.log"]
    assert left_out(tree) == {"other.log": ("*.log", ".gitignore:1"), "build/junk": ("build/", ".gitignore:2")}
    assert tree.warnings == ()


@needs_git
def test_submodules_and_other_repositories_inside_are_sent_as_their_own_files(tmp_path: Path) -> None:
    library = fill(tmp_path / "library", "lib.py", "x.tmp", "deep/y")
    git(library, "init", "-q")
    (library / ".gitignore").write_text("*.tmp\n")
    git(library, "add", ".")
    git(library, "commit", "-qm", "x")
    code = fill(tmp_path / "code", "train.py", "loose/inner.py", "loose/a.log", "z.log")
    (code / ".gitignore").write_text("*.log\n")
    git(code, "init", "-q")
    git(code, "submodule", "--quiet", "add", str(library), "third party/lib")
    git(code / "loose", "init", "-q")
    (code / "third party" / "lib" / "b.tmp").touch()
    (code / "third party" / "lib" / "c.log").touch()
    expected = [
        ".gitignore", ".gitmodules", "loose/", "loose/a.log", "loose/inner.py", "third party/", "third party/lib/",
        "third party/lib/.gitignore", "third party/lib/c.log", "third party/lib/deep/", "third party/lib/deep/y",
        "third party/lib/lib.py", "train.py",
    ]  # fmt: skip
    assert sent(scan(code)) == expected
    assert left_out(scan(code))["third party/lib/b.tmp"] == ("*.tmp", "third party/lib/.gitignore:1")
    assert sent(scan(code, ask_git=False)) == expected


@needs_git
def test_a_folder_that_its_repository_ignores_is_sent_all_the_same(tmp_path: Path) -> None:
    fill(tmp_path, "work/exp1/train.py", "work/exp1/a.log")
    (tmp_path / ".gitignore").write_text("work/\n")
    (tmp_path / "work" / "exp1" / ".gitignore").write_text("*.log\n")
    git(tmp_path, "init", "-q")
    assert sent(scan(tmp_path / "work" / "exp1")) == [".gitignore", "train.py"]


@needs_git
def test_git_is_asked_about_this_folder_whatever_the_environment_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path, "a.log")
    (tmp_path / ".gitignore").write_text("*.log\n")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", "-f", "a.log")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(tmp_path / "none"))
    assert sent(scan(tmp_path)) == [".gitignore", "a.log"]


@needs_git
def test_without_git_the_rules_still_count_and_a_warning_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path, "tracked.log", "train.py", "home.tmp", "local")
    (tmp_path / ".gitignore").write_text("*.log\n")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", "-f", "tracked.log")
    (tmp_path / ".git" / "info" / "exclude").write_text("local\n")
    home = Path(os.environ["HOME"])
    (home / ".gitconfig").write_text(
        "[user]\n\tname = x\n[core]\n\tautocrlf = false\n\texcludesFile = ~/my ignores ; mine\n"
    )
    (home / "my ignores").write_text("*.tmp\n")
    assert sent(scan(tmp_path)) == [".gitignore", "tracked.log", "train.py"]
    monkeypatch.setenv("PATH", str(tmp_path / "nothing here"))
    tree = scan(tmp_path)
    assert sent(tree) == [".gitignore", "train.py"]
    assert len(tree.warnings) == 1 and "git was not found" in tree.warnings[0]
    assert tree.git is None


@needs_git
def test_the_state_of_the_repository_goes_along(tmp_path: Path) -> None:
    assert git_state(tmp_path) is None
    fill(tmp_path, "train.py", "sub/x")
    git(tmp_path, "init", "-q", "-b", "main")
    first = git_state(tmp_path)
    assert first is not None and (first.commit, first.branch, first.dirty) == (None, "main", True)
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "x")
    commit = git(tmp_path, "rev-parse", "HEAD")
    clean = scan(tmp_path).git
    assert clean is not None and (clean.commit, clean.branch, clean.dirty) == (commit, "main", False)
    (tmp_path / "train.py").write_text("changed")
    dirty = scan(tmp_path)
    assert dirty.git is not None and dirty.git.dirty
    inner = scan(tmp_path / "sub").git
    assert inner is not None and not inner.dirty, "only the code folder counts"
    git(tmp_path, "checkout", "-q", "--detach")
    detached = git_state(tmp_path)
    assert detached is not None and detached.branch is None
    code: dict[str, Any] = dirty.code()
    assert (code["files"], code["commit"], code["branch"], code["dirty"]) == (2, commit, "main", True)


@posix
def test_a_git_that_never_answers_costs_two_seconds_at_most(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = tmp_path / "bin" / "git"
    slow.parent.mkdir()
    slow.write_text("#!/bin/sh\nexec sleep 60\n")
    slow.chmod(0o755)
    monkeypatch.setenv("PATH", f"{slow.parent}:{os.environ['PATH']}")
    assert git_state(tmp_path, limit_s=0.1) is None


@posix
def test_a_very_deep_folder_is_no_problem(tmp_path: Path) -> None:
    deep = tmp_path
    for _ in range(600):
        deep = deep / "d"
    deep.mkdir(parents=True)
    (deep / "x").touch()
    assert len(scan(tmp_path).entries) == 601
