"""The command line with a fake service layer behind it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
ROOT = str(HERE.parents[2])
sys.path.insert(0, str(HERE))

import cli_fakes  # noqa: E402

NOW = datetime(2026, 12, 1, 9, 30, tzinfo=timezone.utc)


@dataclass
class Ran:
    """What a run of the program left behind."""

    code: int
    out: str
    err: str

    @property
    def doc(self) -> dict[str, Any]:
        """The one JSON document on standard output; fails if there is anything else."""
        value = json.loads(self.out)
        assert self.out.count("\n") == 1, "more than one line"
        assert value["v"] == 1 and set(value) == {"v", "command", "data", "errors"}
        assert all(set(entry) == {"code", "message", "remedy"} for entry in value["errors"])
        return value

    @property
    def docs(self) -> list[dict[str, Any]]:
        """JSON Lines."""
        return [json.loads(line) for line in self.out.splitlines()]


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> cli_fakes.Fake:
    """The fake service layer, with answers that a test may change."""
    import jobrunner.service
    from jobrunner.service import session

    made = cli_fakes.Fake()
    for short, module in made.modules().items():
        monkeypatch.setitem(sys.modules, module.__name__, module)
        monkeypatch.setattr(jobrunner.service, short, module, raising=False)
    monkeypatch.setattr(session, "open_session", made.open_session)
    return made


@pytest.fixture
def cli(fake: cli_fakes.Fake, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path):
    """Runs the program in this process: `cli("ls", "--json")`."""
    from jobrunner.cli import output
    from jobrunner.cli.app import run

    monkeypatch.setenv("TZ", "UTC")
    monkeypatch.setenv("JOBRUNNER_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(output, "now", lambda: NOW)

    def call(*arguments: str) -> Ran:
        capsys.readouterr()
        code = run(list(arguments))
        captured = capsys.readouterr()
        return Ran(code, captured.out, captured.err)

    return call


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """The environment of a process that finds this jobrunner and a state folder of its own."""
    return {**os.environ, "JOBRUNNER_HOME": str(tmp_path / "home"), "PYTHONPATH": ROOT}


@pytest.fixture
def process(environ: dict[str, str]):
    """Starts the program in a process of its own: `process("flood", "logs", "x", stdout=…)`."""

    def start(scenario: str, *arguments: str, env: dict[str, str | None] | None = None, **options: Any):
        options = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
        command = [sys.executable, str(HERE / "cli_fakes.py"), scenario, *arguments]
        wanted = {key: value for key, value in {**environ, **(env or {})}.items() if value is not None}
        started.append(subprocess.Popen(command, env=wanted, **options))
        return started[-1]

    started: list[subprocess.Popen[Any]] = []
    yield start
    for ran in started:
        if ran.poll() is None:
            ran.kill()
            ran.wait()
        for pipe in (ran.stdout, ran.stderr):
            if pipe is not None:
                pipe.close()
