"""Damaged and unknown tables: what comes out is right, or it does not come out.

Right means: no index that the whole table has not; each value of a card is that card's own or None; each process is
that card's own; and no card that is busy in the whole table is called free because of the damage.
"""

import random
import re
from pathlib import Path

import pytest

from jobrunner.agent.accelerators import KINDS
from jobrunner.agent.cards import judge

DATA = Path(__file__).resolve().parents[1] / "data" / "accelerators"
VALUES = ("model", "memory_used_mb", "memory_total_mb", "utilization", "temperature_c", "power_w", "bus_id", "board")
TABLES = [
    ("npu", "npu-A3-8x2-25.2.3-procs-shared.txt"),
    ("npu", "npu-8cards-23.0.rc2.3-training-procs-masked.txt"),
    ("npu", "npu-910B3-8cards-24.1.rc1.b030-idle-noproc.txt"),
    ("npu", "npu-310P3-8cards-24.1.0.1-ids-32896.txt"),
    ("npu", "npu-310P3duo-4cards-25.5.1-alldash-notail.txt"),
    ("npu", "npu-950-info-doc.txt"),
    ("mlu", "cnmon-v4.20.11-mlu370x4-3cards-idle.txt"),
    ("mlu", "cnmon-v5.10.22-mlu370x8-2cards-idle.txt"),
    ("musa", "mthreads-gmi-2.4.1-S5000-8cards-idle.txt"),
]
CNMON_IDLE_LINE = "|  No running processes found" + " " * 50 + "|"
MTHREADS_BUSY = (
    (
        "   No running processes found",
        "0    23435         /usr/bin/python3 -m train --lr 5e-5         40960MiB\n"
        "3    23436         /usr/bin/python3                              900MiB",
    ),
    ("00000000:18:00.0    |0%    0MiB", "00000000:18:00.0    |97%   40961MiB"),
    ("00000000:5c:00.0    |0%    0MiB", "00000000:5c:00.0    |3%    903MiB"),
)
CNMON_BUSY = (
    (
        CNMON_IDLE_LINE,
        "|  0     /   23435   python3 train.py --lr 5e-5                       20480 MiB |\n"
        "|  1     /   23436   python3 train.py --lr 5e-5                        3000 MiB |",
    ),
    ("28C        107 W/ 250 W |     0 MiB/ 20638 MiB", "28C        107 W/ 250 W | 20480 MiB/ 20638 MiB"),
    ("32C        107 W/ 250 W |     0 MiB/ 20638 MiB", "32C        107 W/ 250 W |  3000 MiB/ 20638 MiB"),
)


def mapping(device, cards):
    """What the second question says of the cards: the text of `npu-smi info -m`, or of `cnmon info`."""
    if device == "musa":
        lines = ["GPU{index} {bus_id}", "    Product Name      :  {model}", "    FB Memory Usage"]
        lines += ["        Total      :  {memory_total_mb}MiB", "        Used      :  {memory_used_mb}MiB", ""]
        return "".join("\n".join(lines).format(**card) for card in cards)
    if device == "mlu":
        lines = ["Card {index}", "    Product Name : {model}", "    Physical Memory Usage          :"]
        lines += ["        Total : {memory_total_mb} MiB", "        Used : {memory_used_mb} MiB", ""]
        return "".join("\n".join(lines).format(**card) for card in cards)
    lines = ["NPU ID          Chip ID         Chip Logic ID      Chip Name"]
    chips = {}
    for card in cards:
        chips[card["board"]] = chips.get(card["board"], -1) + 1
        lines.append(f"{card['board']:<16}{chips[card['board']]:<16}{card['index']:<19}{card['model']}")
    return "\n".join(lines)


def whole(device, name):
    content = (DATA / name).read_text()
    for start, replaced in (("cnmon-v5.10.22", CNMON_BUSY), ("mthreads-gmi", MTHREADS_BUSY)):
        for old, new in replaced if name.startswith(start) else ():
            assert old in content
            content = content.replace(old, new)
    return content


def parse(device, content, extra):
    keys = ("info", "map") if device == "npu" else ("table", "details")
    answers = dict(zip(keys, (content, extra), strict=True))
    report = {"device": device, "assumed": False, "cards": KINDS[device].parse(answers).cards}
    return {card["index"]: card for card in judge(report, [], {})["cards"]}


def wrong(found, true, lists_processes=True):
    """The sentences of what is wrong in `found`, given the truth."""
    sentences = []
    for index, card in found.items():
        if index not in true:
            sentences.append(f"card {index} does not exist")
            continue
        for key in VALUES:
            if card[key] not in (None, true[index][key]):
                sentences.append(f"card {index}: {key} is {card[key]!r}, not {true[index][key]!r}")
        known = {entry["pid"]: entry for entry in true[index]["processes"]}
        for entry in card["processes"]:
            if entry["pid"] not in known or entry["memory_mb"] not in (None, known[entry["pid"]]["memory_mb"]):
                sentences.append(f"card {index}: process {entry} is not its own")
        if card["free"] and not true[index]["free"] and lists_processes:
            sentences.append(f"card {index} is called free: {true[index]['why_busy']}")
    return sentences


def insert_cell(lines, at):
    """A further column for card rows and for process rows, in headers and rows alike."""
    found = []
    for line in lines:
        parts = line.split("|")
        border = re.match(r"[+|][-=+]", line)
        found.append(line if border or len(parts) < 5 else "|".join([*parts[: at + 1], " 7 ", *parts[at + 1 :]]))
    return found


def stretched(found, chance):
    return " " * max(2, len(found.group()) + chance.randint(-3, 3))


def damaged(lines, chance):
    """One damaged copy of the lines and the name of the damage."""
    lines = list(lines)
    kind = chance.choice(["cut", "drop", "shorten", "stretch", "bar", "word", "double", "shift"])
    place = chance.randrange(len(lines))
    line = lines[place]
    if kind == "cut":
        content = "\n".join(lines)
        return kind, content[: chance.randrange(len(content))]
    if kind == "drop":
        del lines[place : place + chance.randint(1, 6)]
    elif kind == "shorten":
        lines[place] = line[: chance.randrange(len(line) + 1)]
    elif kind == "stretch":
        lines = [re.sub(r"(?<=\|) +| +(?=\||\Z)|  +", lambda found: stretched(found, chance), one) for one in lines]
    elif kind == "bar":
        bars = [found.start() for found in re.finditer(r"\|", line)]
        if bars:
            at = chance.choice(bars)
            lines[place] = line[:at] + line[at + 1 :]
    elif kind == "word":
        words = re.findall(r"[^\s|]+", line)
        if words:
            lines[place] = re.sub(r"(?<![^\s|])" + re.escape(chance.choice(words)) + r"(?![^\s|])", "", line, count=1)
    elif kind == "double":
        lines[place:place] = lines[place : place + chance.randint(1, 3)]
    elif kind == "shift":
        lines[place] = " " * chance.randint(1, 9) + line
    return kind, "\n".join(lines)


@pytest.mark.parametrize(("device", "name"), TABLES, ids=[name for _, name in TABLES])
def test_damage_never_makes_a_wrong_card(device, name):
    content = whole(device, name)
    extra = mapping(device, list(parse(device, content, "").values()))
    true = parse(device, content, extra)
    assert true, "the undamaged table is read"
    chance = random.Random(name)
    for _ in range(600):
        kind, text = damaged(content.split("\n"), chance)
        # A table without its list of processes is the normal case of some models; memory decides there.
        listed = "Process id" in text or "Processes:" in text
        assert wrong(parse(device, text, extra), true, listed) == [], f"after {kind}:\n{text}"


@pytest.mark.parametrize(("device", "name"), TABLES, ids=[name for _, name in TABLES])
def test_damage_without_a_map(device, name):
    content = whole(device, name)
    true = parse(device, content, "")
    chance = random.Random(name + "again")
    for _ in range(300):
        kind, text = damaged(content.split("\n"), chance)
        if kind == "drop":
            continue  # without a map nothing tells which of several lines are missing; see the next test
        listed = "Process id" in text or "Processes:" in text
        assert wrong(parse(device, text, ""), true, listed) == [], f"after {kind}:\n{text}"


@pytest.mark.parametrize(("device", "name"), TABLES[:5] + TABLES[6:], ids=[name for _, name in TABLES[:5] + TABLES[6:]])
def test_without_a_map_one_missing_line_is_noticed(device, name):
    lines = whole(device, name).split("\n")
    true = parse(device, "\n".join(lines), "")
    for place in range(len(lines)):
        text = "\n".join(lines[:place] + lines[place + 1 :])
        listed = "Process id" in text or "Processes:" in text
        assert wrong(parse(device, text, ""), true, listed) == [], f"without line {place}: {lines[place]}"


@pytest.mark.parametrize(("device", "name"), TABLES, ids=[name for _, name in TABLES])
@pytest.mark.parametrize("at", [1, 2])
def test_a_further_column_is_read_past(device, name, at):
    content = whole(device, name)
    true = parse(device, content, "")
    found = parse(device, "\n".join(insert_cell(content.split("\n"), at)), "")
    assert wrong(found, true) == []


def test_columns_in_another_order_are_read_by_title():
    content = whole("npu", "npu-8cards-23.0.rc2.3-training-procs-masked.txt")
    true = parse("npu", content, "")
    swapped = content.replace("Memory-Usage(MB)  HBM-Usage(MB)   ", "HBM-Usage(MB)  Memory-Usage(MB)   ")
    swapped = re.sub(r"(\d+ +/ \d+) +(\d+ */ \d+) +\|", r"\2    \1  |", swapped)
    assert swapped != content
    found = parse("npu", swapped, "")
    assert wrong(found, true) == [] and len(found) == 8
    assert [card["memory_used_mb"] for card in found.values()] == [card["memory_used_mb"] for card in true.values()]


def test_a_further_value_without_a_title_is_refused():
    content = whole("npu", "npu-910B2C-2cards-23.0.3-idle.txt").replace("| 89.9        53 ", "| 89.9   1400  53 ")
    found = parse("npu", content, "")
    assert (found[0]["power_w"], found[0]["temperature_c"], found[0]["free"]) == (None, None, False)
    assert found[1]["free"]


def test_text_that_is_no_table_gives_no_cards():
    chance = random.Random(1)
    for _ in range(300):
        text = "".join(chance.choice("| +-=0123456789 OKNPU/\n") for _ in range(400))
        assert parse("npu", text, text) == {} and parse("mlu", text, "") == parse("musa", text, text) == {}
        assert KINDS["gpu"].parse({"gpus": text, "apps": text}).cards == []


GPUS = (
    "index, uuid, pci.bus_id, driver_version, memory.total [MiB], memory.used [MiB], utilization.gpu [%], "
    "temperature.gpu, name, power.draw [W]\n"
    "0, GPU-00000001-0000-4000-8000-000000000000, 00000000:C1:00.0, 550.54.15, 81559 MiB, 4 MiB, 0 %, "
    "40, NVIDIA H100 80GB HBM3, 71.00 W\n"
    "1, GPU-00000002-0000-4000-8000-000000000000, 00000000:C2:00.0, 550.54.15, 81559 MiB, 30004 MiB, 87 %, "
    "41, NVIDIA H100 80GB HBM3, 71.25 W\n"
)
APPS = (
    "gpu_uuid, gpu_bus_id, pid, used_gpu_memory [MiB], process_name\n"
    "GPU-00000001-0000-4000-8000-000000000000, 00000000:C1:00.0, 4710, 4 MiB, /usr/bin/python, with a comma\n"
    "GPU-00000002-0000-4000-8000-000000000000, 00000000:C2:00.0, 4711, 30000 MiB, python\n"
)


def parse_gpu(gpus, apps):
    report = {"device": "gpu", "assumed": False, "cards": KINDS["gpu"].parse({"gpus": gpus, "apps": apps}).cards}
    return {card["index"]: card for card in judge(report, [], {})["cards"]}


def test_damaged_csv_never_makes_a_wrong_card():
    true = parse_gpu(GPUS, APPS)
    assert [entry["name"] for entry in true[0]["processes"]] == ["/usr/bin/python, with a comma"]
    for end in range(len(GPUS)):
        assert wrong(parse_gpu(GPUS[:end], APPS), true) == [], GPUS[:end]
    header = APPS.index("\n") + 1
    for end in range(header - 1):
        assert all(not card["free"] for card in parse_gpu(GPUS, APPS[:end]).values()), APPS[:end]
    chance = random.Random(3)
    for _ in range(500):
        lines = GPUS.split("\n")[:3]
        place = chance.randrange(3)
        words = lines[place].split(", ")
        del words[chance.randrange(len(words))]
        lines[place] = ", ".join(words)
        assert wrong(parse_gpu("\n".join(lines), APPS), true) == [], lines


def test_csv_columns_are_found_by_title():
    lines = [line.split(", ") for line in GPUS.strip().split("\n")]
    order = [9, 0, 4, 3, 2, 1, 8, 7, 6, 5]
    moved = "\n".join(
        ", ".join([*(line[at] for at in order), extra])
        for line, extra in zip(lines, ["pstate", "P0", "P8"], strict=True)
    )
    assert parse_gpu(moved, APPS) == parse_gpu(GPUS, APPS)
