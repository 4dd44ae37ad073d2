"""A whole host for end-to-end tests: a real sshd, simulated cards, and `jobrunner` as a person would run it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jobrunner.lab import simcards
from jobrunner.lab.processes import end_carriers
from jobrunner.lab.sshd import LoopbackHost

from .waiting import eventually

SCOPE = "JOBRUNNER_LEASE_SCOPE"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
ROOT = Path(__file__).resolve().parents[2]


class Lab:
    """One host, `cards` simulated cards of a `device`; everything lies in `folder`."""

    def __init__(
        self, folder: Path, *, alias: str = "lab", device: str = "npu", cards: int = 4, **options: Any
    ) -> None:
        self.folder, self.alias, self.device = folder, alias, device
        self.scope = f"test-{uuid.uuid4().hex[:12]}"
        home = folder / "home"
        home.mkdir(parents=True)
        (folder / "bin").mkdir()
        wrapper = folder / "bin" / "python3"
        wrapper.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
        wrapper.chmod(0o755)
        simcards.write_lab(folder / "lab", device, cards)
        env = {
            "HOME": str(home),
            "PATH": f"{simcards.tools_dir()}:{folder / 'bin'}:{PATH}",
            "JOBRUNNER_LAB": str(folder / "lab"),
            SCOPE: self.scope,
            **options.pop("env", {}),
        }
        self.sshd = LoopbackHost(folder / "sshd", alias=alias, env=env, **options)
        self.root = home / ".jobrunner"

    def __enter__(self) -> Lab:
        self.sshd.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.sshd.stop()
        left = end_carriers(SCOPE, self.scope)
        assert not left, f"processes that would not end: {left}"

    def cards(self, count: int = 4, **overrides: Any) -> None:
        """Change what the vendor's tool shows."""
        simcards.write_lab(self.folder / "lab", self.device, count, **overrides)

    def job_folder(self, id_: str) -> Path:
        """The job's folder on the host."""
        [found] = self.root.glob(f"hosts/*/jobs/{id_}")
        return found

    def carriers(self, id_: str) -> list[int]:
        """Processes that carry the job's id in their environment."""
        mark = f"JOBRUNNER_JOB_ID={id_}".encode()
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    if mark in (entry / "environ").read_bytes().split(b"\0"):
                        found.append(int(entry.name))
                except OSError:
                    continue
        return found


class Client:
    """A laptop: its own state folder and hosts file, over one or more labs."""

    def __init__(self, folder: Path, *labs: Lab, **entries: dict[str, Any]) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        config = folder / "ssh_config"
        config.write_text("".join(lab.sshd.ssh_config.read_text() for lab in labs))
        hosts = {lab.alias: {"root": str(lab.root), **entries.get(lab.alias, {})} for lab in labs}
        (folder / "hosts.yaml").write_text(
            json.dumps({"ssh_config": str(config), "settings": {"retry_for": "5s"}, "hosts": hosts})
        )
        self.env = {
            **os.environ,
            "JOBRUNNER_HOME": str(folder / "state"),
            "JOBRUNNER_HOSTS": str(folder / "hosts.yaml"),
            "PYTHONPATH": str(ROOT),
        }

    def settings(self, **values: Any) -> None:
        """Change settings of the hosts file, as `retry_for="1s"` for a host that will not come back meanwhile."""
        path = self.folder / "hosts.yaml"
        file = json.loads(path.read_text())
        file["settings"].update(values)
        path.write_text(json.dumps(file))

    def start(self, *words: str, **more: Any) -> subprocess.Popen[bytes]:
        """Begin a command; its output is piped."""
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **more}
        return subprocess.Popen([sys.executable, "-m", "jobrunner", *words], env=self.env, cwd=self.folder, **pipes)

    def run(self, *words: str, code: int | None = 0, limit: float = 60.0) -> subprocess.CompletedProcess[str]:
        """Run a command to its end; `code` is what it has to exit with (None: anything)."""
        done = subprocess.run(
            [sys.executable, "-m", "jobrunner", *words],
            env=self.env, cwd=self.folder, stdin=subprocess.DEVNULL, capture_output=True, timeout=limit,
        )  # fmt: skip
        out, err = done.stdout.decode("utf-8", "surrogateescape"), done.stderr.decode("utf-8", "replace")
        if code is not None:
            assert done.returncode == code, f"{words} exited {done.returncode}\n{out}\n{err}"
        return subprocess.CompletedProcess(done.args, done.returncode, out, err)

    def json(self, *words: str, code: int | None = 0, limit: float = 60.0) -> dict[str, Any]:
        """Run a command with --json: its `data`, with its `errors` beside."""
        done = self.run(*words, "--json", code=code, limit=limit)
        document = json.loads(done.stdout)
        assert document["v"] == 1 and document["command"]
        return {**document["data"], "errors": document["errors"]}

    def spec(self, text: str, name: str = "job", **files: str) -> Path:
        """Write a spec and files of its code folder (`train__py` is `train.py`); the spec's path."""
        code = self.folder / name
        code.mkdir(parents=True, exist_ok=True)
        for key, content in files.items():
            path = code / key.replace("__", ".")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)
        path = code / "spec.yaml"
        path.write_text(f"name: {name}\n{text}")
        return path

    def submit(self, text: str, name: str = "job", *options: str, **files: str) -> str:
        """Submit a job; its id."""
        data = self.json("submit", str(self.spec(text, name, **files)), *options)
        return str(data["jobs"][0]["id"])

    def row(self, id_: str) -> dict[str, Any]:
        """The job's row as its host sees it now."""
        return dict(self.json("show", id_)["job"])

    def until(self, id_: str, *states: str, seconds: float = 30.0) -> dict[str, Any]:
        """Wait until the job is in one of the states; its row."""

        def there() -> dict[str, Any] | None:
            row = self.row(id_)
            return row if row["state"] in states else None

        found = eventually(there, seconds, f"{id_} in {states}")
        assert found is not None
        return found

    def log(self, id_: str, *options: str) -> bytes:
        """The exact bytes of the job's log."""
        return self.run("logs", id_, "--raw", *options).stdout.encode("utf-8", "surrogateescape")


def end(process: subprocess.Popen[bytes], how: signal.Signals = signal.SIGKILL) -> tuple[bytes, bytes]:
    """Signal a command that a test started, and collect what it wrote."""
    process.send_signal(how)
    return process.communicate(timeout=20)


def gone(pids: Callable[[], list[int]], seconds: float = 10.0) -> None:
    """Wait until no such process is left."""
    eventually(lambda: not pids(), seconds, "the end of the processes")
