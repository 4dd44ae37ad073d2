"""A made-up accelerator: the one file by which a vendor is added. `zpu-smi list` prints `0 Z1 fine 4/32768 0%`."""

from . import tables
from .base import Command, Container, Kind, Reading, Toolkit, doubt, new_card, new_process


def parse(answers):
    """The cards of the answer to `list`, the processes of the answer to `ps`."""
    reading = Reading(version="1.0", driver="1.0")
    cards = {}
    for line in tables.lines(answers.get("list", "")):
        words = line.split()
        if len(words) == 5 and words[0].isdigit():
            card = cards[int(words[0])] = new_card(int(words[0]))
            card["model"] = words[1]
            card["health"] = {"fine": "ok", "hot": "warning"}.get(words[2], "bad")
            card["health_text"] = None if words[2] == "fine" else words[2]
            card["memory_used_mb"], card["memory_total_mb"] = tables.pair(words[3])
            card["utilization"] = tables.number(words[4], "%")
    for line in tables.lines(answers.get("ps", "")):
        words = line.split(None, 3)
        if len(words) == 4 and int(words[0]) in cards:
            cards[int(words[0])]["processes"].append(new_process(int(words[1]), words[3], int(words[2])))
        elif words and words[0] != "end":
            for card in cards.values():
                doubt(card, "a line of the list of processes was not understood")
    reading.cards = [cards[index] for index in sorted(cards)]
    return reading


KIND = Kind(
    name="zpu",
    title="Zeta ZPU",
    also=("zeta",),
    variable="ZPU_VISIBLE_DEVICES",
    tool="zpu-smi",
    commands=[Command("list", ["list"], needed=True), Command("ps", ["ps"])],
    parse=parse,
    places=("/usr/bin",),
    nodes=("/dev/zpu0",),
    idle=(("Z1", 10),),
    unset=("ZPU_VISIBLE_DEVICES",),
    toolkit=Toolkit("Zeta SDK", "ZETA_HOME", "/opt/zeta", version=("version", r"([0-9.]+)")),
    container=Container(each=("/dev/zpu{}",), common=("/dev/zpu-ctl",), runtime="zeta"),
    plugin="torch_zpu",
    migrate=("torch_zpu", "torch_zpu.cuda"),
)
