"""Sweeps: many trials of one spec. A trial is an ordinary job; a sweep is what the ledger knows of them together."""
