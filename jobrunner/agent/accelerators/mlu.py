"""Cambricon MLU: `cnmon` (the table) and `cnmon info` (health, processes of some versions).

The number in the column Card is what MLU_VISIBLE_DEVICES takes. cnmon itself follows that variable, so it is asked
without it; and some of its verbs write into the current folder, so it runs in a private one.
"""

import re

from . import tables
from .base import Command, Container, Kind, Reading, Toolkit, blank, doubt, new_card, new_process
from .links import Links


class Table:
    """What the text of `cnmon` says. `rows`: `[(index, said, whole, titles)]`; `listed`: it has a process table."""

    def __init__(self):
        self.version = self.driver = None
        self.rows = []
        self.processes = []
        self.listed = self.ended = self.unread = False
        self.warnings = []


def _joined(cell):
    """A cell with each quantity as one word: `30 W/ 150 W` → `30W/150W`, `0 MiB/ 23308 MiB` → `0MiB/23308MiB`."""
    cell = re.sub(r"(\d|/A)\s+(W|MiB|C|%)(?=[\s/]|\Z)", r"\1\2", cell)
    return re.sub(r"(W|MiB|N/A|-)\s*/\s*(?=\d|N/A)", r"\1/", cell)


def parse_table(text):
    """The table as rows and processes; lines that do not fit their header are passed over with a warning."""
    table = Table()
    upper = header = shape = first = None
    for line in tables.lines(text):
        row = tables.cells(line)
        if row is None:
            first = _unpaired(table, first)
            if tables.is_border(line) and shape and (table.processes or table.unread or table.ended):
                table.ended = True
            elif table.listed and line.lstrip().startswith("|") and not tables.is_border(line):
                table.unread = True
            continue
        names = [_joined(cell).split() for cell in row]
        flat = [title for cell in names for title in cell]
        if _version(table, row):
            continue
        if row[0].startswith("Processes:"):
            upper = header = None
            table.listed = True
        elif table.listed:
            shape = _process(table, line, row, shape)
        elif "Card" in flat and "Name" in flat:
            upper, header, first = names, None, None
        elif upper is not None and header is None:
            header = names if "Memory-Usage" in flat and len(names) == len(upper) else None
            upper = upper if header else None
        elif header is None:
            table.warnings.append("a line without a header was passed over: {}".format(line.strip()[:60]))
        elif first is None:
            first = _upper(table, row, upper)
        else:
            _lower(table, first, row, upper, header)
            first = None
    _unpaired(table, first)
    return table


def _version(table, row):
    match = re.match(r"CNMON\s+(v\S+)(?:\s+Driver\s+(v\S+))?\Z", row[0]) if len(row) == 1 else None
    if match:
        table.version, table.driver = match.groups()
    return match is not None


def _unpaired(table, first):
    if first:
        table.warnings.append("a card's second line is missing (card {})".format(first[0]["Card"]))


def _upper(table, row, upper):
    got = tables.fields([_joined(cell) for cell in row], upper)
    said = got[0] if got else {}
    if tables.integer(said.get("Card")) is None or not re.search("[A-Za-z]", said.get("Name", "")):
        table.warnings.append("a line was not understood: {}".format(" | ".join(row)[:60]))
        return None
    return got


def _lower(table, first, row, upper, header):
    said, whole = first
    got = tables.fields([_joined(cell) for cell in row], header)
    if got is None or not re.match(r"(\d+C|N/A|-)\Z", got[0].get("Temp", "")):
        table.warnings.append("the second line of card {} was not understood".format(said["Card"]))
        return
    titles = frozenset(title for cell in upper + header for title in cell)
    table.driver = table.driver or (said.get("Driver") if re.match(r"v\d", said.get("Driver", "")) else None)
    table.rows.append((int(said["Card"]), dict(got[0], **said), whole and got[1], titles))


def _process(table, line, row, shape):
    """Read a line of the process table; returns the shape of its rows, known once its header was read."""
    text = line.strip()[1:-1].strip()
    if text.startswith("Card") and "PID" in text:
        words = (
            text.replace("Command Line", "Command").replace("MLU Memory", "Memory").replace("Memory Usage", "Memory")
        )
        words = words.split()
        place = words.index("PID")
        if words[-2:] == ["Command", "Memory"] and words[0] == "Card":
            return place - 1, len(words) - 3 - place
        table.unread = True
        return None
    if text == "No running processes found":
        table.ended = True
        return shape
    pattern = r"(\d{{1,4}})\s+(?:\S+\s+){{{}}}(\d{{1,9}})\s+(?:\S+\s+){{{}}}(.*?)\s*(?:(?<=\s)(\d{{1,9}})\s*MiB|N/A)\Z"
    match = re.match(pattern.format(*shape), text) if shape else None
    if match:
        memory = int(match.group(4)) if match.group(4) else None
        table.processes.append((int(match.group(1)), new_process(int(match.group(2)), match.group(3).strip(), memory)))
    else:
        table.unread = True
        table.warnings.append("a line of the process table was not understood: {}".format(text[:60]))
    return shape


def parse_details(text):
    """`{index: {(heading, title): value}}` of `cnmon info`, with the processes under the key "processes"."""
    found, card, heading, process = {}, None, "", None
    for line in tables.lines(text):
        start = re.match(r"Card\s+(\d{1,4})\Z", line.strip())
        if start:
            card = found.setdefault(int(start.group(1)), {"processes": []})
            heading, process = "", None
            continue
        match = re.match(r"( *)(\S.*?)\s*:(?:\s+(\S.*))?\Z", line)
        if card is None or not match:
            continue
        depth, title, value = len(match.group(1)), match.group(2), match.group(3)
        if depth <= 4 and value is None:
            if ("", title) in card:
                card["twice"] = True
            heading, card[("", title)] = title, None
        elif title == "Process":
            process = {}
            card["processes"].append(process)
        elif process is not None and depth > 8:
            process[title] = value
        else:
            key = (heading if depth > 4 else "", title)
            if key in card:
                card["twice"] = True
            card[key] = value
    return found


def _from_details(card, said):
    """Fill a card from `cnmon info`: health always, other values only where the table gave none."""
    health = said.get(("Health State", "Device"))
    if health is not None:
        card["health"] = "ok" if health.lower() in ("good", "ok", "healthy", "normal") else "bad"
        card["health_text"] = None if card["health"] == "ok" else health
    used = tables.number(said.get(("Physical Memory Usage", "Used")), "MiB")
    total = tables.number(said.get(("Physical Memory Usage", "Total")), "MiB")
    if card["memory_used_mb"] is None and used is not None and total and used <= total:
        card["memory_used_mb"], card["memory_total_mb"] = int(used), int(total)
    facts = {
        "model": said.get(("", "Product Name")),
        "utilization": tables.number(said.get(("Utilization", "MLU Average")), "%"),
        "temperature_c": tables.number(said.get(("Temperature", "Chip"), said.get(("Temperature", "Board"))), "C"),
        "power_w": tables.number(said.get(("Power", "Usage")), "W"),
        "bus_id": _bus(said),
    }
    for key, value in facts.items():
        card[key] = value if card[key] is None else card[key]
    for process in said["processes"]:
        pid = tables.integer(process.get("PID"))
        memory = tables.number(process.get("MLU Memory Usage"), "MiB")
        if pid is None:
            doubt(card, "a process on the card was not understood")
        elif pid not in [other["pid"] for other in card["processes"]]:
            card["processes"].append(new_process(pid, process.get("cmdline"), None if memory is None else int(memory)))


def _bus(said):
    words = [said.get(("PCI", title)) for title in ("Domain ID", "Bus num", "Device", "Function")]
    return tables.bus_id("{}:{}:{}.{}".format(*words)) if all(words) else None


def parse(answers):
    """The cards of the answers to `table` (plain cnmon) and `details` (cnmon info); either alone is enough."""
    table = parse_table(answers.get("table", ""))
    details = parse_details(answers.get("details", ""))
    cards = {}
    for index, said, whole, titles in table.rows:
        card = _card(index, said, whole, titles)
        if index in cards and cards[index] != card:
            blank(cards[index])
            doubt(cards[index], "the tool shows this card twice, differently")
        else:
            cards[index] = card
    _suspect(cards, details)
    for index, said in details.items():
        card = cards.setdefault(index, new_card(index))
        last = index == max(list(cards) + list(details))
        if "twice" in said or (index + 1 not in details and not last):
            doubt(card, "the details of the card could not be told from the next card's")
        else:
            _from_details(card, said)
    for index, process in table.processes:
        if index in cards and process["pid"] not in [other["pid"] for other in cards[index]["processes"]]:
            cards[index]["processes"].append(process)
        elif index not in cards:
            table.unread = True
    for card in cards.values():
        if table.unread:
            doubt(card, "a line of the process table was not understood")
        elif table.rows and not (table.listed and table.ended):
            doubt(card, "the process table is missing or cut")
    banner = re.search(r"CNMON (v\S+?)=*\s", answers.get("details", ""))
    version = table.version or (banner.group(1) if banner else None)
    return Reading([cards[index] for index in sorted(cards)], version, table.driver, table.warnings)


def _card(index, said, whole, titles):
    card = new_card(index)
    card["model"] = said["Name"]
    card["memory_used_mb"], card["memory_total_mb"] = tables.pair(said.get("Memory-Usage"), "MiB")
    card["utilization"] = tables.number(said.get("Util"), "%")
    card["temperature_c"] = tables.number(said.get("Temp"), "C")
    card["power_w"] = tables.number(said.get("Pwr:Usage/Cap", "").partition("/")[0], "W")
    card["bus_id"] = tables.bus_id(said.get("Bus-Id"))
    # The table has no column for health; a card that answers with its memory is taken as well.
    inited = said.get("Inited", "On")
    card["health"] = "unknown" if card["memory_used_mb"] is None else "ok" if inited == "On" else "bad"
    card["health_text"] = None if inited == "On" else "Inited {}".format(inited)
    if not whole:
        doubt(card, "a part of the card's lines was not understood")
    return card


def _suspect(cards, details):
    """Where the lines of the next card are missing, a card's second line may be that one's: forget its values."""
    last = max(list(cards) + list(details) + [0])
    for index in cards:
        if index + 1 not in cards and index != last:
            blank(cards[index])
            doubt(cards[index], "the lines of the card after it are missing from the tool's table")


KIND = Kind(
    name="mlu",
    title="Cambricon MLU",
    also=("cambricon",),
    variable="MLU_VISIBLE_DEVICES",
    tool="cnmon",
    commands=[Command("table", [], needed=True), Command("details", ["info"])],
    parse=parse,
    places=("/usr/bin", "/usr/local/bin", "/usr/local/neuware/bin"),
    library_path=("/usr/local/neuware/lib64",),
    pci=(("0xcabc", ("0x",)),),
    nodes=("/dev/cambricon_ctl",),
    files=("/dev/cambricon*",),
    container=Container(
        each=("/dev/cambricon_dev{}", "/dev/cambricon_ipcm{}"),
        common=("/dev/cambricon_ctl",),
        mounts=("/usr/bin/cnmon",),
        runtime="cambricon",
    ),
    toolkit=Toolkit(
        "Neuware",
        "NEUWARE_HOME",
        "/usr/local/neuware",
        version=("version.txt", r"([0-9]+\.[0-9]+(?:\.[0-9]+)?)"),
        missing="install CNToolkit",
    ),
    busy_percent=10,
    plugin="torch_mlu",
    migrate=("torch_mlu", "torch_mlu.utils.gpu_migration"),
    unset=("MLU_VISIBLE_DEVICES", "MLU_VISIBLE_DEVICE"),
    links=(
        Links(("MLU370-X8", "MLU590-H8"), (("index", 8), ("index", 2))),
        Links(("MLU290", "MLU370-M8"), (("index", 8),)),
    ),
    idle=(("MLU", 100), ("", 100)),
    errors=(
        (
            "no device found",
            "no_card",
            "cnmon says that this host has no MLU card",
            "name another host, or check the cards with `lspci -d cabc:`",
        ),
        (
            "NO_DRIVER",
            "driver_missing",
            "cnmon says that the MLU driver is not loaded",
            "load the driver (as root), or ask the host's administrator",
        ),
        (
            "LOW_DRIVER_VERSION",
            "driver_mismatch",
            "cnmon says that the MLU driver is too old for it",
            "upgrade the driver, or use the cnmon that came with it",
        ),
    ),
)
