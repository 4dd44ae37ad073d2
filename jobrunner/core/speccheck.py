"""What the keys of a spec say against each other. Pure; each check names the keys that it looks at."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from jobrunner.core import devices, placeholders, points
from jobrunner.core.metricspec import METRICS_MOST
from jobrunner.core.sweepspec import Sweep, sweep_faults
from jobrunner.core.words import Fault, nearest, one_of

if TYPE_CHECKING:
    from jobrunner.core.spec import JobSpec

Check = Callable[["JobSpec"], Iterator[Fault]]
_MOUNT = re.compile(r"(?:[/~]|[A-Za-z0-9_.-]).*:/[^:]*(?::[a-zA-Z,]+)?\Z", re.DOTALL)


def spec_faults(spec: JobSpec, broken: frozenset[str] = frozenset()) -> list[Fault]:
    """Every fault between keys; checks that look at a key in `broken` (wrong by itself) are left out."""
    return [fault for keys, check in _CHECKS if not broken.intersection(keys) for fault in check(spec)]


def _what_runs(spec: JobSpec) -> Iterator[Fault]:
    if spec.script is None and spec.command is None:
        yield Fault((), "nothing to run: neither `script` nor `command` is there", on_key=True)
    if spec.script is not None and spec.command is not None:
        yield Fault(("command",), "both `script` and `command` are there; keep the one that is meant", on_key=True)
    if spec.script is not None and spec.script.endswith("/"):
        yield Fault(("script",), f"script: {spec.script!r} is a folder; name a file in it")


def _script_needs_code(spec: JobSpec) -> Iterator[Fault]:
    if spec.script is not None and spec.code is None:
        yield Fault(
            ("script",), "script is a file inside `code`, and `code` is null; upload a folder, or use `command`"
        )


def _words_for_bash(spec: JobSpec) -> Iterator[Fault]:
    if not isinstance(spec.command, str):
        return
    if spec.args:
        yield Fault(
            ("args",),
            "args would be lost: `command` is a text for bash; write them into it, or make it a list",
            on_key=True,
        )
    if spec.resume_args:
        yield Fault(
            ("resume_args",),
            "resume_args would be lost: `command` is a text for bash; let it use $JOBRUNNER_RESUME_FROM",
            on_key=True,
        )


def _cards(spec: JobSpec) -> Iterator[Fault]:
    if spec.device == "cpu" and spec.card_count:
        yield Fault(("cards",), "a cpu job has no cards; write 0, or remove `cards`")


def _migrate(spec: JobSpec) -> Iterator[Fault]:
    known = devices.migrating()
    if spec.runtime.migrate and spec.device not in known and not devices.needs_no_shim(spec.device):
        text = f"runtime.migrate moves CUDA scripts to {one_of(known)}; this is a {spec.device} job"
        yield Fault(("runtime", "migrate"), text)


def _runtime(spec: JobSpec) -> Iterator[Fault]:
    runtime = spec.runtime
    chosen = [key for key in ("venv", "conda", "docker") if getattr(runtime, key) is not None]
    for extra in chosen[1:]:
        yield Fault(
            ("runtime", extra), f"runtime.{extra} and runtime.{chosen[0]} exclude each other; keep one", on_key=True
        )
    if runtime.docker:
        for place, mount in enumerate(runtime.docker.mounts):
            if not _MOUNT.match(mount):
                yield Fault(
                    ("runtime", "docker", "mounts", place),
                    f"found {mount!r}; a mount is HOST:CONTAINER or HOST:CONTAINER:ro, and CONTAINER begins with /",
                )


def _secrets(spec: JobSpec) -> Iterator[Fault]:
    for place, name in enumerate(spec.secrets):
        if name in spec.env:
            yield Fault(("secrets", place), f"{name} is in `env` too; it can come from one of them only")


def _twice(key: str) -> Check:
    def check(spec: JobSpec) -> Iterator[Fault]:
        items = [item.job if key == "after" else item for item in getattr(spec, key)]
        for place, item in enumerate(items):
            if item in items[:place]:
                yield Fault((key, place), f"{item!r} stands in {key} twice")

    return check


def _resuming(spec: JobSpec) -> Iterator[Fault]:
    if spec.resume_args and not spec.checkpoints.paths:
        yield Fault(
            ("resume_args",), "resume_args are never used: checkpoints.paths names no files to go on from", on_key=True
        )


def _best(spec: JobSpec) -> Iterator[Fault]:
    checkpoints = spec.checkpoints
    known = (checkpoints.keep and checkpoints.keep.best) or (spec.sweep and spec.sweep.objective) or spec.promote
    if checkpoints.pull == "best" and not known:
        yield Fault(
            ("checkpoints", "pull"),
            "nothing says which is best; add `keep: {last: 1, best: val_loss min}` to checkpoints",
        )


def _sweep(spec: JobSpec) -> Iterator[Fault]:
    if spec.sweep is None:
        return
    faults = list(sweep_faults(spec.sweep))
    yield from faults or _point_faults(spec.sweep)


def _point_faults(sweep: Sweep) -> Iterator[Fault]:
    """Points that are there twice, too few or too many of them. Asked only of a space that is right in itself."""
    at: tuple[str | int, ...] = ("sweep", "parameters")
    if sweep.method == "list":
        seen: dict[str, int] = {}
        for place, point in enumerate(points.rows(sweep)):
            first = seen.setdefault(points.point_id(point), place)
            if first != place:
                where = (*at, place) if isinstance(sweep.parameters, tuple) else at
                yield Fault(where, f"point {place + 1} is the same as point {first + 1}; each is run once")
        return
    count = points.size(sweep.parameters) if isinstance(sweep.parameters, dict) else None
    if count is None:
        return
    if sweep.method == "grid" and count > points.MOST:
        yield Fault(at, f"the grid has {count} points; {points.MOST} are the most")
    if sweep.trials is not None and sweep.trials > count:
        yield Fault(("sweep", "trials"), f"there are {count} different points only; trials is {sweep.trials}")


def _metrics(spec: JobSpec) -> Iterator[Fault]:
    if len(spec.metrics) > METRICS_MOST:
        text = f"metrics: {len(spec.metrics)} are too many; {METRICS_MOST} are the most"
        yield Fault(("metrics",), text, on_key=True)


def _promote_metric(spec: JobSpec) -> Iterator[Fault]:
    if spec.promote is not None:
        metric = spec.promote.metric.split()[0]
        if metric not in spec.metrics:
            text = f"promote.metric: no metric gives {metric!r}; say in `metrics` where it is to be found"
            yield Fault(("promote", "metric"), text, nearest(metric, spec.metrics))


def _promote_checkpoint(spec: JobSpec) -> Iterator[Fault]:
    if spec.promote is not None and not spec.checkpoints.paths:
        text = "promote: a model is one of the checkpoints, and checkpoints.paths names no files"
        yield Fault(("promote",), text, on_key=True)


def _pausing(spec: JobSpec) -> Iterator[Fault]:
    stop = spec.sweep.early_stop if spec.sweep else None
    if stop is not None and stop.pause and not spec.checkpoints.paths:
        text = "early_stop.pause keeps a trial's checkpoint to go on from, and `checkpoints.paths` names none"
        yield Fault(("sweep", "early_stop", "pause"), text)


def _sweep_metrics(spec: JobSpec) -> Iterator[Fault]:
    if spec.sweep is None:
        return
    if spec.sweep.objective is not None:
        metric = spec.sweep.objective.split()[0]
        if metric not in spec.metrics:
            yield Fault(
                ("sweep", "objective"), f"sweep.objective: no metric gives {metric!r}", nearest(metric, spec.metrics)
            )
    stop = spec.sweep.early_stop
    if stop is not None and stop.step not in spec.metrics:
        yield Fault(
            ("sweep", "early_stop", "step"), f"sweep.early_stop.step: no metric gives {stop.step!r}",
            nearest(stop.step, spec.metrics),
        )  # fmt: skip


def _words(spec: JobSpec) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Every place where a placeholder may stand, with its text."""
    for key in ("args", "resume_args"):
        yield from (((key, place), word) for place, word in enumerate(getattr(spec, key)))
    if isinstance(spec.command, tuple):
        yield from ((("command", place), word) for place, word in enumerate(spec.command))
    yield from ((("env", name), text) for name, text in spec.env.items())


def _placeholders(spec: JobSpec) -> Iterator[Fault]:
    names = spec.sweep.names() if spec.sweep else ()
    used: set[str] = set()
    for path, text in _words(spec):
        resume, words = path[0] == "resume_args", path[0] != "env" and path != ("command", 0)
        if not (spec.sweep or (words and placeholders.is_template(text, sweep=False, resume=resume))):
            continue
        parameters, checkpoints = placeholders.find(text)
        used.update(parameters)
        yield from _unknown(path, parameters, names, swept=spec.sweep is not None)
        if checkpoints and not words:
            yield Fault(path, "{checkpoint} can stand in `args`, `resume_args` and words of a list `command` only")
        waits = [item.job for item in spec.after]
        for job in checkpoints if words else ():
            if job is not None and job not in waits:
                yield Fault(path, f"{{checkpoint:{job}}} needs {job!r} in `after`", nearest(job, waits))
    yield from _unused(spec, names, used)


def _unknown(path: tuple[str | int, ...], found: list[str], names: tuple[str, ...], *, swept: bool) -> Iterator[Fault]:
    for name in found:
        near = nearest(name, (*names, "checkpoint"))
        # Without a sweep only what was surely meant as {checkpoint} is a mistake; any other {word} is text.
        if name not in names and (swept or near == "checkpoint"):
            yield Fault(path, f"no parameter is called {name!r}; for a brace as such write {{{{", near)


def _unused(spec: JobSpec, names: tuple[str, ...], used: set[str]) -> Iterator[Fault]:
    if isinstance(spec.command, str):
        for name in names:
            if re.search(r"(?<![$\{])\{" + name + r"\}", spec.command):
                yield Fault(
                    ("command",),
                    f"{{{name}}} is not filled in here: `command` is bash's; write $JOBRUNNER_PARAM_{name.upper()}",
                )
        return
    if used.intersection(names):
        for name in names:
            if name not in used:
                yield Fault(
                    ("sweep", "parameters", name), f"the parameter {name!r} is used nowhere, others are", on_key=True
                )


_CHECKS: tuple[tuple[tuple[str, ...], Check], ...] = (
    (("script", "command"), _what_runs),
    (("script", "code"), _script_needs_code),
    (("command", "args", "resume_args"), _words_for_bash),
    (("device", "cards"), _cards),
    (("runtime", "device"), _migrate),
    (("runtime",), _runtime),
    (("secrets", "env"), _secrets),
    *(((key,), _twice(key)) for key in ("hosts", "tags", "secrets", "after")),
    (("resume_args", "checkpoints"), _resuming),
    (("checkpoints", "sweep", "promote"), _best),
    (("sweep",), _sweep),
    (("metrics",), _metrics),
    (("sweep", "metrics"), _sweep_metrics),
    (("sweep", "checkpoints"), _pausing),
    (("promote", "metrics"), _promote_metric),
    (("promote", "checkpoints"), _promote_checkpoint),
    (("sweep", "args", "resume_args", "command", "env", "after"), _placeholders),
)
