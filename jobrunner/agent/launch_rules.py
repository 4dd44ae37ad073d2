"""What each launcher does to the visible-devices variable, the number of processes and the port. Pure.

A rule looks at the words of one launch and returns a `Found`: the words as they should be, what to tell, and which
cards the words as they are would take (None: the job's own).
"""

from .launch_words import Options
from .limits import counted

_DEEPSPEED_FLAGS = (
    "--module", "--no_python", "--no_local_rank", "--no_ssh", "--no_ssh_check", "--force_multi", "--save_pid",
    "--elastic_training", "--bind_cores_to_rank", "-h", "--help",
)  # fmt: skip
_TORCHRUN_FLAGS = ("--standalone", "--no_python", "--run_path", "-m", "--module", "--use_env", "-h", "--help")
_ACCELERATE_FLAGS = (
    "--multi_gpu", "--cpu", "--same_network", "--module", "-m", "--no_python", "--debug", "-q", "--quiet", "--tpu",
    "-h", "--help",
)  # fmt: skip
_ACCELERATE_STARTS = ("--use_", "--no_use_", "--tpu_use", "--dynamo_use", "--megatron_lm_sequence", "--fp8_use")
_LOCAL = ("localhost", "127.0.0.1")


class Found:
    """What a rule found. `taken`: cards that the words as they are take although the variable says others."""

    def __init__(self, words):
        self.words = words
        self.notes = []
        self.taken = None
        self.cause = ""
        self.torch_port = False
        self.default_port = None

    def takes(self, cards, cause):
        self.taken = sorted(set(self.taken or ()) | set(cards))
        self.cause = self.cause or cause


def numbers(text):
    """The ids of a list such as `0,1`, or None where it is none. Pure."""
    try:
        return [int(part) for part in str(text).strip("'\"[]() ").split(",")]
    except ValueError:
        return None


def _count(text):
    return int(text) if text is not None and str(text).strip("'\"").isdigit() else None


def _ids(cards):
    return ",".join(str(card) for card in cards)


def deepspeed(words, start, cards, port, facts):
    """`--num_gpus`, `--num_nodes`, `--include` and `--exclude` make deepspeed forget the variable; without them it
    takes the cards that the variable names."""
    found = Found(list(words))
    if facts.environment.get("DS_ACCELERATOR") == "cpu":
        return found
    options = Options(found.words, start, _DEEPSPEED_FLAGS)
    nodes = _count(options.get("--num_nodes"))
    if options.has("-H", "--hostfile") or (nodes or 0) > 1 or options.has("--no_ssh"):
        found.notes.append("deepspeed is told to use several hosts: jobrunner has given it cards of this one only")
        return found
    wanted = _deepspeed_filter(found, options, cards)
    if nodes is not None:
        options.drop("--num_nodes")
        found.notes.append("deepspeed --num_nodes 1 is left out: deepspeed refuses it beside the variable's cards")
    if wanted is not None and cards:
        options.drop("--num_gpus", "--num_accelerators", "--include", "-i", "--exclude", "-e")
        if wanted != cards:
            options.put("--include", "localhost:" + _ids(wanted))
    if facts.exists("/job/hostfile"):
        options.put("--hostfile", "/dev/null")
        found.notes.append("/job/hostfile is passed over: deepspeed would take cards by it")
    if port and not options.has("--master_port"):
        found.default_port = "deepspeed uses port 29500: give it --master_port $MASTER_PORT, which no other job has"
        options.put("--master_port", port)
    return found


def _deepspeed_filter(found, options, cards):
    """The cards to use instead of what the options ask for, or None where they ask for nothing."""
    name = next((n for n in ("--num_gpus", "--num_accelerators") if n in options.found), None)
    if name:
        count = _count(options.get(name))
        if count == 0:
            return None
        found.takes(range(count or len(cards) or 1), "{} takes the cards from 0 on".format(name))
        wanted = cards[: count or len(cards)]
        found.notes.append(_instead("deepspeed", name + " " + options.get(name), wanted))
        return wanted
    for name in ("--include", "-i"):
        if options.has(name):
            host, _, slots = options.get(name).partition(":")
            asked = numbers(slots)
            if "@" in options.get(name) or host not in _LOCAL:
                found.notes.append("deepspeed {} {} names other hosts: not judged".format(name, options.get(name)))
                return None
            if asked is not None and set(asked) <= set(cards):
                return None
            found.takes(asked or (), "{} names its cards by itself".format(name))
            wanted = cards[: len(asked)] if asked else cards
            found.notes.append(_instead("deepspeed", name + " " + options.get(name), wanted))
            return wanted
    if options.has("--exclude", "-e"):
        value = options.get("--exclude", "-e")
        found.takes([-1], "--exclude takes all cards of the host but some")
        found.notes.append(_instead("deepspeed", "--exclude " + value, cards))
        return cards
    return None


def _instead(who, what, cards):
    return "{} {} would take cards by itself: it gets the job's ({}) instead".format(who, what, _ids(cards) or "none")


def torchrun(words, start, cards, port, facts):
    """More processes than cards cannot work; without a port two jobs on one host meet at the default one."""
    found = Found(list(words))
    options = Options(found.words, start, _TORCHRUN_FLAGS)
    count = _count(options.get("--nproc_per_node"))
    if cards and count is not None and count > len(cards):
        options.put("--nproc_per_node", len(cards))
        found.notes.append(
            "torchrun --nproc_per_node {} is more than the job's {}: it gets {}".format(
                count, counted(len(cards), "card"), len(cards)
            )
        )
    elif cards and count is not None and count < len(cards):
        found.notes.append(
            "torchrun starts {} for {}".format(counted(count, "process", "processes"), counted(len(cards), "card"))
        )
    alone = options.get("--nnodes") in (None, "1", "1:1")
    if not alone or options.has("--standalone", "--rdzv_endpoint") or not port:
        return found
    if options.get("--rdzv_backend") in (None, "static"):
        if not options.has("--master_port"):
            found.torch_port = True
            options.put("--master_port", port)
    else:
        options.put("--rdzv_endpoint", "127.0.0.1:{}".format(port))
    return found


def accelerate(words, start, cards, port, facts):
    """`gpu_ids` (option or configuration) overwrites the variable; more processes than cards cannot work."""
    found = Found(list(words))
    options = Options(found.words, start, _ACCELERATE_FLAGS, _ACCELERATE_STARTS)
    settings = facts.accelerate(options.get("--config_file"))
    _gpu_ids(found, options, settings, cards)
    count = _count(options.get("--num_processes") or settings.get("num_processes"))
    if cards and count is not None and count > len(cards):
        options.put("--num_processes", len(cards))
        found.notes.append(
            "accelerate's num_processes {} is more than the job's {}: it gets {}".format(
                count, counted(len(cards), "card"), len(cards)
            )
        )
    machines = _count(options.get("--num_machines") or settings.get("num_machines"))
    if (machines or 1) > 1:
        found.notes.append("accelerate is told to use {} hosts: jobrunner has given it cards of one".format(machines))
    elif port and not options.has("--main_process_port") and not _count(settings.get("main_process_port")):
        options.put("--main_process_port", port)
    return found


def _gpu_ids(found, options, settings, cards):
    asked = options.get("--gpu_ids")
    where = "accelerate --gpu_ids {}".format(asked)
    if asked is None:
        asked = settings.get("gpu_ids")
        where = "gpu_ids {} in accelerate's configuration".format(asked)
    if asked is None or str(asked).strip("'\" ").lower() in ("all", "null", "none", ""):
        return
    ids = numbers(asked)
    if ids is not None and set(ids) <= set(cards):
        return
    found.takes(ids if ids is not None else [-1], "gpu_ids overwrites the visible-devices variable")
    found.notes.append(_instead(where, "", cards).replace("  ", " "))
    options.put("--gpu_ids", "all")


RULES = {"deepspeed": deepspeed, "torchrun": torchrun, "accelerate": accelerate}
_MODULES = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torchrun",
    "deepspeed.launcher.runner": "deepspeed",
    "deepspeed": "deepspeed",
    "accelerate.commands.launch": "accelerate",
}
_PROGRAMS = {"torchrun": "torchrun", "deepspeed": "deepspeed", "deepspeed.pt": "deepspeed", "ds": "deepspeed"}
_WITH_VALUE = ("-W", "-X")
# Programs that run what follows them; a launcher's name behind any other program is that one's argument.
_BEFORE = frozenset((
    "env", "nohup", "exec", "command", "time", "nice", "ionice", "stdbuf", "numactl", "taskset", "setsid", "unbuffer",
    "timeout", "sudo", "conda", "mamba", "micromamba", "uv", "poetry", "pipenv", "srun", "xvfb-run",
))  # fmt: skip
_DEPTH = 12  # and it stands near the front


def located(words):
    """`(launcher, index of its first option)` of a command, or None. Pure."""
    for at in range(min(len(words), _DEPTH)):
        name = words[at].rpartition("/")[2]
        if name in _PROGRAMS:
            return _PROGRAMS[name], at + 1
        if name == "accelerate" and words[at + 1 : at + 2] == ["launch"]:
            return "accelerate", at + 2
        if name == "accelerate-launch":
            return "accelerate", at + 1
        if name == "llamafactory-cli":
            return "llamafactory", at + 1
        if name.startswith("python"):
            return _of_python(words, at + 1)
        if at == 0 and name not in _BEFORE:
            return None
    return None


def _of_python(words, at):
    while at < len(words) and words[at].startswith("-"):
        if words[at] == "-m" and at + 1 < len(words):
            launcher = _MODULES.get(words[at + 1])
            if words[at + 1 : at + 3] == ["accelerate.commands.accelerate_cli", "launch"]:
                return "accelerate", at + 3
            return (launcher, at + 2) if launcher else None
        at += 2 if words[at] in _WITH_VALUE else 1
    if at < len(words):
        name = words[at].rpartition("/")[2]
        if name in _PROGRAMS:
            return _PROGRAMS[name], at + 1
        if name == "accelerate" and words[at + 1 : at + 2] == ["launch"]:
            return "accelerate", at + 2
    return None
