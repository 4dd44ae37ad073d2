"""What the simulated tools show: the lab's `cards.json`, and the processes on this machine that use its cards.

`$JOBRUNNER_LAB` names the folder. A process is on a card if its environment has the same JOBRUNNER_LAB and either
JOBRUNNER_LAB_OPENS=0,1 (what it opens, whatever it was given), or a JOBRUNNER_JOB_ID and a visible-devices variable
that names the card, read as the vendor's runtime reads it. Python 3.6, standard library.

Each tool describes itself as a `Tool`: what is common to all is here, what its cards are like is there.
"""

# mypy: ignore-errors

import json
import os
import sys

SHELLS = ("bash", "sh", "dash", "zsh", "tmux")
SIDE_CONTEXT_MB = 120

BUSES = (0xC1, 0xC2, 0x81, 0x82, 0x01, 0x02, 0x41, 0x42, 0xC5, 0xC6, 0x85, 0x86, 0x05, 0x06, 0x45, 0x46)


class Tool:
    """One simulated tool.

    device, name, variable   as the kind of accelerator has them
    models      rows, the first whose prefix fits counts: (prefix, printed name or None, total MB, idle MB, idle W,
                board W, chips a board, DDR used MB, DDR total MB)
    model, version           what a lab has that names none
    no_card     `(text, exit code)` on a host without such cards
    process     what the tool calls a process: its "comm", its "cmdline" or its "exe"
    strict      how the vendor's runtime takes a list of cards that is not right, see `visible`
    """

    def __init__(self, device, name, variable, models, model, version, no_card, process="comm", strict=None):
        self.device = device
        self.name = name
        self.variable = variable
        self.models = models
        self.model = model
        self.version = version
        self.no_card = no_card
        self.process = process
        self.strict = strict


class Card:
    """One simulated card as its tool shows it."""

    def __init__(self, index, given, facts, model):
        name, total, idle, power, cap, chips, ddr_used, ddr_total = facts
        self.index = index
        self.model = given.get("model") or name or model
        self.chip = index % chips
        self.npu = given.get("npu_id", _npu_id(index, chips, model))
        self.health = given.get("health")
        self.codes = given.get("codes")
        self.total = given.get("total_mb", total)
        self.base = given.get("base_mb", idle)
        self.ddr = (ddr_used, ddr_total)
        self.power = given.get("power_w", power)
        self.cap = cap
        self.temperature = given.get("temperature_c", 40 + index % 6)
        self.utilization = given.get("utilization")
        self.bus = given.get("bus_id", "0000:%02X:00.0" % BUSES[(index // chips) % len(BUSES)])
        self.processes = [dict(entry) for entry in given.get("processes", [])]

    @property
    def used(self):
        return min(self.total, self.base + sum(entry["memory_mb"] for entry in self.processes))

    @property
    def busy(self):
        """Utilization in percent: what the file says, else 87 while somebody computes."""
        if self.utilization is not None:
            return self.utilization
        return 87 if self.processes else 0


def _npu_id(index, chips, model):
    """The board number as npu-smi counts it: on 310P boards with gaps, as on real hosts."""
    if model.startswith("310P3-duo"):
        return (1, 2, 4, 5, 6, 8, 9, 10)[index // chips % 8]
    if model.startswith("310P"):
        return (0, 32, 96, 32768, 32800, 32832, 32864, 32896)[index % 8] + index // 8
    return index // chips


class Lab:
    """The state of one simulated host, read anew by every call of a tool."""

    def __init__(self, folder, tool):
        self.folder = os.path.realpath(folder)
        self.tool = tool
        with open(os.path.join(self.folder, "cards.json")) as handle:
            data = json.load(handle)
        self.device = data["device"]
        if self.device != tool.device:
            self.cards, self.hang_s, self.fail = [], 0, None
            return
        self.model = data.get("model") or tool.model
        self.version = data.get("version") or tool.version
        self.hang_s = data.get("hang_s") or 0
        self.fail = data.get("fail")
        self.fail_code = data.get("fail_code", 1)
        self.date = data.get("date")
        rows = [*tool.models, ("", *tool.models[0][1:])]
        facts = next(row[1:] for row in rows if self.model.startswith(row[0]))
        given = data.get("cards") or {}
        self.cards = [Card(index, given.get(str(index), {}), facts, self.model) for index in range(data["count"])]
        if data.get("show_jobs", True):
            self._add_jobs(data.get("job_memory_mb"))
        self.cards = [card for card in self.cards if not given.get(str(card.index), {}).get("hidden")]

    def _add_jobs(self, memory_mb):
        """Put every process of the lab on the cards that it uses; the first one of a job holds the memory."""
        found = {}
        for pid, job, indexes, memory in lab_processes(self.folder, self.tool, len(self.cards)):
            for index in indexes:
                found.setdefault(index, {}).setdefault(job, []).append((pid, memory))
        for index, jobs in found.items():
            card = self.cards[index]
            for members in jobs.values():
                named = [(pid, process_name(pid, self.tool), memory) for pid, memory in sorted(members)]
                real = [entry for entry in named if entry[1].split(" ")[0].rsplit("/", 1)[-1] not in SHELLS] or named
                for place, (pid, name, memory) in enumerate(real):
                    large = memory or memory_mb or (card.total - card.base) // 2
                    card.processes.append({"pid": pid, "name": name, "memory_mb": SIDE_CONTEXT_MB if place else large})


def lab_processes(folder, tool, count):
    """`(pid, job, [card], memory MB or None)` of every live process that uses cards of the lab."""
    tools = [tool.name, *os.listdir(os.path.dirname(os.path.abspath(__file__)))]
    variable = tool.variable.encode("ascii")
    for word in os.listdir("/proc"):
        if not word.isdigit() or int(word) == os.getpid():
            continue
        try:
            with open("/proc/%s/environ" % word, "rb") as handle:
                pairs = (entry.partition(b"=") for entry in handle.read().split(b"\0") if b"=" in entry)
            environ = {name: value for name, _, value in pairs}
            there = environ.get(b"JOBRUNNER_LAB")
            if not there or os.path.realpath(there) != os.fsencode(folder):
                continue
            with open("/proc/%s/cmdline" % word, "rb") as handle:
                argv = handle.read().split(b"\0")
        except OSError:
            continue
        if any(os.path.basename(part).decode("ascii", "replace") in tools for part in argv[:3]):
            continue
        job = environ.get(b"JOBRUNNER_JOB_ID", b"").decode("ascii", "replace")
        if b"JOBRUNNER_LAB_OPENS" in environ:
            indexes = visible(None, environ[b"JOBRUNNER_LAB_OPENS"], count)
        elif job and variable in environ:
            indexes = visible(tool.strict, environ[variable], count)
        else:
            continue
        memory = environ.get(b"JOBRUNNER_LAB_MEMORY_MB", b"")
        yield int(word), job or word, indexes, int(memory) if memory.isdigit() else None


def visible(strict, value, count):
    """The cards that a process sees with this value of its variable, as the vendor's runtime reads it.

    strict   None: all up to the first word that is no card's number, as CUDA does. "range": none if a number is too
             large, as on MLUs. "order": a number may have more behind it; none unless the numbers ascend, as on NPUs.
    """
    found = []
    for word in value.decode("ascii", "replace").split(","):
        if not word.isdigit():
            digits = len(word) - len(word.lstrip("0123456789"))
            if strict == "order" and digits and int(word[:digits]) < count:
                found.append(int(word[:digits]))
            break
        if int(word) >= count:
            if strict == "range":
                return []
            break
        found.append(int(word))
    if strict == "order" and found != sorted(set(found)):
        return []
    return sorted(set(found))


def process_name(pid, tool):
    """What the tool calls a process."""
    try:
        if tool.process == "exe":
            return os.readlink("/proc/%d/exe" % pid)
        with open("/proc/%d/%s" % (pid, tool.process), "rb") as handle:
            text = handle.read(4096).rstrip(b"\0\n").replace(b"\0", b" ").decode("utf-8", "replace")
        return text if tool.process == "cmdline" else text[:15]
    except OSError:
        return ""


def main(tool, show):
    """Run a tool: `show(lab, words) -> exit code`."""
    folder = os.environ.get("JOBRUNNER_LAB")
    words = sys.argv[1:]
    if "--about" in words:
        text = "simulated {}: shows the cards of the folder $JOBRUNNER_LAB ({})"
        print(text.format(tool.name, folder or "not set"))
        return 0
    if not folder:
        sys.stderr.write("{}: these are simulated cards: set JOBRUNNER_LAB to their folder\n".format(tool.name))
        return 1
    try:
        lab = Lab(folder, tool)
    except (OSError, ValueError, KeyError) as error:
        sys.stderr.write("{}: the simulated cards in {} cannot be read: {!r}\n".format(tool.name, folder, error))
        return 1
    if lab.hang_s:
        import time

        time.sleep(lab.hang_s)
    if lab.fail is not None:
        print(lab.fail.rstrip("\n"))
        return lab.fail_code
    if not lab.cards:
        print(tool.no_card[0])
        return tool.no_card[1]
    return show(lab, words)
