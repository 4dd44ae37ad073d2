"""A spec file as text, read into a JobSpec or into every problem that it has."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from pydantic import ValidationError

from jobrunner.core.document import Document
from jobrunner.core.overrides import apply_overrides
from jobrunner.core.spec import JobSpec, keys_at
from jobrunner.core.words import Fault, faults_of
from jobrunner.core.yamldoc import Path

# What `submit` can act on beside plain jobs; other keys of LATER are read, checked, and then refused.
ENABLED: frozenset[str] = frozenset({"promote", "sweep"})
LATER = ("sweep", "schedule", "promote")


class SpecDocument(Document):
    """A spec file: `spec` if it is a good one, and `problems` otherwise.

    `partial` is then made of the keys that are right, with defaults for those in `broken`: good for further checks,
    never for a job. None if not even that can be had.
    """

    spec: JobSpec | None = None
    partial: JobSpec | None = None
    broken: frozenset[str] = frozenset()


def written_path(path: Path) -> bool:
    """True where a scalar arrives as it is written: words of args and commands, values of env and of sweeps."""
    if len(path) == 2:
        return path[0] == "env" or (path[0] in ("args", "command", "resume_args") and isinstance(path[1], int))
    if len(path) == 4 and path[:2] == ("sweep", "parameters"):
        return isinstance(path[2], int) or isinstance(path[3], int)
    return len(path) == 4 and path[:3] == ("runtime", "docker", "options")


def read_spec(
    text: str,
    file: str,
    overrides: Sequence[str] = (),
    default_name: str = "job",
    enabled: Collection[str] = ENABLED,
) -> SpecDocument:
    """Read one spec. `overrides` are `--set` values, `enabled` the keys of LATER that the caller can act on.

    Never raises for what the file holds: `document.problems` has every fault, and `document.spec` is None then.
    """
    document = SpecDocument.of(text, file)
    if document.root is None and (document.problems or not text.strip()):
        return document
    document.root, wrong = apply_overrides(document.root, overrides)
    document.problems += wrong
    data = document.data(written_path)
    if not isinstance(data, dict):
        document.problems.append(document.problem_at((), "a spec is a mapping (key: value); this is something else"))
        return document
    data.setdefault("name", default_name)
    spec, faults = _validated(data)
    if spec is None:
        document.broken = _broken(data, faults)
        document.partial, more = _validated_rest(data, document.broken)
        faults += [fault for fault in more if fault not in faults]
    document.problems += [document.problem_at(f.path, f.message, f.suggestion, on_key=f.on_key) for f in faults]
    for key in LATER:
        if key in data and data[key] is not None and key not in enabled:
            document.problems.append(document.problem_at((key,), _not_here(key, file), on_key=True))
    document.problems = document.ordered()
    if not document.problems:
        document.spec = spec
    return document


def _not_here(key: str, file: str) -> str:
    if key == "schedule":
        return f"a spec with `schedule` is not submitted once; `jobrunner schedule add {file}` has it run at its times"
    return f"`{key}` is not yet in this version; remove it"


def _validated(data: dict[str, Any]) -> tuple[JobSpec | None, list[Fault]]:
    """The spec, or the faults of single keys (and those between keys, if every single one is right)."""
    try:
        return JobSpec.model_validate(data), []
    except ValidationError as error:
        return None, faults_of(error.errors(include_url=False), keys_at)


def _broken(data: dict[str, Any], faults: list[Fault]) -> frozenset[str]:
    """The keys that are wrong by themselves, or missing."""
    alone = {str(fault.path[0]) for fault in faults if fault.path}
    return frozenset(alone if "device" in data else alone | {"device"})


def _validated_rest(data: dict[str, Any], broken: frozenset[str]) -> tuple[JobSpec | None, list[Fault]]:
    """The spec without its broken keys, and the faults between the others."""
    rest = {key: value for key, value in data.items() if key not in broken}
    if "device" in broken:
        rest["device"] = "gpu"
    try:
        return JobSpec.model_validate(rest, context={"broken": broken}), []
    except ValidationError as error:
        return None, faults_of(error.errors(include_url=False), keys_at)
