"""The words of `docker run` for a job: cards, mounts, user, variables, and what runs inside before the command."""

from .accelerators import KINDS
from .containers import ATTEMPT, LABEL

# An image without bash has no set-up to source.
_SH = 'if command -v bash >/dev/null 2>&1; then exec bash -c "$@"; fi; shift 3; exec "$@"'
_HEAD = """set +eu
__jr_to={report}
__jr_tell() {{ [ -z "$__jr_to" ] || printf '%s\\n' "$2" >>"$__jr_to/$1"; }} 2>/dev/null
"""
# The secrets come as data on the standard input, so that the engine writes them down nowhere.
_SECRETS = """while IFS= read -r -d '' __jr_line; do export "$__jr_line"; done
exec </dev/null
"""
# In a subshell, so that a script that calls `exit` or changes the directory does no harm.
_TAKE = """eval "$(exec 3>&1 1>&2; trap 'set +eu; export -n PWD OLDPWD SHLVL; export -p >&3' EXIT; {what})"
"""
_ASCEND = """for __jr_top in /usr/local/Ascend "$HOME/Ascend" /opt/conda/Ascend; do
  for __jr_file in "$__jr_top"/cann/set_env.sh "$__jr_top"/cann-*/set_env.sh "$__jr_top"/ascend-toolkit/set_env.sh \\
    "$__jr_top"/nnae/set_env.sh "$__jr_top"/nnrt/set_env.sh "$__jr_top"/set_env.sh; do
    if [ -r "$__jr_file" ]; then break 2; fi
  done
done
for __jr_file in "$__jr_file" "$__jr_top"/nnal/atb/set_env.sh; do
  if [ -r "$__jr_file" ]; then
    {take}    __jr_tell sourced "$__jr_file"
  fi
done
""".format(take=_TAKE.format(what='source "$__jr_file"'))
_TOOLKIT = """: "${{{home}:={folder}}}"
if [ -d "${home}" ]; then
  export {home} PATH="${home}/bin:$PATH"
  export LD_LIBRARY_PATH="${home}/{libraries}${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}"
  __jr_tell sourced "${home}"
fi
"""
_MLU_PYTHON = """__jr_file=/torch/venv3/pytorch/bin/activate
if [ -z "$VIRTUAL_ENV" ] && [ -r "$__jr_file" ]; then source "$__jr_file"; __jr_tell sourced "$__jr_file"; fi
"""
_LINES = """__jr_n=$1; shift
while [ "$__jr_n" -gt 0 ]; do
  __jr_line=$1; shift; __jr_n=$((__jr_n - 1))
  trap '__jr_code=$?; __jr_fail' EXIT
  eval "$__jr_line"; __jr_code=$?
  set +eu
  trap - EXIT
  if [ "$__jr_code" -ne 0 ]; then __jr_fail; fi
done
"""
_FAIL = """__jr_fail() {
  [ "$__jr_code" -ne 0 ] || __jr_code=1
  printf 'jobrunner: setup failed with exit code %s: %s\\n' "$__jr_code" "$__jr_line" >&2
  __jr_tell failed "$__jr_code $__jr_line"; trap - EXIT; exit "$__jr_code"
}
"""
_GO = """if ! command -v -- "$1" >/dev/null 2>&1; then
  __jr_tell missing "$1"; printf 'jobrunner: there is no %s in the image\\n' "$1" >&2; exit 127
fi
unset __jr_n __jr_line __jr_code __jr_file __jr_top
exec "$@"
"""


def quoted(text):
    """A word for a shell. Pure."""
    return "'" + text.replace("'", "'\"'\"'") + "'"


def container_name(job_id, attempt):
    """The name that the engine knows an attempt by."""
    return "jobrunner-{}-{}".format(job_id, attempt)


_NOT_YOURS = ("--detach", "--restart", "--gpus", "--entrypoint", "--cidfile", "--tty")
_CARD_FILES = ("/dev/davinci", "/dev/cambricon_dev", "/dev/nvidia", "/dev/mtgpu.")


def refusal(options, nodes):
    """Why a spec's own words for `docker run` cannot be had, or None. `nodes`: the job's own device files. Pure."""
    words = [str(option) for option in options]
    for at, word in enumerate(words):
        name, _, value = word.partition("=")
        value = value or (words[at + 1] if at + 1 < len(words) else "")
        if name in _NOT_YOURS or _lets_go(name):
            return "runtime.docker.options has {}: {}".format(
                name,
                "the cards are the job's own" if name == "--gpus" else "jobrunner has to run and watch the container",
            )
        if name in ("-e", "--env") or (name[:2] == "-e" and name[2:]):
            variable = (word[2:] if name[:2] == "-e" and name[2:] else value).partition("=")[0]
            if variable.endswith(("_VISIBLE_DEVICES", "_VISIBLE_DEVICE")):
                return "runtime.docker.options sets {}: the cards are the job's own".format(variable)
        path = value.partition(":")[0]
        if name == "--device" and _opens_others(path, nodes):
            return "runtime.docker.options has --device {}, which is not a card of this job".format(path)
    return None


def _opens_others(path, nodes):
    """True for a device file of another card, and for a folder that holds them. Pure."""
    while "//" in path or (path.endswith("/") and path != "/"):
        path = path.replace("//", "/").rstrip("/")
    return path == "/dev" or (path.startswith(_CARD_FILES) and path[-1:].isdigit() and path not in nodes)


def _lets_go(word):
    """True for single letters that detach the container or give it a terminal: -d, -t, -it, -itd. Pure."""
    letters = set(word[1:])
    return word[:1] == "-" and letters <= set("dit") and bool(letters & set("dt"))


def has(options, *names):
    """True if one of these options is among the words. Pure."""
    return any(option == name or option.startswith(name + "=") for option in options for name in names)


def is_privileged(docker):
    """True if the container sees all cards of the host, whatever it is given. Pure."""
    return has([str(option) for option in docker.get("options") or []], "--privileged")


def docker_argv(docker, command, facts):
    """`docker run …` for a job. Values of variables are never words: `--env NAME` takes them from the environment.

    `docker` is the spec's `{image, mounts, options}`; `facts` has job, attempt, device, cards, work, out, uid, gid,
    names (variables to pass), nodes (files of the host that are there), and where wanted: physical (`{card: number of
    its device file}`), setup and host_setup (lines), vendor (source the vendor's set-up inside), report (folder for
    what happens inside), secrets (they come on standard input), shim (folder for PYTHONPATH), folders (further ones to
    share), groups, shm_bytes, client, init (the engine has one), env_file, fixed (variables that are no secret).
    """
    options = [str(option) for option in docker.get("options") or []]
    words = [facts.get("client") or "docker", "run", "--name", container_name(facts["job"], facts["attempt"])]
    words += ["--label", "{}={}".format(LABEL, facts["job"]), "--label", "{}={}".format(ATTEMPT, facts["attempt"])]
    if facts.get("secrets"):
        words.append("--interactive")
    if facts.get("init", True) and not has(options, "--init"):
        words.append("--init")
    if not has(options, "--network", "--net"):
        words += ["--network", "host"]
    if not has(options, "--ipc", "--shm-size") and facts.get("shm_bytes"):
        words += ["--shm-size", str(facts["shm_bytes"])]
    if not has(options, "--log-driver"):
        words += ["--log-driver", "none"]  # the job's log is the log; a second copy would fill the engine's disk
    if not has(options, "--user", "-u"):
        words += ["--user", "{}:{}".format(facts["uid"], facts["gid"])]
        if facts["uid"] and words[0].endswith("podman") and not has(options, "--userns"):
            words += ["--userns", "keep-id"]  # else the files belong to one of the user's subordinate ids
        for group in sorted(facts.get("groups") or ()):
            words += ["--group-add", str(group)]
    words += _devices(facts)
    for folder in [facts["work"], facts["out"], *(facts.get("folders") or ())]:
        words += ["--mount", mount(folder)]
    for volume in docker.get("mounts") or []:
        words += ["--volume", str(volume)]
    words += ["--workdir", facts["work"]]
    words += _variables(facts)
    inner = inner_argv(command, facts)
    return words + options + ["--entrypoint", inner[0], docker["image"]] + inner[1:]


def mount(folder):
    """A folder, bound at its own path, as a value of `--mount`: one line of comma-separated values. Pure."""
    fields = ["type=bind", "source=" + folder, "target=" + folder]
    return ",".join('"' + field.replace('"', '""') + '"' if "," in field or '"' in field else field for field in fields)


def _variables(facts):
    words = []
    if facts.get("env_file"):
        words += ["--env-file", facts["env_file"]]
    for name in sorted(facts["names"]):
        words += ["--env", name]
    fixed = dict(facts.get("fixed") or {})
    for kind in KINDS.values():
        # Read by the vendors' container runtimes, also out of an image's own variables; `void` is none of them.
        name = (kind.container.runtime or "").upper() + "_VISIBLE_DEVICES"
        if (
            kind.container.runtime
            and name not in facts["names"]
            and not (facts["cards"] and kind.name == facts["device"])
        ):
            fixed[name] = "void"
    for name in sorted(fixed):
        words += ["--env", "{}={}".format(name, fixed[name])]
    return words


def inner_argv(command, facts):
    """What runs in the container: the command, behind a bash that makes its environment where there is one to make.

    Lines of the host's own set-up that fail in the container are passed over and said; the spec's lines must not fail.
    """
    setup = list(facts.get("setup") or [])
    host_setup = list(facts.get("host_setup") or [])
    vendor = _vendor(facts["device"]) if facts.get("vendor") else ""
    secrets = _SECRETS if facts.get("secrets") else ""
    if not (setup or host_setup or vendor or secrets or facts.get("shim")):
        return list(command)
    text = _HEAD.format(report=quoted(facts.get("report") or "")) + secrets + vendor
    for line in host_setup:
        said = "jobrunner: a setup line of the host failed in the container and is passed over: " + line
        text += _TAKE.format(what="eval {} || printf '%s\\n' {} >&2".format(quoted(line), quoted(said)))
    text += _FAIL + _LINES
    if facts.get("shim"):
        text += "export PYTHONPATH={}${{PYTHONPATH:+:$PYTHONPATH}}\n".format(quoted(facts["shim"]))
    inner = ["bash", "-c", text + _GO, "jobrunner", str(len(setup)), *setup, *list(command)]
    return inner if setup or secrets else ["sh", "-c", _SH, "jobrunner", *inner[2:]]


def card_nodes(device, cards, physical=None):
    """The device files that a container of these cards must have. Pure."""
    if device not in KINDS:
        return []
    numbers = [(physical or {}).get(card, card) for card in sorted(cards)]
    return [form.format(number) for form in KINDS[device].container.each[:1] for number in numbers]


def _vendor(device):
    """The lines that set up the vendor's software of the image: CANN by its script, a toolkit by its variable."""
    if device == "npu":
        return _ASCEND
    kit = KINDS[device].toolkit if device in KINDS else None
    if kit is None or not kit.variable:
        return ""
    lines = _TOOLKIT.format(home=kit.variable, folder=kit.folder, libraries=kit.libraries)
    return lines + (_MLU_PYTHON if device == "mlu" else "")


def node_candidates(device, cards, physical=None):
    """Files of the host that a container of these cards wants, where they exist. Pure."""
    if device not in KINDS:
        return []
    wanted = KINDS[device].container
    more = [form.format(card) for form in wanted.each[1:] for card in sorted(cards)]
    return card_nodes(device, cards, physical) + more + list(wanted.common) + list(wanted.mounts)


def _devices(facts):
    device, cards = facts["device"], sorted(facts["cards"])
    if not cards or device not in KINDS:
        return []
    if KINDS[device].container.gpus:
        if (facts.get("client") or "").endswith("podman"):
            return [word for card in cards for word in ("--device", "nvidia.com/gpu={}".format(card))]
        return ["--gpus", '"device={}"'.format(",".join(str(card) for card in cards))]
    words = []
    for node in node_candidates(device, cards, facts.get("physical")):
        if node in (facts.get("nodes") or ()):
            words += ["--device", node] if node.startswith("/dev/") else ["--volume", "{0}:{0}:ro".format(node)]
    return words
