"""The ledger's file: permissions, damage, formats, where it lies, what opening it loads."""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from sqlite_utils import Database
from sqlite_utils.migrations import Migrations

from jobrunner.core.errors import LedgerError
from jobrunner.core.jobs import JobRow
from jobrunner.core.states import JobState
from jobrunner.ledger import Ledger, disk, schema, store
from jobrunner.ledger.guard import translate

STORED = Path(__file__).parents[1] / "data" / "ledgers"
posix = pytest.mark.skipif(os.name != "posix", reason="permission bits")


def at(second: int) -> str:
    return f"2026-12-01T09:00:{second:02d}.000000Z"


def fill(path: Path, id_: str = "aaaaaaaa") -> None:
    with Ledger(path) as ledger:
        row = JobRow(id_, "train", JobState.STAGING, host="npu-a", submitted_at=at(0))
        ledger.insert_staging(row, {"x": 1}, "spec", "code", {"pid": 1})


@posix
def test_nobody_else_can_read_it(tmp_path: Path) -> None:
    path = tmp_path / "new" / "state" / "ledger.db"
    old = os.umask(0o022)
    try:
        with Ledger(path):
            modes = {child.name: stat.S_IMODE(child.stat().st_mode) for child in path.parent.iterdir()}
    finally:
        os.umask(old)
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert set(modes.values()) == {0o600}, modes


@posix
def test_permissions_that_were_opened_are_closed_but_a_strangers_folder_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "state" / "ledger.db"
    fill(path)
    os.chmod(path, 0o644)
    os.chmod(path.parent, 0o755)
    Ledger(path).close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    begun = tmp_path / "begun"  # a first command has put something there before it opened the ledger
    (begun / "cache").mkdir(parents=True)
    os.chmod(begun, 0o755)
    Ledger(begun / "ledger.db").close()
    assert stat.S_IMODE(begun.stat().st_mode) == 0o700
    used = tmp_path / "used"
    used.mkdir()
    (used / "other file").touch()
    os.chmod(used, 0o755)
    Ledger(used / "ledger.db").close()
    assert stat.S_IMODE(used.stat().st_mode) == 0o755


@pytest.mark.parametrize(
    "content", [b"not a database, but long enough to be one" * 200, b"SQLite format 3\0" + b"\xff" * 9000]
)
def test_what_is_no_ledger_is_refused_with_a_way_out(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "ledger.db"
    path.write_bytes(content)
    with pytest.raises(LedgerError) as caught:
        Ledger(path)
    assert caught.value.code == "ledger_corrupt"
    assert "jobrunner adopt" in caught.value.remedy and "ledger.db.broken" in caught.value.remedy
    assert path.read_bytes() == content


def test_damage_inside_is_found_and_named(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    fill(path)
    data = bytearray(path.read_bytes())
    data[4096:] = b"\x55" * (len(data) - 4096)
    path.write_bytes(data)
    with pytest.raises(LedgerError) as caught, Ledger(path) as ledger:
        ledger.list()
    assert caught.value.code == "ledger_corrupt"


def test_another_programs_database_is_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    other = sqlite3.connect(path)
    other.execute("CREATE TABLE recipes (name TEXT)")
    other.commit()
    other.close()
    before = path.read_bytes()
    with pytest.raises(LedgerError, match="other program"):
        Ledger(path)
    assert path.read_bytes() == before


def test_a_newer_format_asks_for_an_upgrade(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    fill(path)
    raw = sqlite3.connect(path)
    raw.execute(f"PRAGMA user_version={store.VERSION + 1}")
    raw.close()
    with pytest.raises(LedgerError) as caught:
        Ledger(path)
    assert caught.value.code == "ledger_newer" and "pgrade" in caught.value.remedy


def test_a_folder_that_cannot_be_made_is_an_error_with_its_name(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(LedgerError, match="file"):
        Ledger(tmp_path / "file" / "ledger.db")


def test_a_writer_that_never_ends_is_an_error_not_a_hang(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    fill(path)
    blocker = sqlite3.connect(path, isolation_level=None)
    blocker.execute("BEGIN IMMEDIATE")
    mine = store.Store(path, busy_seconds=0.1)
    with pytest.raises(LedgerError) as caught, mine.write():
        pass
    assert caught.value.code == "ledger_locked"
    blocker.execute("ROLLBACK")
    blocker.close()
    mine.close()


def test_readers_do_not_wait_for_a_writer(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    fill(path)
    with Ledger(path) as reader, Ledger(path) as writer:
        assert reader.warnings == (), "the test needs a local disk"
        with writer._store.write() as db:
            db.execute("UPDATE jobs SET name = 'changed'")
            assert reader.get("aaaaaaaa").name == "train"
        assert reader.get("aaaaaaaa").name == "changed"


def test_a_write_that_fails_leaves_nothing_and_the_ledger_usable(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    fill(path)
    with Ledger(path) as ledger:
        with pytest.raises(RuntimeError), ledger._store.write() as db:
            db.execute("DELETE FROM jobs")
            raise RuntimeError
        assert len(ledger.list()) == 1
        with pytest.raises(LedgerError):  # the same id again
            row = JobRow("aaaaaaaa", "train", JobState.STAGING, submitted_at=at(0))
            ledger.insert_staging(row, {}, "spec", "code", {})
        ledger.set_meta("still", "works")


AS_NOBODY = """
import os, sys
from pathlib import Path
import sqlite_utils
from jobrunner.core.errors import LedgerError
from jobrunner.ledger import Ledger, schema
os.setgroups([])
os.setuid(65534)
ledger = Ledger(Path(sys.argv[1]))
print(len(ledger.list()))
try:
    ledger.set_meta("a", "b")
except LedgerError as error:
    print(error.code)
"""


@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="needs root, to become somebody else")
@pytest.mark.root
def test_what_may_only_be_read_can_still_be_listed() -> None:
    folder = Path(tempfile.mkdtemp(prefix="ledger-"))  # pytest's own folders are closed to others
    try:
        path = folder / "ledger.db"
        fill(path)
        os.chmod(path, 0o444)
        os.chmod(folder, 0o555)
        arguments = [sys.executable, "-c", AS_NOBODY, str(path)]
        done = subprocess.run(arguments, capture_output=True, text=True, check=False, timeout=60)
    finally:
        shutil.rmtree(folder)
    assert done.stdout.split() == ["1", "ledger_readonly"], done.stderr


def test_looking_loads_neither_sqlite_utils_nor_anything_else_that_is_slow(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    fill(path)
    code = (
        "import sys; before = set(sys.modules); from pathlib import Path; from jobrunner.ledger import Ledger\n"
        "ledger = Ledger(Path(sys.argv[1])); ledger.list(); ledger.resolve('train'); ledger.completion_ids('a')\n"
        "ledger.live_by_host(); ledger.detail('aaaaaaaa')\n"
        "print(*sorted({name.split('.')[0] for name in set(sys.modules) - before}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True, timeout=60
    )
    loaded = set(done.stdout.split())
    assert "jobrunner" in loaded
    assert not loaded & {
        "sqlite_utils",
        "click",
        "pluggy",
        "pydantic",
        "rich",
        "typer",
        "subprocess",
        "asyncio",
        "ctypes",
    }


def test_a_stored_ledger_of_format_1_opens_and_says_what_it_said(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    shutil.copy(STORED / "version-1.db", path)
    with Ledger(path) as ledger:
        assert [(row.id, row.name, row.state.value) for row in ledger.list()] == [
            ("k5cccccccc", "unsent", "STAGING"),
            ("k4bbbbbbbb", "eval", "FAILED"),
            ("k3aaaaaaaa", "train-检查", "RUNNING"),
        ]  # fmt: skip
        job = ledger.detail("k3aaaaaaaa")
        assert (job.row.cards, job.row.sweep, job.row.phase, job.priority, job.launcher) == (
            [2, 3],
            "s1",
            "command",
            4,
            "tmux",
        )
        assert (job.offset, job.request["name"], job.submitter["pid"]) == (80, "train-检查", 7)
        assert ledger.detail("k4bbbbbbbb").evidence == {"memory": "cgroup oom_kill 1"}
        assert [event.kind for event in ledger.events("k3aaaaaaaa")] == ["submitted", "started", "cancel_requested"]
        assert [(a.number, a.cards) for a in ledger.attempts("k3aaaaaaaa")] == [(1, [2, 3])]
        (checkpoint,) = ledger.checkpoints("k3aaaaaaaa")
        assert (checkpoint.name, checkpoint.metrics, checkpoint.pulled_to) == (
            "ckpt/\udcff.pt",
            {"loss": 0.25},
            "/home/ml/out.pt",
        )
        assert [(wish.job, wish.grace_s) for wish in ledger.pending_wishes("npu-a")] == [("k3aaaaaaaa", 30)]
        host = ledger.host("npu-a")
        assert host is not None and host.drained and host.facts == {"cpus": 192} and host.instance == "m1"
        assert [job.row.id for job in ledger.find_resumable("spec3", "code3")] == ["k5cccccccc"]
        assert ledger.integrity_check() == []


@pytest.mark.parametrize("fails", [False, True])
def test_a_further_format_is_reached_wholly_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    path = tmp_path / "ledger.db"
    shutil.copy(STORED / "version-1.db", path)
    later = Migrations("jobrunner")
    later._migrations.extend(schema.MIGRATIONS._migrations)

    known, following = len(schema.MIGRATIONS._migrations), store.VERSION + 1

    @later(name="0999_colour")
    def colour(db: Database) -> None:
        db.table("jobs").add_column("colour", str)
        if fails:
            raise OSError("the disk went away")
        db.execute(f"PRAGMA user_version={following}")

    monkeypatch.setattr(schema, "MIGRATIONS", later)
    monkeypatch.setattr(store, "VERSION", following)
    if fails:
        with pytest.raises(LedgerError, match="the disk went away"):
            Ledger(path)
        monkeypatch.undo()
    with Ledger(path) as ledger, ledger._store.read() as connection:
        columns = [row[1] for row in connection.execute("PRAGMA table_info(jobs)")]
        steps = [row[0] for row in connection.execute("SELECT name FROM _sqlite_migrations ORDER BY id")]
        assert ("colour" in columns) is not fails
        assert len(steps) == known + (not fails)
        assert len(ledger.list()) == 3


MOUNTS = """\
/dev/vda / ext4 rw 0 0
server:/home /home nfs4 rw 0 0
tmpfs /home/me/fast tmpfs rw 0 0
C:\\134 /mnt/c 9p rw 0 0
x /mnt/with\\040blank lustre rw 0 0
old /data ext4 rw 0 0
new /data cifs rw 0 0
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc/self/mounts")
@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/opt/x", None), ("/home/me", "nfs4"), ("/home/me/fast/x", None), ("/home/me/faster", "nfs4"),
        ("/mnt/c/x", "9p"), ("/mnt/with blank/x", "lustre"), ("/data/x", "cifs"), ("/homes", None),
    ],
)  # fmt: skip
def test_the_deepest_mount_tells_whether_a_disk_is_local(tmp_path: Path, path: str, kind: str | None) -> None:
    table = tmp_path / "mounts"
    table.write_text(MOUNTS)
    assert disk.remote_file_system(path, str(table)) == kind


def test_off_the_local_disk_the_rollback_journal_is_used_and_a_person_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "ledger.db"
    fill(path)
    monkeypatch.setattr(store, "remote_file_system", lambda path: "nfs4")
    with Ledger(path) as ledger, ledger._store.read() as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone()[0] == "delete"
        assert "nfs4" in ledger.warnings[0]
        ledger.set_meta("a", "b")
        assert ledger.meta("a") == "b"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (sqlite3.OperationalError("database is locked"), "ledger_locked"),
        (sqlite3.OperationalError("attempt to write a readonly database"), "ledger_readonly"),
        (PermissionError(13, "Permission denied"), "ledger_readonly"),
        (sqlite3.OperationalError("database or disk is full"), "ledger_disk"),
        (OSError(28, "No space left on device"), "ledger_disk"),
        (sqlite3.DatabaseError("database disk image is malformed"), "ledger_corrupt"),
        (sqlite3.OperationalError("unable to open database file"), "ledger"),
    ],
)
def test_every_error_says_what_where_and_what_now(error: Exception, code: str) -> None:
    shown = translate(Path("/x/ledger.db"), "reading the ledger", error)
    assert shown.code == code and shown.exit_code == 4
    assert (
        shown.message.startswith("reading the ledger /x/ledger.db: ") and str(error) in shown.message and shown.remedy
    )
