"""The environment of a job, built in layers (CONTRACT §2). Values are data: no shell ever reads one.

Setup lines are shell code, so one bash runs them; what it exports at the end is compared with what it exported at the
start, and only the differences are taken over. All names and values are bytes.
"""

import os

from . import files, runtime

SESSION = (b"SSH_", b"XDG_", b"TMUX")
DROPPED = frozenset((b"DISPLAY", b"_", b"OLDPWD", b"SHLVL"))
# What bash makes up by itself, or would act upon before the first line.
BASH_OWN = frozenset(
    (
        b"_",
        b"SHLVL",
        b"PWD",
        b"OLDPWD",
        b"BASHOPTS",
        b"SHELLOPTS",
        b"BASH_ENV",
        b"ENV",
        b"PPID",
        b"UID",
        b"EUID",
        b"RANDOM",
        b"SRANDOM",
        b"SECONDS",
        b"LINENO",
        b"HISTCMD",
        b"EPOCHSECONDS",
        b"EPOCHREALTIME",
    )
)

_BASH = r"""set +eu
__jr_items=("$@"); set --
__jr_dump() {
  for __jr_env in /usr/bin/env /bin/env env; do "$__jr_env" -0 >&@FD@ 2>/dev/null && break; done
  printf '\0' >&@FD@
}
__jr_dump
__jr_i=0
while [ "$__jr_i" -lt "${#__jr_items[@]}" ]; do
  __jr_kind=${__jr_items[__jr_i]} __jr_a=${__jr_items[__jr_i+1]} __jr_b=${__jr_items[__jr_i+2]}
  case $__jr_kind in
    vendor) { source "$__jr_a"; true; } @FD@>&- ;;
    conda) { source "$__jr_a/etc/profile.d/conda.sh" && conda activate "$__jr_b"; } @FD@>&- ;;
    line) eval "$__jr_a" @FD@>&- ;;
  esac
  __jr_status=$?
  set +eu
  if [ "$__jr_status" -ne 0 ]; then
    printf 'jobrunner: setup failed with exit code %s: %s\n' "$__jr_status" "$__jr_a" >&2
    exit "$__jr_status"
  fi
  __jr_i=$((__jr_i+3))
done
__jr_dump
"""
_FD = 19


class SetupFailed(Exception):
    """The environment could not be made: the exit code to report, and what happened."""

    def __init__(self, code, message):
        Exception.__init__(self, message)
        self.code = code


def as_bytes(table):
    """A table of texts as bytes."""
    return {files.to_bytes(str(name)): files.to_bytes(str(value)) for name, value in (table or {}).items()}


def session_part(recorded):
    """What a recorded session's environment gives to a job: without what belongs to that session alone. Pure."""
    return {name: value for name, value in recorded.items() if not name.startswith(SESSION) and name not in DROPPED}


def prepended(environment, name, folder):
    """The environment with a folder put before a colon-separated list. Pure."""
    old = environment.get(name)
    result = dict(environment)
    result[name] = folder + (b":" + old if old else b"")
    return result


def vendor_scripts(device, home, exists=os.path.exists, listing=os.listdir):
    """The vendor's own set-up scripts to source for a device, in order; empty where none is installed."""
    if device != "npu":
        return []
    tops = [b"/usr/local/Ascend", os.path.join(home, b"Ascend")]
    try:
        tops += [b"/opt/conda/Ascend/" + name for name in sorted(listing(b"/opt/conda/Ascend"), reverse=True)]
    except OSError:
        pass
    names = (b"cann/set_env.sh", b"ascend-toolkit/set_env.sh", b"nnae/set_env.sh", b"set_env.sh")
    for top in tops:
        for name in names:
            if exists(os.path.join(top, name)):
                found = [os.path.join(top, name)]
                atb = os.path.join(top, b"nnal/atb/set_env.sh")
                return found + ([atb] if exists(atb) else [])
    return []


def vendor_values(device, environment, exists=os.path.exists):
    """The environment with the vendor's library folders that need no script. Pure but for `exists`."""
    result = dict(environment)
    if device == "npu":
        base = b"/usr/local/Ascend/driver/lib64"
        for folder in (base + b"/driver", base + b"/common", base):
            if exists(folder):
                result = prepended(result, b"LD_LIBRARY_PATH", folder)
    if device == "mlu":
        home = result.get(b"NEUWARE_HOME") or b"/usr/local/neuware"
        if exists(home):
            result[b"NEUWARE_HOME"] = home
            for name, folder in ((b"PATH", b"bin"), (b"LD_LIBRARY_PATH", b"lib64")):
                if exists(os.path.join(home, folder)):
                    result = prepended(result, name, os.path.join(home, folder))
    return result


def conda_base(environment, home, exists=os.path.exists):
    """The folder of the conda installation, or None."""
    tried = []
    executable = environment.get(b"CONDA_EXE")
    if executable:
        tried.append(os.path.dirname(os.path.dirname(executable)))
    for folder in environment.get(b"PATH", b"").split(b":"):
        if folder and exists(os.path.join(folder, b"conda")):
            tried.append(os.path.dirname(os.path.dirname(os.path.realpath(os.path.join(folder, b"conda")))))
    for top in (home, b"/opt", b"/usr/local", b"/root"):
        tried += [
            os.path.join(top, name) for name in (b"miniconda3", b"anaconda3", b"miniforge3", b"mambaforge", b"conda")
        ]
    for base in tried:
        if exists(os.path.join(base, b"etc/profile.d/conda.sh")):
            return base
    return None


def venv_values(environment, folder):
    """The environment with a virtual environment activated, as its own script does it. Pure."""
    result = prepended(environment, b"PATH", os.path.join(folder, b"bin"))
    result[b"VIRTUAL_ENV"] = folder
    result.pop(b"PYTHONHOME", None)
    return result


def merged(original, before, after):
    """`original` with the changes that bash showed between `before` and `after`. Pure.

    Names that bash cannot hold (`a.b`), and what it makes up itself, stay as they were.
    """
    result = dict(original)
    for name, value in after.items():
        if name not in BASH_OWN and not name.startswith(b"__jr_") and before.get(name) != value:
            result[name] = value
    for name in before:
        if name not in after and name not in BASH_OWN:
            result.pop(name, None)
    return result


def source(items, environment, cwd):
    """Run setup items in one bash and return the environment that results.

    An item is `(kind, a, b)` in bytes: vendor script, conda base and name, or a line of shell. Their output goes to
    our standard output and error. The first that fails ends it: SetupFailed with its exit code.
    """
    if not items:
        return environment
    read_end, write_end = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.dup2(write_end, _FD)
            os.set_inheritable(_FD, True)
            os.chdir(cwd)
            words = [
                b"bash",
                b"--noprofile",
                b"--norc",
                b"-c",
                _BASH.replace("@FD@", str(_FD)).encode(),
                b"jobrunner-setup",
            ]
            clean = {name: value for name, value in environment.items() if name not in BASH_OWN or name == b"PWD"}
            for shell in (b"/bin/bash", b"/usr/bin/bash", b"/usr/local/bin/bash"):
                if os.path.exists(shell):
                    os.execve(shell, words + [word for item in items for word in item], clean)
            os.write(2, b"jobrunner: this host has no bash for the setup lines\n")
        finally:
            os._exit(127)
    os.close(write_end)
    try:
        status, data = _read_dumps(child, read_end)
    finally:
        os.close(read_end)
    if os.WIFSIGNALED(status):
        raise SetupFailed(128 + os.WTERMSIG(status), "the setup was ended by signal {}".format(os.WTERMSIG(status)))
    code = os.WEXITSTATUS(status)
    dumps = data.split(b"\0\0")
    if code or len(dumps) < 3:
        raise SetupFailed(
            code or 1,
            "the setup failed with exit code {}".format(code)
            if code
            else "a setup line ended the shell, so that the environment is not known",
        )
    return merged(environment, _parsed(dumps[0]), _parsed(dumps[1]))


def _read_dumps(child, read_end):
    """What bash wrote, and its status. A process that it left behind may keep the pipe open, so its end is no sign."""
    import select

    poller = select.poll()
    poller.register(read_end, select.POLLIN | select.POLLHUP)
    data, status = b"", None
    while True:
        if poller.poll(20 if status is None else 0):
            piece = os.read(read_end, 1 << 16)
            data += piece
            if not piece and status is None:
                return os.waitpid(child, 0)[1], data
            if piece:
                continue
        if status is not None:
            return status, data
        ended, found = os.waitpid(child, os.WNOHANG)
        if ended:
            status = found


def _parsed(dump):
    table = {}
    for entry in dump.split(b"\0"):
        name, equals, value = entry.partition(b"=")
        if equals and name:
            table[name] = value
    return table


def marks(job):
    """What a spec may not set. `job` has id, name, attempt, device, cards, out, resume, container."""
    table = {
        "JOBRUNNER_JOB_ID": job["id"],
        "JOBRUNNER_JOB_NAME": job["name"] or job["id"],
        "JOBRUNNER_ATTEMPT": str(job["attempt"]),
        "JOBRUNNER_DEVICE": job["device"],
        "JOBRUNNER_CARDS": ",".join(str(card) for card in sorted(job["cards"])),
        "JOBRUNNER_NUM_CARDS": str(len(job["cards"])),
        "JOBRUNNER_OUTPUT_DIR": job["out"],
    }
    if job.get("resume"):
        table["JOBRUNNER_RESUME_FROM"] = job["resume"]
    table.update(runtime.visible_devices(job["device"], job["cards"], job.get("container", False)))
    return as_bytes(table)


def defaults(environment, device, master_port, hccl_port):
    """The environment with what is set unless the spec sets it. Pure."""
    table = {b"PYTHONUNBUFFERED": b"1"}
    if master_port:
        table[b"MASTER_ADDR"] = b"127.0.0.1"
        table[b"MASTER_PORT"] = str(master_port).encode()
    if device == "npu" and hccl_port:
        table[b"HCCL_IF_BASE_PORT"] = str(hccl_port).encode()
    table.update(environment)
    return table
