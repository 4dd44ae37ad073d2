"""Checks of a host and of the way to it: each says what was found, and what mends it.

A check is one function from the facts that a host gave (`probe` and `look`, docs/host.md) to a finding. `ok` is None
where it could not be found out; only `ok: False` of a check in `STOPS` would stop a job.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from jobrunner.core.errors import HostError, JobrunnerError
from jobrunner.service.clock import age_seconds
from jobrunner.service.reconcile import look, remember_host
from jobrunner.service.results import DoctorResult
from jobrunner.service.session import Session

if TYPE_CHECKING:
    from jobrunner.core.hosts import HostSpec
    from jobrunner.transport.link import HostLink

Facts = Mapping[str, Any]
LOW_DISK_BYTES, LOW_FILES = 5 * 1000**3, 20_000
MAX_SKEW_S = 5.0


@dataclass(frozen=True)
class Check:
    """One line of the doctor's report. `remedy` is empty where nothing is wrong."""

    name: str
    ok: bool | None
    found: str
    remedy: str = ""

    def as_json(self) -> dict[str, Any]:
        """The contract's keys."""
        return {"name": self.name, "ok": self.ok, "found": self.found, "remedy": self.remedy}


def doctor(session: Session, names: Sequence[str]) -> DoctorResult:
    """Check hosts (default: all known ones), in parallel."""
    aliases = session.choose_hosts(list(names))

    def ask(link: HostLink) -> dict[str, Any]:
        probe = link.request("probe", timeout=60.0)
        age = age_seconds(link.host_facts.get("now"))
        skew = None if age is None else -age
        answer = look(session, link, cards=True, fresh=True)
        return {**answer, "probe": probe, "skew_s": skew, "notes": list(link.notes)}

    rows = []
    errors: list[JobrunnerError] = []
    answered = 0
    for alias, outcome in session.links.map(ask, aliases).items():
        if outcome.value is None:
            error = outcome.error or HostError(f"{alias} gave no answer", host=alias)
            errors.append(error)
            rows.append({"name": alias, "checks": [Check("ssh", False, error.message, error.remedy).as_json()]})
            continue
        answered += 1
        remember_host(session, alias, outcome.value)
        checks = examine(outcome.value, session.hosts.get(alias))
        rows.append({"name": alias, "checks": [check.as_json() for check in checks]})
        errors += [_stopper(alias, check) for check in checks if check.ok is False and check.name in STOPS]
    stopped = any(error.code == "doctor" for error in errors)
    return DoctorResult(
        hosts=rows,
        errors=errors,
        warnings=session.warnings,
        hosts_asked=len(aliases),
        hosts_answered=0 if stopped else answered,
    )


def _stopper(alias: str, check: Check) -> HostError:
    return HostError(f"{alias}: {check.name}: {check.found}", host=alias, code="doctor", remedy=check.remedy)


def examine(facts: Facts, declared: HostSpec) -> list[Check]:
    """Every check of a host that answered."""
    return [check(facts, declared) for check in CHECKS]


def _ssh(facts: Facts, declared: HostSpec) -> Check:
    host = facts["host"]
    return Check("ssh", True, f"logged in as {host.get('user')} on {host.get('hostname')}; its host key is known")


def _shell(facts: Facts, declared: HostSpec) -> Check:
    shell = facts["probe"].get("shell") or "?"
    notes = facts.get("notes") or []
    if notes:
        remedy = "let the start-up file print only for terminals: put `case $- in *i*) ;; *) return;; esac` at its top"
        return Check("shell", None, str(notes[0]), remedy)
    return Check("shell", True, f"{shell} prints nothing by itself")


def _python(facts: Facts, declared: HostSpec) -> Check:
    python = facts["probe"]["python"]
    return Check("python", True, f"{python['version']} at {python['path']}")


def _root(facts: Facts, declared: HostSpec) -> Check:
    root = facts["probe"]["root"]
    if root.get("noexec"):
        remedy = f"jobs work there, but not programs executed directly; or set `root:` of {declared.name} elsewhere"
        return Check("root", None, f"{root['path']} is mounted noexec", remedy)
    return Check("root", True, f"{root['path']} on {root.get('filesystem') or '?'}")


def _network_home(facts: Facts, declared: HostSpec) -> Check:
    root = facts["probe"]["root"]
    others = facts["probe"].get("others") or []
    names = ", ".join(str(item.get("hostname")) for item in others)
    if root.get("network"):
        shared = f", shared with {names}" if names else ""
        remedy = "works, but slower; a `root:` on a local disk makes starts and logs faster"
        return Check("network home", None, f"{root['path']} is on {root['filesystem']}{shared}", remedy)
    return Check(
        "network home", True, "the root folder is on a local disk" + (f"; also used by {names}" if names else "")
    )


def _disk(facts: Facts, declared: HostSpec) -> Check:
    free = facts["probe"]["disk"]["free_bytes"]
    found = f"{free / 1e9:.1f} GB free"
    if free < LOW_DISK_BYTES:
        return Check("disk", False, found, f"`jobrunner gc {declared.name}` removes what no job needs")
    return Check("disk", True, found)


def _inodes(facts: Facts, declared: HostSpec) -> Check:
    free = facts["probe"]["disk"].get("files_free")
    if free is None:
        return Check("inodes", True, "without a limit")
    if free < LOW_FILES:
        return Check(
            "inodes", False, f"{free} files can be made", f"`jobrunner gc {declared.name}`; remove small files"
        )
    return Check("inodes", True, f"{free} files can be made")


def _tmux(facts: Facts, declared: HostSpec) -> Check:
    tmux = facts["probe"]["tmux"]
    if tmux["path"]:
        return Check("tmux", True, f"{tmux['version']} at {tmux['path']}")
    wanted = declared.launcher == "tmux"
    return Check("tmux", False if wanted else None, "not installed", "needed for `launcher: tmux` and attach only")


def _sessions(facts: Facts, declared: HostSpec) -> Check:
    login = facts["probe"]["login"]
    if login.get("kill_user_processes") and not login.get("linger"):
        remedy = "`loginctl enable-linger` on the host, or ask its administrator for it"
        return Check(
            "logout", False, "logind ends a user's processes at logout (KillUserProcesses=yes, no linger)", remedy
        )
    return Check("logout", True, "processes live on after logout")


def _clock(facts: Facts, declared: HostSpec) -> Check:
    skew = facts["skew_s"]
    if skew is None:
        return Check("clock", None, "the host did not tell its time")
    if abs(skew) > MAX_SKEW_S:
        return Check("clock", None, f"differs from this machine's by {skew:+.0f} s", "set one of the two (chrony, ntp)")
    return Check("clock", True, f"differs from this machine's by {skew:+.1f} s")


def _locale(facts: Facts, declared: HostSpec) -> Check:
    locale = facts["probe"]["locale"]
    name = next((locale[key] for key in ("LC_ALL", "LC_CTYPE", "LANG") if locale.get(key)), "")
    if "utf" in (name or "").lower():
        return Check("locale", True, str(name))
    found = name or "none (C)"
    remedy = f"`env: {{LANG: C.UTF-8}}` for {declared.name} in the hosts file lets old Pythons print any text"
    return Check("locale", None, found, remedy)


def _cards(facts: Facts, declared: HostSpec) -> Check:
    report = facts.get("cards") or {}
    cards = report.get("cards") or []
    error = report.get("error")
    if cards and not error:
        free = sum(1 for card in cards if card.get("free"))
        return Check("cards", True, f"{len(cards)} {report.get('device')}, {free} free ({report.get('tool_version')})")
    text = error.get("message") if isinstance(error, dict) else error
    remedy = error.get("remedy", "") if isinstance(error, dict) else ""
    if declared.device == "cpu":
        return Check("cards", True, "none, as the hosts file says")
    return Check(
        "cards",
        None if declared.device is None and not error else False,
        str(text or "no npu-smi, cnmon or nvidia-smi was found"),
        remedy or f"`device: cpu` for {declared.name} in the hosts file, if it has none",
    )


def _health(facts: Facts, declared: HostSpec) -> Check:
    cards = (facts.get("cards") or {}).get("cards") or []
    bad = [card for card in cards if card.get("health") == "bad"]
    if bad:
        names = ", ".join(f"{card['index']} ({card.get('health_text') or 'bad'})" for card in bad)
        return Check("card health", None, f"in alarm: {names}", "these cards are not given out; tell the administrator")
    return Check("card health", True if cards else None, "no card is in alarm" if cards else "no cards seen")


def _docker(facts: Facts, declared: HostSpec) -> Check:
    docker = facts["probe"]["docker"]
    if not docker["path"]:
        return Check("docker", None, "not installed", "needed for `runtime: {docker: …}` only")
    if docker.get("error"):
        remedy = "needed for `runtime: {docker: …}` only; you may have to be in the group docker"
        return Check("docker", None, str(docker["error"]), remedy)
    return Check("docker", True, f"server {docker.get('server')}")


def _notify(facts: Facts, declared: HostSpec) -> Check:
    if facts["probe"].get("notify"):
        return Check("notifications", True, "the kernel tells about changes: starts are immediate")
    return Check("notifications", None, "the kernel does not tell about changes here", "starts may take seconds longer")


CHECKS: tuple[Callable[[Facts, HostSpec], Check], ...] = (
    _ssh, _shell, _python, _root, _network_home, _disk, _inodes, _tmux, _sessions, _clock, _locale, _cards, _health,
    _docker, _notify,
)  # fmt: skip
STOPS = frozenset({"ssh", "disk", "inodes", "tmux", "logout", "cards"})
