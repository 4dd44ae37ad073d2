"""The parts of a job spec that are mappings of their own."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, StrictBool, StrictInt

from jobrunner.core.fields import Glob, Length, Line, Model, Objective, Written
from jobrunner.core.words import found, refuse

RetryOn = Literal["exit", "signal", "oom", "lost", "timeout"]
PULLS = Literal["none", "last", "best", "all"]


class Code(Model):
    """The folder that is uploaded. An exclude is read like a line of .gitignore."""

    path: Line = Field(default=".", description="Folder to upload, relative to the spec file.")
    include: tuple[Line, ...] = Field(
        default=(), description="Patterns of files that are sent although an exclude or .gitignore names them."
    )
    exclude: tuple[Line, ...] = Field(default=(), description="Patterns of files that are not sent, as in .gitignore.")


class Docker(Model):
    """The container that the command runs in."""

    image: Line = Field(description="The image, as `docker run` takes it.")
    mounts: tuple[Line, ...] = Field(
        default=(), description="Folders of the host: HOST:CONTAINER or HOST:CONTAINER:ro."
    )
    options: tuple[Written, ...] = Field(default=(), description="Further words for `docker run`.")


class Runtime(Model):
    """What is set up on the host before the command starts."""

    python: Line = Field(default="python3", description="The interpreter for a .py script.")
    venv: Line | None = Field(default=None, description="Folder of a virtual environment on the host.")
    conda: Line | None = Field(default=None, description="Name or folder of a conda environment on the host.")
    docker: Docker | None = Field(default=None, description="Run in a container instead.")
    vendor: Literal["auto", "off"] = Field(
        default="auto", description="auto: find and source the vendor's own set-up for the device; off: do not."
    )
    migrate: StrictBool = Field(
        default=False, description="Run a CUDA script unchanged through the vendor's own migration shim."
    )
    setup: tuple[Line, ...] = Field(default=(), description="Lines for bash, run before the command; they may export.")


class After(Model):
    """A job that this one waits for."""

    job: Line = Field(description="The other job: its id, or its name.")
    when: Literal["ok", "any", "failed"] = Field(
        default="ok",
        description="ok: only if it completed; any: however it ended; failed: only if it did not complete.",
    )


class Retry(Model):
    """Further attempts of a job that ended badly."""

    max: StrictInt = Field(default=0, ge=0, le=1000, description="How many further attempts at most.")
    on: tuple[RetryOn, ...] = Field(
        default=("exit", "signal", "oom", "lost", "timeout"),
        description="The ends after which there is another attempt.",
    )
    backoff: Length = Field(default="30s", validate_default=True, description="The wait before the next attempt.")


class Keep(Model):
    """Which checkpoints stay on the host."""

    last: StrictInt | None = Field(default=None, ge=1, le=1_000_000, description="The newest so many.")
    best: Objective | None = Field(default=None, description="Also the best: a metric and min or max, `val_loss min`.")


def _keep(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | dict | Keep | None):
        refuse(f"checkpoints.keep: found {found(value)}; write a number, or {{last: 2, best: val_loss min}}")
    if isinstance(value, int):
        return {"last": value}
    if value == {}:
        refuse("checkpoints.keep: the mapping is empty; say last, or best, or remove it to keep all")
    return value


KeepCount = Annotated[StrictInt, Field(ge=1, le=1_000_000)]


class Checkpoints(Model):
    """Files from which a later attempt, or another job, can go on."""

    paths: tuple[Glob, ...] = Field(default=(), description="Patterns in the job's folder or JOBRUNNER_OUTPUT_DIR.")
    keep: Annotated[Keep | None, BeforeValidator(_keep, json_schema_input_type=KeepCount | Keep | None)] = Field(
        default=None, description="The newest N, or {last: 2, best: val_loss min}; without it all stay."
    )
    pull: PULLS = Field(default="none", description="Which are fetched to this machine when the job has ended.")


def check_target(value: str) -> str:
    """The folder of a kept model: relative to the host's root, absolute, or in one's home; never out of the root."""
    if ".." in value.split("/") or "\n" in value or value.rstrip("/") in ("", "~", "."):
        refuse(f"{found(value)} cannot be the folder of a model: name one, without '..'")
    if value.startswith("~") and not value.startswith("~/"):
        refuse(f"{found(value)}: only one's own home, ~/, can be named", "~/" + value[1:].partition("/")[2])
    return value.rstrip("/")


class Promote(Model):
    """Keep the new model only if it beats the one that is kept."""

    metric: Objective = Field(description="A metric and min or max.")
    checkpoint: Literal["best", "last"] = Field(default="best", description="Which checkpoint is the model.")
    to: Annotated[Line, AfterValidator(check_target)] = Field(
        description="The folder on the host where the kept model lies: below the host's root, or from / or ~/ on."
    )
    pull: StrictBool = Field(default=False, description="Fetch a promoted model to this machine, too.")


def code_of(value: Any) -> Any:
    """The long form of `code`."""
    if isinstance(value, str):
        return {"path": value}
    if value is not None and not isinstance(value, dict | Code):
        refuse(f"code: found {found(value)}; write a folder, null for none, or {{path, include, exclude}}")
    return value


def after_of(value: Any) -> Any:
    """The long form of an item of `after`."""
    if isinstance(value, str):
        return {"job": value}
    if not isinstance(value, dict | After):
        refuse(f"found {found(value)}; write a job's id or name, or {{job: ID, when: any}}")
    return value
