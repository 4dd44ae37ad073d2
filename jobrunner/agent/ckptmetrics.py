"""What is known about how good a checkpoint is: from its name, from its own files, else from the job's log."""

import os
import re

from . import ckptorder
from .files import read_json, to_bytes

TAIL = 4 * 1024 * 1024
LIVE_S = 15.0


def of(layout, job_id, request, record, now, running):
    """Metrics of a checkpoint, `{name: number}`; empty if nothing tells them."""
    found = {}
    run = request.get("run") or {}
    patterns = _compiled(run.get("metrics") or {})
    if patterns:
        text = _log_tail(layout, job_id, record.get("attempt"))
        found.update(from_log(text, patterns, record.get("step"), running and now - record["mtime_ns"] / 1e9 < LIVE_S))
    found.update(_from_trainer(to_bytes(record["path"])))
    found.update(ckptorder.metrics_in(record["name"]))
    return found


def _compiled(metrics):
    compiled = {}
    for name, pattern in metrics.items():
        try:
            compiled[name] = re.compile(pattern)
        except (re.error, TypeError):
            continue
    return compiled


def from_log(text, patterns, step, live):
    """Values from lines that name the step; else, for a checkpoint that was written just now, the last values."""
    mark = None
    if step is not None:
        words = r"(?i)\b(?:epochs?|(?:global[ _]?)?steps?|iter(?:ation)?s?)\W{0,4}0*"
        mark = re.compile(words + str(step) + r"(?!\d|\.\d)")
    named, last = {}, {}
    for line in re.split(r"[\r\n]+", text):
        for name, pattern in patterns.items():
            match = pattern.search(line)
            value = _number(match) if match else None
            if value is None:
                continue
            last[name] = value
            if mark is not None and mark.search(line):
                named[name] = value
    return dict(last, **named) if live else named


def _number(match):
    try:
        return float(match.group(1) if match.re.groups else match.group(0))
    except (TypeError, ValueError):
        return None


def _log_tail(layout, job_id, attempt):
    from . import jobs

    if not attempt:
        numbers = jobs.attempts(layout, job_id)
        attempt = numbers[-1] if numbers else 1
    path = os.path.join(layout.attempt(job_id, attempt), b"log")
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return ""
    try:
        size = os.fstat(handle).st_size
        return os.pread(handle, TAIL, max(0, size - TAIL)).decode("utf-8", "replace")
    finally:
        os.close(handle)


def _from_trainer(path):
    """The last values of a Hugging Face Trainer's own history."""
    state = read_json(os.path.join(path, b"trainer_state.json")) if os.path.isdir(path) else None
    found = {}
    for entry in (state or {}).get("log_history") or []:
        for name, value in entry.items() if isinstance(entry, dict) else ():
            if isinstance(value, (int, float)) and not isinstance(value, bool) and name not in ("step", "epoch"):
                found[name] = float(value)
    return found
