"""Before the start: launchers that would take other cards than the job's, or a port that another job has.

A command that is a list of words is put right, and it is said. Shell text is never touched: where it would take cards
that are not the job's it is refused, with the way out; lesser things are told. Pure but for reading the named files.
"""

import os

from . import launch_rules
from .launch_words import expanded, simple_commands
from .limits import counted

_LIMIT = 1 << 18
_HOME_CONFIGS = ("accelerate/default_config.yaml", "accelerate/default_config.json")


class Facts:
    """What there is to read: files of the job's folder and of the host. `environment` is text."""

    def __init__(self, work, environment, read=None, exists=os.path.exists):
        self.work = work
        self.environment = environment
        self.read = read or _text
        self.exists = exists

    def file(self, path):
        """The text of a file that the command names (at most 256 KB); None where there is none."""
        return self.read(os.path.join(self.work, path))

    def accelerate(self, path):
        """The plain settings of accelerate's configuration: the file named, else the user's own."""
        if path:
            return settings_of(self.file(path) or "")
        cache = self.environment.get("HF_HOME") or os.path.join(
            self.environment.get("XDG_CACHE_HOME") or os.path.join(self.environment.get("HOME", "/"), ".cache"),
            "huggingface",
        )
        texts = (self.file(os.path.join(cache, name)) for name in _HOME_CONFIGS)
        return settings_of(next((text for text in texts if text), ""))


class Advice:
    """What to do about a command: its words, variables to set, what to tell, and why it must not start (or None)."""

    def __init__(self, argv):
        self.argv = argv
        self.environment = {}
        self.notes = []
        self.refusal = None

    def note(self, text):
        if text not in self.notes:
            self.notes.append(text)


def _text(path):
    try:
        with open(path, "rb") as file:
            data = file.read(_LIMIT)
    except (OSError, ValueError):
        return None
    return None if b"\0" in data else data.decode("utf-8", "replace")


def settings_of(text):
    """The top level `name: value` lines of a YAML or JSON file, values as text. Pure."""
    found = {}
    for line in text.replace("{", "\n").replace(", ", "\n").splitlines() if text.startswith("{") else text.splitlines():
        name, colon, value = line.partition(":")
        name = name.strip().strip('"') if text.startswith("{") else name
        if colon and name and not name.startswith((" ", "#", "-")):
            found[name] = value.split(" #")[0].strip().rstrip(",}").strip().strip("'\"")
    return found


def advise(argv, cards, variable, port, facts):
    """The `Advice` for a command.

    `cards` are the ids by which the job sees its cards, ascending; `variable` the name of its visible-devices variable
    (None for a job without a device); `port` its MASTER_PORT.
    """
    advice = Advice(list(argv))
    shell = _shell_text(advice.argv, facts)
    if shell is not None:
        _judge_text(advice, shell, cards, variable, port, facts, depth=2)
        return advice
    _drop_assignments(advice, cards, variable)
    place = launch_rules.located(advice.argv)
    if place is not None and place[0] in launch_rules.RULES:
        found = launch_rules.RULES[place[0]](advice.argv, place[1], cards, port, facts)
        if found.taken is not None and not cards:
            advice.refusal = "{}, and this job has none: give it `cards: N`".format(found.cause)
        advice.argv = found.words
        for text in found.notes:
            advice.note(text)
    elif place is not None:
        _llamafactory(advice, cards, facts)
    _judge_scripts(advice, advice.argv, cards, variable, facts)
    return advice


def _shell_text(argv, facts):
    """The shell text that a command runs: of `bash -c`, or of a script by bash; None for anything else."""
    if not argv or argv[0].rpartition("/")[2] not in ("bash", "sh", "dash", "zsh"):
        if argv and argv[0].endswith(".sh"):
            return facts.file(argv[0])
        return None
    at = 1
    while at < len(argv) and argv[at].startswith("-"):
        if argv[at].endswith("c") and not argv[at].startswith("--"):
            return argv[at + 1] if at + 1 < len(argv) else None
        at += 1
    return facts.file(argv[at]) if at < len(argv) else None


def _drop_assignments(advice, cards, variable):
    """`env NAME=0,1 …` in front of a command: what names other cards goes."""
    words = advice.argv
    if not words or words[0].rpartition("/")[2] != "env":
        return
    at = 1
    while at < len(words) and ("=" in words[at] or words[at].startswith("-")):
        name, _, value = words[at].partition("=")
        if name == variable and not _own(value, cards):
            advice.note("{} is passed over: the job's cards are {}".format(words[at], _shown(cards)))
            del words[at]
        else:
            at += 1


def _own(value, cards):
    """True for a value that names only the job's cards, or that cannot be known yet."""
    if "$" in value or "`" in value:
        return True
    ids = launch_rules.numbers(value)
    return value == "" or (ids is not None and set(ids) <= set(cards))


def _shown(cards):
    return ",".join(str(card) for card in cards) or "none"


def _judge_text(advice, text, cards, variable, port, facts, depth):
    for raw in simple_commands(text):
        words = [expanded(word, facts.environment) for word in raw]
        shown = " ".join(raw)[:160]
        words = _assignments(advice, words, shown, cards, variable)
        if not words:
            continue
        place = launch_rules.located(words)
        if place is not None and place[0] in launch_rules.RULES:
            _judge_launch(advice, words, place, shown, cards, port, facts)
        elif place is not None:
            _llamafactory(advice, cards, facts)
        elif depth > 1:
            deeper = _shell_text(words, facts)
            if deeper is not None:
                _judge_text(advice, deeper, cards, variable, port, facts, depth - 1)
        _judge_scripts(advice, words, cards, variable, facts)


def _assignments(advice, words, shown, cards, variable):
    """A command without the assignments in front; one that names other cards than the job's is refused."""
    at = 1 if words[0] in ("export", "env", "declare", "typeset") else 0
    while at < len(words) and "=" in words[at] and words[at].partition("=")[0].isidentifier():
        name, _, value = words[at].partition("=")
        if name == variable and ("$" in value or "`" in value):
            advice.note("`{}`: which cards that are is not known before; the job's are {}".format(shown, _shown(cards)))
        if variable is not None and name == variable and not _own(value, cards):
            _refuse(advice, shown, "{} names other cards than the job's ({})".format(name, _shown(cards)),
                    "leave it out: the variable is set for the job")  # fmt: skip
        at += 1
    return words[at:]


def _judge_launch(advice, words, place, shown, cards, port, facts):
    found = launch_rules.RULES[place[0]](words, place[1], cards, port, facts)
    if found.torch_port:
        advice.environment["PET_MASTER_PORT"] = str(port)  # where torchrun looks for its default
    if found.default_port:
        advice.note("`{}`: {}".format(shown, found.default_port))
    if found.taken is None:
        for text in found.notes:
            advice.note(text.split(": it gets ")[0] + " (`{}`: shell text is left as it is)".format(shown))
    elif set(found.taken) <= set(cards):
        advice.note("`{}`: {}; just now these are the job's own".format(shown, found.cause))
    else:
        _refuse(advice, shown, "{}, and the job's cards are {}".format(found.cause, _shown(cards)),
                "leave that option out, or write the command as a list of words: that is put right")  # fmt: skip


def _refuse(advice, shown, why, remedy):
    advice.refusal = advice.refusal or "`{}` would run on other cards: {}. {}".format(
        shown, why, remedy[0].upper() + remedy[1:]
    )


def _llamafactory(advice, cards, facts):
    """It starts itself anew by torchrun, with as many processes as the variable says, or NPROC_PER_NODE."""
    count = facts.environment.get("NPROC_PER_NODE", "")
    if cards and count.isdigit() and int(count) > len(cards):
        advice.environment["NPROC_PER_NODE"] = str(len(cards))
        advice.note(
            "NPROC_PER_NODE={} is more than the job's {}: it is {}".format(
                count, counted(len(cards), "card"), len(cards)
            )
        )
    if facts.environment.get("NNODES", "1") not in ("", "1"):
        advice.note("NNODES={}: jobrunner has given cards of one host".format(facts.environment["NNODES"]))


def _judge_scripts(advice, words, cards, variable, facts):
    """A Python script that sets the variable itself, at its top level, to other cards."""
    for word in words[:_SCRIPT_DEPTH]:
        if word.endswith(".py") and variable is not None:
            for line, inside in _settings_in(facts.file(word) or "", variable):
                if _own(line[1], cards):
                    continue
                why = "{} sets {} to {}".format(word, variable, line[1])
                if inside:
                    advice.note("{}, if that line is reached: the job's cards are {}".format(why, _shown(cards)))
                else:
                    _refuse(advice, line[0], "{}, and the job's cards are {}".format(why, _shown(cards)),
                            "remove the line: the variable is set for the job")  # fmt: skip
            return


_SCRIPT_DEPTH = 40


def _settings_in(text, variable):
    """`[((line, value), indented)]` of `os.environ["VARIABLE"] = "…"` with a literal value. Pure."""
    found = []
    for line in text.splitlines():
        bare = line.strip()
        if not bare.startswith("os.environ[") or variable not in bare:
            continue
        left, equals, right = bare.partition("=")
        quoted = right.strip()[:1]
        if equals and left.strip()[11:].strip("'\"] ") == variable and quoted in ("'", '"'):
            value = right.strip()[1:].partition(quoted)[0]
            found.append(((bare[:120], value), line[:1] in (" ", "\t")))
    return found
