"""request.json: what a host is told to run (docs/host.md). Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jobrunner.core.inventory import Host
from jobrunner.core.placeholders import fill_words
from jobrunner.core.spec import JobSpec

VERSION = 1


def build_request(
    spec: JobSpec,
    host: Host,
    *,
    job_id: str,
    agent_hash: str,
    submitted_at: str,
    client: Mapping[str, Any],
    code: Mapping[str, Any] | None,
    retry_of: str | None = None,
    sweep: Mapping[str, Any] | None = None,
    schedule: Mapping[str, Any] | None = None,
    ids: Mapping[str, str] | None = None,
    plain: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The request for one job on one host.

    `client` is `{"host", "user"}`, `code` `{"files", "bytes", "commit", "branch", "dirty"}` or None. A trial's `sweep`
    holds at least `id` and `parameters` (name to text), which are filled into the words here.
    `ids` has the full id of every job that `after` and `{checkpoint:JOB}` call by a name or a part of its id.
    `plain` is the spec as the host is to keep it, where that is at hand already (`spec.as_json()`).
    """
    plain = spec.as_json() if plain is None else plain
    values: dict[str, str] | None = None
    if spec.sweep is not None or sweep is not None:
        values = {str(name): str(value) for name, value in ((sweep or {}).get("parameters") or {}).items()}
    return {
        "v": VERSION,
        "id": job_id,
        "name": spec.name,
        "agent": agent_hash,
        "submitted_at": submitted_at,
        "retry_of": retry_of,
        "sweep": dict(sweep) if sweep is not None else None,
        "schedule": dict(schedule) if schedule is not None else None,
        "spec": dict(plain),
        "run": _run(spec, plain, host, values, ids or {}),
        "code": dict(code) if code is not None else None,
        "client": dict(client),
    }


def _run(
    spec: JobSpec,
    plain: Mapping[str, Any],
    host: Host,
    values: Mapping[str, str] | None,
    known: Mapping[str, str],
) -> dict[str, Any]:
    ids = spec.card_ids
    env = dict(zip(spec.env, fill_words(list(spec.env.values()), values, checkpoints=False), strict=True))
    return {
        "command": _command(spec, values, known),
        "resume_args": fill_words(spec.resume_args, values, checkpoints=True, resume=True, ids=known),
        "device": spec.device,
        "cards": spec.card_count,
        "card_ids": None if ids is None else list(ids),
        "env": env,
        "secrets": list(spec.secrets),
        "host_env": dict(host.env),
        "host_setup": list(host.setup),
        "runtime": plain["runtime"],
        "launcher": spec.launcher or host.launcher,
        "timeout_s": spec.timeout_s,
        "grace_s": spec.grace.seconds,
        "priority": spec.priority,
        "after": [{"job": known.get(item.job, item.job), "when": item.when} for item in spec.after],
        "retry": {"max": spec.retry.max, "on": list(spec.retry.on), "backoff_s": spec.retry.backoff.seconds},
        "checkpoints": plain["checkpoints"],
        "carry": list(spec.carry),
        "outputs": list(spec.outputs),
        "metrics": dict(spec.metrics),
        "limits": host.limits(),
    }


def _command(spec: JobSpec, values: Mapping[str, str] | None, known: Mapping[str, str]) -> dict[str, Any]:
    """A shell text; a script and its words; or words: `args` follow a command's own."""
    args = fill_words(spec.args, values, checkpoints=True, ids=known)
    if spec.script is not None:
        return {"script": spec.script, "args": args}
    if isinstance(spec.command, str):
        return {"shell": spec.command}
    words = spec.command or ()
    program = fill_words(words[:1], values, checkpoints=False)
    return {"argv": [*program, *fill_words(words[1:], values, checkpoints=True, ids=known), *args]}
