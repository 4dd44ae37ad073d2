"""Bring promotions back from what the hosts keep in the folders of models (`jobrunner adopt`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from jobrunner.core.errors import HostError
from jobrunner.ledger.promotions import Promotion
from jobrunner.service.promote import plain_value
from jobrunner.service.session import Session

Json = Mapping[str, Any]


def targets_of(records: Iterable[Json | None]) -> list[str]:
    """The folders that these jobs' specs promote models to."""
    found: dict[str, None] = {}
    for record in records:
        wanted = (((record or {}).get("request") or {}).get("spec") or {}).get("promote")
        if isinstance(wanted, Mapping) and isinstance(wanted.get("to"), str):
            found[wanted["to"]] = None
    return list(found)


def adopt(session: Session, targets: Mapping[str, list[str]]) -> list[HostError]:
    """Ask each host about its targets, and note versions that the ledger does not know, the oldest first.

    Of a target that the ledger knows a current model of, that stays current; else it is the one that became current
    last. What no host keeps any more (rollbacks, models that were not better) does not come back.
    """
    errors: list[HostError] = []
    told: dict[str, list[tuple[str, Json]]] = {}
    for alias, wanted in targets.items():
        try:
            answer = session.link(alias).request("promoted", to=wanted)
        except HostError as error:
            errors.append(error)
            continue
        found = answer.get("promoted")
        for target, folder in found.items() if isinstance(found, dict) else ():
            if target in wanted and isinstance(folder, dict):
                told.setdefault(target, []).append((alias, folder))
    for target, folders in told.items():
        _note(session, target, folders)
    return errors


def _note(session: Session, target: str, folders: list[tuple[str, Json]]) -> None:
    ledger = session.ledger.promotions
    known = {(item.host, item.version) for item in ledger.list(target)}
    fresh = ledger.current(target) is None
    newest = max((str(folder.get("since") or "") for _, folder in folders), default="")
    items = []
    for alias, folder in folders:
        leads = fresh and bool(newest) and folder.get("since") == newest
        for record in folder.get("versions") or ():
            item = _promotion(target, alias, record)
            if item is not None and (alias, item.version) not in known:
                items.append(replace(item, current=leads and item.version == folder.get("current")))
    for item in sorted(items, key=lambda item: item.at):
        ledger.add(item)


def _promotion(target: str, alias: str, record: Any) -> Promotion | None:
    """A version as its folder on the host describes it; None for what describes none."""
    if not isinstance(record, dict):
        return None
    words = ("at", "job", "checkpoint", "path", "version", "sha256", "metric", "direction", "schedule")
    text = {name: record[name] for name in words if isinstance(record.get(name), str)}
    if not {"at", "job", "checkpoint", "path", "version"} <= set(text):
        return None
    value = plain_value(record.get("value"))
    return Promotion(target=target, decision="promoted", why="known from its host", host=alias, value=value, **text)
