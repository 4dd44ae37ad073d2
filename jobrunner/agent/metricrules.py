"""From lines to numbers: what a spec's `metrics` says, and what a line tells by it. No files, no clock.

A line's values come with a step: what the metric that counts steps says on the same line, else what the line names as
one in plain words (`epoch 3`, `"step": 100`), else the last one that was seen.
"""

import json
import math
import re

STEP_WORDS = ("step", "global_step", "iteration", "epoch")
TIME_KEYS = ("time", "timestamp", "ts", "wall_time", "_timestamp", "at", "datetime", "date")
LONGEST = 64 * 1024  # characters of a line that regular expressions see

# Numbers put in the place of `nan` and `inf`, so that an expression for digits finds them, too.
_NAN, _INF = "907653218844317", "907653218844319"
_ODD = re.compile(r"(?<![\w.])([-+]?)(nan|inf(?:inity)?)(?![\w.])", re.IGNORECASE)
_COLOR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_WORDS = re.compile(r"\b((?:global[ _]?)?steps?|iter(?:ation)?s?|epochs?)\W{0,4}0*(\d{1,15})(?!\d|\.\d)", re.IGNORECASE)
_RANK = {"g": 0, "s": 0, "i": 1, "e": 2}


class Rules:
    """A request's metrics, sorted by where they are looked for."""

    def __init__(self, metrics, step=None):
        self.step = step if step in metrics else None
        self.texts, self.keys, self.files, self.boards, self.faults = [], [], {}, {}, []
        for name in metrics:
            source = metrics[name]
            if isinstance(source, str):
                self._add_text(name, source)
            elif not isinstance(source, dict):
                continue
            elif "json" in source:
                self.keys.append((name, source["json"]))
            elif "tensorboard" in source:
                self.boards.setdefault(source["tensorboard"], []).append(source.get("tag"))
            elif "key" in source:
                self.files.setdefault(source.get("file") or "metrics.jsonl", []).append((name, source["key"]))

    def _add_text(self, name, source):
        try:
            self.texts.append((name, re.compile(source)))
        except (re.error, OverflowError, RecursionError) as error:
            self.faults.append("metrics.{}: this host's Python cannot read the expression: {}".format(name, error))

    def drop(self, name):
        """Do without an expression that takes too long."""
        self.texts = [item for item in self.texts if item[0] != name]


def request_rules(request):
    """The Rules of a request; None if it declares no metrics."""
    metrics = (request.get("run") or {}).get("metrics")
    if not isinstance(metrics, dict) or not metrics:
        return None
    stop = ((request.get("spec") or {}).get("sweep") or {}).get("early_stop") or {}
    return Rules(metrics, stop.get("step"))


def plain_line(line):
    """A line as expressions see it: without colours, and not longer than LONGEST."""
    line = line[:LONGEST]
    return _COLOR.sub("", line) if "\x1b" in line else line


def by_text(rules, line, dog, slow):
    """`{name: value}` of the expressions that a line fits. `dog`, a `bounded.Watchdog`, breaks one off that takes long:
    that is told to `slow(name, error)`, as is any other error of a search."""
    values = {}
    missed = _search(rules.texts, line, dog, slow, values)
    if missed:
        low = line.lower()
        if ("nan" in low or "inf" in low) and _ODD.search(line):
            _search(missed, _stand_ins(line), dog, slow, values)
    return values


def _search(texts, line, dog, slow, values):
    """Put what is found into `values`; the expressions that the line does not fit. This is done for every line."""
    missed = []
    dog.serial += 1
    dog.busy = True
    for item in texts:
        try:
            match = item[1].search(line)
        except Exception as error:
            dog.serial += 1
            slow(item[0], error)
            continue
        if match is None:
            missed.append(item)
            continue
        found = _value(match)
        if found is None:
            missed.append(item)
        else:
            values[item[0]] = found
    dog.busy = False
    return missed


def _stand_ins(line):
    """The line with numbers for its `nan` and `inf`."""
    return _ODD.sub(lambda match: match.group(1) + (_NAN if match.group(2)[0] in "nN" else _INF), line)


def _value(match):
    for text in match.groups():
        if text is not None:
            return number(text)
    return None


def number(value):
    """The float of a JSON value or of the text of a number; None if it is none."""
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, str):
        value = value.strip().rstrip(",;:%").rstrip(".")
        if value.lstrip("+-").startswith((_NAN, _INF)):
            return float("nan") if _NAN in value else float("-inf" if value.startswith("-") else "inf")
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return None


def object_of(line):
    """The JSON object that a line is, or None."""
    if "{" not in line:
        return None
    text = line.strip()
    if not (text.startswith("{") and text.endswith("}")):
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def by_key(keys, value):
    """`{name: value}` of the keys that a JSON object has; `a.b` goes deeper where there is no key `a.b` itself."""
    values = {}
    for name, key in keys:
        found = number(_lookup(value, key))
        if found is not None:
            values[name] = found
    return values


def _lookup(value, key):
    if key in value:
        return value[key]
    for part in key.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value


def time_of(value):
    """Seconds since 1970 that a JSON object says of itself, or None."""
    for key in TIME_KEYS:
        told = value.get(key)
        if isinstance(told, str):
            from . import logview

            found = logview.moment_of(told.encode("utf-8", "replace"))
            if found is not None:
                return found
        told = number(told)
        if told is not None and 1e8 < told < 1e14:
            return told / 1000.0 if told > 1e11 else told
    return None


def steps_of(rules, values, line=None, value=None):
    """`(step or None, every number that the line names as one)`."""
    named = []
    if rules.step is None:
        named += [values[word] for word in STEP_WORDS if word in values]
        if value is not None:
            named += [found for found in (number(value.get(word)) for word in STEP_WORDS) if found is not None]
    elif rules.step in values:
        named.append(values[rules.step])
    step = next((found for found in named if math.isfinite(found)), None)
    plain = sorted(_WORDS.findall(line or ""), key=lambda match: _RANK[match[0][0].lower()])
    if step is None and plain and rules.step is None:
        step = float(plain[0][1])
    every = [step] if step is not None else []
    for found in [*named, *(float(match[1]) for match in plain)]:
        if math.isfinite(found) and found not in every:
            every.append(found)
    return step, every[:8]
