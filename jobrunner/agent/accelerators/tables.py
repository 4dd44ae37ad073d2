"""Reading the tables that vendors' tools draw: a row counts only if it is whole and fits the header above it."""

import re

LONGEST = 1000
_WORDS = (
    "Process id in container", "Process id", "Process name", "Process memory(MB)", "Process memory(MiB)",
    "NPU Util(%)", "NPU ID", "Chip Logic ID", "Chip Phy-ID", "Chip ID", "Chip Name", "Slot ID",
)  # fmt: skip


def lines(text):
    """The lines of a tool's output, without carriage returns, tabs as blanks; absurdly long ones are cut."""
    return [line[:LONGEST].replace("\t", " ").rstrip() for line in text.replace("\r", "").split("\n")]


def is_border(line):
    """True for lines like `+----+====+` and `|====+====|`."""
    return re.match(r"\s*[+|][-=+|]*[+|]\s*\Z", line) is not None


def is_elision(line):
    """True for the `...` by which people (never tools) shorten a table."""
    return re.match(r"\s*\|?\s*(\.{3,}|…)\s*\|?\s*\Z", line) is not None


def cells(line):
    """The cells of a row, stripped; None for a line that is no whole row (cut before its last bar, say)."""
    line = line.strip()
    if len(line) < 2 or line[0] != "|" or line[-1] != "|" or is_border(line):
        return None
    return [cell.strip() for cell in line[1:-1].split("|")]


def titles(row):
    """The column titles in each cell of a header row; titles of several words get underscores."""
    found = []
    for cell in row:
        for words in _WORDS:
            cell = cell.replace(words, words.replace(" ", "_"))
        found.append(cell.split())
    return found


def values(cell, names, tail=None):
    """The values of a cell by title, or None if there are not exactly as many as the header has titles.

    `a / b` is one value. A title `tail` that comes last takes all further words."""
    words = re.sub(r"(\d+|NA|N/A|-)\s*/\s*(\d+|NA|N/A|-)(?=\s|\Z)", r"\1/\2", cell).split()
    if tail is not None and names and names[-1] == tail and len(words) > len(names):
        words[len(names) - 1 :] = [" ".join(words[len(names) - 1 :])]
    if len(words) != len(names):
        return None
    return dict(zip(names, words))


def fields(row, header, tail=None):
    """Values by title of a row under a header (`titles`), and whether every cell was understood.

    None if the row has not as many cells as the header. Cells that do not fit are left out."""
    if len(row) != len(header):
        return None
    found, whole = {}, True
    for cell, names in zip(row, header):
        got = values(cell, names, tail)
        if got is None:
            whole = False
        else:
            found.update(got)
    return found, whole


def integer(word):
    """A whole number of at most nine digits, else None (NA, -, x, a number with a unit)."""
    return int(word) if word is not None and re.match(r"\d{1,9}\Z", word) else None


def number(word, unit=""):
    """A number followed by `unit`, an int where it is written as one; else None."""
    match = re.match(r"(-?\d{1,9}(\.\d{1,6})?)\s*" + re.escape(unit) + r"\Z", word or "")
    if not match:
        return None
    return float(match.group(1)) if match.group(2) else int(match.group(1))


def pair(word, unit=""):
    """`(used, total)` of `a/b`; (None, None) unless both are numbers, total is positive and used is not above it."""
    match = re.match(r"(\d{1,9})\s*" + unit + r"\s*/\s*(\d{1,9})\s*" + unit + r"\Z", word or "")
    if not match:
        return None, None
    used, total = int(match.group(1)), int(match.group(2))
    return (used, total) if 0 <= used <= total and total > 0 else (None, None)


def bus_id(word):
    """A PCI address as it is printed, or None."""
    return word if word and re.match(r"[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f]\Z", word) else None
