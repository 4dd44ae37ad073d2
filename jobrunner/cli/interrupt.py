"""Whether an error is an interrupt in disguise. Imports nothing: it is needed before anything else is there."""

from __future__ import annotations


def was_interrupted(error: BaseException) -> bool:
    """True if Ctrl-C caused it: libraries written in other languages turn that into an error of their own."""
    seen: set[int] = set()
    at: BaseException | None = error
    while at is not None and id(at) not in seen:
        seen.add(id(at))
        if isinstance(at, KeyboardInterrupt) or str(at).rstrip().endswith("KeyboardInterrupt:"):
            return True
        at = at.__cause__ or at.__context__
    return False
