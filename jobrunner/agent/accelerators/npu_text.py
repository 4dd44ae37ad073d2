"""What the texts of `npu-smi` say, as values: the table in all its layouts, the map, processes, health."""

import re

from . import tables
from .base import new_process


class Row:
    """Two lines of the table: one chip. `npu`, `chip`, `device`, `phy` are ints or None; `said` is title → value."""

    def __init__(self, said, whole):
        self.said = said
        self.whole = whole
        self.npu = _npu(said)
        self.chip = tables.integer(said.get("Chip"))
        self.device = tables.integer(said.get("Device"))
        self.phy = tables.integer(said.get("Phy-ID"))
        self.elided_after = False
        self.same = [(self.npu, self.chip)]
        self.twice = False
        self.titles = frozenset()

    def memory(self):
        """Used and total MB of the memory that counts: HBM where the table has it, else the device's own."""
        title = "HBM-Usage(MB)" if "HBM-Usage(MB)" in self.titles else "Memory-Usage(MB)"
        return tables.pair(self.said.get(title))


class Table:
    """What `npu-smi info` says. `listed`: NPU ids of the process table, idle ones too; None: there is no such table."""

    def __init__(self):
        self.version = self.driver = None
        self.rows = []
        self.processes = []
        self.listed = None
        self.unread = set()
        self.elided = False
        self.warnings = []


def parse_info(text):
    """The table as rows and processes; lines that do not fit their header are passed over with a warning."""
    table = Table()
    upper = header = process_header = first = None
    for line in tables.lines(text):
        if tables.is_elision(line):
            table.elided = True
            if table.rows and process_header is None:
                table.rows[-1].elided_after = True
            continue
        row = tables.cells(line)
        if row is None:
            first = _unpaired(table, first)
            if line.strip() and not tables.is_border(line) and line.lstrip()[0] == "|":
                table.warnings.append("a cut line was passed over: {}".format(line.strip()[:60]))
                if process_header is not None:
                    table.unread.add(None)
            continue
        names = tables.titles(row)
        flat = [title for cell in names for title in cell]
        if _version(table, row):
            continue
        if "Health" in flat and "Name" in flat:
            upper, header, process_header, first = names, None, None, None
        elif upper is not None and header is None:
            header = names if "Bus-Id" in flat and len(names) == len(upper) else None
            upper = upper if header else None
        elif "Process_id" in flat:
            process_header = names
            table.listed = set() if table.listed is None else table.listed
        elif process_header is not None:
            _process(table, row, process_header)
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
    """Take the versions from the line that names them; True if this is that line."""
    match = re.match(r"npu-smi\s+(\S+)\s+Version:\s*(\S+)\Z", row[0]) if len(row) == 1 else None
    if match:
        table.version, table.driver = match.group(1), match.group(2)
    return match is not None


def _unpaired(table, first):
    if first:
        table.warnings.append("a card's second line is missing (NPU {})".format(_npu(first[0])))


def _npu(said):
    return tables.integer(said.get("NPU", said.get("NPU_ID")))


def _upper(table, row, upper):
    """`(said, whole)` of a chip's first line, or None if it is none."""
    got = tables.fields(row, upper, tail="Name")
    said, whole = got if got else ({}, False)
    npu = _npu(said)
    health = said.get("Health", "")
    temperature = said.get("Temp(C)", "-")
    if npu is None or not re.match(r"[A-Za-z]+\Z", health) or not re.match(r"(\d+|NA|N/A|-)\Z", temperature):
        table.warnings.append("a line was not understood: {}".format(" | ".join(row)[:60]))
        return None
    return said, whole


def _lower(table, first, row, upper, header):
    said, whole = first
    got = tables.fields(row, header)
    if got is None or not _is_lower(got[0], header):
        table.warnings.append("the second line of NPU {} was not understood".format(_npu(said)))
        return
    entry = Row(dict(got[0], **said), whole and got[1])
    entry.titles = frozenset(title for cell in upper + header for title in cell)
    table.rows.append(entry)


def _is_lower(said, header):
    """A chip's second line has its chip number (where there is such a column) and a bus address or NA."""
    flat = [title for cell in header for title in cell]
    for title in ("Chip", "Device", "Phy-ID"):
        if title in flat and tables.integer(said.get(title)) is None:
            return False
    bus = said.get("Bus-Id", "")
    return bus in ("NA", "N/A", "-") or tables.bus_id(bus) is not None


def _process(table, row, header):
    """One line of the process table: a process, "no processes", or something that makes its NPU doubtful."""
    match = re.match(r"No running processes found in NPU (\d+)\Z", row[0]) if len(row) == 1 else None
    if match:
        table.listed.add(int(match.group(1)))
        return
    got = tables.fields(row, header, tail="Process_name")
    said = got[0] if got else {}
    if got and "Process_name" not in said and ["Process_name"] in header:
        said["Process_name"] = row[header.index(["Process_name"])]
    if not said:
        said = tables.values(row[0], header[0]) or {}
    npu = _npu(said)
    chip, pid = tables.integer(said.get("Chip")), tables.integer(said.get("Process_id"))
    if npu is not None:
        table.listed.add(npu)
    if npu is None or pid is None or ("Chip" in header[0] and chip is None):
        table.unread.add(npu)
        table.warnings.append("a line of the process table was not understood: {}".format(" | ".join(row)[:60]))
        return
    memory = tables.integer(said.get("Process_memory(MB)"))
    table.processes.append((npu, chip, new_process(pid, said.get("Process_name"), memory)))


def parse_map(text):
    """`{(npu, chip): (logical id, physical id or None, name)}` of `info -m`; None: no map, or it contradicts itself."""
    names, found = None, {}
    for line in tables.lines(text):
        words = re.split(r"\s{2,}", line.strip())
        if "NPU ID" in words and "Chip ID" in words:
            names = words
        elif names and len(words) == len(names):
            said = dict(zip(names, words))
            key = tables.integer(said["NPU ID"]), tables.integer(said["Chip ID"])
            logical = tables.integer(said.get("Chip Logic ID", said["NPU ID"]))
            if None in key or logical is None or said.get("Chip Name", "").lower() == "mcu":
                continue
            if key in found and found[key][0] != logical:
                return None
            found[key] = (logical, tables.integer(said.get("Chip Phy-ID")), said.get("Chip Name"))
    ids = [entry[0] for entry in found.values()]
    return found if found and len(ids) == len(set(ids)) else None


def parse_proc_mem(text):
    """`[(npu, chip, process)]` of `info -t proc-mem`; there `Chip ID` stands below what it belongs to."""
    npu, waiting, found = None, [], []
    for line in tables.lines(text):
        title, _, value = line.partition(" : ") if "Process id:" not in line else ("", "", "")
        if title.strip() == "NPU ID":
            npu = tables.integer(value.strip())
        elif title.strip() == "Chip ID":
            found += [(npu, tables.integer(value.strip()), process) for process in waiting]
            waiting = []
        match = re.match(r"\s*Process id:(\d{1,9})\s+Process name:(.*?)\s*Process memory\(MB\):(\d{1,9})\Z", line)
        if match:
            waiting.append(new_process(int(match.group(1)), match.group(2).strip(), int(match.group(3))))
    return found + [(npu, None, process) for process in waiting]


def parse_health(text):
    """`(health word, fault codes or None)` of `info -t health`; (None, None) if it says neither."""
    word = codes = None
    for line in tables.lines(text):
        match = re.match(r"\s*(Health Status|Health|Error Code)\s+:\s+(\S.*)\Z", line)
        if match and match.group(1) == "Error Code":
            codes = None if match.group(2).strip() == "NA" else match.group(2).strip()
        elif match:
            word = match.group(2).strip()
    return word, codes
