"""Ask hosts, all at once, and judge what they tell."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from jobrunner.core.errors import AgentError, HostError, JobrunnerError, NotFoundError
from jobrunner.service.clock import age_seconds
from jobrunner.service.doctor import client, reach
from jobrunner.service.doctor.finding import Check, Facts, applied
from jobrunner.service.doctor.table import RULES
from jobrunner.service.reconcile import look, remember_host
from jobrunner.service.results import DoctorResult
from jobrunner.service.session import Session

if TYPE_CHECKING:
    from jobrunner.core.inventory import Host
    from jobrunner.transport.link import HostLink
    from jobrunner.transport.session import Session as AgentChannel

PROBE_S = 40.0
CHANNELS = 4


def doctor(session: Session, names: Sequence[str]) -> DoctorResult:
    """Check this machine, and hosts (default: all known ones), in parallel.

    Errors are hosts that could not be asked, and checks whose failure would stop a job (code `doctor`).
    """
    local = client.facts_of(session)
    checks, errors = client.examine(local[0])
    errors = local[1] + errors
    rows: list[dict[str, Any]] = [_row(client.THIS_MACHINE, checks)]
    aliases = _aliases(session, names, local[0])
    answered = 0
    stopped = False
    if aliases:
        for alias, outcome in session.links.map(lambda link: gather(session, link), aliases).items():
            if outcome.value is None:
                error = outcome.error or HostError(f"{alias} gave no answer", host=alias)
                errors.append(error)
                rows.append(_row(alias, reach.failed(error)))
                continue
            answered += 1
            if not local[0]["ledger"]["error"]:
                remember_host(session, alias, outcome.value)
            checks, stoppers = examine(outcome.value, session.hosts.get(alias))
            rows.append(_row(alias, checks))
            errors += [_stopper(alias, check) for check in stoppers]
            stopped = stopped or bool(stoppers)
    return DoctorResult(
        hosts=rows,
        errors=errors,
        warnings=session.warnings,
        hosts_asked=len(aliases),
        # A host on which no job can run is as good as one that does not answer: exit code 3.
        hosts_answered=0 if stopped else answered,
    )


def _row(name: str, checks: list[Check]) -> dict[str, Any]:
    return {"name": name, "checks": [check.as_json() for check in checks]}


def _aliases(session: Session, names: Sequence[str], local: Facts) -> list[str]:
    """The hosts to ask: none where the files that name them cannot be used, or where none is known."""
    if local["hosts"]["problems"]:
        return []
    if names or local["ledger"]["error"]:
        return list(dict.fromkeys(names or session.hosts.hosts))
    try:
        return session.choose_hosts(None)
    except NotFoundError:
        return []


def _stopper(alias: str, check: Check) -> HostError:
    return HostError(f"{alias}: {check.name}: {check.found}", host=alias, code="doctor", remedy=check.remedy)


def gather(session: Session, link: HostLink) -> dict[str, Any]:
    """All facts about a host. Raises HostError if it cannot be asked at all."""
    declared = session.hosts.get(link.alias)
    began = look(session, link)
    age = age_seconds(link.host_facts.get("now"))
    channels = _count_channels(link)
    answer = look(session, link, cards=True, fresh=True)
    probe, trouble = _probe(link, declared, (answer.get("cards") or {}).get("device"))
    config = link.target.config
    return {
        **began,
        **answer,
        "host": began["host"],
        "probe": probe,
        "probe_error": trouble,
        "skew_s": None if age is None else -age,
        "notes": list(link.notes),
        "sessions": channels,
        "agent": session.agent_hash,
        "link": {
            "hostname": config.hostname,
            "port": config.port,
            "round_trip_ms": link.round_trip * 1000,
            "banner": " ".join(link.banner.split())[:80],
            "key_file": config.known_hosts[0] if len(config.known_hosts) == 1 else "",
        },
    }


def _probe(link: HostLink, declared: Host, seen: str | None) -> tuple[dict[str, Any], HostError | None]:
    """The deep facts, or none and why: what is known without them is told all the same."""
    try:
        facts = link.request(
            "probe",
            timeout=PROBE_S + 20.0,
            deep=True,
            limit_s=PROBE_S,
            device=declared.device or seen,
            env=dict(declared.env),
            setup=list(declared.setup),
            only_cards=None if declared.only_cards is None else list(declared.only_cards),
        )
    except HostError as error:
        if not isinstance(error, AgentError) and error.code != "timeout":
            raise
        return {}, error
    return facts, None


def _count_channels(link: HostLink) -> dict[str, Any]:
    """How many channels the host opens at once, up to `CHANNELS`; all are closed again. No other may be in use."""
    opened: list[AgentChannel] = []
    told: dict[str, Any] = {"asked": CHANNELS, "full": False, "error": ""}
    try:
        for _ in range(CHANNELS):
            opened.append(link.stream("look", jobs=[]))
    except JobrunnerError as error:
        told.update(full=error.code == "sessions_full", error=error.message)
    finally:
        for session in opened:
            session.close()
    return {**told, "opened": len(opened)}


def examine(facts: Facts, declared: Host) -> tuple[list[Check], list[Check]]:
    """Every check of a host that answered, and those of them that would stop a job. Pure."""
    checks, stoppers = reach.passed(facts), []
    for rule in RULES:
        result = applied(rule, facts, declared)
        if result is not None:
            checks.append(result[0])
            if result[1]:
                stoppers.append(result[0])
    return checks, stoppers
