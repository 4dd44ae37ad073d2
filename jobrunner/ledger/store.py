"""The ledger's connection: how the file is opened, read and written.

Every change runs in one short `BEGIN IMMEDIATE` transaction, so that writers queue up at the start instead of
failing at the end. On a local disk readers never wait for writers (write-ahead log); on any other the rollback
journal is used, because the log's shared memory works on one machine only.
"""

from __future__ import annotations

import os
import sqlite3
import stat
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from jobrunner.core.errors import LedgerError
from jobrunner.ledger.disk import remote_file_system
from jobrunner.ledger.guard import BUSY_SECONDS, corrupt, guard, is_busy
from jobrunner.ledger.rows import Writer

APPLICATION_ID = 0x6A627231
"""Written into the file's header, so that a stranger's SQLite file is not taken for a ledger."""

VERSION = 3
"""`user_version` of a ledger on which every migration of schema.py has run."""

_BESIDE = frozenset({"cache", "logs", "ssh", "submits"})
"""What a first command may have put into the state folder before it opened the ledger: the folder is ours then."""


class Store:
    """One open ledger file, usable from several threads (they take turns) and by many processes at once."""

    def __init__(self, path: Path, *, busy_seconds: float = BUSY_SECONDS) -> None:
        """Open `path`, creating it and bringing it up to date where needed. Raises LedgerError."""
        self.path = path
        self.warnings: list[str] = []
        self._busy = busy_seconds
        self._lock = threading.RLock()
        with guard(path, "opening the ledger"):
            _make_private(path)
            self._connection = self._connect(str(path))
            try:
                self._open()
            except BaseException:
                self._connection.close()
                raise

    @contextmanager
    def read(self, doing: str = "reading the ledger") -> Iterator[sqlite3.Connection]:
        """The connection, for selects only."""
        with self._lock, guard(self.path, doing):
            yield self._connection

    @contextmanager
    def write(self, doing: str = "writing to the ledger") -> Iterator[Writer]:
        """One transaction: all of the block or, if it raises, nothing of it. Not to be nested."""
        with self._lock, guard(self.path, doing):
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield Writer(self._connection)
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise

    def close(self) -> None:
        """Close the file. The store cannot be used afterwards."""
        with self._lock, guard(self.path, "closing the ledger"):
            self._connection.close()

    def _open(self) -> None:
        """Get ready; a file that lies where nothing may be written can still be read if nobody else writes it."""
        try:
            self._prepare()
        except sqlite3.OperationalError as error:
            log = Path(f"{self.path}-wal")
            unread = log.exists() and log.stat().st_size > 0
            refused = "unable to open" in str(error) or "readonly" in str(error)
            if not refused or unread or os.access(self.path.parent, os.W_OK):
                raise
            self._connection.close()
            self._connection = self._connect(self.path.resolve().as_uri() + "?immutable=1")
            self._prepare()

    def _connect(self, where: str) -> sqlite3.Connection:
        connection = sqlite3.connect(
            where, timeout=self._busy, isolation_level=None, check_same_thread=False, uri=where.startswith("file:")
        )
        connection.row_factory = sqlite3.Row
        connection.text_factory = _lenient
        return connection

    def _prepare(self) -> None:
        version = self._version()
        if version > VERSION:
            raise LedgerError(
                f"opening the ledger {self.path}: a newer jobrunner wrote it (format {version}, known {VERSION})",
                code="ledger_newer",
                remedy="Upgrade jobrunner (`pip install --upgrade jobrunner`), or set JOBRUNNER_HOME elsewhere.",
            )
        self._choose_journal()
        self._connection.execute("PRAGMA synchronous=NORMAL")
        if version < VERSION:
            self._migrate()

    def _version(self) -> int:
        """The file's format: 0 for an empty file. A database of something else is refused."""
        version = int(self._connection.execute("PRAGMA user_version").fetchone()[0])
        owner = int(self._connection.execute("PRAGMA application_id").fetchone()[0])
        if owner != APPLICATION_ID and (version or self._connection.execute("SELECT 1 FROM sqlite_master").fetchone()):
            raise corrupt(self.path, "opening the ledger", "it is a database of some other program")
        return version

    def _choose_journal(self) -> None:
        wanted = "wal"
        remote = remote_file_system(str(self.path.parent))
        if remote is not None:
            wanted = "delete"
            self.warnings.append(
                f"the ledger {self.path} is not on a local disk ({remote}): it is kept safe there, but slower; "
                "set JOBRUNNER_HOME to a folder on a local disk"
            )
        if self._connection.execute("PRAGMA journal_mode").fetchone()[0] == wanted:
            return
        deadline = time.monotonic() + self._busy
        while True:
            # SQLite does not wait by itself when the mode changes while others have the file open. Where it may not
            # change it at all it says nothing: the old mode is slower or less shareable, never wrong on this machine.
            try:
                self._connection.execute(f"PRAGMA journal_mode={wanted}").fetchone()
                return
            except sqlite3.OperationalError as error:
                if not is_busy(error) or time.monotonic() > deadline:
                    raise
            time.sleep(0.02)

    def _migrate(self) -> None:
        with _without("numpy", "pandas"):
            from sqlite_utils import Database

            from jobrunner.ledger.schema import MIGRATIONS

        with self.write("bringing up to date the ledger") as writer:
            if self._version() < VERSION:  # nobody else did it while we waited for our turn
                MIGRATIONS.apply(Database(writer.conn, recursive_triggers=False, execute_plugins=False))
                writer.execute(f"PRAGMA application_id={APPLICATION_ID}")


@contextmanager
def _without(*names: str) -> Iterator[None]:
    """Let an import do without optional modules: sqlite_utils takes up numpy where it is installed, which doubles its
    time, for column types that no ledger has."""
    hidden = [name for name in names if name not in sys.modules]
    for name in hidden:
        sys.modules[name] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        for name in hidden:
            del sys.modules[name]


def _make_private(path: Path) -> None:
    """Folder 0700, file 0600 (SQLite gives its side files the mode of the main file)."""
    folder = path.parent
    os.makedirs(folder, 0o700, exist_ok=True)
    if os.name == "posix":
        found = os.stat(folder)
        ours = found.st_uid == os.geteuid() and not found.st_mode & stat.S_ISVTX
        if ours and stat.S_IMODE(found.st_mode) & 0o077 and (path.exists() or _BESIDE.issuperset(os.listdir(folder))):
            os.chmod(folder, 0o700)
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    except FileExistsError:
        if os.name == "posix":
            found = os.stat(path)
            if found.st_uid == os.geteuid() and stat.S_IMODE(found.st_mode) & 0o077:
                os.chmod(path, 0o600)


def _lenient(data: bytes) -> str:
    """Stored text; bytes that are no UTF-8 (a path on a host may hold any) come back as lone surrogates."""
    return data.decode("utf-8", "surrogateescape")
