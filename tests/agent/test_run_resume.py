"""Going on from a checkpoint, what is carried from attempt to attempt, and the migration shim."""

from __future__ import annotations

from pathlib import Path

import pytest

from jobrunner.agent import runtime
from jobrunner.agent.files import AgentError
from tests.support.agentproc import Tree, agent_host
from tests.support.running import Runs

TRAIN = b"""
import os, sys
print("args", sys.argv[1:], "resume", os.environ.get("JOBRUNNER_RESUME_FROM"))
print("cache", os.path.exists("cache/seen"), "tree", os.path.exists("left"))
os.makedirs("ckpt", exist_ok=True); os.makedirs("cache", exist_ok=True)
open("left", "w").close(); open("cache/seen", "w").close()
attempt = int(os.environ["JOBRUNNER_ATTEMPT"])
with open("ckpt/step-%d.bin" % (attempt * 100), "w") as handle:
    handle.write("weights")
sys.exit(0 if attempt == 2 else 1)
"""


@pytest.fixture
def runs(tmp_path: Path):
    with agent_host(tmp_path) as host:
        yield Runs(host)


def test_second_attempt_goes_on_from_the_first(runs: Runs) -> None:
    runs.submit(
        "aresume01",
        tree=Tree().file("t.py", TRAIN),
        command={"script": "t.py", "args": ["{x}", "{{"]},
        resume_args=["--resume", "{checkpoint}"],
        checkpoints={"paths": ["ckpt/*.bin"], "keep": {"last": 1, "best": None}},
        carry=["cache/"],
        retry={"max": 1, "on": ["exit"], "backoff_s": 0},
    )
    view = runs.final("aresume01")
    assert (view["state"], view["attempt"]) == ("COMPLETED", 2), runs.log("aresume01")
    first = str(runs.host.job("aresume01") / "1" / "work" / "ckpt" / "step-100.bin")
    assert runs.log("aresume01") == "args ['{x}', '{{'] resume None\ncache False tree False\n"
    assert runs.log("aresume01", 2) == (
        f"args ['{{x}}', '{{{{', '--resume', {first!r}] resume {first}\ncache True tree False\n"
    )
    found = runs.channel.ask("checkpoints", id="aresume01")["checkpoints"]
    assert [entry["step"] for entry in found] == [200], "`keep` applies over attempts, and the list is complete at once"
    runs.submit("aresume02", command={"argv": ["echo", "from {checkpoint:aresume01} {{x}"]})
    assert runs.final("aresume02")["state"] == "COMPLETED"
    second = runs.host.job("aresume01") / "2" / "work" / "ckpt" / "step-200.bin"
    assert runs.log("aresume02") == f"from {second} {{x}}\n"


def test_words() -> None:
    assert runtime.filled("{x} {{", "/c", {}) == "{x} {{"
    assert runtime.filled("a{checkpoint}b{{c}", "/c", {}) == "a/cb{c}"
    assert runtime.filled("{checkpoint}", None, {}) == "" and runtime.filled("{checkpoint", "/c", {}) == "{checkpoint"
    assert runtime.filled("{checkpoint:other}", "/c", {"other": "/o {checkpoint}"}) == "/o {checkpoint}"
    with pytest.raises(AgentError):
        runtime.filled("{checkpoint:other}", "/c", {"other": None})


def test_migration_shim_follows_torch(runs: Runs, tmp_path: Path) -> None:
    """With simulated torch and vendor modules: the shim is loaded once, after torch, also in child processes."""
    site = tmp_path / "site"
    for name in ("torch", "torch_npu", "torch_npu/contrib", "torch_npu/contrib/transfer_to_npu"):
        (site / name).mkdir(parents=True)
        (site / name / "__init__.py").write_text(f"print('loaded {name}')\n")
    (site / "sitecustomize.py").write_text("print('the other sitecustomize')\n")
    code = "import torch, subprocess, sys; subprocess.run([sys.executable, '-c', 'import json; import torch'])"
    runs.submit(
        "amigrate1",
        command={"argv": ["python3", "-c", code]},
        device="npu",
        cards=1,
        limits={"cards": 1},
        env={"PYTHONPATH": str(site)},
        runtime={"migrate": True},
    )
    assert runs.final("amigrate1")["state"] == "COMPLETED", runs.log("amigrate1")
    once = [
        "the other sitecustomize", "loaded torch", "loaded torch_npu", "loaded torch_npu/contrib",
        "loaded torch_npu/contrib/transfer_to_npu",
    ]  # fmt: skip
    assert runs.log("amigrate1").splitlines() == once * 2
