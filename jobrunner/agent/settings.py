"""What a user may set on the host itself: `<root>/settings.json`, and for one machine `settings.json` in
its instance's folder, which wins. An ill-formed value is passed over, and said in the card report's warnings.
"""

import os

from . import files

DEFAULTS = {
    "idle_mb": {},  # {model: MB in use on a card that nobody uses}
    "idle_margin_mb": 256,  # MB above that which still count as idle
    "wide_after_s": 600,  # a job that waited so long keeps cards that come free
    "wide_patience_s": 6 * 3600,  # so long cards are kept for a colleague's wide job
    "linger_s": 20,  # so long after a job's end the vendor's tool may still show what it used
    "aside_deaths": 3,  # so many jobs in a row that die at start set a card aside; 0: never
    "aside_start_s": 60,  # "at start": within so many seconds
    "aside_for_s": 1800,  # so long a card stays aside
    "unused_after_s": 300,  # so long after its command began a job whose cards nothing uses is told so; 0: never
    "check_s": 60,  # so often a running job's checkpoints, log and memory counters are looked at
    "log_warn_mb": 5120,  # from so many MB on a log is said to be big; 0: never
}


def read(layout):
    """`(values, complaints)`: every name of `DEFAULTS` with its value, and a sentence for each value that is none."""
    values, complaints = dict(DEFAULTS), []
    for path in (os.path.join(layout.root, b"settings.json"), os.path.join(layout.home, b"settings.json")):
        try:
            given = files.read_json(path, {} if not os.path.exists(path) else None)
        except OSError as error:
            complaints.append("{} cannot be read: {}".format(files.to_text(path), error.strerror))
            continue
        if not isinstance(given, dict):
            complaints.append("{} is not a JSON object and is passed over".format(files.to_text(path)))
            continue
        for name in sorted(given):
            if name not in DEFAULTS:
                complaints.append("{}: there is no setting {!r}".format(files.to_text(path), name))
            elif not fits(name, given[name]):
                complaints.append("{}: {} cannot be {!r}".format(files.to_text(path), name, given[name]))
            else:
                values[name] = given[name]
    return values, complaints


def fits(name, value):
    """True if a setting may have that value. Pure."""
    if name == "idle_mb":
        return isinstance(value, dict) and all(_number(amount) for amount in value.values())
    return _number(value)


def _number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 1e9
