"""JSON Schema (draft 2020-12) of specs and hosts files, for editors and for programs that write them."""

from __future__ import annotations

from typing import Any, Literal

from jobrunner.core.devices import kinds

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def json_schema(kind: Literal["spec", "hosts"]) -> dict[str, Any]:
    """The schema of a job spec or of a hosts file. It accepts what YAML 1.2 makes of a good file.

    What a schema cannot say (that a placeholder has its parameter, say) only reading the file finds out.
    """
    if kind == "spec":
        from jobrunner.core.spec import JobSpec

        schema = JobSpec.model_json_schema(mode="validation")
        schema["title"] = "jobrunner job spec"
        schema.update(_spec_rules())
        schema["required"] = [key for key in schema.get("required", []) if key != "device"]
    else:
        from jobrunner.core.hosts import HostsFile

        schema = HostsFile.model_json_schema(mode="validation")
        schema["title"] = "jobrunner hosts file"
        host = schema["$defs"]["HostSpec"]
        host["properties"].pop("name")
        host["allOf"] = [
            {
                "if": {"required": ["cards"], "properties": {"cards": {"type": "integer", "minimum": 1}}},
                "then": {"required": ["device"], "properties": {"device": {"enum": list(kinds())}}},
            }
        ]
    return {"$schema": DIALECT, **_tidy(schema)}


def _spec_rules() -> dict[str, Any]:
    """What keys say against each other, as far as a schema can say it."""
    given = {"not": {"type": "null"}}
    script = {"required": ["script"], "properties": {"script": given}}
    command = {"required": ["command"], "properties": {"command": given}}
    no_cards = {"required": ["cards"], "properties": {"cards": {"const": 0}}}
    cpu = {"required": ["device"], "properties": {"device": {"const": "cpu"}}}
    shell = {"required": ["command"], "properties": {"command": {"type": "string"}}}
    words = {"properties": {"args": {"maxItems": 0}, "resume_args": {"maxItems": 0}}}
    return {
        "oneOf": [script, command],
        "anyOf": [{"required": ["device"]}, no_cards],
        "allOf": [
            {"if": cpu, "then": {"properties": {"cards": {"const": 0}}}},
            {"if": script, "then": {"properties": {"code": given}}},
            {"if": shell, "then": words},
            {"properties": {"script": {"not": {"type": "string", "pattern": "/$"}}}},
        ],
    }


def _tidy(value: Any) -> Any:
    """Without the titles that pydantic makes of field names (editors show them before the description), and with
    no other keys than those whose names are right."""
    if isinstance(value, list):
        return [_tidy(item) for item in value]
    if not isinstance(value, dict):
        return value
    tidy = {key: _tidy(item) for key, item in value.items() if key != "title" or not _is_made_up(item)}
    if "patternProperties" in tidy:
        tidy["additionalProperties"] = False
    return tidy


def _is_made_up(title: Any) -> bool:
    return isinstance(title, str) and not title.startswith("jobrunner ")
