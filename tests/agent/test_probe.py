"""Facts for the doctor, as the agent gives them: complete under every Python, in time, and with nothing left behind."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from jobrunner.agent import probe, probe_cards, probe_deep, probe_storage, probe_system
from jobrunner.lab import simcards
from tests.support.agentproc import AgentHost, agent_host, job, pythons, until

TOOLS = str(simcards.tools_dir())


def ask(host: AgentHost, folder: Path, **fields: Any) -> dict[str, Any]:
    """A deep probe over a channel whose session has simulated cards."""
    channel = host.channel(
        PATH=f"{TOOLS}:/usr/local/bin:/usr/bin:/bin", JOBRUNNER_LAB=str(folder / "lab"), HOME=str(folder / "home")
    )
    try:
        return dict(channel.ask("probe", deep=True, **{"limit_s": 20, **fields}))
    finally:
        channel.close()


@pytest.fixture
def lab(tmp_path: Path) -> Path:
    """A folder with a home and two simulated cards."""
    (tmp_path / "home").mkdir()
    simcards.write_lab(tmp_path / "lab", "npu", 2)
    return tmp_path


@pytest.mark.parametrize("python", pythons(), ids=lambda path: Path(path).parts[-3])
def test_every_part_is_answered_under_every_python(lab: Path, python: str) -> None:
    with agent_host(lab, python=python) as host:
        found = ask(host, lab)
    for part in probe_deep.PARTS:
        assert found[part].get("late") is not True and set(found[part]) != {"error"}, (part, found[part])
    assert found["seen_device"] == "npu" and found["software"]["late"] is None
    assert found["storage"]["ok"] and found["leases"] == {
        **found["leases"],
        "binds": True,
        "excludes": True,
        "shows": True,
    }
    assert found["modules"]["missing"] == [] and found["init"]["reaps"] in (True, False)
    assert not list((lab / "root").rglob(".probe-*"))


def test_without_deep_the_answer_is_as_small_as_ever(lab: Path) -> None:
    with agent_host(lab) as host:
        found = host.ask("probe")
    assert "software" not in found and {"python", "tmux", "docker", "disk", "root", "login"} <= set(found)


def test_a_question_that_hangs_costs_its_own_answer_only(monkeypatch: pytest.MonkeyPatch, lab: Path) -> None:
    class Session:
        agent = ""

    with agent_host(lab) as host:
        host.ask("probe")
        Session.layout = host.layout  # type: ignore[attr-defined]
        monkeypatch.setattr(probe_deep, "PARTS", {"limits": "probe_system.limits", "proc": "probe_system.proc",
                                                  "shm": "probe_storage.shm"})  # fmt: skip
        monkeypatch.setattr(probe_system, "limits", lambda context: time.sleep(30))
        monkeypatch.setattr(probe_storage, "shm", lambda context: {}["x"])
        began = time.monotonic()
        found = probe_deep.Gathering(Session, {"limit_s": 0.3, "device": "cpu"}).result()
    assert time.monotonic() - began < 5
    assert found["limits"] == {"late": True} and found["proc"]["root"] is (os.geteuid() == 0)
    assert found["shm"] == {"error": "KeyError: 'x'"} and found["seen_device"] == "cpu"


def test_the_queue_and_its_left_overs_are_told(lab: Path) -> None:
    with agent_host(lab) as host:
        host.drain()
        channel = host.channel()
        channel.stage([job("jobaaaaaaaa")], None)
        channel.close()
        until(lambda: ask(host, lab)["own"]["dispatcher"], what="the dispatcher")
        until(lambda: not host._kill(), what="its end")
        found = ask(host, lab)["own"]
        assert (found["queued"], found["live"], found["held"]) == (1, 1, 0) and found["drained"]
        assert not found["dispatcher"] and found["unguarded"] == []
        host.begin("jobaaaaaaaa")
        found = ask(host, lab)["own"]
        assert found["queued"] == 0 and found["unguarded"] == ["jobaaaaaaaa"]


def test_logind_s_drop_ins_win_over_its_file(tmp_path: Path) -> None:
    vendor, admin = tmp_path / "usr", tmp_path / "etc"
    for folder in (vendor, admin):
        (folder / "logind.conf.d").mkdir(parents=True)
    (vendor / "logind.conf").write_text("[Login]\n#KillUserProcesses=yes\n")
    (vendor / "logind.conf.d" / "20-a.conf").write_text("[Login]\nKillUserProcesses=no\n")
    (admin / "logind.conf.d" / "30-b.conf").write_text("[Login]\nKillUserProcesses=yes\n")
    (admin / "logind.conf.d" / "20-a.conf").write_text("")
    (admin / "logind.conf.d" / "note.txt").write_text("KillUserProcesses=no\n")
    places = [os.fsencode(vendor), os.fsencode(admin)]
    assert [os.path.basename(path) for path in probe._logind_files(places)] == [
        b"logind.conf",
        b"20-a.conf",
        b"30-b.conf",
    ]
    assert probe._logind_files(places)[1].startswith(os.fsencode(admin))


QUOTA = """Disk quotas for user ml (uid 1000):
     Filesystem  blocks   quota   limit   grace   files   quota   limit   grace
      /dev/sda1  12345*  10000   20000 1700000000     123       0       0       0
nas:/export/home   500   90000  100000       0   1000*     900    1000 1700000000
"""


def test_quota_is_read_row_by_row() -> None:
    first, second = probe_storage.quota_rows(QUOTA)
    assert first == {"filesystem": "/dev/sda1", "blocks": [12345, 10000, 20000], "files": [123, 0, 0], "over": True}
    assert second["files"] == [1000, 900, 1000] and second["over"] and second["blocks"][2] == 100000
    assert probe_storage.quota_rows("Disk quotas for user ml (uid 1000): none\n") == []


def test_the_control_group_with_least_room_counts(tmp_path: Path) -> None:
    inner, outer, old = (tmp_path / name for name in ("inner", "outer", "old"))
    for folder in (inner, outer, old):
        folder.mkdir()
    (inner / "memory.max").write_text("max\n")
    (outer / "memory.max").write_text("1000\n")
    (outer / "memory.current").write_text("900\n")
    (outer / "memory.stat").write_text("anon 100\ninactive_file 700\n")
    (old / "memory.limit_in_bytes").write_text("9223372036854771712\n")
    (old / "memory.usage_in_bytes").write_text("5\n")
    folders = [os.fsencode(folder) for folder in (inner, outer, old)]
    assert probe_system.group_memory(folders, 10**6) == (1000, 800)
    assert probe_system.group_memory(folders[:1], 10**6) == (None, None)
    (old / "memory.limit_in_bytes").write_text("100\n")
    (old / "memory.usage_in_bytes").write_text("300\n")
    assert probe_system.group_memory(folders, 10**6) == (100, 0)


def write(path: Path, text: str) -> None:
    """A file with its folders."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_versions_are_read_from_the_vendors_files(tmp_path: Path) -> None:
    root = os.fsencode(tmp_path)
    nothing = {"driver": None, "firmware": None, "toolkit": None, "toolkit_path": None}
    for device in ("npu", "mlu", "gpu", "cpu"):
        assert probe_cards.versions(device, root + b"/home", root) == nothing
    ascend = tmp_path / "usr/local/Ascend"
    write(ascend / "driver/version.info", "Version=24.1.rc3\nascendhal_version=7.35.23\npackage_version=24.1.rc3\n")
    write(ascend / "firmware/version.info", "Version=7.5.0.2.220\n")
    write(ascend / "ascend-toolkit/8.0.RC3/aarch64-linux/ascend_toolkit_install.info",
          "package_name=Ascend-cann-toolkit\nversion=8.0.RC3\narch=aarch64\n")  # fmt: skip
    (ascend / "ascend-toolkit/latest").symlink_to("8.0.RC3")
    found = probe_cards.versions("npu", root + b"/home", root)
    assert (found["driver"], found["firmware"], found["toolkit"]) == ("24.1.rc3", "7.5.0.2.220", "8.0.RC3")
    (ascend / "cann-8.5.0").mkdir()
    (ascend / "cann").symlink_to("cann-8.5.0")
    assert probe_cards.versions("npu", root + b"/home", root)["toolkit"] == "8.5.0"
    write(tmp_path / "opt/hw/driver/version.info", "Version=25.2.0\n")
    write(tmp_path / "etc/ascend_install.info", "UserName=HwHiAiUser\nDriver_Install_Path_Param=/opt/hw\n")
    assert probe_cards.versions("npu", root + b"/home", root)["driver"] == "25.2.0"


def test_versions_of_other_vendors(tmp_path: Path) -> None:
    root = os.fsencode(tmp_path)
    write(tmp_path / "usr/local/neuware/version.txt", "Neuware Version 3.15.7\n")
    assert probe_cards.versions("mlu", root, root)["toolkit"] == "3.15.7"
    write(tmp_path / "proc/driver/nvidia/version",
          "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023\n"
          "GCC version:  gcc version 11.4.0 (Ubuntu 11.4.0-1ubuntu1~22.04)\n")  # fmt: skip
    assert probe_cards.versions("gpu", root, root)["driver"] == "535.104.05"
    write(tmp_path / "proc/driver/nvidia/version",
          "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.82.07  Release Build\n")  # fmt: skip
    write(tmp_path / "usr/local/cuda/version.json", '{"cuda": {"name": "CUDA SDK", "version": "12.4.1"}}')
    found = probe_cards.versions("gpu", root, root)
    assert (found["driver"], found["toolkit"]) == ("580.82.07", "12.4.1")


def test_nothing_is_left_of_a_probe(lab: Path) -> None:
    before = set(os.listdir("/tmp"))
    with agent_host(lab) as host:
        channel = host.channel(PATH=f"{TOOLS}:/usr/bin:/bin", JOBRUNNER_LAB=str(lab / "lab"), HOME=str(lab / "home"))
        channel.ask("probe", deep=True, limit_s=20)
        mark = f"JOBRUNNER_LEASE_SCOPE={host.scope}".encode()

        def others() -> list[str]:
            found = []
            for entry in Path("/proc").iterdir():
                if entry.name.isdigit() and entry.name != str(channel.process.pid):
                    try:
                        if mark in (entry / "environ").read_bytes().split(b"\0"):
                            found.append(entry.name)
                    except OSError:
                        continue
            return found

        until(lambda: not others(), what="what the probe started is gone")
    left = {name for name in set(os.listdir("/tmp")) - before if name.startswith(".jobrunner-cards")}
    until(lambda: not left & set(os.listdir("/tmp")), what=f"{left} in /tmp is gone: what others made meanwhile goes")
