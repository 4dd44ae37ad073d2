"""What one kind of accelerator is: the commands to ask, the parser of the answers, and the rule of its variable.

A new kind is one file that makes a `Kind`, and one line in the registry (`accelerators/__init__.py`).
"""


class Reading:
    """What a parser made of a tool's answers: cards (see `new_card`), the tool's version, and what it passed over."""

    def __init__(self, cards=(), version=None, driver=None, warnings=()):
        self.cards = list(cards)
        self.version = version
        self.driver = driver
        self.warnings = list(warnings)


class Command:
    """One question to the tool: a key for its answer, its arguments, and whether nothing works without it."""

    def __init__(self, key, args, needed=False):
        self.key = key
        self.args = list(args)
        self.needed = needed


class Kind:
    """One kind of accelerator, as data and pure functions.

    name          `npu`, `mlu`, `gpu`: the `device` of a spec
    variable      the visible-devices variable
    tool          the vendor's program; `places`: folders to look in when PATH has none; `library_path`: what it needs
    commands      the questions to ask first; `more(answers)` gives further ones, made from the first answers
    parse         `{key: text} -> Reading`; raises nothing on odd text
    links         which cards belong together (`links.Links`, first match wins)
    idle          `(model prefix, MB)`, first match wins: memory in use on a card that nobody uses
    errors        `(text, code, message, remedy)`: what the tool prints when it cannot answer
    pci, nodes    PCI `(vendor, class prefixes)` and device files by which cards are seen without the tool
    unset, extra  environment of the tool: variables to remove; of a job: variables to add to the visible-devices one
    """

    def __init__(
        self,
        name,
        variable,
        tool,
        commands,
        parse,
        links=(),
        idle=(),
        errors=(),
        places=(),
        library_path=(),
        pci=(),
        nodes=(),
        more=None,
        unset=(),
        extra=None,
    ):
        self.name = name
        self.variable = variable
        self.tool = tool
        self.commands = commands
        self.parse = parse
        self.links = links
        self.idle = idle
        self.errors = errors
        self.places = places
        self.library_path = library_path
        self.pci = pci
        self.nodes = nodes
        self.more = more or (lambda answers: [])
        self.unset = unset
        self.extra = extra or {}

    def environment(self, indexes):
        """The variables by which a job sees exactly these cards: ascending ids, no blanks, no ranges, none twice."""
        found = {self.variable: ",".join(str(index) for index in sorted({int(index) for index in indexes}))}
        if indexes:
            found.update(self.extra)
        return found

    def idle_mb(self, model, total_mb):
        """Memory in use on an idle card of that model; of an unknown model 6 % of its memory is taken for granted."""
        for prefix, used in self.idle:
            if prefix == "" or bare_model(model).startswith(prefix):
                return used
        return int((total_mb or 0) * 0.06)

    def choose(self, free, count, all_cards):
        """`(indexes, None)`: the best set of `count` free cards, or `(None, reason)` if no allowed set is free now.

        free: indexes. all_cards: the cards of the host (dicts with `index`, `model`, `board`), free or not."""
        from .links import choose

        return choose(self.links, free, count, all_cards)


def bare_model(model):
    """A model's name without the vendor's: `Ascend 910B3` and `910B3` are the same; the bare `Ascend910` stays."""
    model = (model or "").strip()
    return model[7:] if model.startswith("Ascend ") else model


def new_card(index):
    """A card of which nothing is known yet but its index. `doubts`: sentences; any one keeps it from being free."""
    return {
        "index": index, "model": None, "health": "unknown", "health_text": None, "memory_used_mb": None,
        "memory_total_mb": None, "utilization": None, "temperature_c": None, "power_w": None, "bus_id": None,
        "board": None, "free": False, "why_busy": None, "lease": None, "processes": [], "doubts": [],
    }  # fmt: skip


def blank(card):
    """Forget what a card's own lines said, as they may be another card's; its index and processes stay."""
    fresh = new_card(card["index"])
    card.update((key, value) for key, value in fresh.items() if key not in ("processes", "doubts"))


def new_process(pid, name=None, memory_mb=None):
    """A process that the tool shows on a card; the user is found out later, from /proc."""
    return {"pid": pid, "user": None, "name": name or None, "memory_mb": memory_mb}


def doubt(card, sentence):
    """Note once why a card cannot be called free."""
    if sentence not in card["doubts"]:
        card["doubts"].append(sentence)
