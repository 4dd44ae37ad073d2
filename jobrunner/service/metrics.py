"""What jobs tell in numbers: taken over from hosts with every visit, and asked of the ledger."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import field
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Literal

from jobrunner.core.errors import HostError, NotFoundError, UsageError
from jobrunner.core.jobs import JobRow
from jobrunner.core.states import JobState
from jobrunner.core.values import dataclass
from jobrunner.service.submitresult import Result

if TYPE_CHECKING:
    from jobrunner.ledger.metrics import OpenJournal, Sample
    from jobrunner.ledger.sweeps import SweepRow
    from jobrunner.service.session import Session

Direction = Literal["min", "max"]
_FINAL = frozenset(state.value for state in JobState if state.final)
_FAR = 1 << 62  # no journal is that long
_PAGES = 1000  # a host that always says "ask again" is not asked for ever


# taking over what hosts say


def journals(session: Session, wanted: Collection[str] | None) -> dict[str, list[OpenJournal]]:
    """The journals to read on in this visit, by host alias: those of `wanted` jobs (None: of all).

    For jobs that have ended already nobody goes to a host that did not answer last time, unless they are wanted.
    """
    found: dict[str, list[OpenJournal]] = {}
    for alias, items in session.ledger.metrics.open_by_host().items():
        chosen = [item for item in items if wanted is None or item.job in wanted]
        if wanted is None and all(item.final for item in chosen):
            known = session.ledger.host(alias)
            if known is None or known.error:
                continue
        if chosen:
            found[alias] = chosen
    return found


def offsets(items: Sequence[OpenJournal]) -> dict[str, int]:
    """What a `look` is to be asked for (docs/host.md)."""
    return {item.job: item.offset for item in items}


def take_over(session: Session, alias: str, answer: Mapping[str, Any], items: Sequence[OpenJournal]) -> None:
    """Put the numbers of a host's answer into the ledger, and ask for the rest of long ones.

    To be done before the answer's views are taken over: a job whose end is known has told all it had to. A host that
    was too busy to read on to a job's end is asked once more. Where the rest does not come, the next visit asks for it.
    """
    ours = {item.job: item for item in items if item.instance in (None, answer["host"]["instance"])}
    ended = {id_ for id_, view in answer.get("jobs", {}).items() if view and view.get("state") in _FINAL}
    for _ in range(_PAGES):
        told = answer.get("metrics") or {}
        more = {}
        for id_, item in ours.items():
            part = told.get(id_)
            if id_ in told and (_store(session, item, part) or (part and id_ in ended and not part.get("end"))):
                more[id_] = int(told[id_]["next"])
        ended = set()
        if not more:
            return
        try:
            answer = session.link(alias).request("look", jobs=[], events={}, cards=False, metrics=more)
        except HostError:
            return


def catch_up(session: Session, alias: str, instance: str) -> None:
    """Fetch what is missing here of every journal of a host. HostError."""
    items = session.ledger.metrics.open_by_host().get(alias, [])
    if items:
        answer = session.link(alias).request("look", jobs=[], events={}, cards=False, metrics=offsets(items))
        take_over(session, alias, {**answer, "host": {"instance": instance}}, items)


def _store(session: Session, item: OpenJournal, part: Mapping[str, Any] | None) -> bool:
    """Store one job's part of an answer; True if there is more to ask for."""
    ledger = session.ledger.metrics
    if part is None:
        if item.final:
            ledger.close(item.job)  # its host has forgotten it
        return False
    try:
        samples = list(_samples(session, item.job, part["items"]))
    except UsageError as error:
        session.warn(f"{item.job}: {error.message}; {error.remedy}. Its metrics are read after that")
        return False
    begin, following, end = int(part.get("start") or 0), int(part["next"]), bool(part.get("end"))
    nothing_new = following == item.offset and not end and not part.get("more")
    if nothing_new or not 0 <= begin <= following < _FAR:
        return False
    taken = ledger.add(item.job, begin, following, samples, done=end)
    return taken and bool(part.get("more"))


def _samples(session: Session, job: str, items: Sequence[Any]) -> Iterator[Sample]:
    """The samples of a journal's lines; what is none is passed over."""
    from jobrunner.ledger.metrics import Sample

    sources: Mapping[str, Any] | None = None
    for line in items:
        attempt = line.get("attempt")
        attempt = attempt if isinstance(attempt, int) else 1
        if "event" in line:
            if sources is None:
                sources = session.ledger.detail(job).request.get("run", {}).get("metrics") or {}
            yield from _event_samples(sources, line, attempt)
            continue
        name, value, step = line.get("name"), number(line.get("value")), number(line.get("step"))
        if isinstance(name, str) and len(name) <= 100 and value is not None:
            yield Sample(name, step, value, line.get("at") if isinstance(line.get("at"), str) else None, attempt)


def _event_samples(sources: Mapping[str, Any], line: Mapping[str, Any], attempt: int) -> Iterator[Sample]:
    from jobrunner.ledger.metrics import Sample
    from jobrunner.service.eventfiles import scalars

    names: dict[str, list[str]] = {}
    for name, source in sources.items():
        if isinstance(source, dict) and source.get("tensorboard") == line.get("board"):
            names.setdefault(source.get("tag", ""), []).append(name)
    for found in scalars(line["event"]):
        for name in names.get(found.tag, ()):
            yield Sample(name, float(found.step), found.value, _stamp(found.at), attempt)


def number(value: Any) -> float | None:
    """A number of JSON, or one of the texts `nan`, `inf` and `-inf`; None for anything else."""
    if isinstance(value, str):
        return float(value) if value in ("nan", "inf", "-inf") else None
    try:
        return None if isinstance(value, bool) or not isinstance(value, int | float) else float(value)
    except OverflowError:
        return None


def spelled(value: float | None) -> float | int | str | None:
    """A number as our JSON has it: whole ones without a point, and `nan`, `inf` and `-inf` as texts."""
    if value is None:
        return None
    if not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    return int(value) if value == int(value) and abs(value) < 2**53 else value


def _stamp(seconds: float) -> str | None:
    try:
        return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    except (ValueError, OverflowError, OSError):
        return None


# what is asked of the ledger


def objective_of(session: Session, sweep: SweepRow, jobs: Sequence[str]) -> dict[str, Sample]:
    """The sample that counts for each of these jobs: the last value of the objective, or with `best` its best one.

    What a trial told before it was paused counts for the job that goes on with it.
    """
    name, direction, *best = (sweep.objective or "").split() or ("", "min")
    if not name:
        return {}
    ledger = session.ledger.metrics

    def told(ids: Sequence[str]) -> dict[str, Sample]:
        return ledger.best(ids, name, _direction(direction)) if best else ledger.last(ids, name)

    if not (((sweep.spec.get("sweep") or {}).get("early_stop")) or {}).get("pause"):
        return told(jobs)
    from jobrunner.service.sweeps.resuming import chain

    requests = session.ledger.sweeps.requests(sweep.id)
    stories = {job: chain(job, requests) for job in jobs}
    known = told(list({id_ for story in stories.values() for id_ in story}))
    sign = -1.0 if direction == "max" else 1.0
    found = {}
    for job, story in stories.items():
        samples = [known[id_] for id_ in reversed(story) if id_ in known]
        if samples:
            found[job] = min(samples, key=lambda sample: sign * sample.value) if best else samples[0]
    return found


def _direction(word: str) -> Direction:
    return "max" if word == "max" else "min"


def wanted_directions(spec: Mapping[str, Any]) -> dict[str, Direction]:
    """Which way is better for each metric of which the spec says it."""
    sweep, promote, checkpoints = (spec.get(key) or {} for key in ("sweep", "promote", "checkpoints"))
    said = [(checkpoints.get("keep") or {}).get("best"), promote.get("metric"), sweep.get("objective")]
    pairs = [text.split() for text in said if isinstance(text, str)]
    return {pair[0]: _direction(pair[1]) for pair in pairs if len(pair) > 1}


def summary(session: Session, id_: str, spec: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Each metric of a job: `count`, `last`, `min`, `max` (of `value step at attempt`), and `best` where it is said
    which way is better (else null)."""
    ledger, ways = session.ledger.metrics, wanted_directions(spec)
    found = {}
    for name in ledger.names(id_):
        ends = {
            "last": ledger.last([id_], name).get(id_),
            "min": ledger.best([id_], name, "min").get(id_),
            "max": ledger.best([id_], name, "max").get(id_),
        }
        told = {key: _point(sample) for key, sample in ends.items()}
        best = told[ways[name]] if name in ways else None
        found[name] = {"count": ledger.count(id_, name), **told, "best": best}
    return found


def _point(sample: Sample | None) -> dict[str, Any] | None:
    if sample is None:
        return None
    return {
        "value": spelled(sample.value),
        "step": spelled(sample.step),
        "at": sample.at,
        "attempt": sample.attempt,
    }


@dataclass(frozen=True)
class Curve:
    """One metric of one job. `points` are its samples in the order in which they were seen."""

    row: JobRow
    metric: str
    points: list[Sample] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """`job`, `name`, `metric` and `points` of `step value at attempt`."""
        points = [_point(sample) for sample in self.points]
        return {"job": self.row.id, "name": self.row.name, "metric": self.metric, "points": points}


@dataclass(frozen=True)
class Curves(Result):
    """What `plot` draws."""

    curves: list[Curve] = field(default_factory=list)


def curves(session: Session, words: Sequence[str]) -> Curves:
    """Curves of `ID:metric` (or `ID`: all of its metrics but those that count steps), fresh from the hosts."""
    from jobrunner.service.reconcile import reconcile

    asked = [_asked(session, word) for word in words]
    found = reconcile(session, only=[id_ for id_, _ in asked])
    drawn = []
    for id_, metric in asked:
        row = session.ledger.get(id_)
        for name in [metric] if metric is not None else _all_of(session, id_):
            points = session.ledger.metrics.series(id_, name)
            if not points:
                raise _nothing(session, row, name)
            drawn.append(Curve(row, name, points))
        if metric is None and not any(curve.row.id == id_ for curve in drawn):
            raise _nothing(session, row, None)
    return Curves(
        curves=drawn,
        errors=list(found.errors.values()),
        warnings=session.warnings,
        hosts_asked=found.asked,
        hosts_answered=found.answered,
    )


def _asked(session: Session, word: str) -> tuple[str, str | None]:
    """`ID:metric` as the job's id and the metric. A job's name may hold colons, a metric's does not."""
    head, colon, metric = word.rpartition(":")
    if not colon:
        return session.ledger.resolve(word), None
    try:
        return session.ledger.resolve(head), metric
    except NotFoundError:
        try:
            return session.ledger.resolve(word), None
        except NotFoundError:
            pass
        raise


def _all_of(session: Session, id_: str) -> list[str]:
    from jobrunner.core.metricspec import STEP_WORDS

    names = session.ledger.metrics.names(id_)
    return [name for name in names if name not in STEP_WORDS] or names


def _nothing(session: Session, row: JobRow, metric: str | None) -> NotFoundError:
    """Nothing was told: is it a wrong name, or has the job told nothing yet?"""
    from jobrunner.core.words import nearest

    declared = list(session.ledger.detail(row.id).request.get("run", {}).get("metrics") or {})
    if metric is not None and metric not in declared:
        near = nearest(metric, declared)
        remedy = f"did you mean {near}?" if near else f"it has: {', '.join(declared)}" if declared else ""
        remedy = remedy or "say in the spec's `metrics` where its numbers are to be found"
        return NotFoundError(f"{row.id} ({row.name}) has no metric {metric!r}", code="no_such_metric", remedy=remedy)
    if not declared:
        remedy = "say in the spec's `metrics` where its numbers are to be found"
        return NotFoundError(f"{row.id} ({row.name}) declares no metrics", code="no_such_metric", remedy=remedy)
    what = f"no value of {metric!r}" if metric is not None else "no numbers"
    remedy = f"see what it prints with `jobrunner logs {row.id}`, and `metrics` in its spec"
    return NotFoundError(
        f"{row.id} ({row.name}, {row.state.value}) has told {what} yet", code="no_values", remedy=remedy
    )
