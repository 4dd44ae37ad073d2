"""What `jobrunner demo` does, told while it happens: one job from submit to its checkpoint; a sweep; a schedule."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from jobrunner.core.errors import UsageError
from jobrunner.lab.demo import DemoHost
from jobrunner.lab.examples import example

NEEDED = ("numpy", "sklearn")
Run = Callable[[list[str]], int]
Say = Callable[[str], None]
Steps = list[tuple[str, list[str]]]
Subject = Literal["job", "sweep", "schedule"]


def check_python() -> None:
    """Raise UsageError unless this Python has what the demo's training script needs."""
    from importlib.util import find_spec

    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise UsageError(
            f"the demo's training script needs {' and '.join(missing)}, and this Python has none",
            remedy=f"{shlex.quote(sys.executable)} -m pip install numpy scikit-learn",
        )


def run_demo(run: Run, host: DemoHost, *, say: Say, keep: bool, subject: Subject = "job") -> int:
    """Show a job, a sweep or a schedule of the digits training on `host`, fetch what came of it, say how to go on.

    `run` runs one jobrunner command line (without the program's name) in this process and returns its exit code.
    Returns the first exit code that is not 0.
    """
    pulled = Path(host.folder) / "checkpoints"
    shutil.rmtree(pulled, ignore_errors=True)
    say(f"A host for this demo answers on 127.0.0.1 port {host.port} (SSH, only for you).")
    say(f"Its {host.cards} {host.device.upper()} cards are SIMULATED; SSH, queue, training and files are real.")
    say(f"Everything lies in {host.folder}.")
    tell = {"job": _job, "sweep": _sweep, "schedule": _schedule}[subject]
    with _environment(host):
        for title, words in tell(host, pulled):
            say("")
            say(title)
            say(f"  $ jobrunner {shlex.join(words)}")
            code = run(words)
            if code != 0:
                say(f"That ended with exit code {code}. The host's own log: {host.log}")
                if keep:
                    say(f"The host goes on running; {_demo_command('--stop')} ends it.")
                return code
    files = sorted(path for path in pulled.rglob("*") if path.is_file())
    if not files:
        say(f"No checkpoint arrived in {pulled}.")
        return 1
    say("")
    say("Fetched: " + ", ".join(f"{path} ({path.stat().st_size} bytes)" for path in files))
    for line in _how_to_go_on(host, keep, subject):
        say(line)
    return 0


def _job(host: DemoHost, pulled: Path) -> Steps:
    return [
        ("The cards of the host, as its vendor's tool shows them:", ["cards"]),
        ("Send a training job. This returns as soon as the host has it:", ["submit", str(example("digits"))]),
        ("Follow its log (Ctrl-C would end the looking, not the job):", ["logs", "digits", "-f"]),
        ("How it went:", ["ls", "--all"]),
        ("Fetch its newest checkpoint:", ["checkpoints", "digits", "--pull", "last", "--to", str(pulled)]),
    ]


def _sweep(host: DemoHost, pulled: Path) -> Steps:
    name, page = "digits-sweep", str(Path(host.folder) / "digits-sweep.html")
    return [
        ("The cards of the host, as its vendor's tool shows them:", ["cards"]),
        ("Send a sweep. Its trials share the cards; wait for all:", ["submit", str(example("digits_sweep")), "--wait"]),
        ("Its trials, the best first:", ["sweep", "show", name]),
        ("How they compare:", ["sweep", "plot", name]),
        ("The same and more as a page for a browser:", ["sweep", "plot", name, "--html", "--to", page]),
        ("Fetch the best one's checkpoint:", ["sweep", "best", name, "--pull", "--to", str(pulled)]),
    ]


def _schedule(host: DemoHost, pulled: Path) -> Steps:
    name = "digits-retrain"

    def night(title: str) -> Steps:
        return [
            (title, ["schedule", "run", name]),
            ("Wait for it:", ["wait", name]),
            ("See to what is due. Its model is kept if it is better:", ["tick"]),
        ]

    return [
        ("Train again at three, Monday to Friday:", ["schedule", "add", str(example("digits_retrain"))]),
        ("When that will be:", ["schedule", "next", name]),
        *night("A night, now. No model is kept yet, so it begins anew:"),
        *night("The next night goes on from the model that is kept:"),
        ("What came of each:", ["schedule", "history", name]),
        ("The models that were kept:", ["promote", "ls"]),
        ("Fetch the last night's best checkpoint:", ["checkpoints", name, "--pull", "best", "--to", str(pulled)]),
        ("End the schedule (in real life it would stay):", ["schedule", "rm", name]),
    ]


def program() -> str:
    """What one types to run jobrunner: its name, or its path where the shell would not find it."""
    found = shutil.which("jobrunner")
    beside = Path(sys.executable).with_name("jobrunner")
    if (found and Path(found).resolve() == beside.resolve()) or not beside.is_file():
        return "jobrunner"
    try:
        beside = beside.relative_to(Path.cwd())
    except ValueError:
        pass
    return shlex.quote(str(beside))


def _how_to_go_on(host: DemoHost, keep: bool, subject: Subject = "job") -> list[str]:
    name = program()
    others = [_demo_command(f"--{other}") for other in ("sweep", "schedule") if other != subject]
    more = f"More to see: {', '.join(others)}"
    if not keep:
        return [
            "",
            more,
            f"The demo's host is stopped now. To keep it and play with it: {_demo_command('--keep')}",
            f"For hosts of your own: {name} init, then {name} hosts add NAME",
        ]
    settings = [f"export {name}={shlex.quote(value)}" for name, value in settings_of(host).items()]
    return [
        "",
        "The host goes on running. In this shell's environment, the commands talk to it:",
        *(f"  {line}" for line in settings),
        f"  {name} submit {shlex.quote(str(example('digits')))} --follow",
        f"  {name} show digits",
        f"  {name} cards",
        more,
        f"When you have seen enough: {_demo_command('--stop')}",
    ]


def _demo_command(option: str) -> str:
    """How this demo is called once more: by make, which has a folder of its own for it, or directly."""
    if os.environ.get("JOBRUNNER_DEMO_BY") == "make":
        return "make demo-stop" if option == "--stop" else f"make demo DEMO_ARGS={option}"
    return f"{program()} demo {option}"


def settings_of(host: DemoHost) -> dict[str, str]:
    """The environment variables with which every command talks to the demo's host and to nothing else."""
    return {"JOBRUNNER_HOME": str(host.state_folder), "JOBRUNNER_HOSTS": str(host.hosts_file)}


@contextmanager
def _environment(host: DemoHost) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in settings_of(host)}
    os.environ.update(settings_of(host))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
