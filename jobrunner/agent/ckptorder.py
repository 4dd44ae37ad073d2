"""Which checkpoint is newer, which is best, which may go. Pure."""

import re
from math import isnan

from .files import AgentError

_WORDS = (r"(?:global[_-]?)?steps?", r"iter(?:ation)?s?", r"checkpoint|ckpt|ckp", r"epochs?|ep", r"model|weights|state")
_METRIC = re.compile(r"(?:^|[-_/,])([A-Za-z][A-Za-z0-9_]*?)=(-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?)")


def step_of(name):
    """The step that a checkpoint's name tells, or None: `epoch=3-step=500.ckpt` 500, `resnet18.pt` None."""
    base = name.rstrip("/").rpartition("/")[2]
    for word in _WORDS:
        found = re.findall(r"(?i)(?:^|[^a-z])(?:" + word + r")[-_=. ]?(\d+)(?![\d]|\.\d)", base)
        if found:
            return int(found[-1])
    found = re.findall(r"(?:^|[^A-Za-z0-9.])(\d+)(?=[^A-Za-z0-9.]|\.[A-Za-z]|$)", base)
    return int(found[-1]) if found else None


def metrics_in(name):
    """Metrics that a name tells, as Lightning writes them: `epoch=3-val_loss=0.25.ckpt` gives val_loss 0.25."""
    base = re.sub(r"\.(ckpt|pth?|safetensors|bin|tar|npz)\Z", "", name.rstrip("/").rpartition("/")[2])
    return {word: float(value) for word, value in _METRIC.findall(base) if word not in ("epoch", "step", "v")}


def newest_first(records):
    """Records from the newest on. Within names that differ in numbers only, a higher step is newer, whatever the clock
    said: a run that began again from the start writes low steps late, and the high ones are still the furthest."""
    families = {}
    for record in records:
        family = re.sub(r"\d+", "#", record["name"]) if record.get("step") is not None else record["name"]
        families.setdefault(family, []).append(record)
    ranked = []
    for members in families.values():
        late = 0
        for record in sorted(members, key=lambda r: (_step(r), r["mtime_ns"])):
            late = max(late, record["mtime_ns"])
            ranked.append((late, _step(record), record["mtime_ns"], record["path"], record))
    return [entry[-1] for entry in sorted(ranked, key=lambda entry: entry[:4], reverse=True)]


def _step(record):
    return -1 if record.get("step") is None else record["step"]


def parse_best(text):
    """`("val_loss", "min")` of a spec's `best`."""
    words = (text or "").split()
    if len(words) != 2 or words[1] not in ("min", "max"):
        raise AgentError("bad_request", "not a metric and min or max: {!r}".format(text))
    return words[0], words[1]


def best(records, text):
    """The complete record whose metric is the lowest or highest (of equals the newest), or None if none tells it."""
    word, way = parse_best(text)
    rated = [record for record in newest_first(records) if record.get("complete")]
    rated = [record for record in rated if word in (record.get("metrics") or {}) and not isnan(record["metrics"][word])]
    if not rated:
        return None
    return (min if way == "min" else max)(rated, key=lambda record: record["metrics"][word])


def to_drop(records, keep, spared):
    """The records that `keep` (`{"last": N, "best": text or None}`) no longer wants.

    Never the newest complete one, which a next attempt goes on from; never one whose path is in `spared`; never a
    link; never one that is not complete, for it may just be being written. None at all while `best` is wanted and
    nothing tells the metric: the best of them could not be had again.
    """
    if not keep:
        return []
    whole = [record for record in newest_first(records) if record.get("complete") and not record.get("link")]
    wanted = {record["path"] for record in whole[: max(1, int(keep.get("last") or 1))]}
    if keep.get("best"):
        chosen = best(whole, keep["best"])
        if chosen is None:
            return []
        wanted.add(chosen["path"])
    return [record for record in whole if record["path"] not in wanted and record["path"] not in spared]
