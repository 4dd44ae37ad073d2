"""The shape of answers: what a host says is looked at before anybody uses it. Pure.

A shape is a type (or several), `[shape]` for a list, `{"*": shape}` for an object whose values have it, `{"key": shape,
"key?": shape}` for one that has these keys (with `?`: that may also be missing or null; with `!`: missing, but not
null), or `Maybe(shape)`. Keys that are not named are left alone: newer hosts may say more.
"""

from __future__ import annotations

import json
from typing import Any

from jobrunner.core.values import dataclass

Shape = Any
_NUMBER = (int, float)


@dataclass(frozen=True)
class Maybe:
    """A shape, or null."""

    shape: Shape


_VIEW = {
    "state": str, "name?": str, "attempts?": [dict], "cards?": list, "warnings?": [str], "log_bytes?": int,
    "submitted_at?": str, "started_at?": str, "ended_at?": str, "cancel_requested_at?": str,
}  # fmt: skip
_JOBS = {"jobs": {"*": Maybe(_VIEW)}}
_EVENT = {"at": str, "kind": str}
_PROCESS = {"pid?": int, "user?": str, "name?": str, "memory_mb?": _NUMBER}
_CARD = {"index": int, "doubts?": [str], "free?": bool, "lease?": dict, "processes?": [_PROCESS]}
_ERROR = {"code?": str, "message?": str, "remedy?": str}
_REPORT = {"cards": [_CARD], "error?": _ERROR, "device?": str, "warnings?": [str]}
_CHECKPOINT = {"name": str, "path": str, "size?": int, "sha256?": str, "modified_at?": str, "metrics?": dict}
_NUMBERS = {"start?": int, "next": int, "items": [dict], "more?": bool, "end?": bool}
_LINES = [list]
_RECORD = {
    "request": dict, "view?": {**_VIEW, "id": str}, "attempts?": [dict], "events?": [_EVENT],
    "checkpoints?": [_CHECKPOINT],
}  # fmt: skip

SHAPES: dict[str, Shape] = {
    "look": {
        **_JOBS,
        "events?": {"*": {"next": int, "items": [_EVENT]}},
        "cards?": _REPORT,
        "disk?": dict,
        "metrics?": {"*": Maybe(_NUMBERS)},
    },
    "stage": {**_JOBS, "existed?": [str]},
    "clone": {**_JOBS, "existed?": [str]},
    "tombstone": _JOBS,
    "wait": _JOBS,
    "wish": _JOBS,
    "resolve": _JOBS,
    "stop": {**_JOBS, "left?": {"*": [{"pid?": int}]}},
    "tail": {"attempt?": int, "offset?": int, "state?": str, "job?": _VIEW},
    "parts": {"kept?": bool},
    "checkpoints": {"checkpoints": [_CHECKPOINT]},
    "attach": {"argv": [str]},
    "drain": {"drained": bool},
    "why": {"findings": [{"code": str, "summary": str, "remedy?": str}]},
    "diagnose": {"tail?": _LINES, "picked?": _LINES, "plog?": [{"path?": str, "picked?": _LINES}], "disks?": [dict]},
    "records": {"jobs": {"*": Maybe(_RECORD)}, "next?": str},
    "gc": {"removed": [{"path": str, "bytes": int, "why": str}], "bytes": int},
}
# Messages before the answer.
PARTS: dict[str, Shape] = {
    "tail": {"attempt?": int, "offset?": int, "size?": int, "note?": str},
    "stage": {"need?": [int], "exists?": {"*": Maybe(_VIEW)}},
    "collect": {"files!": [dict], "skipped!": [dict], "coming!": int, "sha256?": str},
    "ranges": {"sha256?": str, "range!": bool},
    "parts": {"lack!": [[int]]},
}
_HOST = {"instance": str, "hostname?": str, "machine_id?": str, "boot_id?": str, "now?": str, "agent?": str}


def load(payload: bytes) -> Any:
    """The JSON value of a frame; None if it is none, or so deep or long that it cannot be meant."""
    try:
        return json.loads(payload)
    except (ValueError, RecursionError):
        return None


def fault(op: str, message: dict[str, Any]) -> str | None:
    """What is wrong with a message of an exchange `op`: its facts about the host, and the data if it is the answer."""
    if "host" in message and (wrong := mismatch(message["host"], _HOST, "host")):
        return wrong
    if "ok" not in message:
        return mismatch(message, PARTS.get(op, dict), "a message")
    if not isinstance(message["ok"], bool):
        return f"ok is {_kind(message['ok'])}"
    if not message["ok"]:
        return None
    return mismatch(message.get("data", {}), SHAPES.get(op, dict), "data")


def mismatch(value: Any, shape: Shape, where: str) -> str | None:
    """Where and how a value differs from a shape, in a few words; None if it does not."""
    if isinstance(shape, Maybe):
        return None if value is None else mismatch(value, shape.shape, where)
    if isinstance(shape, list):
        if not isinstance(value, list):
            return f"{where} is {_kind(value)}"
        return next(filter(None, (mismatch(item, shape[0], f"an item of {where}") for item in value)), None)
    if isinstance(shape, dict):
        return _object(value, shape, where)
    lies = isinstance(value, bool) and shape is not bool  # a bool is an int in Python
    return None if isinstance(value, shape) and not lies else f"{where} is {_kind(value)}"


def _object(value: Any, shape: dict[str, Shape], where: str) -> str | None:
    if not isinstance(value, dict):
        return f"{where} is {_kind(value)}"
    if "*" in shape:
        found = (mismatch(item, shape["*"], f"an entry of {where}") for item in value.values())
        return next(filter(None, found), None)
    for key, inner in shape.items():
        name = key.rstrip("?!")
        if value.get(name) is None:
            if key.endswith("?") or (key.endswith("!") and name not in value):
                continue
            if not isinstance(inner, Maybe) or name not in value:
                return f"{where} has no {name}"
        if wrong := mismatch(value.get(name), inner, f"{name} of {where}"):
            return wrong
    return None


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    return f"of the kind {type(value).__name__}"
