"""What is known about how good a checkpoint is: from its name, from its own files, else from the job's metrics."""

import os

from . import ckptorder, metricjournal
from .files import read_json, read_lines, to_bytes

LIVE_S = 15.0


def of(samples, record, now, running):
    """Metrics of a checkpoint, `{name: number}`; empty if nothing tells them. `samples`: what the job told so far."""
    live = running and now - record["mtime_ns"] / 1e9 < LIVE_S
    found = from_samples(samples, record.get("attempt"), record.get("step"), live)
    found.update(_from_trainer(to_bytes(record["path"])))
    found.update(ckptorder.metrics_in(record["name"]))
    return found


def told(layout, job_id, request, final):
    """The samples of a job's journal, brought up to date first; none where it declares no metrics."""
    if not (request.get("run") or {}).get("metrics"):
        return []
    from . import metrics

    metrics.refresh(layout, {job_id: final})
    path, offset, samples = metricjournal.journal_path(layout, job_id), 0, []
    while True:
        items, following = read_lines(path, offset)
        samples += [item for item in items if isinstance(item, dict) and "value" in item]
        if following == offset:
            return samples
        offset = following


def from_samples(samples, attempt, step, live):
    """Values from lines that name the step; else, for a checkpoint that was written just now, the last values.

    `attempt` is None for a checkpoint in the folder that all attempts share: the last to name the step holds.
    """
    named, last = {}, {}
    for sample in samples:
        if attempt is not None and sample.get("attempt") != attempt:
            continue
        value = sample["value"]
        if not isinstance(value, (int, float)):
            value = float(value)
        last[sample["name"]] = value
        if step is not None and step in (sample.get("steps") or [sample.get("step")]):
            named[sample["name"]] = value
    return dict(last, **named) if live else named


def _from_trainer(path):
    """The last values of a Hugging Face Trainer's own history."""
    state = read_json(os.path.join(path, b"trainer_state.json")) if os.path.isdir(path) else None
    found = {}
    for entry in (state or {}).get("log_history") or []:
        for name, value in entry.items() if isinstance(entry, dict) else ():
            if isinstance(value, (int, float)) and not isinstance(value, bool) and name not in ("step", "epoch"):
                found[name] = float(value)
    return found
