"""The language that a person reads, as the locale says."""

from __future__ import annotations

import os


def locale_language() -> str:
    """`zh` for a Chinese locale, else `en`."""
    for name in ("LC_ALL", "LC_MESSAGES", "LANG"):
        value = os.environ.get(name)
        if value:
            return "zh" if value.lower().startswith("zh") else "en"
    return "en"
