"""The ledger: what this machine remembers of its jobs, in one SQLite file. All SQL is in this package.

The hosts' files are the truth; a lost ledger is rebuilt by `jobrunner adopt`.

How the work is split between two libraries:

* **sqlite_utils** owns the schema: named migrations, each recorded in the transaction that made it. It is imported
  where a migration is due, never before: every command would pay for it otherwise.
* **sqlite3** opens the file, answers questions and takes rows. A ledger whose `user_version` is current is opened
  with a few pragmas; nothing else is loaded.

    ledger.py      Ledger: the methods that the commands call
    store.py       the connection: how it is opened, read, written; journal mode, permissions
    schema.py      the migrations
    rows.py        inserts
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
