"""Bring sweeps back from what each trial's request says (`jobrunner adopt`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from jobrunner.core.errors import NotFoundError
from jobrunner.ledger.sweeps import SweepRow, Trial
from jobrunner.service.clock import now
from jobrunner.service.session import Session
from jobrunner.service.sweeps.view import settle

Json = Mapping[str, Any]


def adopt_sweeps(session: Session, records: Iterable[Json | None]) -> list[str]:
    """Take the sweeps of these records (docs/host.md) into the ledger; returns the ids of those that are new here.

    What the ledger knows already of a sweep stays. A sweep's code is then what its hosts have of it.
    """
    found: dict[str, list[Json]] = {}
    for record in records:
        told = ((record or {}).get("request") or {}).get("sweep")
        if record and isinstance(told, Mapping) and isinstance(told.get("id"), str) and _is_trial(told):
            found.setdefault(str(told["id"]), []).append(record)
    added = []
    for id_, items in found.items():
        items.sort(key=_age)
        try:
            session.ledger.sweeps.get(id_)
        except NotFoundError:
            session.ledger.sweeps.add(_row(id_, items))
            added.append(id_)
        _take_trials(session, id_, items)
        if ((items[-1]["request"].get("spec") or {}).get("sweep") or {}).get("early_stop"):
            from jobrunner.service.sweeps import early

            early.recall(session, id_)
        settle(session, id_)
    return added


def _is_trial(told: Json) -> bool:
    return (
        isinstance(told.get("number"), int) and isinstance(told.get("parameters"), Mapping) and bool(told.get("point"))
    )


def _age(record: Json) -> tuple[bool, str]:
    """Later ones hold; those that never reached their host whole come before all that did."""
    request = record["request"]
    return not request.get("tombstone"), str(request.get("submitted_at") or "")


def _row(id_: str, items: list[Json]) -> SweepRow:
    newest = items[-1]["request"]
    told, spec = newest["sweep"], newest.get("spec") or {}
    sweep = dict(spec.get("sweep") or {})
    if sweep.get("method") == "list":  # each trial tells its own point only
        trials = {item["request"]["sweep"]["number"]: dict(item["request"]["sweep"]["parameters"]) for item in items}
        sweep["parameters"] = [trials[number] for number in sorted(trials)]
        spec = {**spec, "sweep": sweep}
    client = newest.get("client") or {}
    planned = [item["request"]["sweep"].get("planned") for item in items]
    return SweepRow(
        id=id_,
        name=str(told.get("name") or newest.get("name") or id_),
        method=str(sweep.get("method") or "grid"),
        state="running",
        created_at=str(told.get("created_at") or items[0]["request"].get("submitted_at") or now()),
        spec=spec,
        objective=sweep.get("objective"),
        planned=max((count for count in planned if isinstance(count, int)), default=None),
        host=told.get("only"),
        file=told.get("file"),
        folder=client.get("folder"),
        code=newest.get("code"),
        client=client,
    )


def _take_trials(session: Session, id_: str, items: list[Json]) -> None:
    """Each point with the newest job that ran it; a trial that has a job here keeps it."""
    at = now()
    newest: dict[str, Trial] = {}
    for item in items:
        request = item["request"]
        told = request["sweep"]
        parameters = {str(name): str(text) for name, text in told["parameters"].items()}
        newest[str(told["point"])] = Trial(id_, told["number"], str(told["point"]), parameters, str(request["id"]))
    session.ledger.sweeps.add_trials(newest.values(), at)
    for trial in session.ledger.sweeps.trials(id_):
        if trial.job is None and trial.point in newest:
            session.ledger.sweeps.change_trial(id_, trial.point, at, job=newest[trial.point].job)
