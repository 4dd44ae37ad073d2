"""The example files hold every key, are good, and keep to the schemas."""

from pathlib import Path

import jsonschema

from jobrunner.core.document import Document
from jobrunner.core.hosts import HostsFile, HostSpec, load_hosts
from jobrunner.core.schema import json_schema
from jobrunner.core.spec import JobSpec
from jobrunner.core.specdoc import LATER, read_spec
from jobrunner.core.specparts import Checkpoints, Code, Retry, Runtime

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"


def text_and_data(name):
    text = (EXAMPLES / name).read_text(encoding="utf-8")
    return text, Document.of(text, name).data()


def test_the_spec_with_every_key():
    text, data = text_and_data("every-key.yaml")
    document = read_spec(text, "every-key.yaml")
    assert document.problems == []
    jsonschema.Draft202012Validator(json_schema("spec")).validate(data)
    assert set(JobSpec.model_fields) - set(data) == {"command", *LATER}
    for key, model in (("code", Code), ("retry", Retry), ("checkpoints", Checkpoints)):
        assert set(model.model_fields) == set(data[key])
    assert set(Runtime.model_fields) - set(data["runtime"]) == {"conda", "docker"}


def test_the_hosts_file_with_every_key():
    text, data = text_and_data("hosts.yaml")
    hosts = load_hosts(text, "hosts.yaml")
    jsonschema.Draft202012Validator(json_schema("hosts")).validate(data)
    assert set(HostsFile.model_fields) == set(data) and set(hosts.hosts) == {"gpu-box", "npu-a"}
    assert set(HostSpec.model_fields) - set(data["hosts"]["npu-a"]) == {"name"}
