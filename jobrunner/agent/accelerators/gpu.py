"""NVIDIA GPU: `nvidia-smi --query-gpu` and `--query-compute-apps`, as CSV whose header says what each column is; and
`nvidia-smi topo -m` for which cards are near each other.

The number that CUDA_VISIBLE_DEVICES takes is nvidia-smi's `index` if CUDA counts by the bus as well
(CUDA_DEVICE_ORDER=PCI_BUS_ID: CUDA C programming guide, environment variables).
"""

import re

from . import near, tables
from .base import Command, Container, Kind, Reading, Toolkit, doubt, new_card, new_process

_GPUS = "index,uuid,pci.bus_id,driver_version,memory.total,memory.used,utilization.gpu,temperature.gpu,name,power.draw"
_APPS = "gpu_uuid,gpu_bus_id,pid,used_gpu_memory,process_name"


def parse_csv(text, need, free_text=None):
    """`[{title: value}]` of a CSV with header; None without a header that has all of `need`. A line that has not
    exactly the header's columns gives None in its place, except that a column `free_text` may hold commas."""
    names, units, found = None, None, []
    for line in text.replace("\r", "").split("\n"):
        words = line.strip().split(", ")
        if names is None:
            plain = [re.sub(r"\s*\[.*\]\Z", "", word) for word in words]
            if all(title in plain for title in need):
                names, units = plain, dict(zip(plain, (re.search(r"\[(.*)\]\Z", word) for word in words)))
            continue
        if not line.strip():
            continue
        extra = len(words) - len(names)
        if extra > 0 and free_text in names:
            place = names.index(free_text)
            words[place : place + extra + 1] = [", ".join(words[place : place + extra + 1])]
        found.append(dict(zip(names, words)) if len(words) == len(names) else None)
    return None if names is None else [_united(row, units) for row in found]


def _united(row, units):
    """Values whose header names a unit must carry it; the others (`[N/A]`, a value cut short) are dropped."""
    if row is None:
        return None
    for title, unit in units.items():
        if (unit and not row[title].endswith(" " + unit.group(1))) or (
            row[title] is not None and re.match(r"\[.*\]\Z", row[title])
        ):
            row[title] = None
        elif unit:
            row[title] = row[title][: -len(unit.group(1)) - 1]
    return row


def parse(answers):
    """The cards of the answers to `gpus` and `apps`."""
    rows = parse_csv(answers.get("gpus", ""), ("index",))
    reading = Reading()
    uuids = {}
    for row in rows or ():
        index = tables.integer(row.get("index")) if row else None
        if index is None:
            reading.warnings.append("a line of nvidia-smi's answer was not understood")
            continue
        card = _card(index, row)
        same = [other for other in reading.cards if other["index"] == index]
        if same:
            doubt(same[0], "the tool shows this card twice")
            continue
        reading.cards.append(card)
        reading.driver = reading.version = row.get("driver_version") or reading.driver
        uuids.setdefault(row.get("uuid"), []).append(card)
    _attach(reading, uuids, answers.get("apps", ""))
    rows = near.rows(near.parse(answers.get("topo", "")), [card["index"] for card in reading.cards])
    for card in reading.cards:
        card["near"] = rows.get(card["index"])
    reading.cards.sort(key=lambda card: card["index"])
    return reading


def _card(index, row):
    card = new_card(index)
    used, total = tables.integer(row.get("memory.used")), tables.integer(row.get("memory.total"))
    if used is not None and total and used <= total:
        card["memory_used_mb"], card["memory_total_mb"] = used, total
    card["model"] = row.get("name")
    card["utilization"] = tables.number(row.get("utilization.gpu"))
    card["temperature_c"] = tables.number(row.get("temperature.gpu"))
    card["power_w"] = tables.number(row.get("power.draw"))
    card["bus_id"] = tables.bus_id(row.get("pci.bus_id"))
    # nvidia-smi has no word for health; a card that answers with its memory is taken as well.
    card["health"] = "unknown" if card["memory_used_mb"] is None else "ok"
    if card["utilization"] is None:
        doubt(card, "the tool shows no utilization: the card may be partitioned (MIG)")
    return card


def _attach(reading, uuids, text):
    """Put the processes on their cards, by UUID, or by bus id where a UUID is not unique."""
    rows = parse_csv(text, ("pid", "process_name"), free_text="process_name")
    if rows is None:
        for card in reading.cards:
            doubt(card, "the tool did not say which processes use the card")
        return
    for row in rows:
        pid = tables.integer(row.get("pid")) if row else None
        cards = uuids.get(row.get("gpu_uuid"), []) if row and row.get("gpu_uuid") else []
        if len(cards) != 1 and row:
            bus = row.get("gpu_bus_id")
            cards = [card for card in reading.cards if bus and card["bus_id"] == bus]
        if pid is None or len(cards) != 1:
            for card in reading.cards:
                doubt(card, "a line of the list of processes was not understood")
            continue
        if pid not in [other["pid"] for other in cards[0]["processes"]]:
            memory = tables.integer(row.get("used_gpu_memory"))
            cards[0]["processes"].append(new_process(pid, row.get("process_name"), memory))


def more(answers):
    """Which cards are near each other matters from three on."""
    found = [row for row in parse_csv(answers.get("gpus", ""), ("index",)) or () if row]
    return [Command("topo", ["topo", "-m"])] if len(found) > 2 else []


KIND = Kind(
    name="gpu",
    title="NVIDIA GPU",
    also=("cuda", "nvidia"),
    variable="CUDA_VISIBLE_DEVICES",
    tool="nvidia-smi",
    commands=[
        Command("gpus", ["--query-gpu=" + _GPUS, "--format=csv"], needed=True),
        Command("apps", ["--query-compute-apps=" + _APPS, "--format=csv"]),
    ],
    more=more,
    parse=parse,
    places=("/usr/bin", "/usr/local/bin", "/usr/lib/wsl/lib", "/usr/local/nvidia/bin"),
    library_path=("/usr/lib/wsl/lib", "/usr/local/nvidia/lib64"),
    pci=(("0x10de", ("0x0300", "0x0302")),),
    nodes=("/dev/nvidiactl",),
    files=("/dev/nvidia[0-9]*", "/dev/nvidiactl", "/dev/nvidia-uvm"),
    container=Container(runtime="nvidia", gpus=True),
    # No variable: a job gets nothing of it, as torch brings its own CUDA.
    toolkit=Toolkit(
        "CUDA toolkit",
        None,
        "/usr/local/cuda",
        version=("version.json", r'"version"\s*:\s*"([0-9.]+)"'),
        driver=("/proc/driver/nvidia/version", r"Kernel Module[^\n]*?\s([0-9]+\.[0-9]+(?:\.[0-9]+)?)\s"),
    ),
    torch="cuda",
    migrate=None,
    unset=("CUDA_VISIBLE_DEVICES",),
    # Without this CUDA counts the cards by speed, and nvidia-smi by their place on the bus.
    extra={"CUDA_DEVICE_ORDER": "PCI_BUS_ID"},
    # No `busy_percent`: asked without the persistence mode, an idle card shows what its own start costs.
    idle=(("", 300),),
    errors=(
        (
            "Driver/library version mismatch",
            "driver_mismatch",
            "nvidia-smi does not fit the loaded driver: it was upgraded without a reboot",
            "reboot the host, or reload the nvidia kernel modules (as root)",
        ),
        (
            "couldn't communicate with the NVIDIA driver",
            "driver_missing",
            "nvidia-smi cannot reach the NVIDIA driver",
            "check that the driver is loaded (`lsmod | grep nvidia`); after an upgrade the host needs a reboot",
        ),
        (
            "No devices were found",
            "no_card",
            "nvidia-smi says that this host has no GPU",
            "name another host, or check the cards with `lspci -d 10de:`",
        ),
        (
            "Insufficient Permissions",
            "not_permitted",
            "nvidia-smi may not use the devices",
            "check the mode of /dev/nvidia*, or ask the host's administrator",
        ),
    ),
)
