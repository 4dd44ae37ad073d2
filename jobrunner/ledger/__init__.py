"""The ledger: what this machine remembers of its jobs, in one SQLite file. All SQL is in this package.

The hosts' files are the truth; a lost ledger is rebuilt by `jobrunner adopt`.

How the work is split between two libraries:

* **sqlite_utils** owns the schema (named migrations, each recorded in the transaction that made it) and every
  write of rows (inserts and upserts). It takes a tenth of a second to import, so it is imported at the first
  migration or the first write of a process, never before.
* **sqlite3** opens the file and answers questions. A command that only looks (`ls --offline`, completion) opens a
  ledger whose `user_version` is current with a few pragmas and selects; nothing else is loaded.

    ledger.py      Ledger: the methods that the commands call
    store.py       the connection: how it is opened, read, written; journal mode, permissions
    schema.py      the migrations
    guard.py       SQLite's errors as LedgerError with a remedy
    disk.py        whether a path is on a local disk
    records.py     what the methods return
    sightings.py   PURE: what a host's answer changes in a row
    reading.py     selects
    writing.py     changes
    words.py       from what a person typed to a job's id
"""

from __future__ import annotations

from jobrunner.ledger.ledger import Ledger
from jobrunner.ledger.records import (
    Attempt,
    Checkpoint,
    Event,
    EventBatch,
    HostRow,
    JobDetail,
    LiveJob,
    Outcome,
    StagedJob,
    Wish,
)

__all__ = [
    "Attempt",
    "Checkpoint",
    "Event",
    "EventBatch",
    "HostRow",
    "JobDetail",
    "Ledger",
    "LiveJob",
    "Outcome",
    "StagedJob",
    "Wish",
]
