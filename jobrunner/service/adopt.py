"""Rebuild the ledger from what the hosts have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from jobrunner.core.errors import HostError, JobrunnerError
from jobrunner.core.jobs import JobRow
from jobrunner.service import definitions, followups, metrics, promoted
from jobrunner.service.clock import now
from jobrunner.service.reconcile import remember_host
from jobrunner.service.results import AdoptResult
from jobrunner.service.session import Session

if TYPE_CHECKING:
    from jobrunner.transport.link import HostLink


def adopt(session: Session, names: Sequence[str]) -> AdoptResult:
    """Take every job that these hosts (default: all known ones) have into the ledger; says what it could not.

    Schedules come back from their files in the state folder, promoted models from their folders on the hosts.
    """
    schedules = definitions.adopt(session)
    aliases = session.choose_hosts(list(names))

    def ask(link: HostLink) -> dict[str, Any]:
        records: dict[str, Any] = {}
        following: str | None = ""
        while following is not None:
            begin: dict[str, Any] = {"from": following} if following else {}
            answer = link.request("records", jobs="all", working=True, **begin)
            records.update(answer["jobs"])
            earlier, following = following, answer.get("next")
            if following is not None and following <= earlier:
                raise HostError(f"{link.alias} repeats itself", host=link.alias, code="bad_answer")
        return {"records": records, "host": link.host_facts}

    rows: list[JobRow] = []
    added: list[str] = []
    errors: list[JobrunnerError] = []
    away: list[tuple[str, dict[str, Any]]] = []
    told: list[dict[str, Any]] = []
    models: dict[str, list[str]] = {}
    for alias, outcome in session.links.map(ask, aliases).items():
        if outcome.value is None:
            errors.append(session.named(alias, outcome.error or HostError(f"{alias} gave no answer", host=alias)))
            continue
        remember_host(session, alias, outcome.value)
        told += outcome.value["records"].values()
        away += [(alias, record) for record in outcome.value["records"].values() if _left(record)]
        models[alias] = promoted.targets_of(outcome.value["records"].values())
        _take(session, alias, outcome.value, rows, added)
        try:
            metrics.catch_up(session, alias, outcome.value["host"]["instance"])
        except HostError as error:
            errors.append(error)
    if away:
        from jobrunner.service.moving import adopt_away

        found = adopt_away(session, away)
        rows += found
        added += [row.id for row in found]
    if any(row.sweep for row in rows):
        from jobrunner.service.sweeps.adopting import adopt_sweeps

        adopt_sweeps(session, told)
    definitions.restore_runs(session)
    errors += promoted.adopt(session, {alias: targets for alias, targets in models.items() if targets})
    followups.leave(session, [row.id for row in rows if row.state.final and row.id in added])
    rows.sort(key=lambda row: row.submitted_at or "", reverse=True)
    return AdoptResult(
        rows=rows,
        added=added,
        schedules=[row.id for row in schedules],
        errors=errors,
        warnings=session.warnings,
        hosts_asked=len(aliases),
        hosts_answered=len(aliases) - len(errors),
    )


def _left(record: Any) -> bool:
    """True for a record of a job that was taken out of that host's queue, to go to another."""
    return bool(((record or {}).get("view") or {}).get("moved"))


def _take(session: Session, alias: str, answer: dict[str, Any], rows: list[JobRow], added: list[str]) -> None:
    from jobrunner.ledger import Outcome

    at = now()
    known = {row.id for row in session.ledger.list(all=True)}

    def age(item: tuple[str, Any]) -> str:
        return str(((item[1] or {}).get("view") or {}).get("submitted_at") or "")

    for id_, record in sorted(answer["records"].items(), key=age):
        view = (record or {}).get("view")
        if _left(record):
            continue
        if not view:
            session.warn(f"{alias}: the folder of {id_} cannot be read; it is left as it is")
            continue
        outcome = session.ledger.put_record(alias, answer["host"]["instance"], record, at)
        if outcome in (Outcome.UNKNOWN_STATE, Outcome.OTHER_MACHINE):
            session.warn(f"{alias}: {view['id']} could not be taken over ({outcome.value.replace('_', ' ')})")
            continue
        if view["id"] not in known:
            added.append(view["id"])
        rows.append(session.ledger.get(view["id"]))
