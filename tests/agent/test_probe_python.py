"""The Python that a job would get, with a simulated torch: set-up, plug-in, and one tensor under a card's lease."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from jobrunner.lab import simcards
from tests.support.agentproc import AgentHost, agent_host

TORCH = """
import json, os

class Tensor:
    def __init__(self, value): self.value = value
    def __add__(self, other): return Tensor(self.value + other.value)
    def cpu(self): return self
    def sum(self): return self
    def item(self): return 4 * self.value

class npu:
    is_available = staticmethod(lambda: True)
    device_count = staticmethod(lambda: 2)

def ones(*shape, device):
    with open("/proc/net/unix") as table:
        leases = [line.split()[-1] for line in table if "@jobrunner/1/card/" in line]
    mine = [line for line in leases if line.endswith(os.environ["JOBRUNNER_LEASE_SCOPE"])]
    seen = {name: os.environ.get(name) for name in ("ASCEND_RT_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "FROM_SETUP")}
    with open(os.environ["PROOF"], "w") as file:
        json.dump({"leases": mine, "device": device, "cwd": os.getcwd(), **seen}, file)
    return Tensor(%s)

__version__ = "2.5.1"
%s
"""


def site(folder: Path, *, value: str = "1.0", also: str = "", plugin: str = "") -> Path:
    """A folder with a simulated torch 2.5.1 and torch_npu."""
    place = folder / "site"
    for name, text, version in (("torch", TORCH % (value, also), "2.5.1"), ("torch_npu", plugin, "2.5.1.post1")):
        (place / name).mkdir(parents=True)
        (place / name / "__init__.py").write_text(text)
        (place / f"{name}-{version}.dist-info").mkdir()
    return place


class Asking:
    """Deep probes of a host with two simulated cards; what the simulated torch saw is in `proof`."""

    def __init__(self, host: AgentHost, folder: Path) -> None:
        self.host, self.folder = host, folder
        (folder / "home").mkdir()
        simcards.write_lab(folder / "lab", "npu", 2)
        self.seconds = 0.0

    def __call__(self, *, path: Path | None = None, **fields: Any) -> dict[str, Any]:
        env = {"PROOF": str(self.folder / "proof"), **({"PYTHONPATH": str(path)} if path else {})}
        channel = self.host.channel(
            PATH=f"{simcards.tools_dir()}:/usr/local/bin:/usr/bin:/bin",
            JOBRUNNER_LAB=str(self.folder / "lab"),
            HOME=str(self.folder / "home"),
        )
        began = time.monotonic()
        try:
            return dict(channel.ask("probe", deep=True, device="npu", env=env, **{"limit_s": 20, **fields})["software"])
        finally:
            self.seconds = time.monotonic() - began
            channel.close()

    def proof(self) -> dict[str, Any]:
        return dict(json.loads((self.folder / "proof").read_text()))


@pytest.fixture
def asking(tmp_path: Path) -> Any:
    with agent_host(tmp_path) as host:
        yield Asking(host, tmp_path)


def test_one_tensor_is_computed_on_a_free_card_under_its_lease(asking: Asking, tmp_path: Path) -> None:
    found = asking(
        path=site(tmp_path), setup=["export FROM_SETUP=yes", "echo noise", "echo '@jobrunner@{\"meta\": 7}'"]
    )
    assert found["tensor"] == {"card": 1, "value": 8.0, "error": None} and found["late"] is None
    assert (
        found["plugin"]["available"] is True and found["plugin"]["count"] == 2 and found["plugin"]["torch"] == "2.5.1"
    )
    assert found["meta"]["packages"] == {"torch": "2.5.1", "torch_npu": "2.5.1.post1"}
    proof = asking.proof()
    assert proof["ASCEND_RT_VISIBLE_DEVICES"] == "1" and proof["FROM_SETUP"] == "yes" and proof["device"] == "npu:0"
    assert [name.partition("@jobrunner/1/")[2].split("@")[0] for name in proof["leases"]] == ["card/npu/1"]
    assert not Path(proof["cwd"]).exists()
    assert asking(path=tmp_path / "site", only_cards=[0])["tensor"]["card"] == 0  # and the lease of 1 is free again
    assert asking(path=tmp_path / "site")["tensor"]["card"] == 1


def test_cards_in_use_are_left_alone(asking: Asking, tmp_path: Path) -> None:
    simcards.write_lab(
        tmp_path / "lab", "npu", 2,
        cards={index: {"processes": [{"pid": 1, "name": "python", "memory_mb": 9000}]} for index in (0, 1)},
    )  # fmt: skip
    found = asking(path=site(tmp_path))
    assert found["tensor"] == {"card": None, "skipped": "no card is free"} and not (tmp_path / "proof").exists()


def test_a_card_that_somebody_holds_is_passed_over(asking: Asking, tmp_path: Path, monkeypatch: Any) -> None:
    from jobrunner.agent import layout, leases

    monkeypatch.setenv("JOBRUNNER_LEASE_SCOPE", asking.host.scope)
    lock = leases.bind(layout.card_name("npu", 1))
    try:
        assert asking(path=site(tmp_path))["tensor"]["card"] == 0
    finally:
        leases.release([lock])


def test_without_torch_nothing_is_tried(asking: Asking) -> None:
    found = asking()
    assert found["meta"]["version"] and found["late"] is None and "plugin" not in found and "tensor" not in found


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"plugin": "raise ImportError('libhccl.so: cannot open shared object file')"}, "libhccl.so"),
        ({"plugin": "import os; os.abort()"}, "signal 6"),
        ({"also": "raise SystemExit(3)"}, "SystemExit"),
    ],
)
def test_a_plug_in_that_fails_is_quoted(asking: Asking, tmp_path: Path, options: dict[str, str], word: str) -> None:
    found = asking(path=site(tmp_path, **options))
    assert word in found["plugin"]["error"] and "tensor" not in found and found["late"] is None


def test_a_missing_plug_in_is_told_from_a_broken_one(asking: Asking, tmp_path: Path) -> None:
    place = site(tmp_path)
    (place / "torch_npu" / "__init__.py").unlink()
    (place / "torch_npu").rmdir()
    found = asking(path=place)["plugin"]
    assert found["missing"] == "torch_npu" and found["step"] == "import torch_npu"


def test_a_card_that_fails_or_lies_is_told(asking: Asking, tmp_path: Path) -> None:
    found = asking(path=site(tmp_path, value="1 / 0"))
    assert found["tensor"]["card"] == 1 and "ZeroDivisionError" in found["tensor"]["error"]


@pytest.mark.parametrize(
    ("where", "step"),
    [("setup", "set-up"), ("import", "import"), ("tensor", "tensor")],
)
def test_whatever_hangs_is_ended_at_the_limit_and_named(asking: Asking, tmp_path: Path, where: str, step: str) -> None:
    hang = "__import__('time').sleep(600)"
    place = site(tmp_path, plugin=hang if where == "import" else "", value=hang if where == "tensor" else "1.0")
    found = asking(path=place, setup=["sleep 600"] if where == "setup" else [], limit_s=7 if where == "tensor" else 3)
    assert asking.seconds < 12
    if where == "import":  # ended by itself just before the limit, so that what is known goes on
        assert "no end within the limit" in found["plugin"]["error"]
    elif where == "tensor":
        assert "no end within the limit" in found["tensor"]["error"] and found["plugin"]["available"]
    else:
        assert found["late"] == step


def test_setup_that_fails_is_told_with_its_exit_code(asking: Asking) -> None:
    found = asking(setup=["true", "exit 7"])
    assert "exit code 7" in found["setup_error"] and "meta" not in found and found["late"] is None


def test_a_python_that_is_not_there_is_told(asking: Asking) -> None:
    found = asking(setup=["export PATH=/nowhere"], job_python="python-of-nobody")
    assert "python-of-nobody" in found["python_error"] and found["meta"] is None
