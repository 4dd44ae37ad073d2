"""Card-seconds that this user had lately, decayed with a half-life of a day: what the order between users goes by."""

import os
import time

from . import files, leases
from .layout import lock_name

HALF_LIFE_S = 24 * 3600.0


def decayed(card_seconds, age_s):
    """What is left of card-seconds after `age_s` seconds. Pure."""
    return card_seconds * 0.5 ** (max(0.0, age_s) / HALF_LIFE_S)


def current(layout, running=(), now=None):
    """Card-seconds of ended attempts, decayed, and of `running` ones (`[(id, start record)]`) so far."""
    now = time.time() if now is None else now
    record = files.read_json(os.path.join(layout.home, b"usage.json")) or {}
    total = decayed(float(record.get("card_seconds") or 0.0), now - float(record.get("at") or now))
    for _, start in running:
        began = start.get("began")
        if isinstance(began, (int, float)):
            total += len(start.get("cards") or ()) * max(0.0, now - began)
    return total


def add(layout, card_seconds):
    """Account an ended attempt. Losing one to a full disk is no reason to fail."""
    if card_seconds <= 0:
        return
    lock = leases.bind_patiently(lock_name("usage", layout.instance), 0.5)
    try:
        now = time.time()
        files.write_json(
            os.path.join(layout.home, b"usage.json"),
            {"card_seconds": current(layout, (), now) + card_seconds, "at": now},
            sync=False,
        )
    except OSError:
        pass
    finally:
        if lock is not None:
            leases.release([lock])
