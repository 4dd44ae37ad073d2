"""The devices that specs and hosts files may name: the agent's kinds of accelerator, and `cpu` for none.

Asked anew each time, so that a kind which is registered counts everywhere.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

CPU = "cpu"
Card = Mapping[str, Any]


def kinds() -> tuple[str, ...]:
    """The kinds of accelerator: `npu`, `mlu`, …"""
    from jobrunner.agent.accelerators import KINDS

    return tuple(KINDS)


def names() -> tuple[str, ...]:
    """Every device: the kinds, then `cpu`."""
    return (*kinds(), CPU)


def variables() -> tuple[str, ...]:
    """The visible-devices variables of all kinds, which a spec may not set."""
    from jobrunner.agent.accelerators import KINDS

    return tuple(str(kind.variable) for kind in KINDS.values())


def unlinked(device: str, among: Sequence[int], count: int, named: Sequence[int] | None, cards: Sequence[Card]) -> str:
    """Why no `count` of the cards `among` (or just the `named` ones) work together on a host; "" if nothing says so.

    `cards` are all cards of the host: `index`, `model`, `board`.
    """
    from jobrunner.agent.accelerators import KINDS

    kind: Any = KINDS.get(device)
    if kind is None or not cards or not count:
        return ""
    if named is not None:
        return str(kind.refusal(named, cards) or "")
    return str(kind.choose(among, count, cards)[1] or "")


def migrating() -> tuple[str, ...]:
    """The kinds on which `runtime.migrate` lets a CUDA script run."""
    from jobrunner.agent.accelerators import KINDS

    return tuple(name for name, kind in KINDS.items() if kind.migrate)


def needs_no_shim(device: str) -> bool:
    """True for CUDA's own device, where a CUDA script runs as it is."""
    from jobrunner.agent.accelerators import KINDS

    return device in KINDS and KINDS[device].migrate is None


def meant(word: str) -> str:
    """The device that people mean by another word for it (`nvidia`: `gpu`); empty if that is none."""
    from jobrunner.agent.accelerators import KINDS

    plain = re.sub(r"[-\s]+", "_", word.strip().lower())
    return next((name for name, kind in KINDS.items() if plain in kind.also), "")
