"""The words of the doctor: a rule looks at facts and gives a finding; rule and finding together are a check."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from jobrunner.core import amounts
from jobrunner.core.values import dataclass

if TYPE_CHECKING:
    from jobrunner.core.inventory import Host

Facts = Mapping[str, Any]
"""What a host told: `host`, `cards`, `disk` (of `look`), `probe` (docs/host.md), `skew_s`, `notes`, `link`."""


@dataclass(frozen=True)
class Check:
    """One line of the report. `ok` is None where it could not be found out, or where it depends on the job."""

    name: str
    ok: bool | None
    found: str
    remedy: str = ""

    def as_json(self) -> dict[str, Any]:
        """The contract's keys."""
        return {"name": self.name, "ok": self.ok, "found": self.found, "remedy": self.remedy}


@dataclass(frozen=True)
class Finding:
    """What a rule makes of the facts. `stops` says otherwise than the rule whether a job would be stopped."""

    ok: bool | None
    found: str
    remedy: str = ""
    stops: bool | None = None


def good(found: str) -> Finding:
    """Nothing is wrong."""
    return Finding(True, found)


def bad(found: str, remedy: str, stops: bool | None = None) -> Finding:
    """Something is wrong, and what mends it."""
    return Finding(False, found, remedy, stops)


def unsure(found: str, remedy: str = "") -> Finding:
    """It could not be found out, or it is wrong for some jobs only."""
    return Finding(None, found, remedy)


Judge = Callable[[Facts, "Host"], "Finding | None"]


@dataclass(frozen=True)
class Rule:
    """One row of the table of checks.

    judge    facts and the host's entry in the hosts file to a finding; None: does not concern this host
    about    what it looks at, for people
    parts    parts of the deep probe without which it cannot be judged
    stops    if it fails, no job (that needs it) can run: the command ends with exit code 3
    """

    name: str
    judge: Judge
    about: str
    parts: tuple[str, ...] = ()
    stops: bool = False


def part(facts: Facts, name: str) -> Mapping[str, Any]:
    """A part of the probe; empty if it was not given."""
    found = facts.get("probe", {}).get(name)
    return found if isinstance(found, Mapping) else {}


def why_missing(facts: Facts, names: tuple[str, ...]) -> str:
    """Why the first of these parts that is not there is not; an empty text if all are."""
    for name in names:
        found = facts.get("probe", {}).get(name)
        if not isinstance(found, Mapping):
            return "the host did not tell"
        if found.get("late") is True:
            return "it was not known within the time limit: something on the host hangs"
        if set(found) == {"error"}:
            return f"finding it out failed: {found['error']}"
    return ""


def applied(rule: Rule, facts: Facts, declared: Host) -> tuple[Check, bool] | None:
    """The check that a rule gives for a host, and whether it would stop a job; None if it does not concern it."""
    missing = why_missing(facts, rule.parts)
    if missing:
        return Check(rule.name, None, missing, "run `jobrunner doctor` again; if it stays so, look at the host"), False
    finding = rule.judge(facts, declared)
    if finding is None:
        return None
    stops = rule.stops if finding.stops is None else finding.stops
    return Check(rule.name, finding.ok, finding.found, finding.remedy), finding.ok is False and stops


def size(count: float | None) -> str:
    """Bytes in powers of 1,024; `?` if unknown."""
    return "?" if count is None else amounts.size(count)
