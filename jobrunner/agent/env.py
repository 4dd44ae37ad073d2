"""The environment of a job, built in layers (CONTRACT §2). Values are data: no shell ever reads one.

Setup lines are shell code, so a bash runs them (`env_shell`); what it exports at the end is compared with what it
exported at the start, and only the differences are taken over. All names and values are bytes.
"""

import json
import os

from . import env_conda, env_shell, env_vendor, files, runtime
from .env_conda import conda_base
from .env_shell import SetupFailed, merged
from .env_vendor import prepended, vendor_scripts, vendor_values

SESSION = (b"SSH_", b"XDG_", b"TMUX")
DROPPED = frozenset((b"DISPLAY", b"_", b"OLDPWD", b"SHLVL"))
NO_CONDA = (
    "conda is asked for and no conda installation was found: "
    "name its program in the host's setup (export CONDA_EXE=…/bin/conda)"
)


def as_bytes(table):
    """A table of texts as bytes."""
    return {files.to_bytes(str(name)): files.to_bytes(str(value)) for name, value in (table or {}).items()}


def session_part(recorded):
    """What a recorded session's environment gives to a job: without what belongs to that session alone. Pure."""
    return {name: value for name, value in recorded.items() if not name.startswith(SESSION) and name not in DROPPED}


def source(items, environment, cwd, find_conda=None):
    """Run setup items and return the environment that results; SetupFailed where one fails.

    An item is `(kind, a, b)` in bytes: a `vendor` script, or a step of `env_shell.steps`. What they print goes to our
    standard output and error. A vendor's script that goes wrong is passed over.
    """
    pending = []
    for item in items:
        if item[0] == b"vendor":
            environment = env_shell.steps(pending, environment, cwd, find_conda)
            environment, pending = env_shell.vendor(item[1], environment, cwd)[0], []
        else:
            pending.append(item)
    return env_shell.steps(pending, environment, cwd, find_conda)


class Activation:
    """The layers that a shell or a vendor has a part in: vendor, host setup, conda or venv, runtime setup.

    `sourced` and `problems` tell afterwards which scripts of the vendor were sourced, and what went wrong in them.
    """

    def __init__(self, run, device, home, work):
        self.run = run
        self.options = run.get("runtime") or {}
        self.device, self.home, self.work = device, home, work
        self.sourced, self.problems = [], []

    def apply(self, table):
        """The environment with these layers. Raises SetupFailed."""
        scripts = []
        if self.options.get("vendor") != "off":
            driver = env_vendor.driver_folder(files.read_file(b"/etc/ascend_install.info", 65536) or b"")
            table = vendor_values(self.device, table, driver=driver)
            pointed = table.get(b"ASCEND_TOOLKIT_HOME") or table.get(b"ASCEND_HOME_PATH")
            scripts = vendor_scripts(self.device, self.home, pointed=pointed)
        virtual = self._virtual()
        late = [path for path in scripts if virtual and env_vendor.is_late(path)]
        for path in scripts:
            if path not in late:
                table = self._vendor(path, table)
        steps = _lines(self.run.get("host_setup")) + virtual
        if self.options.get("conda") and self.device == "npu" and self.options.get("vendor") != "off":
            table, steps = self._steps(steps, table), []
            own = env_vendor.env_scripts(table.get(b"CONDA_PREFIX") or b"/nowhere")
            late = own + [path for path in late if not own]
        if late:
            table, steps = self._steps(steps, table), []
            for path in late:
                table = self._vendor(path, table)
        return self._steps(steps + _lines(self.options.get("setup")), table)

    def _vendor(self, path, table):
        table, problem = env_shell.vendor(path, table, self.work)
        self.sourced.append(files.to_text(path))
        if problem:
            self.problems.append(problem)
        return table

    def _steps(self, steps, table):
        return env_shell.steps(steps, table, self.work, self._find_conda)

    def _virtual(self):
        expand = lambda path: files.to_bytes(runtime.expand_home(path, files.to_text(self.home)))  # noqa: E731
        if self.options.get("conda"):
            return [(b"conda", b"", expand(self.options["conda"]))]
        if self.options.get("venv"):
            return [(b"venv", os.path.join(self.work, expand(self.options["venv"])), b"")]
        return []

    def _find_conda(self, table):
        wanted = self._virtual()[0][2]
        if b"/" in wanted:
            wanted = os.path.join(self.work, wanted)
        found = env_conda.choose(wanted, table, self.home)
        if found is None:
            raise SetupFailed(125, NO_CONDA)
        return found


def _lines(lines):
    return [(b"line", files.to_bytes(line), b"") for line in lines or []]


def marks(job):
    """What a spec may not set. `job` has id, name, attempt, device, cards, out, resume, container, sweep."""
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
    table.update(trial(job.get("sweep")))
    table.update(runtime.visible_devices(job["device"], job["cards"], job.get("container", False)))
    return as_bytes(table)


def trial(sweep):
    """What a trial of a sweep is told about itself; `sweep` is that of its request. Pure."""
    if not isinstance(sweep, dict) or not isinstance(sweep.get("parameters"), dict):
        return {}
    values = {str(name): str(value) for name, value in sweep["parameters"].items()}
    table = {"JOBRUNNER_PARAM_" + name.upper(): value for name, value in values.items()}
    table["JOBRUNNER_PARAMS"] = json.dumps(values, sort_keys=True)
    table["JOBRUNNER_SWEEP_ID"] = str(sweep.get("id"))
    table["JOBRUNNER_TRIAL"] = str(sweep.get("number"))
    return table


def defaults(environment, device, master_port, hccl_port, vendor_log=None):
    """The environment with what is set unless the spec sets it. `vendor_log`: where CANN is to write its logs. Pure."""
    table = {b"PYTHONUNBUFFERED": b"1"}
    if master_port:
        table[b"MASTER_ADDR"] = b"127.0.0.1"
        table[b"MASTER_PORT"] = str(master_port).encode()
    if device == "npu" and hccl_port:
        table[b"HCCL_IF_BASE_PORT"] = str(hccl_port).encode()
    if device == "npu" and vendor_log:
        table[b"ASCEND_PROCESS_LOG_PATH"] = vendor_log
    table.update(environment)
    return table


__all__ = [
    "Activation", "SetupFailed", "as_bytes", "conda_base", "defaults", "marks", "merged", "prepended", "session_part",
    "source", "vendor_scripts", "vendor_values",
]  # fmt: skip
