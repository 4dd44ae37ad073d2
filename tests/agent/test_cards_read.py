"""Asking tools: found or not, hanging, failing, lacking libraries; the report, and the short-lived child."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from jobrunner.agent import cards
from jobrunner.agent.accelerators import KINDS, ask
from jobrunner.lab.simcards import TOOLS, tools_dir, write_lab
from tests.support.pythons import interpreters, run_snippet

DATA = Path(__file__).resolve().parents[1] / "data" / "accelerators"


@pytest.fixture
def lab(tmp_path, monkeypatch):
    """A simulated host; `lab(device, count, …)` writes its cards."""
    monkeypatch.setenv("JOBRUNNER_LAB", str(tmp_path))
    monkeypatch.setenv("JOBRUNNER_LEASE_SCOPE", f"read{os.getpid()}")
    monkeypatch.setenv("PATH", os.pathsep.join([str(tools_dir()), os.environ["PATH"]]))
    return lambda *words, **facts: write_lab(tmp_path, *words, **facts)


@pytest.fixture
def only(tmp_path, monkeypatch):
    """Put a script in the place of a device's tool, and nothing else on PATH but the system's."""

    def put(device, script, mode=0o755):
        folder = tmp_path / "bin"
        folder.mkdir(exist_ok=True)
        path = folder / TOOLS[device]
        path.write_text("#!/bin/sh\n" + script)
        path.chmod(mode)
        monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
        return path

    return put


@pytest.mark.parametrize("device", ["npu", "mlu", "gpu"])
def test_the_device_is_found_by_looking(lab, device):
    lab(device, 4, cards={2: {"processes": [{"pid": 99999999, "name": "python", "memory_mb": 9000}]}})
    report = cards.judge(cards.read_cards(), [], {})
    assert (report["device"], report["error"], report["raw"], report["warnings"]) == (device, None, None, [])
    assert [card["free"] for card in report["cards"]] == [True, True, False, True]
    assert "pid 99999999" in report["cards"][2]["why_busy"]
    assert report["tool_version"] and report["tool_s"] > 0 and report["at"].endswith("Z")
    json.dumps(report)


def test_no_tool_and_no_cards(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    if any(ask.find(kind) or ask.present(kind) for kind in KINDS.values()):
        pytest.skip("this machine has real cards")
    assert (cards.read_cards()["device"], cards.read_cards()["error"]) == (None, None)
    report = cards.read_cards("npu")
    assert (report["error"]["code"], report["cards"]) == ("tool_missing", [])
    assert "npu-smi" in report["error"]["message"] and "cards: N" in report["error"]["remedy"]
    assert cards.read_cards("cpu")["cards"] == []
    assert cards.read_cards("tpu")["error"]["code"] == "no_such_device"


def test_cards_are_seen_on_the_bus(tmp_path):
    for name, vendor, sort in [("a", "0x19e5", "0x030000"), ("b", "0x10de", "0x040300"), ("c", "0x19e5", "0x120000")]:
        folder = tmp_path / "bus/pci/devices" / name
        folder.mkdir(parents=True)
        (folder / "vendor").write_text(vendor + "\n")
        (folder / "class").write_text(sort + "\n")
    here = {"sys": os.fsencode(tmp_path), "root": os.fsencode(tmp_path)}
    assert ask.present(KINDS["npu"], **here)
    assert not ask.present(KINDS["gpu"], **here), "a sound device of the same vendor is no card"
    assert not ask.present(KINDS["mlu"], **here)
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/cambricon_ctl").touch()
    assert ask.present(KINDS["mlu"], **here)


def children_of(marker):
    found = []
    for word in os.listdir("/proc"):
        if word.isdigit():
            try:
                data = Path("/proc", word, "environ").read_bytes()
            except OSError:
                continue
            if marker in data.split(b"\0"):
                found.append(int(word))
    return found


def test_a_hanging_tool_is_killed_with_all_it_started(only, monkeypatch):
    marker = f"HANGS={os.getpid()}-{time.time()}"
    monkeypatch.setenv(*marker.split("="))
    only("npu", "sleep 300 & sleep 300 | cat\n")
    # The mark is in our own environment for what we start, not in what /proc shows of us.
    started = time.monotonic()
    report = cards.read_cards("npu", timeout_s=0.6)
    assert time.monotonic() - started < 10
    assert report["error"]["code"] == "tool_hangs" and "0.6 s" in report["error"]["message"]
    deadline = time.monotonic() + 10
    while children_of(marker.encode()) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert children_of(marker.encode()) == []


def test_a_tool_that_leaves_something_running_is_not_waited_for(only):
    only("npu", f"cat {DATA}/npu-910B2C-2cards-23.0.3-idle.txt\nsleep 300 &\n")
    started = time.monotonic()
    report = cards.read_cards("npu", timeout_s=60)
    assert time.monotonic() - started < 30
    assert [card["index"] for card in report["cards"]] == [0, 1]


def test_a_hanging_second_question_leaves_what_the_first_gave(only):
    only("npu", f'if [ "$2" = -m ]; then sleep 300; fi\ncat {DATA}/npu-910B2C-2cards-23.0.3-idle.txt\n')
    report = cards.read_cards("npu", timeout_s=1.5)
    assert [card["index"] for card in report["cards"]] == [0, 1]
    assert any("`npu-smi info -m` gave no answer" in warning for warning in report["warnings"])


@pytest.mark.parametrize(("end", "doubtful"), [("kill -SEGV $$", True), ("exit 139", True), ("exit 14", False)])
def test_a_tool_that_crashes_after_its_first_lines(only, end, doubtful):
    """What is missing may be the list of processes."""
    only("npu", f"cat {DATA}/npu-910B3-8cards-24.1.rc1.b030-idle-noproc.txt\n{end}\n")
    report = cards.judge(cards.read_cards("npu"), [], {})
    assert len(report["cards"]) == 8 and {card["free"] for card in report["cards"]} == {not doubtful}
    assert any("gave cards and then failed" in warning for warning in report["warnings"])


@pytest.mark.parametrize("name", sorted(path.stem for path in DATA.glob("*-err-*.txt")))
def test_what_tools_print_when_they_fail(only, name):
    said = json.loads((DATA / f"{name}.json").read_text())
    only(said["device"], f"cat {DATA}/{name}.txt >&2\nexit 1\n")
    report = cards.read_cards(said["device"])
    assert report["error"]["code"] == said["code"] and report["cards"] == []
    assert report["error"]["remedy"] and report["raw"] == (DATA / f"{name}.txt").read_text()


@pytest.mark.parametrize(("script", "code"), [
    ("echo Segmentation fault >&2; exit 139", "tool_failed"),
    ("true", "not_understood"),
    ("head -c 20000000 /dev/zero | tr '\\0' x", "not_understood"),
    ("printf '\\377\\376\\000| 0 | 910B3 |\\n'", "not_understood"),
])  # fmt: skip
def test_odd_answers(only, script, code):
    only("npu", script + "\n")
    report = cards.read_cards("npu")
    assert report["error"]["code"] == code and report["cards"] == []
    assert len(report["raw"]) <= cards.RAW_LIMIT


def test_a_tool_without_cards_does_not_hide_what_another_says(lab):
    """All vendors' tools are there; what the host's own one says is not understood."""
    lab("mlu", 2, fail="| weird | table |", fail_code=0)
    report = cards.read_cards()
    assert (report["device"], report["error"]["code"], report["raw"].strip()) == (
        "mlu",
        "not_understood",
        "| weird | table |",
    )
    lab("mlu", 0)
    assert cards.read_cards()["error"]["code"] == "no_card"


def test_a_tool_that_cannot_be_run(only):
    path = only("npu", "exit 0\n")
    path.write_bytes(b"\x7fELF nonsense")
    assert cards.read_cards("npu")["error"]["code"] == "tool_failed"


def test_the_tool_runs_in_english_in_a_private_folder_and_sees_all_cards(only, monkeypatch, tmp_path):
    for name, value in [("LANG", "zh_CN.GBK"), ("LC_ALL", "zh_CN.GBK"), ("MLU_VISIBLE_DEVICES", "1")]:
        monkeypatch.setenv(name, value)
    only("mlu", f"env > {tmp_path}/seen; pwd > {tmp_path}/where; echo '{{}}' > cnmon_info.json\n")
    cards.read_cards("mlu")
    seen = (tmp_path / "seen").read_text().splitlines()
    assert "LC_ALL=C" in seen and not [line for line in seen if line.startswith(("MLU_VISIBLE", "LANGUAGE"))]
    where = Path((tmp_path / "where").read_text().strip())
    assert where.name.startswith(".jobrunner-cards-") and not where.exists()


def test_the_drivers_libraries_are_given_to_the_tool(tmp_path):
    kind = KINDS["npu"]
    given = ask.environment(kind, {b"LD_LIBRARY_PATH": b"/opt/lib"})
    assert given[b"LD_LIBRARY_PATH"].split(b":")[0] == b"/opt/lib"
    real = type(kind)("npu", "X", "npu-smi", [], None, library_path=(str(tmp_path), "/nowhere"))
    assert ask.environment(real, {})[b"LD_LIBRARY_PATH"] == os.fsencode(tmp_path)


def test_bad_health_and_hidden_cards(lab):
    lab("npu", 4, cards={1: {"health": "Alarm", "codes": "8C084E00"}, 2: {"health": "Warning"}, 3: {"hidden": True}})
    found = cards.judge(cards.read_cards("npu"), [], {})["cards"]
    assert [(card["health"], card["free"]) for card in found] == [("ok", True), ("bad", False), ("warning", True)]
    assert found[1]["why_busy"] == "not healthy: Alarm 8C084E00"


def test_simulated_faults(lab):
    lab("npu", 2, hang_s=300)
    assert cards.read_cards("npu", timeout_s=0.5)["error"]["code"] == "tool_hangs"
    text = (DATA / "npu-err-8005-nodevice-or-permission.txt").read_text()
    lab("npu", 2, fail=text)
    report = cards.read_cards("npu")
    assert (report["error"]["code"], report["raw"]) == ("no_device", text)


def child(*words):
    code = "import sys; from jobrunner.agent.cards import main_cards; sys.exit(main_cards(sys.argv[1:]))"
    environ = dict(os.environ, PYTHONPATH=str(Path(cards.__file__).parents[2]))
    return subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, timeout=60, env=environ)


def test_the_child_prints_a_judged_report(lab):
    import socket

    from jobrunner.agent.layout import card_name

    lab("npu", 3)
    with socket.socket(socket.AF_UNIX) as lease:
        lease.bind(card_name("npu", 1))
        answer = child("--device", "npu", "--timeout", "30")
    report = json.loads(answer.stdout)
    assert answer.returncode == 0 and [card["free"] for card in report["cards"]] == [True, False, True]
    assert report["cards"][1]["lease"] is not None


def test_the_child_for_a_host_without_a_tool():
    report = json.loads(child("--device", "mlu", "--count", "2").stdout)
    assert (report["assumed"], [card["index"] for card in report["cards"]]) == (True, [0, 1])
    assert child("--nonsense").returncode == 2


SNIPPET = """
import json
from jobrunner.agent import cards
report = cards.judge(cards.read_cards(timeout_s=100), cards.read_leases("npu"), {})
for key in ("at", "tool_s"):
    del report[key]
print(json.dumps(report, sort_keys=True))
"""


def test_every_python_gives_the_same_report(lab):
    lab("npu", 4, "310P3-duo", cards={1: {"health": "Alarm", "codes": "8C084E00"}})
    pythons = interpreters()
    answers = {str(python): run_snippet(python, SNIPPET) for python in pythons}
    assert len(set(answers.values())) == 1, answers
    assert [card["index"] for card in json.loads(next(iter(answers.values())))["cards"]] == [0, 1, 2, 3]


def test_every_python_reads_the_samples_alike():
    code = (
        "import glob, json\nfrom jobrunner.agent.accelerators import KINDS\n"
        f"for path in sorted(glob.glob({str(DATA)!r} + '/*.txt')):\n"
        "    text = open(path).read()\n"
        "    answers = dict.fromkeys(('info', 'map', 'table', 'details', 'gpus', 'apps', 'topo'), text)\n"
        "    for kind in KINDS.values():\n"
        "        reading = kind.parse(answers)\n"
        "        print(path, json.dumps([reading.version, reading.cards, reading.warnings], sort_keys=True))\n"
    )
    answers = {run_snippet(python, code) for python in interpreters()}
    assert len(answers) == 1
