"""What a submit loads on the client: start-up is part of every command, and is told by names, not by clocks."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.lab import Client, Lab

pytestmark = pytest.mark.needs_sshd
SPEC = "device: cpu\ncommand: 'true'\n"

# Each of these is imported by something that we use, for something that we do not use.
UNWANTED = [
    "asyncio",
    "ssl",
    "unittest",
    "importlib.metadata",
    "email",
    "invoke.vendor.yaml",
    "sqlite_utils",
    "pluggy",
    "click",
    "dateutil",
    "numpy",
    "pandas",
    "yaml",
    "rich",
    "optuna",
    "cmaes",
    "scipy",
    "jobrunner.service.sweeps",
    "xml",
    "http",
    "multiprocessing",
    "urllib.request",
    "jsonschema",
    "jobrunner.lab",
    "jobrunner.core.schema",
    "jobrunner.ledger.schema",
    "jobrunner.cli.look",
    "jobrunner.cli.data",
    "jobrunner.cli.hosts",
    "jobrunner.service.results",
    "jobrunner.service.doctor",
    "jobrunner.agent.files",
]

PROGRAM = """
import sys
from jobrunner.cli import main
sys.argv[0] = "jobrunner"
try:
    main()
finally:
    print(*sorted(sys.modules), file=sys.stderr)
"""


def test_a_submit_loads_nothing_that_it_does_not_need(client: Client) -> None:
    client.submit(SPEC, "modules")  # makes the ledger, which takes sqlite_utils
    before = set(_run(client, "import sys; print(*sorted(sys.modules), file=sys.stderr)"))
    for _ in range(2):  # the second one goes ahead
        loaded = set(_run(client, PROGRAM, "submit", str(client.folder / "modules" / "spec.yaml"))) - before
        assert {"paramiko", "fabric", "pydantic", "typer", "jobrunner.service.submit"} <= loaded
        found = [name for name in loaded if any(name == word or name.startswith(word + ".") for word in UNWANTED)]
        assert found == []


NOTES_THE_START = """
import subprocess, sys
start = subprocess.Popen.__init__
def noted(self, words, *rest, **more):
    if "-M" in words:
        print("STARTED", *sorted(sys.modules), file=sys.stderr)
    start(self, words, *rest, **more)
subprocess.Popen.__init__ = noted
"""


def test_over_a_shared_connection_neither_fabric_nor_paramiko_is_loaded(lab: Lab, client: Client) -> None:
    path, log = client.spec(SPEC, "shared"), lab.sshd.log
    words = ("submit", str(path), "--transport", "openssh")
    client.run(*words)
    logins = log.read_text().count("Accepted publickey")
    try:
        loaded = set(_run(client, PROGRAM, *words))
        assert "jobrunner.transport.mux" in loaded
        assert not loaded & {"paramiko", "fabric", "cryptography", "importlib.metadata", "jobrunner.transport.auth"}
        assert log.read_text().count("Accepted publickey") == logins, "it logged in again"
        assert client.json("hosts", "disconnect")["hosts"] == [{"name": lab.alias, "ended": 1}]
        # Cold, `ssh` is on its way before anything big is loaded.
        done = _start(client, NOTES_THE_START + PROGRAM, *words)
        [started] = [line.split() for line in done.split("\n") if line.startswith("STARTED")]
        assert not set(started) & {"pydantic", "typer", "ruamel", "jobrunner.cli.app", "sqlite3", "paramiko"}
        assert not set(done.split("\n")[-2].split()) & {"paramiko", "fabric"}
        assert log.read_text().count("Accepted publickey") == logins + 1
    finally:
        client.run("hosts", "disconnect")


def test_a_command_that_only_looks_loads_nothing_that_checks_files(client: Client) -> None:
    id_ = client.submit(SPEC, "looked")
    client.until(id_, "COMPLETED")
    for words in (["ls"], ["show", id_], ["logs", id_], ["why", id_], ["cards"], ["pull", id_], ["cancel", id_]):
        loaded = set(_run(client, PROGRAM, *words))
        assert not loaded & {"pydantic_core", "ruamel.yaml", "jobrunner.core.hosts", "jobrunner.core.fields"}, words


def _run(client: Client, *words: str) -> list[str]:
    return _start(client, *words).split("\n")[-2].split()


def _start(client: Client, *words: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", *words], env=client.env, cwd=client.folder, capture_output=True, text=True, timeout=60
    ).stderr
