"""request.json as docs/host.md describes it, against golden files (JOBRUNNER_WRITE_GOLDEN=1 writes them anew)."""

import importlib.util
import json
import os
from pathlib import Path

import pytest

from jobrunner.core.hosts import load_hosts
from jobrunner.core.request import build_request
from jobrunner.core.spec import spec_from_json
from jobrunner.core.specdoc import read_spec

_spec = importlib.util.spec_from_file_location("core_samples", Path(__file__).with_name("core_samples.py"))
samples = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(samples)

GOLDEN = Path(__file__).parent.parent / "data" / "requests"
CASES = {
    "full": samples.FULL,
    "least": "command: nvidia-smi\ndevice: gpu\ncode: null\n",
    "words": "command: [python3, -m, train, 1e-3]\nargs: ['{{x}}']\ndevice: mlu\ncards: [3, 1]\n"
    "runtime: {docker: {image: 'repo/img:1', mounts: ['/data:/data:ro']}}\n",
}
HOSTS = load_hosts(samples.HOSTS, "hosts.yaml")


def build(spec, host="npu-a", **more):
    fixed = {"job_id": "abcdefgh23", "agent_hash": "0" * 16, "submitted_at": "2026-12-01T09:30:00.123456Z"}
    return build_request(
        spec, HOSTS.get(host), **fixed, client={"host": "laptop", "user": "ml"}, **{"code": None, **more}
    )


@pytest.mark.parametrize("name", CASES)
def test_the_request_is_the_golden_one(name):
    document = read_spec(CASES[name], "f.yaml", default_name=name)
    code = {"files": 3, "bytes": 99, "commit": "c0ffee", "branch": "main", "dirty": False} if name == "full" else None
    host = "npu-a" if name == "full" else "plain"
    made = build(document.spec, host, code=code, ids={"second": "bbbbbbbb22"} if name == "full" else None)
    path = GOLDEN / f"{name}.json"
    if os.environ.get("JOBRUNNER_WRITE_GOLDEN"):
        path.write_text(json.dumps(made, indent=1, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8")
    assert made == json.loads(path.read_text(encoding="utf-8"))
    assert spec_from_json(made["spec"]) == document.spec


def test_no_value_of_a_secret_can_be_in_a_request():
    request = build(read_spec("command: x\ndevice: npu\nsecrets: [TOKEN]\n", "f").spec)
    assert request["run"]["secrets"] == ["TOKEN"] and "TOKEN" not in request["run"]["env"]


def test_the_hosts_launcher_holds_unless_the_spec_says_one():
    host = load_hosts("hosts: {t: {launcher: tmux}}", "f").get("t")
    more = {"job_id": "a", "agent_hash": "h", "submitted_at": "t", "client": {}, "code": None}
    for text, launcher in (("", "tmux"), ("launcher: nohup\n", "nohup")):
        spec = read_spec("command: x\ndevice: cpu\n" + text, "f").spec
        assert build_request(spec, host, **more)["run"]["launcher"] == launcher


def test_a_trial_has_its_parameters_filled_in():
    text = "script: a.py\ndevice: npu\nargs: [--lr, '{lr}', '{{lr}']\nenv: {LR: '{lr}'}\n"
    text += "sweep: {parameters: {lr: [1e-3, 2]}}\n"
    spec = read_spec(text, "f", enabled={"sweep"}).spec
    request = build(spec, sweep={"id": "s", "parameters": {"lr": "1e-3"}})
    assert request["run"]["command"]["args"] == ["--lr", "1e-3", "{lr}"]
    assert request["run"]["env"] == {"LR": "1e-3"} and request["sweep"]["parameters"] == {"lr": "1e-3"}


def test_named_jobs_become_ids():
    text = "script: a.py\ndevice: npu\nafter: [first]\nargs: ['{checkpoint:first}']\n"
    run = build(read_spec(text, "f").spec, ids={"first": "bbbbbbbb22"})["run"]
    assert run["after"] == [{"job": "bbbbbbbb22", "when": "ok"}]
    assert run["command"]["args"] == ["{checkpoint:bbbbbbbb22}"]
    text = "command: [cat, '{checkpoint:first}', '{x}']\ndevice: npu\nafter: [first]\n"
    run = build(read_spec(text, "f").spec, ids={"first": "bbbbbbbb22"})["run"]
    assert run["command"]["argv"] == ["cat", "{checkpoint:bbbbbbbb22}", "{x}"]
    text = "command: [run, '{lr}', 'of={checkpoint:first} {lr}']\ndevice: npu\nafter: [first]\nsweep: {parameters: {lr: [1]}}\n"
    spec = read_spec(text, "f", enabled={"sweep"}).spec
    run = build(spec, ids={"first": "bbbbbbbb22"}, sweep={"id": "s", "parameters": {"lr": "{"}})["run"]
    assert run["command"]["argv"] == ["run", "{", "of={checkpoint:bbbbbbbb22} {{"]


def test_a_checkpoint_in_a_command_needs_its_job():
    found = read_spec("command: [cat, '{checkpoint:other}']\ndevice: npu\nafter: [othre]\n", "f").problems
    assert [(item.line, item.column, item.suggestion) for item in found] == [(1, 16, "othre")], found
