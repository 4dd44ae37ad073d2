"""A job spec: what a job is, as its YAML file says it."""

from __future__ import annotations

import json
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, StrictInt, ValidationError, ValidationInfo, model_validator
from pydantic_core import to_jsonable_python

from jobrunner.core.errors import Problem, SpecError
from jobrunner.core.fields import (
    Alias,
    Cards,
    Command,
    Device,
    FreeEnvName,
    Glob,
    LauncherName,
    Length,
    Line,
    MetricName,
    Model,
    Name,
    PositiveLength,
    Tag,
    Written,
    model_keys,
)
from jobrunner.core.metricspec import Metric
from jobrunner.core.speccheck import spec_faults
from jobrunner.core.specparts import After, Checkpoints, Code, Promote, Retry, Runtime, after_of, code_of
from jobrunner.core.sweepspec import Schedule, Sweep
from jobrunner.core.words import faults_of, refuse_all


class JobSpec(Model):
    """One job: what runs, where it may run, and what comes of it."""

    name: Name = Field(default="job", description="The job's name; the file's stem if it is left out.")
    code: Annotated[Code | None, BeforeValidator(code_of, json_schema_input_type=Line | Code | None)] = Field(
        default_factory=Code, description="Folder to upload, relative to this file; null for none."
    )
    script: Glob | None = Field(
        default=None, description="A file inside code: .py by the runtime's python, .sh by bash, else executed."
    )
    args: tuple[Written, ...] = Field(default=(), description="Words for the script; never read by a shell.")
    command: Command | None = Field(
        default=None, description="Instead of script: a text is run by `bash -c`, a list is words that no shell reads."
    )
    device: Device = Field(description="The kind of card. May be left out with `cards: 0`, which is then cpu.")
    cards: Cards = Field(default=1, description="How many cards, or which ones: [1, 3]. Default 1; 0 for cpu.")
    hosts: tuple[Alias, ...] = Field(default=(), description="Where it may go; default: every host with that device.")
    tags: tuple[Tag, ...] = Field(default=(), description="Only hosts that have all these tags.")
    env: dict[FreeEnvName, Written] = Field(default={}, description="Variables of the job's environment.")
    secrets: tuple[FreeEnvName, ...] = Field(
        default=(), description="Names of variables whose values are taken from your environment or secrets.env."
    )
    runtime: Runtime = Field(
        default_factory=Runtime, description="What is set up on the host before the command starts."
    )
    launcher: LauncherName | None = Field(default=None, description="nohup or tmux; default: what the host says.")
    timeout: PositiveLength | None = Field(
        default=None, description="The longest an attempt may run: 90s, 15m, 12h, 3d."
    )
    grace: Length = Field(default="30s", validate_default=True, description="The time between TERM and KILL.")
    priority: StrictInt = Field(
        default=0, ge=-1_000_000, le=1_000_000, description="Orders your own jobs; higher first."
    )
    after: tuple[Annotated[After, BeforeValidator(after_of, json_schema_input_type=Line | After)], ...] = Field(
        default=(), description="Jobs that must have ended before this one starts."
    )
    retry: Retry = Field(default_factory=Retry, description="Further attempts of a job that ended badly.")
    checkpoints: Checkpoints = Field(
        default_factory=Checkpoints, description="Files from which a later attempt can go on."
    )
    resume_args: tuple[Written, ...] = Field(
        default=(), description="Words added when there is a checkpoint to go on from; {checkpoint} is its path."
    )
    carry: tuple[Glob, ...] = Field(default=(), description="Copied from one attempt's folder into the next.")
    outputs: tuple[Glob, ...] = Field(default=(), description="Results: files and folders that `pull` fetches.")
    metrics: dict[MetricName, Metric] = Field(
        default={},
        description="Numbers that the job tells: a regular expression (Python's re, with a group) over its log, or a"
        " mapping {json: KEY}, {file: PATH, key: KEY} or {tensorboard: DIR, tag: TAG}.",
    )
    sweep: Sweep | None = Field(default=None, description="Many trials of this spec with different parameters.")
    schedule: Schedule | None = Field(default=None, description="When this spec is submitted again by itself.")
    promote: Promote | None = Field(default=None, description="Keep the new model only if it beats the one kept.")

    @model_validator(mode="before")
    @classmethod
    def _device_and_cards(cls, data: Any) -> Any:
        """No cards and no device is a cpu job; a cpu job has no cards unless it says so (and is refused then)."""
        if not isinstance(data, dict):
            return data
        if "device" not in data and data.get("cards") == 0 and not isinstance(data["cards"], bool):
            data = {**data, "device": "cpu"}
        if "cards" not in data and data.get("device") == "cpu":
            data = {**data, "cards": 0}
        return data

    @model_validator(mode="after")
    def _whole(self, info: ValidationInfo) -> JobSpec:
        """What several keys say against each other; keys that are wrong by themselves are left out of it."""
        broken: frozenset[str] = (info.context or {}).get("broken", frozenset())
        faults = spec_faults(self, broken)
        if faults:
            refuse_all(faults)
        return self

    @property
    def card_count(self) -> int:
        """How many cards the job takes."""
        return self.cards if isinstance(self.cards, int) else len(self.cards)

    @property
    def card_ids(self) -> tuple[int, ...] | None:
        """Which cards the job takes, ascending; None if any will do."""
        return None if isinstance(self.cards, int) else tuple(sorted(self.cards))

    @property
    def timeout_s(self) -> int | None:
        """The time limit of an attempt in seconds; None for none."""
        return None if self.timeout is None else self.timeout.seconds

    def as_json(self) -> dict[str, Any]:
        """The spec as plain JSON with every default told; `spec_from_json` gives the same spec again."""
        plain: dict[str, Any] = json.loads(json.dumps(to_jsonable_python(self.model_dump())))
        return plain


def spec_from_json(data: dict[str, Any], file: str = "spec") -> JobSpec:
    """The spec that `as_json` wrote, or one made by a program; SpecError with every problem."""
    try:
        return JobSpec.model_validate(data)
    except ValidationError as error:
        faults = faults_of(error.errors(include_url=False), keys_at)
        raise SpecError([Problem(file, None, None, f.message, f.suggestion) for f in faults]) from None


def keys_at(path: tuple[str | int, ...]) -> list[str]:
    """The keys that may stand in a spec's mapping at a path."""
    return model_keys(JobSpec, path)
