"""Pulled files: resumed, verified, and never outside of their folder."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jobrunner.core.errors import HostError, UsageError
from jobrunner.service import download, localdisk
from jobrunner.service.download import have, plan, save
from jobrunner.service.locks import FileLock
from jobrunner.service.names import name_fault

posix = pytest.mark.skipif(os.name != "posix", reason="POSIX file system")
MTIME = "2026-12-01T09:30:00.500000Z"


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


class Cut(Exception):
    """The way to the host broke."""


class Host:
    """A host with files; `cut_at` breaks the way after so many bytes, `spoil` sends other bytes than it hashes."""

    def __init__(self, files: dict[str, bytes], *, known: bool = True) -> None:
        self.files = files
        self.known = known
        self.asked: list[tuple[int, int]] = []
        self.cut_at: int | None = None
        self.spoil = False
        self.changed = False

    def listing(self) -> list[dict[str, Any]]:
        return [
            {"path": path, "type": "f", "mode": 0o755 if path.endswith(".sh") else 0o644, "size": len(data),
             "sha256": sha(data) if self.known else None, "mtime": MTIME}
            for path, data in self.files.items()
        ]  # fmt: skip

    def fetch(self, index: int, offset: int) -> Transfer:
        self.asked.append((index, offset))
        return Transfer(self, list(self.files.values())[index], offset)


class Transfer:
    def __init__(self, host: Host, data: bytes, offset: int) -> None:
        self._host, self._data, self._offset, self._ended = host, data, offset, False

    def __iter__(self) -> Iterator[bytes]:
        for start in range(self._offset, len(self._data), 1000):
            if self._host.cut_at is not None and start >= self._host.cut_at:
                raise Cut
            piece = self._data[start : start + 1000]
            yield bytes(len(piece)) if self._host.spoil else piece
        self._ended = True

    @property
    def sha256(self) -> str | None:
        assert self._ended, "the hash comes after the bytes"
        return None if self._host.changed else sha(self._data)


def names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir())


def test_files_arrive_whole_with_their_times_and_the_folder_holds_nothing_else(tmp_path: Path) -> None:
    host = Host({"metrics.json": b"{}", "plots/a.png": b"x" * 12_345, "run.sh": b"echo", "empty": b""})
    to = tmp_path / "new" / "folder"
    pulled = save(host.listing(), host.fetch, to)
    assert names(to) == ["empty", "metrics.json", "plots/a.png", "run.sh"]
    assert (to / "plots" / "a.png").read_bytes() == b"x" * 12_345
    assert (to / "metrics.json").stat().st_mtime == 1796117400.5
    assert [(one.path, one.local, one.size, one.fetched) for one in pulled.saved][1] == (
        "plots/a.png", to / "plots" / "a.png", 12_345, 12_345,
    )  # fmt: skip
    assert pulled.saved[1].sha256 == sha(b"x" * 12_345) and pulled.refused == []
    if os.name == "posix":
        assert (to / "run.sh").stat().st_mode & 0o111 and not (to / "metrics.json").stat().st_mode & 0o111


@pytest.mark.parametrize("known", [True, False])
def test_a_cut_transfer_goes_on_from_its_last_byte(tmp_path: Path, known: bool) -> None:
    host = Host({"model.pt": os.urandom(10_000)}, known=known)
    host.cut_at = 4000
    with pytest.raises(Cut):
        save(host.listing(), host.fetch, tmp_path)
    (part,) = names(tmp_path)
    assert part.endswith(".part") and (tmp_path / part).stat().st_size == 4000
    host.cut_at = None
    pulled = save(host.listing(), host.fetch, tmp_path)
    assert host.asked == [(0, 0), (0, 4000)]
    assert names(tmp_path) == ["model.pt"] and (tmp_path / "model.pt").read_bytes() == host.files["model.pt"]
    assert pulled.saved[0].fetched == 6000


def test_a_part_of_an_older_state_of_the_file_is_not_gone_on_from(tmp_path: Path) -> None:
    host = Host({"model.pt": b"a" * 10_000})
    host.cut_at = 4000
    with pytest.raises(Cut):
        save(host.listing(), host.fetch, tmp_path)
    newer = Host({"model.pt": b"b" * 10_000})
    save(newer.listing(), newer.fetch, tmp_path)
    assert newer.asked == [(0, 0)] and names(tmp_path) == ["model.pt"]


def test_a_part_that_proves_wrong_is_fetched_anew_once(tmp_path: Path) -> None:
    host = Host({"model.pt": b"a" * 10_000})
    host.cut_at = 4000
    with pytest.raises(Cut):
        save(host.listing(), host.fetch, tmp_path)
    (tmp_path / names(tmp_path)[0]).write_bytes(b"?" * 4000)
    host.cut_at = None
    save(host.listing(), host.fetch, tmp_path)
    assert host.asked == [(0, 0), (0, 4000), (0, 0)]
    assert (tmp_path / "model.pt").read_bytes() == b"a" * 10_000


def test_a_part_that_is_too_long_is_begun_again(tmp_path: Path) -> None:
    host = Host({"model.pt": b"a" * 10_000})
    host.cut_at = 4000
    with pytest.raises(Cut):
        save(host.listing(), host.fetch, tmp_path)
    (tmp_path / names(tmp_path)[0]).write_bytes(b"?" * 40_000)
    host.cut_at = None
    save(host.listing(), host.fetch, tmp_path)
    assert host.asked[-1] == (0, 0)


def test_wrong_bytes_never_get_the_files_name(tmp_path: Path) -> None:
    host = Host({"model.pt": b"a" * 10_000})
    host.spoil = True
    (tmp_path / "model.pt").write_bytes(b"the old one")
    with pytest.raises(HostError) as caught:
        save(host.listing(), host.fetch, tmp_path)
    assert caught.value.code == "hash_mismatch"
    assert names(tmp_path) == ["model.pt"] and (tmp_path / "model.pt").read_bytes() == b"the old one"


def test_what_is_there_already_is_not_fetched_and_what_differs_gives_way(tmp_path: Path) -> None:
    host = Host({"same": b"s" * 5000, "other": b"o" * 5000, "longer": b"l"})
    (tmp_path / "same").write_bytes(b"s" * 5000)
    (tmp_path / "other").write_bytes(b"?" * 5000)
    (tmp_path / "longer").write_bytes(b"lll")
    (tmp_path / "mine").write_bytes(b"not the host's")
    pulled = save(host.listing(), host.fetch, tmp_path)
    assert [(one.path, one.fetched) for one in pulled.saved] == [("same", 0), ("other", 5000), ("longer", 1)]
    assert host.asked == [(1, 0), (2, 0)]
    assert {name: (tmp_path / name).read_bytes() for name in names(tmp_path)} == {
        **host.files, "mine": b"not the host's",
    }  # fmt: skip


def test_a_file_that_changes_on_the_host_is_refused_and_the_others_are_taken(tmp_path: Path) -> None:
    host = Host({"live.pt": b"a" * 3000, "done.pt": b"b"})
    listing = host.listing()
    host.files["live.pt"] = b"a" * 5000  # it grew after it was listed
    pulled = save(listing, host.fetch, tmp_path)
    assert names(tmp_path) == ["done.pt"]
    assert pulled.refused[0].path == "live.pt" and "changed" in pulled.refused[0].why
    host.changed = True
    assert [one.path for one in save(host.listing(), host.fetch, tmp_path / "2").refused] == ["live.pt", "done.pt"]
    assert names(tmp_path / "2") == []


HOSTILE = [
    "/etc/passwd", "../up", "a/../../up", "..", ".", "", "a//b", "a/./b", "a/", "x\0y", "C:\\x", "c:/x", "C:",
    "\\\\server\\x", "n" * 256, "\ud800", None, 7,
    download.LOCK_NAME, download.LOCK_NAME.upper(),
]  # fmt: skip


@pytest.mark.parametrize("path", HOSTILE)
def test_hostile_names_are_refused(tmp_path: Path, path: object) -> None:
    to = tmp_path / "to"
    host = Host({"good": b"g"})
    bad = {"path": path, "type": "f", "size": 1, "sha256": None, "mtime": MTIME, "mode": 0o644}
    pulled = save([*host.listing(), bad], host.fetch, to)
    assert len(pulled.refused) == 1 and pulled.refused[0].why
    assert names(tmp_path) == ["to/good"]


@pytest.mark.parametrize(
    "path",
    [
        "con",
        "NUL.txt",
        "a/com1",
        "Lpt9.log",
        "aux",
        "x.",
        "x ",
        "a:b",
        "a<b",
        'q"',
        "a|b",
        "a?",
        "a*",
        "a\\b",
        "\x07",
        "\udcff",
    ],
)
def test_names_that_windows_cannot_have_are_refused_there_only(path: str) -> None:
    assert name_fault(path, windows=True)
    assert not name_fault(path, windows=False)


@pytest.mark.parametrize("path", ["console", "nul1", "a.b", ".hidden", "检查点 1.pt", "com", "a b", "-x"])
def test_ordinary_names_are_fine_everywhere(path: str) -> None:
    assert not name_fault(path, windows=True) and not name_fault(path, windows=False)


@posix
def test_odd_bytes_in_names_arrive(tmp_path: Path) -> None:
    name = b"\xff\n.pt".decode("utf-8", "surrogateescape")
    host = Host({name: b"x", "检查点.pt": b"y", "a:b": b"z"})
    assert save(host.listing(), host.fetch, tmp_path).refused == []
    assert set(os.listdir(os.fsencode(tmp_path))) == {b"\xff\n.pt", "检查点.pt".encode(), b"a:b"}


@posix
@pytest.mark.parametrize("planted", ["folder", "file", "dangling"])
def test_links_in_the_folder_are_not_followed(tmp_path: Path, planted: str) -> None:
    outside, to = tmp_path / "outside", tmp_path / "to"
    outside.mkdir()
    to.mkdir()
    (outside / "victim").write_bytes(b"v")
    target, place = {
        "folder": (outside, to / "d"),
        "file": (outside / "victim", to / "victim"),
        "dangling": (outside / "no", to / "victim"),
    }[planted]
    os.symlink(target, place)
    host = Host({"d/victim" if planted == "folder" else "victim": b"evil", "good": b"g"})
    pulled = save(host.listing(), host.fetch, to)
    assert [one.path for one in pulled.saved] == ["good"]
    assert "is a link" in pulled.refused[0].why
    assert [path.read_bytes() for path in outside.iterdir()] == [b"v"] and place.is_symlink()


@posix
@pytest.mark.parametrize("kind", ["symlink", "hardlink", "pipe"])
def test_a_part_that_is_a_trap_is_not_written_through(tmp_path: Path, kind: str) -> None:
    host = Host({"a": b"evil" * 1000})
    victim, to = tmp_path / "victim", tmp_path / "to"
    victim.write_bytes(b"v")
    to.mkdir()
    part = plan(host.listing(), to).items[0].part
    {
        "symlink": lambda: os.symlink(victim, part),
        "hardlink": lambda: os.link(victim, part),
        "pipe": lambda: os.mkfifo(part),
    }[kind]()
    save(host.listing(), host.fetch, to)
    assert victim.read_bytes() == b"v" and (to / "a").read_bytes() == b"evil" * 1000
    assert names(to) == ["a"]


@posix
def test_a_link_that_appears_during_the_transfer_is_not_replaced(tmp_path: Path) -> None:
    host = Host({"d/a": b"x" * 3000})
    (tmp_path / "outside").mkdir()
    to = tmp_path / "to"

    def fetch(index: int, offset: int) -> Transfer:
        (to / "d").rename(to / "moved")
        os.symlink(tmp_path / "outside", to / "d")
        return host.fetch(index, offset)

    assert "is a link" in save(host.listing(), fetch, to).refused[0].why
    assert list((tmp_path / "outside").iterdir()) == []


def test_a_folder_or_file_in_the_way_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").write_bytes(b"")
    host = Host({"a": b"1", "b/c": b"2", "d": b"3"})
    pulled = save(host.listing(), host.fetch, tmp_path)
    assert [one.path for one in pulled.refused] == ["a", "b/c"] and [one.path for one in pulled.saved] == ["d"]


def test_a_list_that_contradicts_itself_is_refused_where_it_does(tmp_path: Path) -> None:
    files: list[dict[str, Any]] = [
        {"path": path, "size": size, "type": kind}
        for path, size, kind in [
            ("a", 1, "f"),
            ("a", 1, "f"),
            ("a/b", 1, "f"),
            ("c", -1, "f"),
            ("d", True, "f"),
            ("e", 1, "l"),
        ]
    ]
    chosen = plan(files, tmp_path)
    assert [item.path for item in chosen.items] == ["a"] and [one.path for one in chosen.refused] == [
        "a",
        "a/b",
        "c",
        "d",
        "e",
    ]
    assert chosen.size == 1


def test_two_names_that_are_one_here_do_not_overwrite_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from jobrunner.service import pullplan

    monkeypatch.setattr(pullplan, "local_name", str.lower)  # a file system that takes A for a
    host = Host({"A.pt": b"1", "a.pt": b"2"}, known=False)
    pulled = save(host.listing(), host.fetch, tmp_path)
    assert [one.path for one in pulled.saved] == ["A.pt"] and "upper and lower case" in pulled.refused[0].why
    assert (tmp_path / "a.pt").read_bytes() == b"1" and names(tmp_path) == ["a.pt"]


def test_a_full_disk_is_an_error_that_keeps_what_arrived(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = Host({"model.pt": b"a" * 10_000})
    really, room = download._write_all, [4]

    def write(handle: int, data: bytes) -> None:
        if not room[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        room[0] -= 1
        really(handle, data)

    monkeypatch.setattr(download, "_write_all", write)
    with pytest.raises(UsageError) as caught:
        save(host.listing(), host.fetch, tmp_path)
    assert caught.value.code == "disk_full" and "model.pt" in caught.value.message and caught.value.remedy
    assert (tmp_path / names(tmp_path)[0]).stat().st_size == 4000
    monkeypatch.undo()
    save(host.listing(), host.fetch, tmp_path)
    assert host.asked == [(0, 0), (0, 4000)] and names(tmp_path) == ["model.pt"]


@pytest.mark.parametrize("where", ["fsync", "ftruncate", "unlink"])
def test_troubles_of_this_machine_are_said_wherever_they_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """Network file systems tell late that they are full; and what cannot be removed stays."""
    host = Host({"model.pt": b"a" * download.SYNC_FROM})
    part = plan(host.listing(), tmp_path).items[0].part
    if where == "ftruncate":
        part.write_bytes(b"?" * (download.SYNC_FROM + 1))
    host.changed = where == "unlink"

    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.EDQUOT, "Disk quota exceeded")

    monkeypatch.setattr(*((Path, "unlink") if where == "unlink" else (os, where)), fail)
    with pytest.raises(UsageError) as caught:
        save(host.listing(), host.fetch, tmp_path)
    assert caught.value.code == "disk_full"
    monkeypatch.undo()
    host.changed = False
    save(host.listing(), host.fetch, tmp_path)
    assert names(tmp_path) == ["model.pt"]


@pytest.mark.skipif(
    not os.path.exists("/dev/full") or os.name != "posix" or os.geteuid() != 0, reason="needs a tiny disk"
)
@pytest.mark.root
def test_a_disk_that_is_really_full(tmp_path: Path) -> None:
    import subprocess

    to = tmp_path / "disk"
    to.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(to)], check=False, capture_output=True
    )
    if mounted.returncode:
        pytest.skip("nothing may be mounted here")
    try:
        host = Host({"big": b"x" * 1_000_000})
        with pytest.raises(UsageError, match="no space") as caught:
            save(host.listing(), host.fetch, to)
        assert caught.value.code == "disk_full" and host.asked == [], "it is told before anything is fetched"
    finally:
        subprocess.run(["umount", str(to)], check=True)


def test_too_little_space_is_said_before_anything_is_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(localdisk.shutil, "disk_usage", lambda path: type("Usage", (), {"free": 5000})())
    host = Host({"model.pt": b"a" * 10_000})
    with pytest.raises(UsageError, match="10,000 bytes are needed, 5,000 are free"):
        save(host.listing(), host.fetch, tmp_path)
    assert host.asked == []


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    host = Host({"a": b"1"})
    with pytest.raises(UsageError) as caught:
        save(host.listing(), host.fetch, tmp_path / "file" / "to")
    assert caught.value.code == "not_writable"


def test_two_pulls_into_one_folder_take_turns(tmp_path: Path) -> None:
    lock = FileLock(tmp_path / download.LOCK_NAME)
    assert lock.acquire()
    host = Host({"a": b"1"})
    with pytest.raises(UsageError) as caught:
        save(host.listing(), host.fetch, tmp_path)
    assert caught.value.code == "busy"
    lock.release()
    assert save(host.listing(), host.fetch, tmp_path).saved and names(tmp_path) == ["a"]


def test_progress_tells_every_byte(tmp_path: Path) -> None:
    class Shown:
        total, done, ended = 0, 0, False

        def start(self, task: str, total: int | None = None, unit: str = "bytes") -> int:
            self.total = total or 0
            return 1

        def advance(self, number: int, amount: int) -> None:
            self.done += amount

        def finish(self, number: int) -> None:
            self.ended = True

        def note(self, text: str) -> None:
            raise AssertionError(text)

    shown = Shown()
    host = Host({"a": b"1" * 4321, "b": b"2" * 10})
    (tmp_path / "b").write_bytes(b"2" * 10)
    save(host.listing(), host.fetch, tmp_path, shown)
    assert (shown.total, shown.done, shown.ended) == (4331, 4331, True)


def test_nothing_to_fetch_shows_no_bar(tmp_path: Path) -> None:
    host = Host({})
    unused: Any = object()
    assert save(host.listing(), host.fetch, tmp_path, unused).saved == []


def test_have_tells_what_is_there_but_no_parts(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "x.pt").write_bytes(b"123")
    (tmp_path / ".abc-def.part").write_bytes(b"1")
    assert have(tmp_path) == [{"path": "d/x.pt", "size": 3}]
    assert have(tmp_path / "nowhere") == []
