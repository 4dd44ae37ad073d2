"""Moore Threads GPU: the table of `mthreads-gmi` (cards, processes), and `mthreads-gmi -q` (power, a second look).

The table has three lines a card, whose values stand under the titles at its head, then the list of processes. It has no
word for health. What is said here about its forms comes from outputs that users published (tests/data/accelerators):
tool 1.12 to 2.4 on S80, S3000, S4000 and S5000. Other facts and where they are said:

* `MUSA_VISIBLE_DEVICES`, /usr/local/musa and its version.json: docs.mthreads.com (MUSA SDK, installation and check of
  versions), modelscope/ms-swift docs/source/BestPractices/MUSA-support.md
* PCI vendor 1ed5, /dev/mtgpu.N, /dev/dri, groups video and render: docs.mthreads.com (driver installation, vGPU), pages
  of the FlagOS images (flagos-runtime-mthreads), which also name the files that a container gets
* torch_musa, and torchada for CUDA scripts: MooreThreads/torch_musa and MooreThreads/torchada, README
"""

import re

from . import tables
from .base import Command, Container, Kind, Reading, Toolkit, doubt, new_card, new_process

_FIRST = re.compile(r"\s*(\d{1,4})\s+(MTT\b.*?)\s*\Z")
_PROCESS = re.compile(r"\s*(\d{1,4})\s+(\d{1,9})\s+(?:(\S.*?)\s+)?(\d{1,9})\s*MiB\Z")
_MEMORY = re.compile(r"(\d{1,9})MiB\((\d{1,9})MiB\)\Z")
_BANNER = re.compile(r"\s*mthreads-gmi:\s*(\S+)\s+Driver Version:\s*(\S+)")
_IDLE = "No running processes found"


class _Table:
    """The table while it is read: what its head says, the card whose lines are being read, and what was odd."""

    def __init__(self):
        self.cards = {}
        self.version = self.driver = None
        self.warnings = []
        self.titles = {}
        self.current = None
        self.seconds = set()
        self.part = "cards"
        self.listed = self.ended = self.unread = False
        self.processes = []

    def read(self, text):
        for line in tables.lines(text):
            bare = line.strip()
            banner = _BANNER.match(line)
            if banner:
                self.version, self.driver = banner.groups()
            elif bare.startswith("Processes:"):
                self.part, self.current = "head", None
            elif len(bare) > 20 and not bare.strip("-+"):
                self._border(bare)
            elif bare and self.part == "cards":
                self._of_cards(line)
            elif bare and self.part in ("head", "processes"):
                self._of_processes(bare)
        return self

    def _border(self, bare):
        self.current = None
        if self.part == "processes" and "+" not in bare:
            self.part, self.ended = "after", True

    def _of_cards(self, line):
        cells = [cell.strip() for cell in line.split("|")]
        if cells[0].startswith("ID ") and len(cells) == 3:
            self.titles["first"] = cells[2].split()
        elif cells[0].startswith("Device Type") and len(cells) == 3:
            self.titles["second"] = cells[2].replace("MPC Capable", "MPC").split()
        elif _FIRST.match(cells[0]) and "first" in self.titles:
            self._first(cells)
        elif cells[0] and len(cells) == 3 and "second" in self.titles and self.current is not None:
            self._second(cells)
        elif cells[0]:
            self.current = None
            if self.titles and not tables.is_elision(line):
                self.warnings.append("a line of mthreads-gmi's table was not understood")

    def _first(self, cells):
        index, model = _FIRST.match(cells[0]).groups()
        index = int(index)
        if index in self.cards:
            self.current = self.cards[index]
            doubt(self.current, "the tool shows this card twice")
            return
        self.current = card = self.cards[index] = new_card(index)
        said = dict(zip(self.titles["first"], cells[2].split())) if len(cells) == 3 else {}
        if len(said) != len(self.titles["first"]) or len(cells[2].split()) != len(said):
            doubt(card, "a part of the card's lines was not understood")
            return
        card["model"] = model if " " in model else None
        card["bus_id"] = tables.bus_id(cells[1])
        card["utilization"] = tables.number(said.get("%GPU"), "%")
        _memory(card, _MEMORY.match(said.get("Mem", "")))

    def _second(self, cells):
        card = self.current
        values = cells[2].split()
        if card["index"] in self.seconds:
            card["temperature_c"] = None
            doubt(card, "the tool shows this card's second line twice")
        elif len(values) == len(self.titles["second"]):
            said = dict(zip(self.titles["second"], values))
            card["temperature_c"] = tables.number(said.get("Temp"), "C")
        else:
            doubt(card, "a part of the card's lines was not understood")
        self.seconds.add(card["index"])
        if cells[0].startswith("MPC "):
            doubt(card, "the tool calls it {}: the card is partitioned".format(cells[0].split("  ")[0]))

    def _of_processes(self, bare):
        if self.part == "head":
            # Two lines of titles: the second holds but `Usage`.
            if bare.startswith("ID ") and "PID" in bare and "GPU Memory" in bare:
                self.part = "processes"
            return
        row = _PROCESS.match(bare)
        if row:
            self.listed = True
            index, pid, name, memory = row.groups()
            self.processes.append((int(index), new_process(int(pid), name, int(memory))))
        elif bare == _IDLE:
            self.listed = True
        elif bare != "Usage":
            self.unread = True


def _memory(card, match):
    """Memory in use and in all; both or none: without an IOMMU some drivers show more in use than there is."""
    used, total = (int(number) for number in match.groups()) if match else (None, None)
    if total and used <= total:
        card["memory_used_mb"], card["memory_total_mb"] = used, total


def parse_details(text):
    """`{index: {title: value}}` of `mthreads-gmi -q`; a value below a heading has both words as its title."""
    found, said, heading = {}, None, ""
    for line in tables.lines(text):
        start = re.match(r"\s*GPU(\d{1,4})\s+(\S+)\s*\Z", line)
        title, colon, value = (part.strip() for part in line.partition(" : "))
        if start:
            said = found.setdefault(int(start.group(1)), {"Bus": start.group(2)})
            heading = ""
        elif said is not None and colon:
            said.setdefault(heading + title, value)
        elif title:
            heading = title + " "
    return found


def parse(answers):
    """The cards of the answers to `table` and `details`."""
    table = _Table().read(answers.get("table", ""))
    details = parse_details(answers.get("details", ""))
    cards = table.cards
    _suspect(cards, details)
    if cards:
        for index in sorted(set(details) - set(cards)):
            cards[index] = new_card(index)
            doubt(cards[index], "its lines are missing from the tool's table")
    for index, process in table.processes:
        if index not in cards:
            table.unread = True
        elif process["pid"] not in [other["pid"] for other in cards[index]["processes"]]:
            cards[index]["processes"].append(process)
    for index, card in cards.items():
        _finish(card, details.get(index, {}))
        if table.unread:
            doubt(card, "a line of the list of processes was not understood")
        elif not (table.listed and table.ended):
            doubt(card, "the list of processes is missing or cut")
    return Reading([cards[index] for index in sorted(cards)], table.version, table.driver, table.warnings)


def _suspect(cards, details):
    """Where the lines of the next card are missing, a card's second line may be that one's: forget what it said."""
    last = max(list(cards) + list(details) + [0])
    for index, card in cards.items():
        if index != last and index + 1 not in cards:
            card["temperature_c"] = None
            doubt(card, "the lines of the card after it are missing from the tool's table")


def _finish(card, said):
    """What only `-q` tells; and its word where the table's is missing. Two models for one card: neither is believed."""
    model = said.get("Product Name")
    if model and card["model"] not in (None, model):
        card["model"] = None
        doubt(card, "`mthreads-gmi -q` calls this card {}".format(model))
    else:
        card["model"] = card["model"] or model
    if card["memory_used_mb"] is None:
        words = [re.match(r"(\d{1,9})\s*MiB\Z", said.get("FB Memory Usage " + key, "")) for key in ("Used", "Total")]
        if all(words):
            _memory(card, re.match(r"(\d+) (\d+)\Z", " ".join(word.group(1) for word in words)))
    card["power_w"] = tables.number(said.get("Power Readings Power Draw"), "W")
    # There is no word for health; a card that answers with its memory is taken as well.
    card["health"] = "unknown" if card["memory_used_mb"] is None else "ok"


KIND = Kind(
    name="musa",
    title="Moore Threads GPU",
    also=("mthreads", "moore_threads", "moorethreads", "mtt"),
    variable="MUSA_VISIBLE_DEVICES",
    tool="mthreads-gmi",
    commands=[Command("table", [], needed=True), Command("details", ["-q"])],
    parse=parse,
    places=("/usr/bin", "/usr/local/bin"),
    library_path=("/usr/lib/x86_64-linux-gnu/musa",),
    pci=(("0x1ed5", ("0x0300", "0x0302")),),
    nodes=("/dev/mtgpu.0",),
    files=("/dev/mtgpu.*", "/dev/dri/renderD*"),
    unset=("MUSA_VISIBLE_DEVICES",),
    # An idle S4000 shows 2 MB or, with driver 3.1, 562 MB; S80 and S5000 show up to 10 MB.
    idle=(("MTT S4000", 562), ("", 64)),
    toolkit=Toolkit(
        "MUSA toolkit",
        "MUSA_HOME",
        "/usr/local/musa",
        version=("version.json", r'"musa_toolkits"\s*:\s*\{\s*"version"\s*:\s*"([0-9][\w.]*)"'),
        libraries="lib",
    ),
    container=Container(
        each=("/dev/mtgpu.{}",),
        common=("/dev/dri",),
        mounts=("/usr/bin/mthreads-gmi",),
        runtime="mthreads",
    ),
    plugin="torch_musa",
    migrate=("torch_musa", "torchada"),
)
