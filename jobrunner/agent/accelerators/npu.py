"""Ascend NPU: `npu-smi info` (the table), `npu-smi info -m` (which logical id each chip has).

A card is what the runtime counts: the *logical id*. The table does not print it on every model: there the map decides,
and without a map only what cannot be mistaken is taken. The table comes in many widths and column sets; titles rule.
"""

from . import tables
from .base import Command, Container, Kind, Reading, blank, doubt, new_card
from .links import Links
from .npu_text import parse_health, parse_info, parse_map, parse_proc_mem

_HEALTH = {"OK": "ok", "WARNING": "warning", "ALARM": "bad", "CRITICAL": "bad", "UNKNOWN": "unknown"}


def parse(answers):
    """The cards of the answers to `info`, `map`, and where asked `proc-mem <npu>` and `health <npu> <chip>`."""
    table = parse_info(answers.get("info", ""))
    mapping = parse_map(answers.get("map", ""))
    placed = _place(_distinct(table), mapping, table)
    cards = {}
    for index, row in placed:
        twice = row.twice or index in cards
        cards[index] = _card(index, row, answers)
        if twice:
            blank(cards[index])
            doubt(cards[index], "the tool shows this card twice, differently")
    _suspect(placed, cards, mapping, table)
    for key, entry in sorted((mapping or {}).items()):
        if entry[0] not in cards and table.rows:
            doubt(cards.setdefault(entry[0], new_card(entry[0])), "the tool's table shows no line for this card")
        if entry[0] in cards:
            cards[entry[0]]["board"] = key[0]
            cards[entry[0]]["model"] = cards[entry[0]]["model"] or entry[2]
    _attach(placed, cards, table, answers)
    return Reading([cards[index] for index in sorted(cards)], table.version, table.driver, table.warnings)


def _distinct(table):
    """Rows without those that show one die twice (soft-shared containers); `row.same` lists their (npu, chip).

    Of rows that say different things about one chip the first stays, marked `twice`."""
    found, seen, chips = [], {}, {}
    for row in table.rows:
        bus = tables.bus_id(row.said.get("Bus-Id"))
        mark = (row.npu, row.phy, bus)
        if row.phy is None or not bus:
            mark = (row.npu, row.chip, row.device, bus, str(sorted(row.said.items())))
        if mark in seen:
            seen[mark].same.append((row.npu, row.chip))
        elif (row.npu, row.chip) in chips:
            chips[row.npu, row.chip].twice = True
        else:
            seen[mark] = chips[row.npu, row.chip] = row
            found.append(row)
    return found


def _place(rows, mapping, table):
    """`[(logical id, row)]`: by the map, or by what the table itself leaves no doubt about."""
    placed = []
    for position, row in enumerate(rows):
        if mapping is not None:
            index = _mapped(row, mapping)
        elif row.device is not None:
            index = row.device
        elif row.phy is not None:
            index = row.phy if all(other.phy == i for i, other in enumerate(rows[: position + 1])) else None
        elif "Chip" not in row.titles or table.elided:
            index = row.npu
        else:
            index = row.npu if all(other.npu == i for i, other in enumerate(rows[: position + 1])) else None
        if index is None:
            why = "`npu-smi info -m` says otherwise" if mapping else "`npu-smi info -m` did not say"
            table.warnings.append("the logical id of NPU {} chip {} is not known: {}".format(row.npu, row.chip, why))
        else:
            placed.append((index, row))
    return placed


def _mapped(row, mapping):
    if row.chip is None:
        keys = [key for key in mapping if key[0] == row.npu]
        entry = mapping[keys[0]] if len(keys) == 1 else None
    else:
        entry = mapping.get((row.npu, row.chip))
    if entry is None or (row.device is not None and row.device != entry[0]):
        return None
    if row.phy is not None and entry[1] is not None and row.phy != entry[1]:
        return None
    return entry[0]


def _card(index, row, answers):
    card = new_card(index)
    said = row.said
    card["model"] = said.get("Name")
    card["health"] = _HEALTH.get(said.get("Health", "").upper(), "unknown")
    _, codes = parse_health(answers.get("health {} {}".format(row.npu, row.chip), ""))
    card["health_text"] = None if card["health"] == "ok" else " ".join(filter(None, (said.get("Health"), codes)))
    card["memory_used_mb"], card["memory_total_mb"] = row.memory()
    card["utilization"] = tables.number(said.get("AICore(%)", said.get("NPU_Util(%)")))
    card["temperature_c"] = tables.number(said.get("Temp(C)"))
    card["power_w"] = tables.number(said.get("Power(W)"))
    card["bus_id"] = tables.bus_id(said.get("Bus-Id"))
    card["board"] = row.npu
    if not row.whole:
        doubt(card, "a part of the card's lines was not understood")
    return card


def _suspect(placed, cards, mapping, table):
    """Where lines are missing, the two lines of a card may be of two cards: forget what they say.

    That is where the card after it is not shown, or an earlier chip of the same board."""
    keys = {key for row in table.rows for key in row.same}
    shown = [_number(row) for row in table.rows]
    if mapping:
        order = [mapping[key][0] for key in sorted(mapping)]
        shown = [_mapped(row, mapping) for row in table.rows]
    else:
        order = sorted(table.listed) if table.listed else list(range(max(shown) + 1 if shown else 0))
        shown = [row.npu for row in table.rows] if table.listed else shown
    for index, row in placed:
        here = shown[table.rows.index(row)]
        after = [value for value in order[order.index(here) + 1 :] if value != here] if here in order else []
        sibling = (row.npu, row.chip - 1) if row.chip else None
        alone = sibling is not None and sibling not in keys and (not mapping or sibling in mapping)
        if alone or (after and after[0] not in shown and not row.elided_after):
            blank(cards[index])
            doubt(cards[index], "the lines of the card next to it are missing from the tool's table")


def _number(row):
    """What counts the rows of a table one by one: the logical or physical id where it is printed, else the NPU id."""
    return row.device if row.device is not None else row.phy if row.phy is not None else row.npu


def _attach(placed, cards, table, answers):
    """Put the processes on their cards; a card whose NPU the process table leaves out is doubtful."""
    processes = list(table.processes)
    for key in answers:
        if key.startswith("proc-mem "):
            processes += parse_proc_mem(answers[key])
    homes = {}
    for index, row in placed:
        for npu, chip in row.same:
            homes.setdefault((npu, chip), cards[index])
            homes.setdefault((npu, None), cards[index])
    for npu, chip, process in processes:
        card = homes.get((npu, chip))
        if card is None:
            table.unread.add(npu)
        elif process["pid"] not in [other["pid"] for other in card["processes"]]:
            card["processes"].append(process)
    for index, row in placed:
        if table.unread & {None, row.npu}:
            doubt(cards[index], "a line of the process table was not understood")
        elif table.listed is None and table.warnings:
            doubt(cards[index], "lines of the tool's table were not understood, and it lists no processes")
        elif table.listed is not None and row.npu not in table.listed:
            doubt(cards[index], "the process table ends before this card")


def more(answers):
    """Further questions: the fault codes of cards that are not OK; processes where the table has no list of them."""
    table = parse_info(answers.get("info", ""))
    asked = [
        Command(
            "health {} {}".format(row.npu, row.chip),
            ["info", "-t", "health", "-i", str(row.npu)] + (["-c", str(row.chip)] if row.chip is not None else []),
        )
        for row in table.rows
        if row.said.get("Health", "OK").upper() != "OK"
    ]
    if table.listed is None:
        asked += [
            Command("proc-mem {}".format(npu), ["info", "-t", "proc-mem", "-i", str(npu)])
            for npu in sorted({row.npu for row in table.rows})
        ]
    return asked[:16]


_RELOGIN = "see whether this user may open the devices: `ls -l /dev/davinci*` (join the group HwHiAiUser, log in again)"
_SHARED = "stop the container that maps /dev/davinci*, or start this one with other cards"
_DRIVER = "/usr/local/Ascend/driver/lib64"
_COMMON = ("/dev/davinci_manager", "/dev/devmm_svm", "/dev/hisi_hdc")

KIND = Kind(
    name="npu",
    title="Ascend NPU",
    also=("ascend", "huawei"),
    variable="ASCEND_RT_VISIBLE_DEVICES",
    tool="npu-smi",
    commands=[Command("info", ["info"], needed=True), Command("map", ["info", "-m"])],
    more=more,
    parse=parse,
    places=("/usr/local/bin", "/usr/local/sbin", "/usr/local/Ascend/driver/tools", "/usr/sbin"),
    library_path=(_DRIVER, _DRIVER + "/common", _DRIVER + "/driver"),
    pci=(("0x19e5", ("0x1200",)),),
    nodes=("/dev/davinci_manager",),
    files=("/dev/davinci[0-9]*", "/dev/davinci_manager", "/dev/devmm_svm", "/dev/hisi_hdc"),
    needed=_COMMON,
    container=Container(
        each=("/dev/davinci{}",),
        common=_COMMON,
        mounts=(
            "/usr/local/dcmi",
            "/usr/local/bin/npu-smi",
            "/usr/local/Ascend/driver/lib64",
            "/usr/local/Ascend/driver/version.info",
            "/etc/ascend_install.info",
        ),
        runtime="ascend",
    ),
    # An idle card shows 0 %; a training one may, too, so that 0 % proves nothing.
    busy_percent=10,
    plugin="torch_npu",
    migrate=("torch_npu", "torch_npu.contrib.transfer_to_npu"),
    unset=("ASCEND_RT_VISIBLE_DEVICES",),
    links=(
        Links(("910B",), (("board", 8), ("board", 4)), strict=True),
        Links(
            ("910A", "910Pro", "910Premium", "=910"),
            (("board", 4),),
            counts=(1, 2, 4, 8),
            strict=True,
            prefer={1: (1, 3, 2, 4), 2: (2, 4, 3), 4: (4,)},
        ),
        Links(("310P",), (("board", 1),)),
        Links(("=310",), (("board", 1),), prefer={1: (1, 3, 2, 4), 2: (2, 4, 3), 3: (3, 4), 4: (4,)}),
        Links(("Ascend910",), (("board", 1),)),
        Links(("950", "Ascend950"), (("index", 2),)),
    ),
    idle=(
        ("910A", 100),
        ("910Pro", 100),
        ("910Premium", 100),
        ("910B", 3500),
        ("Ascend910", 3500),
        ("310P", 2000),
        ("310", 6000),
        ("950", 4500),
        ("Ascend950", 4500),
    ),
    errors=(
        (
            "the device is used",
            "cards_in_container",
            "npu-smi cannot use the cards: another container holds one of them (-8020)",
            _SHARED,
        ),
        ("-8020", "cards_in_container", "npu-smi cannot use the cards: something holds them (-8020)", _SHARED),
        (
            "-8005",
            "no_device",
            "npu-smi finds no usable device for this user (-8005)",
            _RELOGIN + "; after an upgrade of driver or firmware the host needs a reboot",
        ),
        ("-8002", "not_permitted", "npu-smi may not use the devices (-8002)", _RELOGIN),
        (
            "There is no NPU card",
            "no_card",
            "npu-smi says that this host has no NPU card",
            "name another host, or check the cards with `lspci -d 19e5:`",
        ),
        ("dcmi m", "no_device", "npu-smi cannot initialise its driver interface", _RELOGIN),
    ),
)
