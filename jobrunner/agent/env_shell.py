"""Shell code of a set-up, run by bash; what it exports is taken over by comparison. All names and values are bytes.

Bash tells over a private descriptor what it exports at the start and at the end (`env`), and which step it is at
(`step`). Vendors' scripts each run in a bash of their own, which reports even when the script calls `exit`: whatever
such a script does, the set-up goes on.
"""

import os

from . import files
from .files import to_text

# What bash makes up by itself.
BASH_OWN = frozenset(
    b"_ SHLVL PWD OLDPWD BASHOPTS SHELLOPTS PPID UID EUID RANDOM SRANDOM SECONDS LINENO HISTCMD EPOCHSECONDS "
    b"EPOCHREALTIME".split()
)
# What it would act upon before the first line. A line may set it (environment modules do), for the command's own bash.
BEFOREHAND = (b"BASH_ENV", b"ENV")
VENDOR_LIMIT_S = 60.0
_OUT, _IN = 19, 20

_DUMP = r"""set +eu
__jr_dump() {
  printf 'env\0' >&@OUT@
  for __jr_env in /usr/bin/env /bin/env env; do "$__jr_env" -0 >&@OUT@ 2>/dev/null && break; done
  printf '\0' >&@OUT@
}
"""
# A script that calls `exit` ends this bash, too: the trap tells what it had exported by then.
_VENDOR = (
    _DUMP
    + r"""__jr_file=$1; set --
__jr_dump
trap '__jr_status=$?; trap - EXIT; set +eu; __jr_dump; exit "$__jr_status"' EXIT
source "$__jr_file"
"""
)
_STEPS = (
    _DUMP
    + r"""__jr_items=("$@"); set --
__jr_conda() {
  case $1 in
    '') __jr_dump; IFS= read -r -d '' -u @IN@ __jr_base && IFS= read -r -d '' -u @IN@ __jr_name || return 1 ;;
    *) __jr_base=$1 __jr_name=$2 ;;
  esac
}
__jr_dump
__jr_i=0
while [ "$__jr_i" -lt "${#__jr_items[@]}" ]; do
  __jr_kind=${__jr_items[__jr_i]} __jr_a=${__jr_items[__jr_i+1]} __jr_b=${__jr_items[__jr_i+2]}
  printf 'step\0%s\0\0' "$__jr_i" >&@OUT@
  case $__jr_kind in
    line)
      case $__jr_a in *module*|*ml\ *)
        if ! type module >/dev/null 2>&1; then
          for __jr_file in "$MODULESHOME/init/bash" "$LMOD_PKG/init/bash" @MODULES@; do
            [ -r "$__jr_file" ] && { source "$__jr_file" @OUT@>&- @IN@<&-; type module >/dev/null 2>&1 && break; }
          done
          set +eu
        fi ;;
      esac
      eval "$__jr_a" @OUT@>&- @IN@<&- ;;
    venv)
      if [ -d "$__jr_a/bin" ]; then
        export VIRTUAL_ENV="$__jr_a" PATH="$__jr_a/bin${PATH:+:$PATH}"; unset PYTHONHOME
      else
        false
      fi ;;
    conda)
      if __jr_conda "$__jr_a" "$__jr_b"; then
        case $__jr_base in
          hand)
            export CONDA_PREFIX="$__jr_name" CONDA_DEFAULT_ENV="$__jr_name" PATH="$__jr_name/bin${PATH:+:$PATH}"
            for __jr_file in "$__jr_name"/etc/conda/activate.d/*.sh; do
              [ -r "$__jr_file" ] && source "$__jr_file" @OUT@>&- @IN@<&-
            done
            true ;;
          */bin/*mamba)
            { eval "$("$__jr_base" shell hook -s bash)" && micromamba activate "$__jr_name"; } @OUT@>&- @IN@<&- ;;
          *)
            { source "$__jr_base/etc/profile.d/conda.sh" && conda activate "$__jr_name"; } @OUT@>&- @IN@<&- ;;
        esac
      else
        false
      fi ;;
  esac
  __jr_status=$?
  set +eu
  [ "$__jr_status" -eq 0 ] || exit "$__jr_status"
  __jr_i=$((__jr_i+3))
done
__jr_dump
"""
)
_MODULES = (
    "/etc/profile.d/modules.sh /usr/share/Modules/init/bash /usr/share/modules/init/bash /usr/local/Modules/init/bash "
    "/etc/profile.d/lmod.sh /etc/profile.d/z00_lmod.sh /usr/share/lmod/lmod/init/bash /opt/apps/lmod/lmod/init/bash"
)


class SetupFailed(Exception):
    """The environment could not be made: the exit code to report, and what happened."""

    def __init__(self, code, message):
        Exception.__init__(self, message)
        self.code = code


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


def messages(data):
    """`[(kind, [entries])]` of what bash told: whole messages only. Pure."""
    found = []
    for piece in data.split(b"\0\0")[:-1]:
        kind, _, rest = piece.partition(b"\0")
        found.append((kind, rest.split(b"\0") if rest else []))
    return found


def table(entries):
    """The environment that `env -0` printed. Pure."""
    pairs = (entry.partition(b"=") for entry in entries)
    return {name: value for name, equals, value in pairs if equals and name}


def vendor(path, environment, cwd, limit_s=VENDOR_LIMIT_S):
    """`(environment, None or what went wrong)` after a vendor's script was sourced. It never fails the set-up."""
    bash = _Bash(_VENDOR, [path], environment, cwd)
    status, data = bash.end(limit_s)
    told = [table(entries) for kind, entries in messages(data) if kind == b"env"]
    shown = to_text(path)
    if status is None:
        return environment, "{} did not end within {:.0f} s: nothing of it was taken over".format(shown, limit_s)
    if len(told) < 2:
        return environment, "{} ended the shell ({}): nothing of it was taken over".format(shown, _how(status))
    problem = "{} ended with {}".format(shown, _how(status)) if status else None
    return merged(environment, told[0], told[-1]), problem


def steps(items, environment, cwd, find_conda=None):
    """The environment after set-up steps, run one after the other in one bash; SetupFailed at the first that fails.

    A step is `(kind, a, b)` in bytes: `line` (shell code), `venv` (its folder), `conda` (base and environment; with an
    empty base `find_conda(environment so far)` gives both). What they print goes to our standard output and error.
    """
    if not items:
        return environment
    bash = _Bash(_STEPS, [word for item in items for word in item], environment, cwd)
    asks = any(kind == b"conda" and not base for kind, base, _ in items)
    status, data = bash.end(None, find_conda if asks else None)
    told = messages(data)
    dumps = [table(entries) for kind, entries in told if kind == b"env"]
    at = [int(entries[0]) for kind, entries in told if kind == b"step"]
    if status or len(dumps) < 2 + asks:
        code = 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
        raise SetupFailed(code or 1, _failure(items[at[-1] // 3] if at else None, status))
    return merged(environment, dumps[0], dumps[-1])


def _failure(item, status):
    if item is None:
        return "bash could not be run for the setup: it ended with {}".format(_how(status))
    kind, a, b = item
    if kind == b"venv":
        return "there is no virtual environment in {}".format(to_text(a))
    what = "conda activate " + to_text(b) if kind == b"conda" else to_text(a)
    if not status:
        return "a setup line ended the shell, so that the environment is not known: {}".format(what)
    return "setup failed with {}: {}".format(_how(status), what)


def _how(status):
    if os.WIFSIGNALED(status):
        return "signal {}".format(os.WTERMSIG(status))
    return "exit code {}".format(os.WEXITSTATUS(status))


class _Bash:
    """One bash that runs a script, and the pipes to it."""

    def __init__(self, script, words, environment, cwd):
        self.answers, answer = os.pipe()
        ask, self.questions = os.pipe()
        self.child = os.fork()
        if not self.child:
            try:
                _become(script, words, environment, cwd, answer, ask)
            finally:
                os._exit(127)
        os.close(answer)
        os.close(ask)
        self.data = b""

    def end(self, limit_s, find_conda=None):
        """`(wait status, what it told)`; the status is None where the limit passed and it was killed."""
        try:
            return self._end(limit_s, find_conda)
        finally:
            os.close(self.answers)
            os.close(self.questions)

    def _end(self, limit_s, find_conda):
        # A process that the script left behind may keep the pipe open, so that the pipe's end is no sign.
        import select
        import time

        ends = None if limit_s is None else time.monotonic() + limit_s
        poller = select.poll()
        poller.register(self.answers, select.POLLIN | select.POLLHUP)
        status, asked = None, False
        while True:
            if poller.poll(20 if status is None else 0):
                piece = os.read(self.answers, 1 << 16)
                self.data += piece
                if not piece and status is None:
                    return os.waitpid(self.child, 0)[1], self.data
                if not asked and find_conda is not None:
                    asked = self._answer(find_conda)
                if piece:
                    continue
            if status is not None:
                return status, self.data
            ended, found = os.waitpid(self.child, os.WNOHANG)
            if ended:
                status = found
            elif ends is not None and time.monotonic() > ends:
                self._kill()
                return None, self.data

    def _answer(self, find_conda):
        """Answer the question which conda it is, once it has been asked: that is the second `env`."""
        told = [table(entries) for kind, entries in messages(self.data) if kind == b"env"]
        if len(told) < 2:
            return False
        try:
            words = find_conda(told[1])
        except BaseException:
            self._kill()
            raise
        os.write(self.questions, b"\0".join(words) + b"\0")
        return True

    def _kill(self):
        os.kill(self.child, 9)
        os.waitpid(self.child, 0)


def _become(script, words, environment, cwd, answer, ask):
    first = os.dup(answer), os.dup(ask)  # so that neither is in the way of the other's number
    for descriptor, number in zip(first, (_OUT, _IN)):
        os.dup2(descriptor, number)
        os.set_inheritable(number, True)
    os.chdir(cwd)
    text = script.replace("@OUT@", str(_OUT)).replace("@IN@", str(_IN)).replace("@MODULES@", _MODULES)
    argv = [b"bash", b"--noprofile", b"--norc", b"-c", text.encode(), b"jobrunner-setup"]
    dropped = (BASH_OWN | set(BEFOREHAND)) - {b"PWD"}
    clean = {name: value for name, value in environment.items() if name not in dropped}
    for shell in (b"/bin/bash", b"/usr/bin/bash", b"/usr/local/bin/bash"):
        if os.path.exists(shell):
            os.execve(shell, argv + [files.to_bytes(word) for word in words], clean)
    os.write(2, b"jobrunner: this host has no bash for the setup lines\n")
