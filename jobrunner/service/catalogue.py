"""The catalogue in force (what comes with jobrunner, and the user's own beside the hosts file), and its use."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any

from jobrunner.core.catalogue import Catalogue, read
from jobrunner.core.catalogue_match import diagnose
from jobrunner.core.catalogue_text import findings
from jobrunner.core.jobs import JobRow
from jobrunner.core.ranks import Line
from jobrunner.core.states import JobState

USER_FILES = ("catalogue.yaml", "catalogue.yml", "catalogue.json")
MOST_WARNINGS = 5


@lru_cache(maxsize=1)
def shipped() -> Catalogue:
    """What comes with jobrunner."""
    catalogue = Catalogue()
    folder = resources.files("jobrunner.core") / "data" / "catalogue"
    for file in sorted(folder.iterdir(), key=lambda file: file.name):
        if file.name.endswith(".json"):
            catalogue = catalogue.joined(read(json.loads(file.read_text(encoding="utf-8"))))
    return catalogue


def user(folder: Path, warn: Callable[[str], None]) -> Catalogue:
    """The user's own entries. What is wrong in their file is a warning with its place, and the rest is used."""
    catalogue = Catalogue()
    for name in USER_FILES:
        path = folder / name
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            continue
        except OSError as error:
            warn(f"the catalogue {path} cannot be read: {error.strerror or error}")
            continue
        catalogue = catalogue.joined(_checked(data, path, warn))
    return catalogue


def _checked(data: bytes, path: Path, warn: Callable[[str], None]) -> Catalogue:
    from jobrunner.core.catalogue_check import read_user
    from jobrunner.core.yamldoc import decode

    text = decode(data, str(path))
    if not isinstance(text, str):
        warn(str(text))
        return Catalogue()
    catalogue, problems = read_user(text, str(path))
    for problem in problems[:MOST_WARNINGS]:
        warn(str(problem))
    if len(problems) > MOST_WARNINGS:
        warn(f"{path}: {len(problems) - MOST_WARNINGS} further problems")
    return catalogue


def matched(
    row: JobRow, catalogue: Catalogue, lines: Iterable[Line], lang: str, skip: Iterable[str] = ()
) -> list[dict[str, Any]]:
    """What lines of a job's log show by the catalogue; `skip`: what its verdict says already."""
    ends = _ends(row)
    diagnosis = diagnose(catalogue, lines, ends, row.device)
    if row.state is not JobState.FAILED:
        # What was stopped from outside says so in many ways that explain nothing.
        diagnosis = diagnosis.only("cause", "symptom")
    return findings(diagnosis, catalogue, lang, row.id, ends[-1] if ends else row.state.value, skip)


def _ends(row: JobRow) -> list[str]:
    """How a job ended, in the words of the catalogue's `ends`."""
    words = [] if row.reason is None else [f"{row.state.value} {row.reason}"]
    if row.exit_code is not None:
        words.append(f"exit {row.exit_code}")
    if row.signal is not None:
        words.append(f"signal {row.signal}")
    return words


def glance(row: JobRow, log: bytes, hosts_file: Path | None, lang: str) -> list[dict[str, Any]]:
    """The best finding for a failed job from the end of its log, without asking anybody; empty if nothing is known."""
    from jobrunner.service.session import default_hosts_file

    folder = (hosts_file or default_hosts_file(os.environ)).parent
    known = shipped().joined(user(folder, lambda text: None))
    lines = [Line(None, text) for text in log.decode("utf-8", "replace").replace("\r", "\n").split("\n") if text]
    return matched(row, known, lines, lang)[:1]
