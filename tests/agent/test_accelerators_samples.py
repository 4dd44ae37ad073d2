"""Every published output is read to the values beside it."""

import json
from pathlib import Path

import pytest

from jobrunner.agent import cards
from jobrunner.agent.accelerators import KINDS, gpu, musa, near, npu_text
from jobrunner.agent.accelerators.ask import Answer

DATA = Path(__file__).resolve().parents[1] / "data" / "accelerators"
EXPECTED = sorted(DATA.glob("*.json"))


def text(name):
    return (DATA / name).read_text()


def process_rows(entries):
    return [[npu, chip, found["pid"], found["name"], found["memory_mb"]] for npu, chip, found in entries]


def read_cards_sample(said, name):
    reading = KINDS[said["device"]].parse({key: text(file) for key, file in said["answers"].items()})
    found = []
    for card in reading.cards:
        fields = {key: card[key] for key in said["cards"][0] if key in card} if said["cards"] else dict(card)
        fields["processes"] = [[entry["pid"], entry["name"], entry["memory_mb"]] for entry in card["processes"]]
        found.append(dict(fields, doubtful=bool(card["doubts"])))
    return {
        "version": reading.version,
        "driver": reading.driver,
        "warned": bool(reading.warnings),
        "cards": found,
    }


def read_table_sample(said, name):
    table = npu_text.parse_info(text(name))
    return {
        "rows": [[row.npu, row.chip, row.device, row.phy] for row in table.rows],
        "processes": process_rows(table.processes),
        "listed": sorted(table.listed),
        "warned": bool(table.warnings),
    }


def read_error_sample(said, name):
    kind = KINDS[said["device"]]
    found = cards.explain(kind, kind.tool, Answer(127 if "not-found" in name else 1, text(name), ""), 10)
    assert found["message"] and found["remedy"]
    return {"code": found["code"]}


def read_musa_details(said, name):
    found = musa.parse_details(text(name))
    return {"cards": sorted(found), "told": {key: found[0].get(key) for key in said["told"]}}


READERS = {
    "cards": read_cards_sample,
    "table": read_table_sample,
    "error": read_error_sample,
    "map": lambda said, name: {
        "map": [[*key, *value] for key, value in sorted(npu_text.parse_map(text(name)).items())]
    },
    "proc-mem": lambda said, name: {"processes": process_rows(npu_text.parse_proc_mem(text(name)))},
    "health": lambda said, name: {"health": list(npu_text.parse_health(text(name)))},
    "musa-details": read_musa_details,
    "near": lambda said, name: {
        "cards": sorted(found := near.parse(text(name))),
        "first": near.rows(found, said["cards"])[0],
    },
    "csv": lambda said, name: {"rows": gpu.parse_csv(text(name), ("pid",), "process_name")},
}


@pytest.mark.parametrize("path", EXPECTED, ids=lambda path: path.stem)
def test_sample(path):
    said = json.loads(path.read_text())
    found = READERS[said["reads"]](said, path.stem + ".txt")
    assert found == {key: said[key] for key in found}


def test_every_sample_has_its_values():
    assert {path.stem for path in DATA.glob("*.txt")} == {path.stem for path in EXPECTED}
    assert len(EXPECTED) > 60


def test_boards_with_large_numbers_are_counted_by_logical_id():
    said = json.loads((DATA / "npu-310P3-8cards-24.1.0.1-ids-32896.json").read_text())
    assert [card["index"] for card in said["cards"]] == list(range(8))
    assert [card["board"] for card in said["cards"]] == [0, 32, 96, 32768, 32800, 32832, 32864, 32896]
    assert [card["memory_used_mb"] for card in said["cards"]] == [1844, 1846, 1845, 1846, 1844, 1843, 1844, 1846]


def test_a_fragment_under_its_own_header():
    head = "\n".join(text("npu-A3-26.0.rc2-wide-truncated.txt").split("\n")[:6])
    table = npu_text.parse_info(head + "\n" + text("npu-A3-26.0.rc2-proctable-containerNA-fragment.txt"))
    (row,) = table.rows
    assert (row.npu, row.chip, row.phy, row.memory()) == (7, 1, 15, (31877, 65536))
    assert process_rows(table.processes) == [[0, 0, 632268, "python3.1", 197]]


def test_the_map_gives_containers_their_own_numbers():
    table = text("npu-910B3-8cards-24.1.rc1.b030-idle-noproc.txt").split("\n")
    rows = "\n".join(table[:6] + table[15:21])
    answers = {"info": rows, "map": text("npu-map-container-npu3-npu4-logic0-1.txt")}
    found = KINDS["npu"].parse(answers).cards
    assert [(card["index"], card["board"], card["bus_id"]) for card in found] == [
        (0, 3, "0000:82:00.0"),
        (1, 4, "0000:01:00.0"),
    ]
    assert KINDS["npu"].parse({"info": rows}).cards == [], "without a map the numbers cannot be known"


def test_one_die_shown_twice_is_one_card():
    lines = text("npu-A3-8x2-25.2.3-procs-shared.txt").split("\n")
    head, die, again = lines[:6], lines[6:8], [lines[6], lines[7].replace("| 0     0 ", "| 1     0 ")]
    start = next(number for number, line in enumerate(lines) if "Process id" in line)
    rows = [*head, *die, lines[8], *again, lines[11], *lines[start - 1 : start + 8]]
    (card,) = KINDS["npu"].parse({"info": "\n".join(rows)}).cards
    assert (card["index"], card["memory_used_mb"], card["doubts"]) == (0, 53444, [])
    assert [found["pid"] for found in card["processes"]] == [3325989, 3330598, 3328327, 3333165]


def test_processes_of_a_table_without_a_list_come_from_proc_mem():
    info = text("npu-310P3duo-24.1.rc2-host-truncated.txt")
    asked = KINDS["npu"].more({"info": info})
    assert [command.args for command in asked] == [["info", "-t", "proc-mem", "-i", "1"]]
    answer = text("npu-procmem-310Pduo-id32768.txt").replace("32768", "1")
    first, second = KINDS["npu"].parse({"info": info, asked[0].key: answer}).cards
    assert [found["pid"] for found in first["processes"]] == [1976358, 1673754, 577293]
    assert [found["pid"] for found in second["processes"]] == [1654605, 716574]


def test_fault_codes_are_asked_for_and_shown():
    info = text("npu-910B2C-2cards-23.0.3-idle.txt").replace("| OK            | 93.8", "| Alarm         | 93.8")
    (asked,) = KINDS["npu"].more({"info": info})
    assert asked.args == ["info", "-t", "health", "-i", "1", "-c", "0"]
    good, bad = KINDS["npu"].parse({"info": info, asked.key: text("npu-health-alarm.txt")}).cards
    assert (good["health"], good["health_text"]) == ("ok", None)
    assert (bad["health"], bad["health_text"]) == ("bad", "Alarm A4025021 8C03A000 8C084E00")


@pytest.mark.parametrize(
    ("word", "health"),
    [
        ("OK", "ok"),
        ("Warning", "warning"),
        ("Alarm", "bad"),
        ("Critical", "bad"),
        ("UNKNOWN", "unknown"),
        ("Odd", "unknown"),
    ],
)
def test_health_words(word, health):
    info = text("npu-910B2C-2cards-23.0.3-idle.txt").replace("OK", word)
    assert [card["health"] for card in KINDS["npu"].parse({"info": info}).cards] == [health, health]


def test_compute_apps_find_their_card_by_bus_where_uuids_are_not_unique():
    gpus = (
        "index, uuid, pci.bus_id, memory.total [MiB], memory.used [MiB], utilization.gpu [%], name\n"
        "0, GPU-00000000-0000-0000-0000-000000000000, 00000000:00:08.0, 81559 MiB, 4 MiB, 0 %, NVIDIA H100 80GB HBM3\n"
        "1, GPU-00000000-0000-0000-0000-000000000000, 00000000:00:09.0, 81559 MiB, 19798 MiB, 0 %, "
        "NVIDIA H100 80GB HBM3\n"
    )
    first, second = KINDS["gpu"].parse({"gpus": gpus, "apps": text("nvidia-compute-apps-csv-h100-load.txt")}).cards
    assert first["processes"] == [] and first["doubts"] == []
    assert [(found["pid"], found["name"], found["memory_mb"]) for found in second["processes"]] == [
        (11327, "/root/tools/memhog", 2566),
        (11328, "/root/tools/memhog", 1542),
        (11345, "./gpu_burn", 15690),
    ]
