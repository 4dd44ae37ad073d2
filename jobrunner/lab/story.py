"""What `jobrunner demo` does, told while it happens: one training job from submit to its checkpoint."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from jobrunner.core.errors import UsageError
from jobrunner.lab.demo import DemoHost
from jobrunner.lab.examples import example

NEEDED = ("numpy", "sklearn")
Run = Callable[[list[str]], int]
Say = Callable[[str], None]


def check_python() -> None:
    """Raise UsageError unless this Python has what the demo's training script needs."""
    from importlib.util import find_spec

    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise UsageError(
            f"the demo's training script needs {' and '.join(missing)}, and this Python has none",
            remedy=f"{shlex.quote(sys.executable)} -m pip install numpy scikit-learn",
        )


def run_demo(run: Run, host: DemoHost, *, say: Say, keep: bool) -> int:
    """Submit the digits job to `host`, follow it, fetch its last checkpoint, and say how to go on.

    `run` runs one jobrunner command line (without the program's name) in this process and returns its exit code.
    Returns the first exit code that is not 0.
    """
    pulled = Path(host.folder) / "checkpoints"
    shutil.rmtree(pulled, ignore_errors=True)
    spec = example("digits")
    say(f"A host for this demo answers on 127.0.0.1 port {host.port} (SSH, only for you).")
    say(f"Its {host.cards} {host.device.upper()} cards are SIMULATED; SSH, queue, training and files are real.")
    say(f"Everything lies in {host.folder}.")
    steps = [
        ("The cards of the host, as its vendor's tool shows them:", ["cards"]),
        ("Send a training job. This returns as soon as the host has it:", ["submit", str(spec)]),
        ("Follow its log (Ctrl-C would end the looking, not the job):", ["logs", "digits", "-f"]),
        ("How it went:", ["ls", "--all"]),
        ("Fetch its newest checkpoint:", ["checkpoints", "digits", "--pull", "last", "--to", str(pulled)]),
    ]
    with _environment(host):
        for title, words in steps:
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
    for line in _how_to_go_on(host, keep):
        say(line)
    return 0


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


def _how_to_go_on(host: DemoHost, keep: bool) -> list[str]:
    name = program()
    if not keep:
        return [
            "",
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
