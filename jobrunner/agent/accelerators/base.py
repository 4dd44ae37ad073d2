"""What one kind of accelerator is: the commands to ask, the parser of the answers, and the rule of its variable.

A new kind is one file that makes a `Kind`, and one line in the registry (`accelerators/__init__.py`); whatever else
speaks of kinds (specs, schema, doctor, containers, simulated tools) takes it from there: docs/adding-an-accelerator.md.
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


class Toolkit:
    """Where the vendor's toolkit for programs lies, and which of the vendor's files tell versions.

    title      what people call it: `Neuware`
    variable   the variable that names its folder; a job gets it set, with `bin` and `libraries` on its paths
    folder     where it lies if that variable is not set
    version    `(file, pattern)`: a file below the folder, and an expression whose first group is the version
    driver     `(file, pattern)`: the same for the loaded driver, an absolute path; None where only the tool tells it
    missing    what to do where it is not there
    """

    def __init__(self, title, variable, folder, version=None, driver=None, libraries="lib64", missing=None):
        self.title = title
        self.variable = variable
        self.folder = folder
        self.version = version
        self.driver = driver
        self.libraries = libraries
        self.missing = missing or "install {}".format(title)


class Container:
    """What a container needs of the host to use cards: files, where the host has them.

    each      device files of one card, `{}` stands for its number; `common`: device files of all cards
    mounts    further files and folders, mounted for reading
    runtime   the vendor's runtime in docker, for which the doctor looks
    gpus      True: docker's own `--gpus` passes the cards, no files are needed
    """

    def __init__(self, each=(), common=(), mounts=(), runtime=None, gpus=False):
        self.each = tuple(each)
        self.common = tuple(common)
        self.mounts = tuple(mounts)
        self.runtime = runtime
        self.gpus = gpus


class Kind:
    """One kind of accelerator, as data and pure functions.

    name          `npu`, `mlu`, `gpu`: the `device` of a spec; `also`: other words that people write for it
    title         what people call such a card: `Cambricon MLU`
    variable      the visible-devices variable
    tool          the vendor's program; `places`: folders to look in when PATH has none; `library_path`: what it needs
    commands      the questions to ask first; `more(answers)` gives further ones, made from the first answers
    parse         `{key: text} -> Reading`; raises nothing on odd text
    links         which cards belong together (`links.Links`, first match wins)
    busy_percent  from this utilization on a card is in use, though no process is shown; None: the tool's number proves
                  nothing
    idle          `(model prefix, MB)`, first match wins: memory in use on a card that nobody uses
    errors        `(text, code, message, remedy)`: what the tool prints when it cannot answer
    pci, nodes    PCI `(vendor, class prefixes)` and device files by which cards are seen without the tool
    files, needed patterns of all device files; those that no program works without (both: `nodes` unless given)
    unset, extra  environment of the tool: variables to remove; of a job: variables to add to the visible-devices one
    toolkit       a `Toolkit`, or None; `container`: a `Container`
    plugin        the module that teaches torch the device (None: torch itself knows it); `torch`: torch's word for it
    migrate       modules by which a CUDA script runs unchanged, loaded after torch; (): none known; None: none needed
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
        title=None,
        also=(),
        files=None,
        needed=None,
        toolkit=None,
        container=None,
        plugin=None,
        torch=None,
        migrate=(),
        busy_percent=None,
    ):
        self.name = name
        self.title = title or name
        self.also = also
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
        self.files = tuple(nodes if files is None else files)
        self.needed = tuple(nodes if needed is None else needed)
        self.toolkit = toolkit
        self.container = container or Container()
        self.plugin = plugin
        self.torch = torch or name
        self.migrate = migrate
        self.busy_percent = busy_percent

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

        free: indexes. all_cards: the cards of the host (dicts with `index`, `model`, `board`, `near`), free or not."""
        from .links import choose

        return choose(self.links, free, count, all_cards)

    def refusal(self, indexes, all_cards):
        """Why just these cards, which a spec names, can never work together; None if nothing is known against it."""
        from .links import refusal

        return refusal(self.links, indexes, all_cards)


def bare_model(model):
    """A model's name without the vendor's: `Ascend 910B3` and `910B3` are the same; the bare `Ascend910` stays."""
    model = (model or "").strip()
    return model[7:] if model.startswith("Ascend ") else model


def new_card(index):
    """A card of which nothing is known yet but its index. `doubts`: sentences; any one keeps it from being free.

    `board`: the number of the board or die that it shares; `near`: how near it is to card 0, 1, … (see `near.rows`)."""
    return {
        "index": index, "model": None, "health": "unknown", "health_text": None, "memory_used_mb": None,
        "memory_total_mb": None, "utilization": None, "temperature_c": None, "power_w": None, "bus_id": None,
        "board": None, "near": None, "free": False, "why_busy": None, "lease": None, "processes": [], "doubts": [],
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
