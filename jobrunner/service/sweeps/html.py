"""A sweep's report as one HTML file: no other file, no address outside of it, no library.

Its script draws what lies as JSON beside it. Whatever a parameter or a value is called, it is text: JSON is written so
that no tag can end it, and the script makes text nodes only. A content policy in the page lets its own script and style
run, by their hashes, and nothing else.
"""

from __future__ import annotations

import base64
import hashlib
import json
from datetime import datetime
from html import escape
from pathlib import Path
from typing import Any

from jobrunner.core.errors import JobrunnerError
from jobrunner.service.sweeps.report import SweepReport

MOST_TRIALS = 5000
"""So many trials are in a page, the best of all; JSON and CSV have them all."""

_FOLDER = Path(__file__).parent / "page"
_SCRIPTS = ("base.js", "charts.js", "parallel.js", "table.js")
_ROW = ("number", "rank", "objective", "step", "outcome", "reason", "host", "seconds", "job")


def page(report: SweepReport, at: datetime) -> str:
    """The page; `at` is when it was made."""
    style = _part("page.css")
    script = "\n".join(_part(name) for name in _SCRIPTS)
    policy = f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; base-uri 'none'"
    holes = {
        "POLICY": policy,
        "TITLE": escape(f"{report.view.sweep.name} · sweep"),
        "STYLE": style,
        "DATA": in_script(page_data(report, at)),
        "SCRIPT": script,
    }
    parts = _part("page.html").split("%%")
    return "".join(holes[part] if at % 2 else part for at, part in enumerate(parts))


def write(report: SweepReport, file: Path, at: datetime) -> int:
    """Write the page, whole or not at all; its size in bytes. JobrunnerError if it cannot be written."""
    data = page(report, at).encode("utf-8")
    aside = file.with_name(f".{file.name}.part")
    try:
        aside.write_bytes(data)
        aside.replace(file)
    except OSError as error:
        aside.unlink(missing_ok=True)
        raise JobrunnerError(
            f"writing the report {file}: {error.strerror or error}", code="output", remedy="name another file with --to"
        ) from error
    return len(data)


def page_data(report: SweepReport, at: datetime) -> dict[str, Any]:
    """What the page draws: as `sweep plot --json`, with trials as lists of values to be small."""
    data = report.as_json()
    trials = data.pop("trials")
    names = [parameter["name"] for parameter in data["parameters"]]
    shown = sorted(trials, key=lambda item: item["rank"] is None)[:MOST_TRIALS]
    kept = {item["number"] for item in shown}
    return {
        **data,
        "history": [step for step in data["history"] if step["number"] in kept],
        "made": at.strftime("%Y-%m-%d %H:%M UTC"),
        "all_trials": len(trials),
        "keys": list(_ROW),
        "trials": [[*(item[key] for key in _ROW), [item["parameters"].get(name) for name in names]] for item in shown],
    }


def in_script(data: Any) -> str:
    """A value as JSON that may stand inside of a script element: pure ASCII, without `<`, `>` and `&`."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _part(name: str) -> str:
    return (_FOLDER / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode('utf-8')).digest()).decode('ascii')}'"
