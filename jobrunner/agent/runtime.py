"""Argument vectors of a job's command, built as data: plain, by an interpreter, or inside a container. Pure."""

import os

from . import files
from .files import AgentError

LABEL = "jobrunner.job"
VISIBLE = {"npu": "ASCEND_RT_VISIBLE_DEVICES", "mlu": "MLU_VISIBLE_DEVICES", "gpu": "CUDA_VISIBLE_DEVICES"}

_SETUP = (
    '__jr_n=$1; shift; while [ "$__jr_n" -gt 0 ]; do __jr_line=$1; shift; __jr_n=$((__jr_n - 1)); '
    'eval "$__jr_line" || exit; done; unset __jr_n __jr_line; exec "$@"'
)


def visible_devices(device, cards, in_container=False):
    """The three vendors' variables so that a job sees its own cards and no others. Pure.

    Ascending ids without blanks or ranges; in a container the numbers count from 0. With no cards all three are empty.
    """
    if not cards or device not in VISIBLE:
        return dict.fromkeys(VISIBLE.values(), "")
    ids = range(len(cards)) if in_container else sorted(int(card) for card in cards)
    return {VISIBLE[device]: ",".join(str(index) for index in ids)}


def expand_home(path, home):
    """A path with a leading `~/` as the job's user means it."""
    if path == "~":
        return home
    return home.rstrip("/") + path[1:] if path.startswith("~/") else path


def filled(word, checkpoint, others):
    """A word of a command with its placeholders replaced by paths.

    Only a word that holds `{checkpoint` is a template: there `{checkpoint}` is the path to go on from (empty if
    there is none), `{checkpoint:JOB}` that job's in `others`, and `{{` a brace. Every other word is literal.
    """
    if "{checkpoint" not in word:
        return word
    pieces, rest = [], word
    while rest:
        before, brace, rest = rest.partition("{")
        pieces.append(before)
        inner, closed, after = rest.partition("}")
        if brace and rest.startswith("{"):
            pieces.append("{")
            rest = rest[1:]
        elif brace and closed and inner == "checkpoint":
            pieces.append(checkpoint or "")
            rest = after
        elif brace and closed and inner.startswith("checkpoint:"):
            pieces.append(_of_other(inner[len("checkpoint:") :], others))
            rest = after
        else:
            pieces.append(brace)
    return "".join(pieces)


def _of_other(job, others):
    if not others.get(job):
        raise AgentError(
            "no_checkpoint",
            "the command names a checkpoint of {}, and none is known here".format(job),
            "See `jobrunner checkpoints {}`, or submit without it.".format(job),
        )
    return others[job]


def named_jobs(run):
    """The other jobs whose checkpoints a command names."""
    command = run.get("command") or {}
    words = list(command.get("argv") or []) + list(command.get("args") or []) + list(run.get("resume_args") or [])
    found = set()
    for word in words:
        for piece in word.split("{checkpoint:")[1:]:
            found.add(piece.partition("}")[0])
    return sorted(found)


def command_argv(run, work, home="", checkpoint=None, checkpoints=None):
    """The words of a job's command. `work` is its folder, `checkpoint` the path to go on from (or None),
    `checkpoints` paths for `{checkpoint:JOB}`.

    A string is exactly `bash -c STRING`; a script runs by what its name says; a list is words.
    """
    command = run.get("command") or {}
    more = list(run.get("resume_args") or []) if checkpoint else []
    if command.get("shell") is not None:
        words = ["bash", "-c", command["shell"]]
        return words + (["bash", *_filled(more, checkpoint, checkpoints)] if more else [])
    if command.get("argv") is not None:
        words = list(command["argv"])
    elif command.get("script"):
        words = _script_words(command["script"], run.get("runtime") or {}, work, home) + list(command.get("args") or [])
    else:
        raise AgentError("no_command", "the request names no command", "submit the job again")
    return [words[0], *_filled(words[1:] + more, checkpoint, checkpoints)] if words else words


def _filled(words, checkpoint, checkpoints):
    return [filled(word, checkpoint, checkpoints or {}) for word in words]


def _script_words(script, runtime, work, home):
    if script.endswith(".py"):
        return [python_word(runtime, home), script]
    if script.endswith(".sh"):
        return ["bash", script]
    return [files.to_text(os.path.join(files.to_bytes(work), files.to_bytes(script)))]


def python_word(runtime, home):
    """The python that runs scripts: the spec's own, the environment's, else python3."""
    if runtime.get("python"):
        return expand_home(runtime["python"], home)
    return "python" if runtime.get("venv") or runtime.get("conda") else "python3"


def container_name(job_id, attempt):
    """The name that `docker` knows an attempt by."""
    return "jobrunner-{}-{}".format(job_id, attempt)


def docker_argv(docker, command, facts):
    """`docker run …` for a job. Values of variables are never words: `--env NAME` takes them from the environment.

    `docker` is the spec's `{image, mounts, options}`; `facts` has job, attempt, device, cards, work, out, uid, gid,
    names (variables to pass), setup (lines for a bash inside), nodes (device files that exist on the host).
    """
    options = [str(option) for option in docker.get("options") or []]
    words = [
        "docker",
        "run",
        "--rm",
        "--init",
        "--name",
        container_name(facts["job"], facts["attempt"]),
        "--label",
        "{}={}".format(LABEL, facts["job"]),
    ]
    if not _has(options, "--network", "--net"):
        words += ["--network", "host"]
    if not _has(options, "--ipc", "--shm-size"):
        words += ["--ipc", "host"]
    if not _has(options, "--user", "-u"):
        words += ["--user", "{}:{}".format(facts["uid"], facts["gid"])]
    words += _devices(facts["device"], facts["cards"], facts.get("nodes") or ())
    for folder in (facts["work"], facts["out"]):
        words += ["--mount", "type=bind,source={0},target={0}".format(folder)]
    for mount in docker.get("mounts") or []:
        words += ["--volume", str(mount)]
    words += ["--workdir", facts["work"]]
    for name in sorted(facts["names"]):
        words += ["--env", name]
    setup = list(facts.get("setup") or [])
    inner = ["bash", "-c", _SETUP, "jobrunner", str(len(setup)), *setup, *list(command)] if setup else list(command)
    return words + options + ["--entrypoint", inner[0], docker["image"]] + inner[1:]


def _has(options, *names):
    return any(option == name or option.startswith(name + "=") for option in options for name in names)


NPU_COMMON = ("/dev/davinci_manager", "/dev/devmm_svm", "/dev/hisi_hdc")
NPU_MOUNTS = (
    "/usr/local/dcmi",
    "/usr/local/bin/npu-smi",
    "/usr/local/Ascend/driver/lib64",
    "/usr/local/Ascend/driver/version.info",
    "/etc/ascend_install.info",
)
MLU_COMMON = ("/dev/cambricon_ctl",)
MLU_MOUNTS = ("/usr/bin/cnmon",)


def node_candidates(device, cards):
    """Files of the host that a container of these cards wants, where they exist."""
    if device == "npu":
        return ["/dev/davinci{}".format(card) for card in cards] + list(NPU_COMMON + NPU_MOUNTS)
    if device == "mlu":
        own = [form.format(card) for card in cards for form in ("/dev/cambricon_dev{}", "/dev/cambricon_ipcm{}")]
        return own + list(MLU_COMMON + MLU_MOUNTS)
    return []


def _devices(device, cards, nodes):
    if not cards:
        return []
    if device == "gpu":
        return ["--gpus", '"device={}"'.format(",".join(str(card) for card in sorted(cards)))]
    words = []
    for node in node_candidates(device, sorted(cards)):
        if node in nodes:
            words += ["--device", node] if node.startswith("/dev/") else ["--volume", "{0}:{0}:ro".format(node)]
    return words
