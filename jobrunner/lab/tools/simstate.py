"""What the simulated tools show: the lab's `cards.json`, and the processes on this machine that use its cards.

`$JOBRUNNER_LAB` names the folder. A process is on a card if its environment has the same JOBRUNNER_LAB and either
JOBRUNNER_LAB_OPENS=0,1 (what it opens, whatever it was given), or a JOBRUNNER_JOB_ID and a visible-devices variable
that names the card, read as the vendor's runtime reads it. Python 3.6, standard library.
"""

# mypy: ignore-errors

import json
import os
import sys

TOOLS = {"npu": "npu-smi", "mlu": "cnmon", "gpu": "nvidia-smi"}
VARIABLES = {"npu": b"ASCEND_RT_VISIBLE_DEVICES", "mlu": b"MLU_VISIBLE_DEVICES", "gpu": b"CUDA_VISIBLE_DEVICES"}
SHELLS = ("bash", "sh", "dash", "zsh", "tmux")
SIDE_CONTEXT_MB = 120

# model prefix: (printed name, total MB, idle MB, idle W, board W, chips a board, DDR used MB, DDR total MB)
MODELS = {
    "npu": [
        ("910B", None, 65536, 3314, 98.6, 400, 1, 0, 0),
        ("910A", None, 32768, 0, 70.9, 310, 1, 2346, 15567),
        ("310P3-duo", "310P3", 44278, 1448, None, 150, 2, 0, 0),
        ("310P", None, 21527, 1844, None, 72, 1, 0, 0),
        ("Ascend910", None, 65536, 2888, 170.6, 800, 2, 0, 0),
        ("Ascend950", None, 86016, 4439, 204.4, 600, 1, 0, 0),
    ],
    "mlu": [
        ("MLU370-X8", None, 20638, 0, 107, 250, 1, 0, 0),
        ("MLU370", None, 23308, 0, 27, 150, 1, 0, 0),
        ("MLU590", None, 81920, 0, 90, 350, 1, 0, 0),
    ],
    "gpu": [
        ("NVIDIA RTX A6000", None, 49140, 20, 22.5, 300, 1, 0, 0),
        ("NVIDIA", None, 81559, 4, 71.0, 700, 1, 0, 0),
    ],
}
DEFAULTS = {"npu": ("910B3", "24.1.rc3"), "mlu": ("MLU370-X8", "v5.10.22"), "gpu": ("NVIDIA RTX A6000", "550.54.15")}
BUSES = (0xC1, 0xC2, 0x81, 0x82, 0x01, 0x02, 0x41, 0x42, 0xC5, 0xC6, 0x85, 0x86, 0x05, 0x06, 0x45, 0x46)


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

    def __init__(self, folder):
        self.folder = os.path.realpath(folder)
        with open(os.path.join(self.folder, "cards.json")) as handle:
            data = json.load(handle)
        self.device = data["device"]
        model, version = DEFAULTS[self.device]
        self.model = data.get("model") or model
        self.version = data.get("version") or version
        self.hang_s = data.get("hang_s") or 0
        self.fail = data.get("fail")
        self.fail_code = data.get("fail_code", 1)
        self.date = data.get("date")
        rows = MODELS[self.device] + [("", *MODELS[self.device][0][1:])]
        facts = next(row[1:] for row in rows if self.model.startswith(row[0]))
        given = data.get("cards") or {}
        self.cards = [Card(index, given.get(str(index), {}), facts, self.model) for index in range(data["count"])]
        if data.get("show_jobs", True):
            self._add_jobs(data.get("job_memory_mb"))
        self.cards = [card for card in self.cards if not given.get(str(card.index), {}).get("hidden")]

    def _add_jobs(self, memory_mb):
        """Put every process of the lab on the cards that it uses; the first one of a job holds the memory."""
        found = {}
        for pid, job, indexes, memory in lab_processes(self.folder, self.device, len(self.cards)):
            for index in indexes:
                found.setdefault(index, {}).setdefault(job, []).append((pid, memory))
        for index, jobs in found.items():
            card = self.cards[index]
            for members in jobs.values():
                named = [(pid, process_name(pid, self.device), memory) for pid, memory in sorted(members)]
                real = [entry for entry in named if entry[1].split(" ")[0].rsplit("/", 1)[-1] not in SHELLS] or named
                for place, (pid, name, memory) in enumerate(real):
                    large = memory or memory_mb or (card.total - card.base) // 2
                    card.processes.append({"pid": pid, "name": name, "memory_mb": SIDE_CONTEXT_MB if place else large})


def lab_processes(folder, device, count):
    """`(pid, job, [card], memory MB or None)` of every live process that uses cards of the lab."""
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
        if any(os.path.basename(part).decode("ascii", "replace") in TOOLS.values() for part in argv[:3]):
            continue
        job = environ.get(b"JOBRUNNER_JOB_ID", b"").decode("ascii", "replace")
        if b"JOBRUNNER_LAB_OPENS" in environ:
            indexes = visible("gpu", environ[b"JOBRUNNER_LAB_OPENS"], count)
        elif job and VARIABLES[device] in environ:
            indexes = visible(device, environ[VARIABLES[device]], count)
        else:
            continue
        memory = environ.get(b"JOBRUNNER_LAB_MEMORY_MB", b"")
        yield int(word), job or word, indexes, int(memory) if memory.isdigit() else None


def visible(device, value, count):
    """The cards that a process sees with this value of its variable, as the vendor's runtime reads it."""
    found = []
    for word in value.decode("ascii", "replace").split(","):
        if not word.isdigit():
            digits = len(word) - len(word.lstrip("0123456789"))
            if device == "npu" and digits and int(word[:digits]) < count:
                found.append(int(word[:digits]))
            break
        if int(word) >= count:
            if device == "mlu":
                return []
            break
        found.append(int(word))
    if device == "npu" and found != sorted(set(found)):
        return []
    return sorted(set(found))


def process_name(pid, device):
    """What the tool calls a process: its command name, its command line, or its program, by device."""
    try:
        if device == "gpu":
            return os.readlink("/proc/%d/exe" % pid)
        with open("/proc/%d/%s" % (pid, "cmdline" if device == "mlu" else "comm"), "rb") as handle:
            text = handle.read(4096).rstrip(b"\0\n").replace(b"\0", b" ").decode("utf-8", "replace")
        return text if device == "mlu" else text[:15]
    except OSError:
        return ""


def main(device, no_card, show):
    """Run a tool: `show(lab, words) -> exit code`. `no_card`: `(text, exit code)` of a host without such cards."""
    folder = os.environ.get("JOBRUNNER_LAB")
    words = sys.argv[1:]
    if "--about" in words:
        text = "simulated {}: shows the cards of the folder $JOBRUNNER_LAB ({})"
        print(text.format(TOOLS[device], folder or "not set"))
        return 0
    if not folder:
        sys.stderr.write("{}: these are simulated cards: set JOBRUNNER_LAB to their folder\n".format(TOOLS[device]))
        return 1
    try:
        lab = Lab(folder)
    except (OSError, ValueError, KeyError) as error:
        sys.stderr.write("{}: the simulated cards in {} cannot be read: {!r}\n".format(TOOLS[device], folder, error))
        return 1
    if lab.device == device and lab.hang_s:
        import time

        time.sleep(lab.hang_s)
    if lab.device == device and lab.fail is not None:
        print(lab.fail.rstrip("\n"))
        return lab.fail_code
    if lab.device != device or not lab.cards:
        print(no_card[0])
        return no_card[1]
    return show(lab, words)
