"""Numbers that jobs told, over their steps."""

from __future__ import annotations

from jobrunner.ledger.store import Store


class Metrics:
    """The part of the ledger about metrics. Every method raises LedgerError as `Ledger` does."""

    def __init__(self, store: Store) -> None:
        self._store = store
