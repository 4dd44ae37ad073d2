"""The simulated tools print what real ones print, byte for byte; and they show the processes of their lab."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from jobrunner.agent.accelerators import KINDS
from jobrunner.lab.simcards import tools_dir, write_lab

DATA = Path(__file__).resolve().parents[1] / "data" / "accelerators"


def tool(folder, name, *words, code=0, env=None):
    environ = dict(os.environ, JOBRUNNER_LAB=str(folder), **(env or {}))
    answer = subprocess.run([tools_dir() / name, *words], capture_output=True, text=True, env=environ, timeout=60)
    assert answer.returncode == code, answer.stdout + answer.stderr
    return answer.stdout


def facts_of(cards):
    keys = {"base_mb": "memory_used_mb", "total_mb": "memory_total_mb"}
    keys.update({key: key for key in ("utilization", "temperature_c", "bus_id")})
    found = {}
    for card in cards:
        facts = {ours: card[theirs] for ours, theirs in keys.items()}
        facts["processes"] = card["processes"]
        facts["base_mb"] -= sum(entry["memory_mb"] for entry in card["processes"])
        if card["power_w"] is not None:
            facts["power_w"] = card["power_w"]
        found[card["index"]] = facts
    return found


@pytest.mark.parametrize(("name", "device", "model"), [
    ("npu-910B3-8cards-24.1.rc1.b030-idle-noproc.txt", "npu", "910B3"),
    ("npu-910B2C-2cards-23.0.3-idle.txt", "npu", "910B2C"),
    ("npu-310P3-8cards-24.1.0.1-ids-32896.txt", "npu", "310P3"),
    ("npu-A3-8x2-25.2.3-procs-shared.txt", "npu", "Ascend910"),
    ("cnmon-v5.10.22-mlu370x8-2cards-idle.txt", "mlu", "MLU370-X8"),
])  # fmt: skip
def test_tables_are_those_of_real_tools(tmp_path, name, device, model):
    text = (DATA / name).read_text()
    reading = KINDS[device].parse({"info": text, "table": text})
    for card in reading.cards:
        for entry in card["processes"]:
            entry["name"] = entry["name"] or ""
    date = text.split("\n")[0] if device == "mlu" else None
    write_lab(
        tmp_path, device, len(reading.cards), model, version=reading.version, cards=facts_of(reading.cards), date=date
    )
    printed = tool(tmp_path, KINDS[device].tool, *KINDS[device].commands[0].args).rstrip("\n").split("\n")
    wanted = text.rstrip("\n").split("\n")
    assert printed[: len(wanted)] == wanted
    assert len(printed) == len(wanted) or "noproc" in name


@pytest.mark.parametrize("name", [
    "mthreads-gmi-1.14.0-S80-1card-idle.txt", "mthreads-gmi-2.0.0-S80-1card-xorg.txt",
    "mthreads-gmi-2.4.1-S5000-8cards-idle.txt",
])  # fmt: skip
def test_both_forms_of_the_mthreads_table_are_those_of_real_tools(tmp_path, name):
    text = (DATA / name).read_text().replace("|4x(16x) ", "|16x(16x)")
    reading = KINDS["musa"].parse({"table": text})
    facts = facts_of(reading.cards)
    for card in facts.values():
        card.update(bus_id=card["bus_id"][4:], utilization=0)
    versions = f"{reading.version} {reading.driver}"
    count, model = len(reading.cards), reading.cards[0]["model"]
    write_lab(tmp_path, "musa", count, model, version=versions, cards=facts, date=text.split("\n")[0])
    printed = [line.rstrip() for line in tool(tmp_path, "mthreads-gmi").split("\n")]
    assert printed == [line.rstrip() for line in text.split("\n")]


def test_csv_is_that_of_the_real_tool(tmp_path):
    cards = {0: {"base_mb": 35}, 1: {"base_mb": 20}}
    write_lab(tmp_path, "gpu", 2, cards=cards)
    printed = tool(
        tmp_path, "nvidia-smi", "--query-gpu=index,name,memory.total,memory.used,utilization.gpu", "--format=csv"
    )
    wanted = (DATA / "nvidia-query-gpu-csv-a6000-2gpus-idle.txt").read_text()
    assert printed == re.sub(r", (memory.free \[MiB\]|4850\d MiB|4852\d MiB)", "", wanted)
    odd = tool(tmp_path, "nvidia-smi", "--query-gpu=index,nonsense", "--format=csv", code=2)
    assert odd == 'Field "nonsense" is not a valid field to query.\n\n'


def test_maps_are_those_of_real_tools(tmp_path):
    write_lab(tmp_path, "npu", 8, "910A")
    assert (
        tool(tmp_path, "npu-smi", "info", "-m").split() == (DATA / "npu-map-910A-8cards-23.0.5.txt").read_text().split()
    )
    write_lab(tmp_path, "npu", 4, "Ascend910")
    assert "0                              2                              -                              -" in tool(
        tmp_path, "npu-smi", "info", "-m"
    )


@pytest.mark.parametrize(("device", "model", "count", "boards"), [
    ("npu", None, 8, list(range(8))), ("npu", "910A", 2, [0, 1]), ("npu", "310P3", 3, [0, 32, 96]),
    ("npu", "310P3-duo", 8, [1, 1, 2, 2, 4, 4, 5, 5]), ("npu", "Ascend910", 16, [n // 2 for n in range(16)]),
    ("npu", "Ascend950PR", 2, [0, 1]), ("mlu", None, 4, [None] * 4), ("mlu", "MLU590-M9", 2, [None] * 2),
    ("gpu", "NVIDIA H100 80GB HBM3", 8, [None] * 8), ("musa", None, 4, [None] * 4), ("musa", "MTT S80", 2, [None] * 2),
])  # fmt: skip
def test_every_layout_is_read_back(tmp_path, device, model, count, boards):
    foreign = [{"pid": 4711, "name": "python3", "memory_mb": 700}]
    write_lab(tmp_path, device, count, model, cards={1: {"processes": foreign}})
    kind = KINDS[device]
    answers = {command.key: tool(tmp_path, kind.tool, *command.args) for command in kind.commands}
    reading = kind.parse(answers)
    assert (reading.warnings, [card["doubts"] for card in reading.cards]) == ([], [[]] * count)
    assert [card["index"] for card in reading.cards] == list(range(count))
    assert [card["board"] for card in reading.cards] == boards
    assert [len(card["processes"]) for card in reading.cards] == [0, 1] + [0] * (count - 2)
    found = reading.cards[1]["processes"][0]
    assert (found["pid"], found["name"], found["memory_mb"]) == (4711, "python3", 700)
    assert reading.cards[1]["memory_used_mb"] - reading.cards[0]["memory_used_mb"] == 700
    assert all(card["health"] == "ok" for card in reading.cards)


def test_proc_mem_and_health_answers_are_read_back(tmp_path):
    foreign = [{"pid": 4711, "name": "python3", "memory_mb": 700}]
    write_lab(
        tmp_path, "npu", 4, "310P3-duo", cards={3: {"processes": foreign, "health": "Alarm", "codes": "8C084E00"}}
    )
    kind = KINDS["npu"]
    info = tool(tmp_path, "npu-smi", "info")
    answers = {"info": info.split("| NPU     Chip ")[0], "map": tool(tmp_path, "npu-smi", "info", "-m")}
    asked = kind.more(answers)
    answers.update({command.key: tool(tmp_path, "npu-smi", *command.args) for command in asked})
    cards = kind.parse(answers).cards
    assert [[entry["pid"] for entry in card["processes"]] for card in cards] == [[], [], [], [4711]]
    assert (cards[3]["health"], cards[3]["health_text"]) == ("bad", "Alarm 8C084E00")
    assert "Invalid card id." in tool(tmp_path, "npu-smi", "info", "-t", "health", "-i", "77", code=1)


class Sleeper:
    """A process of the lab that lives until the block ends."""

    def __init__(self, folder, **env):
        self.env = dict(os.environ, JOBRUNNER_LAB=str(folder), **env)

    def __enter__(self):
        code = "import sys; print(1, flush=True); sys.stdin.read()"
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self.process = subprocess.Popen([sys.executable, "-c", code], env=self.env, **pipes)
        self.process.stdout.readline()
        return self.process.pid

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGKILL)
        self.process.communicate()


def holders(folder, device):
    kind = KINDS[device]
    reading = kind.parse({command.key: tool(folder, kind.tool, *command.args) for command in kind.commands})
    return {card["index"]: [entry["pid"] for entry in card["processes"]] for card in reading.cards if card["processes"]}


@pytest.mark.parametrize(("device", "variable"), [
    ("npu", "ASCEND_RT_VISIBLE_DEVICES"), ("mlu", "MLU_VISIBLE_DEVICES"), ("gpu", "CUDA_VISIBLE_DEVICES"),
    ("musa", "MUSA_VISIBLE_DEVICES"),
])  # fmt: skip
def test_a_running_job_is_on_its_cards(tmp_path, device, variable):
    write_lab(tmp_path, device, 4)
    other = tmp_path / "other"
    write_lab(other, device, 4)
    with Sleeper(tmp_path, JOBRUNNER_JOB_ID="abc12345", **{variable: "1,3"}) as pid:
        assert holders(tmp_path, device) == {1: [pid], 3: [pid]}
        assert holders(other, device) == {}, "another lab is another host"
        with Sleeper(tmp_path, **{variable: "0"}):
            assert holders(tmp_path, device) == {1: [pid], 3: [pid]}, "no job, no claim"
    deadline = time.monotonic() + 10
    while holders(tmp_path, device) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert holders(tmp_path, device) == {}


def test_a_stray_opens_what_it_likes(tmp_path):
    write_lab(tmp_path, "npu", 4)
    given = {"JOBRUNNER_JOB_ID": "abc12345", "ASCEND_RT_VISIBLE_DEVICES": "1", "JOBRUNNER_LAB_OPENS": "0,2"}
    with Sleeper(tmp_path, **given) as pid:
        assert holders(tmp_path, "npu") == {0: [pid], 2: [pid]}
        write_lab(tmp_path, "npu", 4, show_jobs=False)
        assert holders(tmp_path, "npu") == {}


@pytest.mark.parametrize(("value", "cards"), [
    ("0,1,2", [0, 1, 2]), ("1, 2", [1]), ("0-3", [0]), ("3,1", []), ("1,2,2", []), ("", []), ("1,3,8", [1, 3]),
])  # fmt: skip
def test_ascend_reads_its_variable_as_the_runtime_does(tmp_path, value, cards):
    write_lab(tmp_path, "npu", 4)
    with Sleeper(tmp_path, JOBRUNNER_JOB_ID="abc12345", ASCEND_RT_VISIBLE_DEVICES=value) as pid:
        assert holders(tmp_path, "npu") == {index: [pid] for index in cards}


def test_cnmon_follows_its_own_variable(tmp_path):
    write_lab(tmp_path, "mlu", 4)
    text = tool(tmp_path, "cnmon", env={"MLU_VISIBLE_DEVICES": "2"})
    assert [card["index"] for card in KINDS["mlu"].parse({"table": text}).cards] == [2]


def test_tools_of_other_devices_find_no_card(tmp_path):
    write_lab(tmp_path, "mlu", 2)
    assert tool(tmp_path, "npu-smi", "info", code=1) == (DATA / "npu-err-no-card.txt").read_text()
    assert "No devices were found" in tool(tmp_path, "nvidia-smi", code=6)
    assert "simulated" in tool(tmp_path, "cnmon", "--about")


def test_write_lab_refuses_unknown_devices(tmp_path):
    with pytest.raises(ValueError, match="npu, mlu, gpu, musa"):
        write_lab(tmp_path, "tpu", 2)
