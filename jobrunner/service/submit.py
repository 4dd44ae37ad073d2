"""Submit: validate, place, upload, enqueue. It returns when the hosts have the jobs.

Nothing is sent before every spec is found good and every job has a host. A job's id is noted in the ledger (STAGING)
before its host hears of it, so that a submit which was cut is finished by the next identical one.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jobrunner.core.errors import JobrunnerError
from jobrunner.core.ids import new_id
from jobrunner.core.jobs import JobRow
from jobrunner.core.states import JobState
from jobrunner.core.values import dataclass
from jobrunner.service import staging, submitters
from jobrunner.service.clock import now
from jobrunner.service.placing import place_all
from jobrunner.service.session import Session, client_identity
from jobrunner.service.submitresult import SubmitResult

if TYPE_CHECKING:
    from jobrunner.core.placement import Placement
    from jobrunner.service.specs import LoadedSpec
    from jobrunner.service.sweeps.submit import Prepared
    from jobrunner.upload import Tree


@dataclass
class Shipment:
    """One job on its way: what it is, where it goes, and what travels with it."""

    loaded: LoadedSpec
    host: str
    why: str
    tree: Tree | None
    id: str = ""
    request: dict[str, Any] = field(default_factory=dict)
    resumed: bool = False


def submit(
    session: Session,
    paths: Sequence[Path],
    *,
    host: str | None = None,
    overrides: Sequence[str] = (),
    dry_run: bool = False,
    large: bool = False,
) -> SubmitResult:
    """Send the jobs of these specs to their hosts. Raises before anything is sent, or a HostError after."""
    from jobrunner.service.specs import load_specs

    session.be_patient()
    with session.timings.phase("spec"):
        loaded = load_specs(
            paths,
            overrides=overrides,
            environ=session.environ,
            secrets_file=session.secrets_file,
            hosts=session.hosts,
            find_job=lambda word: session.ledger.resolve(word),
        )
    plain = [item for item in loaded if item.spec.sweep is None]
    with ThreadPoolExecutor(max_workers=2) as pool:
        reading = pool.submit(_read_code, session, loaded, large)
        if not dry_run:
            _connect_ahead(session, loaded, host)
        placements = place_all(session, [item.spec for item in plain], host) if plain else []
        trees = reading.result()
    for placement in placements:
        if placement.host is None:
            raise placement.error()
    swept = [_prepared(session, item, trees, host) for item in loaded if item.spec.sweep is not None]
    shipments = [_shipment(item, placed, trees) for item, placed in zip(plain, placements, strict=True)]
    if dry_run:
        plans = [_plan(shipment, placed) for shipment, placed in zip(shipments, placements, strict=True)]
        return SubmitResult(plans=[*plans, *(ready.plan() for ready in swept)], warnings=session.warnings)
    result = _send(session, shipments, host) if shipments else None
    for ready in swept:
        result = _with_sweep(session, ready, result)
    assert result is not None
    return result


def _prepared(session: Session, item: LoadedSpec, trees: Mapping[Any, Tree], only: str | None) -> Prepared:
    from jobrunner.service.sweeps.submit import prepare

    return prepare(session, item, trees.get(_code_key(item)), only)


def _with_sweep(session: Session, ready: Prepared, before: SubmitResult | None) -> SubmitResult:
    """Send a sweep; the result of all that this command has sent so far."""
    from jobrunner.service.sweeps.submit import send

    try:
        result = send(session, ready, _digest([ready.spec, ready.only]))
    except JobrunnerError as error:
        if before is None:
            raise
        return replace(before, errors=[*before.errors, error])
    if before is None:
        return result
    return replace(
        before,
        rows=[*before.rows, *result.rows],
        report=before.report or result.report,
        resumed=[*before.resumed, *result.resumed],
        sweeps=[*before.sweeps, *result.sweeps],
        errors=[*before.errors, *result.errors],
    )


def _read_code(session: Session, loaded: Sequence[LoadedSpec], large: bool) -> dict[Any, Tree]:
    """Each distinct code folder once, hashed."""
    trees: dict[Any, Tree] = {}
    with session.timings.phase("code"):
        for item in loaded:
            if item.code_dir is not None and _code_key(item) not in trees:
                assert item.spec.code is not None
                trees[_code_key(item)] = staging.read_code(session, item.code_dir, item.spec.code, large=large)
    return trees


def _code_key(item: LoadedSpec) -> tuple[Any, ...]:
    code = item.spec.code
    return (str(item.code_dir), code.include, code.exclude) if code is not None else ()


def _connect_ahead(session: Session, loaded: Sequence[LoadedSpec], only: str | None) -> None:
    """Begin to connect where it is certain already that a job goes there."""
    known = session.known_aliases() if not only and any(not item.spec.hosts for item in loaded) else []
    choices = [item.spec.hosts or tuple(known) for item in loaded]
    sure = {only} if only else {names[0] for names in choices if len(names) == 1}
    session.connect_ahead([alias for alias in sure if alias])


def _shipment(item: LoadedSpec, placed: Placement, trees: Mapping[Any, Tree]) -> Shipment:
    assert placed.host is not None
    others = "; ".join(f"{name}: {reason}" for name, reason in placed.reasons.items())
    return Shipment(item, placed.host, others or "the only host it may go to", trees.get(_code_key(item)))


def _plan(shipment: Shipment, placed: Placement) -> dict[str, Any]:
    spec = shipment.loaded.spec
    words = [spec.script or "", *spec.args] if spec.script else spec.command
    return {
        "name": spec.name,
        "file": str(shipment.loaded.path),
        "host": shipment.host,
        "device": spec.device,
        "cards": list(spec.card_ids) if spec.card_ids is not None else spec.card_count,
        "command": words if isinstance(words, str) else " ".join(map(str, words or ())),
        "files": shipment.tree.files if shipment.tree else None,
        "bytes": shipment.tree.size if shipment.tree else None,
        "why": shipment.why,
        "spec": spec.as_json(),
    }


def _send(session: Session, shipments: list[Shipment], only: str | None) -> SubmitResult:
    """Note every job, send them host by host (one exchange a host and tree), note what the hosts answered."""
    me = submitters.Submitter(session.home)
    try:
        with session.timings.phase("ledger"):
            for shipment in shipments:
                _note(session, shipment, only, me)
        outcomes = _stage_all(session, shipments)
    finally:
        me.close()
    sent = [item for item in shipments if isinstance(outcomes[_group(item)], staging.Sent)]
    staging.remember_ways(session, [(item.loaded.path, item.host) for item in sent])
    for note in session.links.notes:
        session.warn(note)
    errors: list[JobrunnerError] = [error for error in outcomes.values() if isinstance(error, JobrunnerError)]
    rows = [session.ledger.get(item.id) for item in shipments if not isinstance(outcomes[_group(item)], JobrunnerError)]
    if errors and not rows:
        raise errors[0]
    return SubmitResult(
        rows=rows,
        report=_report(shipments, outcomes),
        resumed=[item.id for item in shipments if item.resumed],
        errors=errors,
        warnings=session.warnings,
        hosts_asked=len({item.host for item in shipments}),
        hosts_answered=len({row.host for row in rows}),
    )


def _note(session: Session, shipment: Shipment, only: str | None, me: submitters.Submitter) -> None:
    """A STAGING row under a new id, or under that of an identical submit which never learned its fate.

    That one goes on to the host that it was being sent to, which may have the job already.
    """
    spec = shipment.loaded.spec
    spec_digest, code_digest = _digest([spec.as_json(), only]), staging.code_digest(shipment.tree)
    at = now()
    for staged in session.ledger.find_resumable(spec_digest, code_digest):
        if not submitters.is_alive(session.home, staged.submitter) and session.ledger.take_over(
            staged.row.id, staged.submitter, me.as_json()
        ):
            shipment.id, shipment.request, shipment.resumed = staged.row.id, staged.request, True
            shipment.host = staged.row.host or shipment.host
            return
    shipment.id = new_id(os.urandom(16))
    shipment.request = staging.request_for(
        session,
        spec,
        shipment.host,
        job_id=shipment.id,
        at=at,
        code=shipment.tree.code() if shipment.tree else None,
        client={**client_identity(), "folder": str(shipment.loaded.code_dir) if shipment.loaded.code_dir else None},
    )
    row = JobRow(shipment.id, spec.name, JobState.STAGING, host=shipment.host, device=spec.device, submitted_at=at)
    session.ledger.insert_staging(row, shipment.request, spec_digest, code_digest, me.as_json())


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _group(shipment: Shipment) -> tuple[str, int]:
    return shipment.host, id(shipment.tree)


def _stage_all(session: Session, shipments: list[Shipment]) -> dict[tuple[str, int], staging.Sent | JobrunnerError]:
    groups: dict[tuple[str, int], list[Shipment]] = {}
    for shipment in shipments:
        groups.setdefault(_group(shipment), []).append(shipment)

    def one(group: list[Shipment]) -> staging.Sent | JobrunnerError:
        parcels = [staging.Parcel(item.request, item.loaded.secrets, item.resumed) for item in group]
        return staging.deliver(session, group[0].host, parcels, group[0].tree)

    with ThreadPoolExecutor(max_workers=min(16, len(groups))) as pool:
        futures = {key: pool.submit(one, group) for key, group in groups.items()}
        try:
            return {key: future.result() for key, future in futures.items()}
        except BaseException:
            session.links.close()  # interrupted: what is being sent stops at once, and can be gone on with
            raise


def _report(
    shipments: list[Shipment], outcomes: Mapping[tuple[str, int], staging.Sent | JobrunnerError]
) -> dict[str, Any]:
    sent = [outcome for outcome in outcomes.values() if isinstance(outcome, staging.Sent)]
    return staging.upload_report(list({id(item.tree): item.tree for item in shipments if item.tree}.values()), sent)
