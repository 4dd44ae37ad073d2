"""The keys `sweep` and `schedule` of a spec, and what cannot be in them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, PlainValidator, StrictBool, StrictInt, Tag

from jobrunner.core.cronspec import check_cron, check_jitter, check_timezone
from jobrunner.core.fields import IDENTIFIER_PATTERN, Length, Line, MetricName, Model, PositiveLength, Shape, Written
from jobrunner.core.words import Fault, found, nearest, refuse

SweepMethod = Literal["grid", "random", "list", "qmc", "tpe", "cmaes"]


def _number(value: Any) -> int | float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        refuse(f"found {found(value)}; a number is wanted here")
    return value


def _parameter_name(value: Any) -> str:
    if not isinstance(value, str) or not re.search(IDENTIFIER_PATTERN, value):
        refuse(f"{value!r} cannot be a parameter: letters, digits and _ only, and no digit first")
    if value == "checkpoint":
        refuse("a parameter cannot be called checkpoint: {checkpoint} has a meaning of its own")
    return value


Number = Annotated[int | float, PlainValidator(_number), Shape({"type": "number"})]
Parameter = Annotated[
    str,
    PlainValidator(_parameter_name),
    Shape({"type": "string", "pattern": r"^(?!checkpoint$)" + IDENTIFIER_PATTERN[1:]}),
]


class Range(Model):
    """A range of numbers; whole numbers if both ends are."""

    min: Number = Field(description="The least value.")
    max: Number = Field(description="The greatest value.")
    scale: Literal["linear", "log"] = Field(default="linear", description="How values spread over the range.")
    step: Number | None = Field(default=None, description="The distance of values; needed for a grid.")


def _kind(value: Any) -> str | None:
    if isinstance(value, list | tuple):
        return "~list"
    return "~range" if isinstance(value, dict | Range) else None


Values = Annotated[
    Annotated[tuple[Written, ...], Tag("~list")] | Annotated[Range, Tag("~range")],
    Discriminator(
        _kind, custom_error_type="wanted", custom_error_message="a list of values is wanted here, or {min, max}"
    ),
]
Points = tuple[dict[Parameter, Written], ...]


def _shape(value: Any) -> str | None:
    if isinstance(value, list | tuple):
        return "~points"
    return "~space" if isinstance(value, dict) else None


Space = Annotated[
    Annotated[dict[Parameter, Values], Tag("~space")] | Annotated[Points, Tag("~points")],
    Discriminator(
        _shape,
        custom_error_type="wanted",
        custom_error_message="a mapping of parameters is wanted here, or a list of points",
    ),
]


class EarlyStop(Model):
    """When a trial that does badly is stopped."""

    method: Literal["asha", "median"] = Field(description="asha: asynchronous successive halving; median: median rule.")
    step: MetricName = Field(description="The metric that counts steps.")
    min: StrictInt = Field(default=1, ge=1, description="No trial is stopped before this step.")
    max: StrictInt | None = Field(default=None, ge=1, description="The last step.")
    reduction: StrictInt = Field(default=3, ge=2, description="One in so many goes on at each rung.")
    pause: StrictBool = Field(
        default=False, description="Keep the checkpoint, so that a promoted trial goes on from it."
    )


class StopAfter(Model):
    """End the sweep after so many failed trials."""

    stop_after: StrictInt = Field(ge=1, description="So many failed trials.")


def _word_or_limit(value: Any) -> str | None:
    if isinstance(value, dict | StopAfter):
        return "~limit"
    return "~word" if isinstance(value, str) else None


def _on_error_word(value: Any) -> Any:
    if isinstance(value, str) and value not in ("continue", "stop"):
        refuse(
            f"found {found(value)}; it must be continue, stop or {{stop_after: N}}",
            nearest(value, ("continue", "stop")),
        )
    return value


OnError = Annotated[
    Annotated[
        Literal["continue", "stop"],
        BeforeValidator(_on_error_word, json_schema_input_type=Literal["continue", "stop"]),
        Tag("~word"),
    ]
    | Annotated[StopAfter, Tag("~limit")],
    Discriminator(
        _word_or_limit,
        custom_error_type="wanted",
        custom_error_message="continue or stop is wanted here, or {stop_after: N}",
    ),
]


_OBJECTIVE = r"^[A-Za-z_][A-Za-z0-9_./-]{0,99} +(min|max)( +best)?$(?!\n)"


def _objective(value: Any) -> str:
    if not isinstance(value, str) or not re.search(_OBJECTIVE, value):
        refuse(f"found {found(value)}; write a metric and its direction, such as `val_loss min` or `val_loss min best`")
    return str(value)


SweepObjective = Annotated[str, PlainValidator(_objective), Shape({"type": "string", "pattern": _OBJECTIVE})]


class Sweep(Model):
    """Many trials of one spec with different parameters."""

    method: SweepMethod = Field(default="grid", description="How parameters are chosen.")
    parameters: Space = Field(description="Each parameter's values or range; for `list` also a list of points.")
    trials: StrictInt | None = Field(default=None, ge=1, le=100_000, description="How many; not for grid and list.")
    seed: StrictInt = Field(default=0, ge=0, le=2**32 - 1, description="Makes random choices the same each time.")
    objective: SweepObjective | None = Field(
        default=None, description="A metric and min or max: its last value, or with `best` its best."
    )
    parallel: StrictInt | None = Field(
        default=None, ge=1, description="So many at once; otherwise what the cards allow."
    )
    early_stop: EarlyStop | None = Field(default=None, description="When a trial that does badly is stopped.")
    on_error: OnError = Field(default="continue", description="What a failed trial means for the rest.")

    def names(self) -> tuple[str, ...]:
        """The parameters' names."""
        if isinstance(self.parameters, dict):
            return tuple(self.parameters)
        return tuple(self.parameters[0]) if self.parameters else ()


class Schedule(Model):
    """When a spec is submitted again by itself."""

    cron: Annotated[Line, AfterValidator(check_cron)] = Field(
        description="Five fields (minute hour day month weekday), or a word such as @daily."
    )
    timezone: Annotated[Line, AfterValidator(check_timezone)] = Field(
        description="The zone of `cron`, such as Asia/Shanghai."
    )
    overlap: Literal["skip", "queue", "replace", "allow"] = Field(
        default="skip", description="What happens when the run before has not ended."
    )
    catch_up: Literal["none", "latest", "all"] = Field(
        default="latest", description="Which missed runs are made up for."
    )
    deadline: PositiveLength | None = Field(default=None, description="A run later than this is not made up for.")
    jitter: Annotated[Length, AfterValidator(check_jitter)] = Field(
        default="0s", validate_default=True, description="Starts are spread over this; 5m at most."
    )
    code: Literal["latest", "pinned"] = Field(
        default="latest", description="The folder at that time, or as it was when added."
    )


def sweep_faults(sweep: Sweep) -> Iterator[Fault]:
    """What a sweep's own values say against each other; paths begin with `sweep`."""
    space = sweep.parameters
    at = ("sweep", "parameters")
    if not space:
        yield Fault(at, "sweep.parameters is empty")
    if isinstance(space, tuple):
        yield from _points_faults(sweep.method, space)
        names: list[str] = list(space[0]) if space else []
    else:
        names = list(space)
        for name, values in space.items():
            yield from _values_faults(sweep.method, name, values)
        lengths = {len(values) for values in space.values() if isinstance(values, tuple)}
        if sweep.method == "list" and len(lengths) > 1:
            yield Fault(at, "with method list all parameters need the same number of values, one for each trial")
    seen: dict[str, str] = {}
    for name in names:
        if name.upper() in seen:
            other = seen[name.upper()]
            yield Fault(
                (*at, name), f"{name!r} and {other!r} differ only in case, and so would their variables", on_key=True
            )
        seen[name.upper()] = name
    yield from _trials_faults(sweep)


def _points_faults(method: str, points: Points) -> Iterator[Fault]:
    at = ("sweep", "parameters")
    if method != "list":
        yield Fault(at, f"a list of points needs `method: list`; the method is {method}")
    for place, point in enumerate(points):
        if set(point) != set(points[0]) or not point:
            yield Fault((*at, place), "every point needs the same parameters as the first, and at least one")


def _values_faults(method: str, name: str, values: tuple[str, ...] | Range) -> Iterator[Fault]:
    at = ("sweep", "parameters", name)
    if isinstance(values, tuple):
        if not values:
            yield Fault(at, f"sweep.parameters.{name} has no values")
        if len(set(values)) < len(values) and method != "list":
            yield Fault(at, f"sweep.parameters.{name} has the same value twice")
        return
    if values.min >= values.max:
        yield Fault((*at, "min"), f"sweep.parameters.{name}: min ({values.min}) must be less than max ({values.max})")
    if values.scale == "log" and values.min <= 0:
        yield Fault((*at, "min"), f"sweep.parameters.{name}: a logarithmic scale needs min > 0; found {values.min}")
    if values.step is not None and (values.step <= 0 or values.scale == "log"):
        yield Fault((*at, "step"), f"sweep.parameters.{name}: step must be more than 0, and the scale linear")
    if method == "list" or (method == "grid" and values.step is None):
        yield Fault(at, f"sweep.parameters.{name}: a range cannot be told out for method {method}; list its values")


def _trials_faults(sweep: Sweep) -> Iterator[Fault]:
    counted = sweep.method in ("grid", "list")
    if counted and sweep.trials is not None:
        yield Fault(("sweep", "trials"), f"method {sweep.method} runs each point once; remove `trials`", on_key=True)
    if not counted and sweep.trials is None:
        yield Fault(("sweep",), f"method {sweep.method} needs `trials`: how many", on_key=True)
    if sweep.objective is None and (sweep.method in ("tpe", "cmaes") or sweep.early_stop):
        why = f"method {sweep.method}" if sweep.method in ("tpe", "cmaes") else "early_stop"
        yield Fault(("sweep",), f"{why} needs `objective`, such as `val_loss min`", on_key=True)
    stop = sweep.early_stop
    if stop is not None and stop.max is not None and stop.max <= stop.min:
        yield Fault(("sweep", "early_stop", "max"), f"early_stop: max ({stop.max}) must be more than min ({stop.min})")
    if sweep.method == "cmaes" and isinstance(sweep.parameters, dict):
        ranges = [name for name, values in sweep.parameters.items() if isinstance(values, Range)]
        if len(ranges) < 2:
            text = f"method cmaes searches ranges, and needs two of them; {len(ranges)} of the parameters is one"
            yield Fault(("sweep", "method"), f"{text}. tpe works with any", "tpe")
