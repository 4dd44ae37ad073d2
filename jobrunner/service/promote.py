"""Promotion: a job's checkpoint becomes the model that is kept, if it beats the one that is.

The host compares, copies and swaps (docs/host.md); this side chooses the checkpoint and its value, remembers every
decision, and fetches the model if the spec asks for that.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
import shutil
from collections.abc import Sequence
from dataclasses import asdict, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jobrunner.core.errors import HostError, JobrunnerError, NotFoundError, UsageError
from jobrunner.core.states import JobState
from jobrunner.core.values import dataclass
from jobrunner.ledger.promotions import Promotion
from jobrunner.service.clock import now
from jobrunner.service.reconcile import Reconciled
from jobrunner.service.session import Session
from jobrunner.service.submitresult import Result

if TYPE_CHECKING:
    from jobrunner.core.jobs import JobRow
    from jobrunner.ledger import Checkpoint


@dataclass(frozen=True)
class PromotionResult(Result):
    """Decisions about models, newest first: dicts of `promotion_json`."""

    promotions: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True)
class Candidate:
    """A job's model: its checkpoint and what its metric is; or `why` there is none."""

    checkpoint: Checkpoint | None = None
    value: float | None = None
    why: str = ""


def choose(items: Sequence[Checkpoint], metric: str, direction: str, which: str, told: float | None) -> Candidate:
    """The checkpoint that stands for a job: its best by the metric, or its last; and that checkpoint's own value.

    `items` are the newest first, `told` is the last value of the metric that the job told: it is the value of the
    newest checkpoint where nothing tells that one's own. Pure.
    """
    whole = [item for item in items if item.complete and not item.removed]
    if not whole:
        return Candidate(why="the job left no complete checkpoint")
    rated = [(value, item) for item in whole if (value := plain_value(item.metrics.get(metric))) is not None]
    if which == "best" and rated:
        value, item = (min if direction == "min" else max)(rated, key=lambda pair: pair[0])
        return Candidate(item, value)
    value_of_last = plain_value(whole[0].metrics.get(metric))
    if value_of_last is None:
        value_of_last = plain_value(told)
    if value_of_last is None:
        return Candidate(whole[0], why=f"the job told no value of {metric}, so nothing says how good it is")
    return Candidate(whole[0], value_of_last)


def plain_value(number: Any) -> float | None:
    """A finite number; NaN and infinity are no measure of a model."""
    if isinstance(number, bool) or not isinstance(number, int | float) or not math.isfinite(number):
        return None
    return float(number)


def promote_job(session: Session, id_: str) -> Promotion | None:
    """Decide about a job that has ended, once; None if its spec asks for nothing. HostError if its host is away."""
    detail = session.ledger.detail(id_)
    wanted = (detail.request.get("spec") or {}).get("promote")
    if not wanted:
        return None
    row = detail.row
    earlier = session.ledger.promotions.of_jobs([id_]).get(id_)
    if earlier is not None and earlier.decision != "promoted":
        return earlier
    decision = earlier or _decide(session, row, wanted, detail.request.get("schedule"))
    if earlier is None:
        session.ledger.promotions.add(decision)
        session.ledger.add_event(id_, decision.decision, now(), {"why": decision.why, "to": decision.target})
        decision = session.ledger.promotions.of_jobs([id_])[id_]
    if decision.decision == "promoted" and wanted.get("pull") and decision.pulled_to is None:
        decision = _bring_home(session, decision)
    return decision


def _decide(session: Session, row: JobRow, wanted: dict[str, Any], schedule: Any) -> Promotion:
    from jobrunner.service.jobs import refresh_checkpoints

    metric, direction = str(wanted["metric"]).split()
    base = Promotion(
        target=str(wanted["to"]), at=now(), decision="kept", job=row.id, host=row.host, metric=metric,
        direction=direction, schedule=schedule.get("id") if isinstance(schedule, dict) else None,
    )  # fmt: skip
    if row.state is not JobState.COMPLETED:
        return replace(base, why=f"the job ended as {row.state.value}")
    found = Reconciled()
    refresh_checkpoints(session, row.id, found, again=True)
    if row.host is None or row.host in found.errors:
        raise found.errors.get(row.host or "") or HostError(f"{row.id} is on no host")
    told = session.ledger.metrics.last([row.id], metric).get(row.id)
    items = session.ledger.checkpoints(row.id)
    chosen = choose(items, metric, direction, str(wanted.get("checkpoint")), None if told is None else told.value)
    if chosen.checkpoint is None or chosen.value is None:
        return replace(base, why=chosen.why, checkpoint=chosen.checkpoint.name if chosen.checkpoint else None)
    return _ask_host(session, row, replace(base, value=chosen.value, checkpoint=chosen.checkpoint.name), chosen)


def _ask_host(session: Session, row: JobRow, base: Promotion, chosen: Candidate) -> Promotion:
    """Have the host compare and, if the model is better, keep it."""
    assert row.host is not None and chosen.checkpoint is not None
    kept = session.ledger.promotions.current(base.target)
    beat, passed = None, []
    if kept is not None and kept.host != row.host:
        # The model that is kept is elsewhere now: those that we know of on this host do not count any more.
        made = session.ledger.promotions.list(base.target)
        passed = [item.version for item in made if item.host == row.host and item.decision == "promoted"]
        beat = kept.value if (kept.metric, kept.direction) == (base.metric, base.direction) else None
    answer = session.link(row.host).request(
        "promote",
        working=True,
        id=row.id,
        path=chosen.checkpoint.path,
        to=base.target,
        metric=base.metric,
        direction=base.direction,
        value=base.value,
        beat=beat,
        passed=passed,
        schedule=base.schedule,
        spec=row.name,
    )
    current = answer.get("current") or {}
    base = replace(base, why=answer.get("why"), against=plain_value(answer.get("against")))
    if answer["decision"] != "promoted":
        return base
    return replace(
        base,
        decision="promoted",
        current=True,
        path=answer.get("path"),
        version=current.get("version"),
        sha256=current.get("sha256"),
    )


def _bring_home(session: Session, item: Promotion) -> Promotion:
    """Fetch a promoted model; it is put in its place by rename, and `current` leads to it afterwards."""
    from jobrunner.service.data import pull_checkpoints

    assert item.job is not None and item.checkpoint is not None and item.version is not None and item.seq is not None
    pulled = pull_checkpoints(session, item.job, item.checkpoint)
    if pulled.errors:
        raise pulled.errors[0]
    versions = home_of(session, item.target) / "versions"
    versions.mkdir(parents=True, exist_ok=True, mode=0o700)
    aside, there = versions / f".{item.version}.{os.getpid()}", versions / item.version
    source = Path(pulled.to) / item.checkpoint
    if not there.exists():
        try:
            aside.mkdir(mode=0o700)
            target = aside / source.name
            shutil.copytree(source, target) if source.is_dir() else shutil.copy2(source, target)
            os.replace(aside, there)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
    _point(session, item.target, item.version)
    session.ledger.promotions.set_pulled(item.seq, str(there / source.name))
    return replace(item, pulled_to=str(there / source.name))


def home_of(session: Session, target: str) -> Path:
    """The folder on this machine for a target's models: no two targets share one."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", target).strip("-.") or "model"
    # Another target could be called so, too: where small and capital letters are the same, also one in capitals.
    if plain != target.replace("/", "-").lower() or "-" in target:
        plain += "-" + hashlib.sha256(target.encode("utf-8", "surrogateescape")).hexdigest()[:8]
    return session.home / "models" / plain


def _point(session: Session, target: str, version: str) -> None:
    """Make `current` on this machine lead to a version that is there: a link, or on Windows a file with its name."""
    folder = home_of(session, target)
    if not (folder / "versions" / version).is_dir():
        return
    aside = folder / f".current.{os.getpid()}"
    aside.unlink(missing_ok=True)
    if os.name == "nt":
        aside.write_text(version, encoding="utf-8")
        os.replace(aside, folder / "current.txt")
    else:
        aside.symlink_to(Path("versions") / version)
        os.replace(aside, folder / "current")


def ls(session: Session, word: str | None = None) -> PromotionResult:
    """Every decision about models, newest first; of one target, schedule or job name, or of all."""
    target = None if word is None else resolve(session, word)
    items = session.ledger.promotions.list(target)
    return PromotionResult(promotions=[promotion_json(item) for item in items], warnings=session.warnings)


def resolve(session: Session, word: str) -> str:
    """The target that a person means: a `promote.to`, or the name of a schedule or job. NotFoundError."""
    items = session.ledger.promotions.list()
    for item in items:
        if word in (item.target, os.path.expanduser(item.target)):  # the second is what a shell makes of ~/models
            return item.target
    for item in items:
        names = [item.job, item.schedule]
        try:
            names.append(session.ledger.get(item.job or "").name)
        except NotFoundError:
            pass
        if word in names:
            return item.target
    raise NotFoundError(
        f"no model was promoted to {word!r}, nor by a job or schedule of that name",
        code="no_such_model",
        remedy="`jobrunner promote ls` lists what was promoted",
    )


def rollback(session: Session, word: str, version: str | None = None) -> PromotionResult:
    """Go back to the model that was kept before the current one, or to a `version` (or the job that it came from)."""
    target = resolve(session, word)
    wanted = _earlier(session, target, version)
    assert wanted.host is not None
    session.be_patient()
    answer = session.link(wanted.host).request("rollback", to=target, version=wanted.version, working=True)
    before = session.ledger.promotions.current(target)
    item = replace(
        wanted,
        at=now(),
        decision="rolled_back",
        why=f"somebody went back from {before.version}" if before else "somebody went back",
        against=before.value if before else None,
        path=answer.get("path"),
        current=True,
    )
    session.ledger.promotions.add(item)
    if wanted.version is not None:
        _point(session, target, wanted.version)
    return PromotionResult(
        promotions=[promotion_json(session.ledger.promotions.list(target)[0])],
        warnings=session.warnings,
        hosts_asked=1,
        hosts_answered=1,
    )


def _earlier(session: Session, target: str, version: str | None) -> Promotion:
    """The promotion to go back to. UsageError or NotFoundError if there is none."""
    made = [item for item in session.ledger.promotions.list(target)[::-1] if item.decision == "promoted"]
    if version is not None:
        for item in reversed(made):
            if version in (item.version, item.job):
                return item
        raise NotFoundError(
            f"{target} has no version {version!r}",
            code="no_such_version",
            remedy=f"`jobrunner promote ls {target}` lists them",
        )
    current = session.ledger.promotions.current(target)
    places = [place for place, item in enumerate(made) if current and item.version == current.version]
    if not places or places[0] == 0:
        raise UsageError(f"no model was kept in {target} before the current one", code="no_such_version")
    return made[places[0] - 1]


def promotion_json(item: Promotion) -> dict[str, Any]:
    """A decision with the keys of the project's JSON."""
    plain = asdict(item)
    del plain["seq"]
    return plain


def failed(row: JobRow, wanted: dict[str, Any], error: JobrunnerError) -> Promotion:
    """The decision about a job whose model could not be kept for good."""
    metric, direction = str(wanted["metric"]).split()
    return Promotion(
        target=str(wanted["to"]), at=now(), decision="failed", why=error.message, job=row.id, host=row.host,
        metric=metric, direction=direction, schedule=row.schedule,
    )  # fmt: skip
