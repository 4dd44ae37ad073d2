"""A vendor that nobody knew: one file is registered, and the rest follows from it."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from jobrunner.agent import accelerators, containers_plan, env, migrate, probe_cards, procs
from jobrunner.agent.cards import explain, fallback_report, judge
from jobrunner.agent.runtime import visible_devices
from jobrunner.core.hosts import load_hosts
from jobrunner.core.schema import json_schema
from jobrunner.core.specdoc import read_spec
from jobrunner.service.doctor import examine

from .doctor_facts import declared, facts

FILE = Path(__file__).resolve().parents[1] / "data" / "newvendor" / "zpu.py"
LIST = "0 Z1 fine 4/32768 0%\n1 Z1 fine 20000/32768 80%\n2 Z1 burnt 4/32768 0%\n3 Z1 fine 900/32768 0%\n"
PS = "1 4711 19990 python train.py\nend\n"


@pytest.fixture
def zpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The vendor's kind, registered for one test."""
    name = "jobrunner.agent.accelerators.zpu"
    spec = importlib.util.spec_from_file_location(name, FILE)
    assert spec and spec.loader
    module: ModuleType = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setitem(accelerators.KINDS, "zpu", module.KIND)
    yield module.KIND


def fault(text: str) -> str:
    """The one fault of a spec."""
    [problem] = read_spec(text, "f").problems
    return problem.message


def test_without_its_file_the_vendor_is_unknown() -> None:
    assert "found 'zpu'" in fault("command: x\ndevice: zpu\n")


def test_its_cards_are_read_and_judged(zpu: Any) -> None:
    report = {"device": "zpu", "assumed": False, "cards": zpu.parse({"list": LIST, "ps": PS}).cards}
    cards = judge(report, [{"index": 0, "user": "eve", "job": "abc12345"}], {})["cards"]
    reasons = ["leased by eve", "python train.py (pid 4711", "not healthy: burnt", "900 MB are in use"]
    assert all(word in card["why_busy"] for word, card in zip(reasons, cards, strict=True))
    assert [card["free"] for card in judge(report, [], {})["cards"]] == [True, False, False, False]
    assert judge(fallback_report("zpu", 2), [], {})["cards"][1]["free"] is True


def test_its_variable_is_set_for_its_jobs_and_empty_for_those_without_cards(zpu: Any) -> None:
    assert visible_devices("zpu", [3, 1])["ZPU_VISIBLE_DEVICES"] == "1,3"
    assert visible_devices("zpu", [3, 1], in_container=True)["ZPU_VISIBLE_DEVICES"] == "0,1"
    empty = visible_devices("cpu", [])
    assert empty["ZPU_VISIBLE_DEVICES"] == "" and set(empty) == {kind.variable for kind in accelerators.KINDS.values()}


def test_specs_hosts_and_schema_know_it(zpu: Any) -> None:
    spec = read_spec("command: x\ndevice: zpu\ncards: 2\nruntime: {migrate: true}\n", "f").spec
    assert spec is not None and (spec.device, spec.card_count) == ("zpu", 2)
    [problem] = read_spec("command: x\ndevice: Zeta\n", "f").problems
    assert "npu, mlu, gpu, musa, zpu or cpu" in problem.message and problem.suggestion == "zpu"
    assert "may not be set" in fault("command: x\ndevice: zpu\nenv: {ZPU_VISIBLE_DEVICES: 1}\n")
    kinds = json_schema("spec")["properties"]["device"]["enum"]
    assert kinds == ["npu", "mlu", "gpu", "musa", "zpu", "cpu"]
    assert "ZPU_VISIBLE_DEVICES" in str(json_schema("spec")) and "'zpu'" in str(json_schema("hosts"))


def test_a_hosts_file_may_say_it(zpu: Any) -> None:
    assert load_hosts("hosts:\n  z:\n    device: zpu\n    cards: 4\n", "f").hosts["z"].device == "zpu"


def test_the_job_s_environment_container_and_shim_follow(zpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    made = env.vendor_values("zpu", {b"PATH": b"/bin"}, lambda path: path.startswith(b"/opt/zeta"))
    assert made[b"ZETA_HOME"] == b"/opt/zeta" and made[b"PATH"] == b"/opt/zeta/bin:/bin"
    assert containers_plan.node_candidates("zpu", [2]) == ["/dev/zpu2", "/dev/zpu-ctl"]
    assert "torch_zpu.cuda" in migrate.code("zpu")
    monkeypatch.setenv("ZPU_VISIBLE_DEVICES", "1")
    assert b"ZPU_VISIBLE_DEVICES" not in procs.own_environment()


def test_the_toolkit_s_version_is_found(zpu: Any, tmp_path: Path) -> None:
    (tmp_path / "opt" / "zeta").mkdir(parents=True)
    (tmp_path / "opt" / "zeta" / "version").write_text("SDK 3.1\n")
    assert probe_cards.versions("zpu", root=bytes(tmp_path))["toolkit"] == "3.1"


def test_the_doctor_asks_what_concerns_it(zpu: Any) -> None:
    checks, _ = examine(facts(cards={"device": "zpu", "cards": [], "error": None}), declared(device="zpu"))
    found = {check.name: check for check in checks}
    assert "zpu-smi" in found["vendor tool"].found and "/dev/zpu0" in found["device files"].found
    assert "Zeta SDK" in found["vendor set-up"].found and "torch_zpu" in found["plug-in"].found


def test_a_tool_that_is_missing_is_named(zpu: Any) -> None:
    from jobrunner.agent.accelerators.ask import Answer

    found = explain(zpu, "zpu-smi", Answer(127, "sh: zpu-smi: not found", ""), 10)
    assert found["code"] == "tool_missing" and "zpu-smi" in found["message"]


def test_every_kind_keeps_what_others_rely_on() -> None:
    for name, kind in accelerators.KINDS.items():
        assert kind.name == name and name.isalnum() and name.islower()
        assert kind.variable.endswith("_VISIBLE_DEVICES"), "by this our own processes on the host drop it"
        assert kind.variable in kind.unset, "else the tool shows the cards of one job only"
        assert kind.title and kind.tool and any(command.needed for command in kind.commands)
