"""Kinds of accelerator from specs to cards: Moore Threads' (simulated cards), and a vendor that one file adds."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.lab import ROOT, Client, Lab
from tests.support.quick import QuickClient

pytestmark = pytest.mark.needs_sshd
VENDOR = ROOT / "tests" / "data" / "newvendor" / "zpu.py"
ZPU_SMI = f"""#!{sys.executable}
import sys
if sys.argv[1:] == ["list"]:
    for index in range(4):
        print(index, "Z1", "burnt" if index == 2 else "fine", "4/32768", "0%")
else:
    print("end")
"""
SHOW = "command: 'env | grep _VISIBLE_DEVICES | sort; {}'\ncode: null\ngrace: 1s\n"


@pytest.fixture(scope="module")
def musa(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """A host with four simulated Moore Threads cards."""
    with Lab(tmp_path_factory.mktemp("musa"), alias="musa", device="musa") as host:
        yield host


def card_rows(client: Client) -> list[dict[str, object]]:
    [host] = client.json("cards")["hosts"]
    assert host["reachable"] and host["error"] is None
    return list(host["cards"])


def test_cards_in_use_by_others_are_not_given_out(tmp_path: Path) -> None:
    foreign = [{"pid": 4711, "name": "/usr/bin/python3", "memory_mb": 700}]
    # A host that was never asked before: an answer of the tool is good for some seconds.
    with Lab(tmp_path / "busy", alias="busy", device="musa") as busy:
        busy.cards(cards={0: {"processes": foreign}, 1: {"base_mb": 9000}})
        client = QuickClient(tmp_path / "client", busy, busy={"device": "musa"})
        assert [card["free"] for card in card_rows(client)] == [False, False, True, True]
        id_ = client.submit("device: musa\ncards: 2\n" + SHOW.format("true"), "others")
        assert client.until(id_, "COMPLETED")["cards"] == [2, 3]


def test_a_job_on_moore_threads_cards_gets_its_cards(musa: Lab, tmp_path: Path) -> None:
    client = QuickClient(tmp_path / "client", musa)
    [host] = client.json("cards")["hosts"]
    assert (host["device"], host["tool_version"], len(host["cards"])) == ("musa", "2.2.0", 4)
    assert all(card["free"] and card["model"] == "MTT S4000" for card in host["cards"])
    first = client.submit("device: musa\ncards: 3\n" + SHOW.format("sleep 60"), "first")
    row = client.until(first, "RUNNING")
    assert (row["device"], row["cards"]) == ("musa", [0, 1, 2])
    rows = card_rows(client)
    assert [card["free"] for card in rows] == [False, False, False, True]
    assert rows[0]["lease"] is not None
    second = client.submit("device: musa\ncards: 2\n" + SHOW.format("true"), "second")
    assert client.row(second)["state"] == "QUEUED", "one card is free and two are wanted"
    client.json("cancel", first)
    assert client.until(second, "COMPLETED")["cards"] == [0, 1]
    assert client.log(second).decode().split() == ["MUSA_VISIBLE_DEVICES=0,1"]


def test_a_job_without_cards_sees_no_vendor_s_card(musa: Lab, tmp_path: Path) -> None:
    client = QuickClient(tmp_path / "client", musa)
    id_ = client.submit("device: musa\ncards: 0\n" + SHOW.format("true"), "none")
    client.until(id_, "COMPLETED")
    names = ("ASCEND_RT", "CUDA", "MLU", "MUSA")
    assert client.log(id_).decode().split() == [f"{name}_VISIBLE_DEVICES=" for name in names]


def test_the_doctor_knows_moore_threads_hosts(musa: Lab, tmp_path: Path) -> None:
    [host] = [h for h in QuickClient(tmp_path / "client", musa).json("doctor", "musa")["hosts"] if h["name"] == "musa"]
    checks = {check["name"]: check for check in host["checks"]}
    assert checks["vendor tool"]["found"] == "mthreads-gmi 2.2.0" and checks["cards"]["ok"] is True
    assert "4 musa, 4 free" in checks["cards"]["found"] and "/dev/mtgpu.0" in checks["device files"]["found"]
    assert "MUSA toolkit" in checks["vendor set-up"]["found"]


@pytest.fixture
def extended(tmp_path: Path) -> Path:
    """A copy of jobrunner with a made-up vendor: one file more, and its name in the registry."""
    place = tmp_path / "extended"
    shutil.copytree(ROOT / "jobrunner", place / "jobrunner")
    kinds = place / "jobrunner" / "agent" / "accelerators"
    shutil.copy(VENDOR, kinds / "zpu.py")
    registry = (kinds / "__init__.py").read_text()
    changed = registry.replace("import gpu, mlu, musa, npu\n", "import gpu, mlu, musa, npu, zpu\n")
    changed = changed.replace("musa.KIND)}", "musa.KIND, zpu.KIND)}")
    assert changed.count("zpu") == 2
    (kinds / "__init__.py").write_text(changed)
    return place


def test_one_file_and_one_registry_entry_add_a_vendor(lab: Lab, extended: Path, tmp_path: Path) -> None:
    tool = lab.folder / "bin" / "zpu-smi"
    tool.write_text(ZPU_SMI)
    tool.chmod(0o755)
    client = Client(tmp_path / "client", lab, lab={"device": "zpu"})
    client.env["PYTHONPATH"] = str(extended)
    try:
        schema = json.loads(client.run("schema", "spec").stdout)
        assert "zpu" in schema["properties"]["device"]["enum"]
        wrong = client.spec("device: zetas\ncommand: x\ncode: null\n", "wrong")
        assert "musa, zpu or cpu" in client.run("submit", str(wrong), code=2).stderr

        rows = card_rows(client)
        assert [card["free"] for card in rows] == [True, True, False, True]
        assert rows[2]["health"] == "bad"
        id_ = client.submit("device: zpu\ncards: 3\n" + SHOW.format("echo $JOBRUNNER_CARDS"), "new")
        assert client.until(id_, "COMPLETED")["cards"] == [0, 1, 3]
        assert client.log(id_).decode().split() == ["ZPU_VISIBLE_DEVICES=0,1,3", "0,1,3"]
        none = client.submit("cards: 0\n" + SHOW.format("true"), "none")
        client.until(none, "COMPLETED")
        assert "ZPU_VISIBLE_DEVICES=" in client.log(none).decode().split()

        hosts = {host["name"]: host for host in client.json("doctor", "lab", code=None)["hosts"]}
        checks = {check["name"]: check for check in hosts["lab"]["checks"]}
        assert checks["vendor tool"]["found"] == "zpu-smi 1.0" and "4 zpu, 3 free" in checks["cards"]["found"]
        assert "2 (burnt)" in checks["card health"]["found"] and "Zeta SDK" in checks["vendor set-up"]["found"]
    finally:
        tool.unlink()
