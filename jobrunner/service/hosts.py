"""Hosts: list them, check them, pin their keys, drain them, and see their cards."""

from __future__ import annotations

import json
import os
import stat
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jobrunner.core.errors import HostError, HostKeyError, JobrunnerError, NotFoundError
from jobrunner.service.clock import age_seconds, now
from jobrunner.service.locks import FileLock
from jobrunner.service.reconcile import Reconciled, look, reconcile, remember_host
from jobrunner.service.results import CardsResult, HostAddResult, HostKeyOffer, HostsResult
from jobrunner.service.session import Session

if TYPE_CHECKING:
    from jobrunner.transport.hostkeys import HostKey
    from jobrunner.transport.link import HostLink
    from jobrunner.transport.sshconfig import HostConfig

CARD_KEYS = (
    "index", "model", "health", "memory_used_mb", "memory_total_mb", "utilization", "temperature_c", "power_w", "free",
    "lease", "processes",
)  # fmt: skip
LOCK_S = 5.0
"""How long to wait for another command that adds a host."""


def ls(session: Session) -> HostsResult:
    """Every host of the hosts file and every other that was met before; nobody is asked."""
    rows = []
    for alias in session.known_aliases():
        declared, known = session.hosts.get(alias), session.ledger.host(alias)
        seen = len(known.facts["cards"]) if known and "cards" in known.facts else None
        rows.append(
            {
                "name": alias,
                "address": declared.address or (known.address if known else None),
                "device": declared.device or (known.device if known else None),
                "cards": declared.cards if declared.cards is not None else seen,
                "tags": list(declared.tags),
                "root": declared.root,
                "drained": known.drained if known else False,
                "last_seen": known.last_seen if known else None,
                "in_file": alias in session.hosts.hosts,
            }
        )
    return HostsResult(hosts=rows, warnings=session.warnings)


def check(session: Session, names: Sequence[str]) -> HostsResult:
    """Connect to hosts, start the agent there and look at what they have."""
    aliases = session.choose_hosts(list(names))

    def ask(link: HostLink) -> dict[str, Any]:
        began = time.perf_counter()
        probe = link.request("probe")
        took = time.perf_counter() - began
        age = age_seconds(link.host_facts.get("now"))  # here: later it would count what the others take
        answer = look(session, link, cards=True, fresh=True)
        skew = None if age is None else round(-age, 2)
        return {**answer, "probe": probe, "round_trip_ms": round(took * 1000, 1), "skew_s": skew, "at": now()}

    found = Reconciled()
    rows = []
    for alias, outcome in session.links.map(ask, aliases).items():
        if outcome.value is None:
            error = session.named(alias, outcome.error or HostError(f"{alias} gave no answer", host=alias))
            found.errors[alias] = error
            rows.append({**_empty_check(session, alias), "error": error.as_json()})
            continue
        found.answers[alias] = outcome.value
        remember_host(session, alias, outcome.value)
        rows.append(_checked(session, alias, outcome.value))
    return HostsResult(
        hosts=rows,
        errors=list(found.errors.values()),
        warnings=session.warnings,
        hosts_asked=found.asked,
        hosts_answered=len(found.answers),
    )


def _empty_check(session: Session, alias: str) -> dict[str, Any]:
    known = session.ledger.host(alias)
    keys = (
        "python", "hostname", "instance", "user", "agent", "device", "tool_version", "cards", "disk_free_bytes",
        "clock_skew_s", "round_trip_ms",
    )  # fmt: skip
    return {
        "name": alias,
        "reachable": False,
        "error": None,
        **dict.fromkeys(keys),
        "drained": known.drained if known else False,
    }


def _checked(session: Session, alias: str, answer: Mapping[str, Any]) -> dict[str, Any]:
    host, report, disk = answer["host"], answer.get("cards") or {}, answer.get("disk") or {}
    error = report.get("error")
    return {
        **_empty_check(session, alias),
        "reachable": True,
        "error": _card_error(error) if error and (session.hosts.get(alias).device or "cpu") != "cpu" else None,
        "python": host.get("python"),
        "hostname": host.get("hostname"),
        "instance": host.get("instance"),
        "user": host.get("user"),
        "agent": host.get("agent"),
        "device": report.get("device") or session.hosts.get(alias).device,
        "tool_version": report.get("tool_version"),
        "cards": len(report.get("cards", [])),
        "disk_free_bytes": disk.get("free_bytes"),
        "clock_skew_s": answer["skew_s"],
        "round_trip_ms": answer["round_trip_ms"],
        "drained": bool(answer.get("drained")),
    }


def _card_error(error: Any) -> dict[str, str]:
    """A card report's error with the contract's three keys."""
    if isinstance(error, dict):
        return {key: str(error.get(key) or "") for key in ("code", "message", "remedy")}
    return {"code": "cards", "message": str(error), "remedy": ""}


def add(
    session: Session,
    alias: str,
    *,
    address: str | None = None,
    confirm: Callable[[HostKeyOffer], bool] | None = None,
    fingerprint: str | None = None,
) -> HostAddResult:
    """Pin the key of a host after `confirm(offer)` said yes, write the host down, and check it.

    Raises HostKeyError for a changed or revoked key (those are never offered), where nobody confirmed, and for a known
    key that is not the one of `fingerprint`.
    """
    from jobrunner.transport.connect import scan_host_key
    from jobrunner.transport.hostkeys import KnownHosts, accept, pin

    if address is not None:
        session.add_host(alias, address)
    config = session.links.target(alias).config
    key = scan_host_key(session.links.target(alias))
    verdict = KnownHosts(config).judge(key)
    offer = None
    if verdict.status == "unknown":
        offer = HostKeyOffer(alias, f"{config.hostname} port {config.port}", key.type, key.fingerprint)
        if confirm is None or not confirm(offer):
            raise HostKeyError(
                f"the key of {alias} ({offer.address}) was not confirmed: {offer.key_type} {offer.fingerprint}",
                host=alias,
                code="hostkey_unknown",
                remedy=f"compare it with the host's own, then: jobrunner hosts add {alias}",
            )
        _pin(config, key, pin)
    else:
        accept(config, verdict)
        _expect(alias, key, fingerprint)
    result = check(session, [alias])
    return HostAddResult(
        host=result.hosts[0],
        offer=offer,
        pinned=offer is not None,
        known_hosts=config.known_hosts[0] if offer is not None else None,
        hosts_file=write_down(session, alias, address),
        errors=result.errors,
        warnings=session.warnings,
        hosts_asked=1,
        hosts_answered=result.hosts_answered,
    )


def _expect(alias: str, key: HostKey, fingerprint: str | None) -> None:
    """Raise HostKeyError if a fingerprint is asked for and a key, known though it is, has another one."""
    if fingerprint is None:
        return
    shown, wanted = (text.removeprefix("SHA256:").rstrip("=") for text in (key.fingerprint, fingerprint))
    if shown == wanted:
        return
    raise HostKeyError(
        f"{alias} shows the {key.type} key {key.fingerprint}, which is trusted already, not {fingerprint}",
        host=alias,
        code="hostkey_changed",
        remedy="ask the host's administrator which is right; if the trusted one is not, remove it from known_hosts",
    )


def _pin(config: HostConfig, key: HostKey, pin: Callable[[str, HostConfig, HostKey], None]) -> None:
    if not config.known_hosts:
        raise HostKeyError(
            f"the SSH configuration of {config.alias} names no known_hosts file to write its key to",
            host=config.alias,
            remedy="set UserKnownHostsFile for it",
        )
    try:
        pin(config.known_hosts[0], config, key)
    except OSError as error:
        raise HostKeyError(
            f"the key of {config.alias} could not be written to {config.known_hosts[0]}: {error.strerror}",
            host=config.alias,
            remedy="make that file writable, or set UserKnownHostsFile to another one",
        ) from error


def write_down(session: Session, alias: str, address: str | None) -> str | None:
    """Add a host to the hosts file if it is not there; the file, or None if nothing was changed.

    A file whose `hosts:` is written in a way that one cannot add a line to is left alone, and a warning says so.
    """
    if alias in session.written_hosts:
        return None
    path = session.hosts_file
    entry = f"{_yaml(alias)}:" + (f" {{address: {_yaml(address)}}}" if address else "")
    real = Path(os.path.realpath(path))  # a link stays one
    why = "another command writes to it just now"
    try:
        real.parent.mkdir(parents=True, exist_ok=True)
        with _locked(real.with_name(real.name + ".lock")) as ours:
            text = real.read_text(encoding="utf-8") if real.exists() else ""
            longer = _with_entry(text, entry)
            if ours and _adds_only(text, longer, alias):
                _replace(real, longer)
                return str(path)
            if ours:
                why = "its `hosts:` is written in a way that is not changed here"
    except OSError as error:
        why = f"it cannot be written: {error.strerror}"
    session.warn(f"add `{entry}` to {path} yourself: {why}")
    return None


@contextmanager
def _locked(path: Path) -> Iterator[bool]:
    """True inside if nobody else has the lock, after some waiting: two who add hosts at once lose none of them."""
    lock, ends = FileLock(path), time.monotonic() + LOCK_S
    while not (ours := lock.acquire()) and time.monotonic() < ends:
        time.sleep(0.02)
    try:
        yield ours
    finally:
        lock.release()


def _replace(path: Path, text: str) -> None:
    """Replace a file, whole or not at all; whoever could not read the old one cannot read the new one."""
    aside = path.with_name(path.name + ".new")
    aside.unlink(missing_ok=True)
    mode = stat.S_IMODE(path.stat().st_mode) if path.exists() else 0o666
    with open(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w", encoding="utf-8") as file:
        file.write(text)
    aside.replace(path)


def _with_entry(text: str, entry: str) -> str:
    """A hosts file's text with one more line under `hosts:`, as deep as the lines that are there."""
    lines = text.splitlines()
    if "hosts:" not in lines:
        return "\n".join([*lines, "hosts:", f"  {entry}"]) + "\n"
    place = lines.index("hosts:") + 1
    below = (line for line in lines[place:] if line.strip() and not line.lstrip().startswith("#"))
    first = next(below, "")
    depth = len(first) - len(first.lstrip(" ")) or 2
    lines.insert(place, " " * depth + entry)
    return "\n".join(lines) + "\n"


def _adds_only(text: str, longer: str, alias: str) -> bool:
    """True if the longer text reads as the same hosts file with this one host more."""
    from jobrunner.core.errors import SpecError
    from jobrunner.core.hosts import load_hosts

    try:
        before, after = load_hosts(text, "hosts file"), load_hosts(longer, "hosts file")
    except SpecError:
        return False
    rest = {name: host for name, host in after.hosts.items() if name != alias}
    return alias in after.hosts and rest == before.hosts and after.settings == before.settings


def _yaml(text: str) -> str:
    """A text as YAML: as it is where that is a word beyond doubt, else quoted."""
    plain = text[:1].isalpha() and text.isascii() and all(sign.isalnum() or sign in "-_.@" for sign in text)
    return text if plain and text.lower() not in ("true", "false", "null") else json.dumps(text)


def drain(session: Session, names: Sequence[str]) -> HostsResult:
    """No job of mine starts on these hosts until `undrain`; what runs goes on."""
    return _set_drained(session, names, True)


def undrain(session: Session, names: Sequence[str]) -> HostsResult:
    """My jobs start on these hosts again."""
    return _set_drained(session, names, False)


def _set_drained(session: Session, names: Sequence[str], on: bool) -> HostsResult:
    if not names:
        raise NotFoundError("no host was named", code="no_hosts", remedy="jobrunner hosts ls lists them")
    aliases = list(dict.fromkeys(names))
    rows = []
    errors: list[JobrunnerError] = []
    for alias, outcome in session.links.map(lambda link: link.request("drain", on=on), aliases).items():
        if outcome.value is None:
            errors.append(session.named(alias, outcome.error or HostError(f"{alias} gave no answer", host=alias)))
            known = session.ledger.host(alias)
            drained = known.drained if known and known.instance else None
            rows.append({"name": alias, "reachable": False, "drained": drained, "error": errors[-1].as_json()})
            continue
        session.ledger.put_host(alias, drained=on)
        rows.append({"name": alias, "reachable": True, "drained": bool(outcome.value["drained"]), "error": None})
    return HostsResult(
        hosts=rows,
        errors=errors,
        warnings=session.warnings,
        hosts_asked=len(aliases),
        hosts_answered=len(aliases) - len(errors),
    )


def disconnect(session: Session, names: Sequence[str]) -> HostsResult:
    """End the connections to these hosts (default: all) that commands share; nothing on the hosts ends."""
    from jobrunner.transport import sockets

    ended: dict[str, int] = dict.fromkeys(names, 0)
    for shared in list(sockets.existing(session.home / "ssh")):
        if not names or shared.alias in names:
            ended[shared.alias] = ended.get(shared.alias, 0) + sockets.disconnect(shared)
    sockets.tidy(session.home / "ssh")
    rows = [{"name": alias, "ended": count} for alias, count in ended.items()]
    return HostsResult(hosts=rows, warnings=session.warnings)


def cards(session: Session, names: Sequence[str]) -> CardsResult:
    """The cards of hosts, as their vendors' tools, the leases and the rules of the hosts file show them."""
    aliases = session.choose_hosts(list(names))
    found = reconcile(session, also=aliases, only=_live_on(session, aliases), cards=True, fresh=True)
    rows = []
    for alias in aliases:
        error = found.errors.get(alias)
        if alias not in found.answers:
            failed = error or HostError(f"{alias} gave no answer", host=alias)
            rows.append(_card_row(session, alias, False, failed.as_json(), {}))
            continue
        report = found.answers[alias].get("cards") or {}
        problem = report.get("error")
        rows.append(_card_row(session, alias, True, _card_error(problem) if problem else None, report))
        for text in dict.fromkeys(map(str, report.get("warnings") or ())):
            session.warn(f"{alias}: {text}")
    return CardsResult(
        hosts=rows,
        errors=[error for alias, error in found.errors.items() if alias in aliases],
        warnings=session.warnings,
        hosts_asked=found.asked,
        hosts_answered=len(found.answers),
    )


def _live_on(session: Session, aliases: list[str]) -> list[str]:
    live = session.ledger.live_by_host()
    return [job.id for alias in aliases for job in live.get(alias, [])]


def _card_row(
    session: Session, alias: str, reachable: bool, error: dict[str, str] | None, report: Mapping[str, Any]
) -> dict[str, Any]:
    return {
        "name": alias,
        "reachable": reachable,
        "error": error,
        "device": report.get("device") or session.hosts.get(alias).device,
        "tool_version": report.get("tool_version"),
        "cards": [_card(card) for card in report.get("cards", [])],
        "waiting": list(report.get("waiting") or []),
        "raw": report.get("raw"),
    }


def _card(card: Mapping[str, Any]) -> dict[str, Any]:
    """A card with the contract's keys, and why it is not free for those who look closer."""
    lease = card.get("lease")
    out = {key: card.get(key) for key in CARD_KEYS}
    out["lease"] = {"user": lease.get("user"), "job": lease.get("job")} if lease else None
    out["job_name"], out["since"] = (lease.get("name"), lease.get("since")) if lease else (None, None)
    out["why_busy"] = card.get("why_busy")
    return out
