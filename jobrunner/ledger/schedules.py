"""Schedules, their due times, and promoted models."""

from __future__ import annotations

from jobrunner.ledger.store import Store


class Schedules:
    """The part of the ledger about schedules. Every method raises LedgerError as `Ledger` does."""

    def __init__(self, store: Store) -> None:
        self._store = store
