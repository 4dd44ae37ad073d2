"""Commands of a laptop, each a process of its own that can be killed, forked from one that has everything loaded."""

from __future__ import annotations

import atexit
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.lab import ROOT, Client


@dataclass
class Command:
    """A running or ended command."""

    words: tuple[str, ...]
    out: Path
    err: Path
    pid: int = 0
    code: int | None = None
    ended: threading.Event = field(default_factory=threading.Event)

    def signal(self, number: int) -> None:
        """Signal it, unless it has ended."""
        if not self.ended.is_set():
            try:
                os.kill(self.pid, number)
            except ProcessLookupError:
                pass

    def wait(self, seconds: float) -> int:
        """Its exit code; AssertionError, and it is killed, if it takes longer."""
        if not self.ended.wait(seconds):
            self.signal(signal.SIGKILL)
            self.ended.wait(5)
            raise AssertionError(f"{self.words} hangs after {seconds} s\n{self.told()}")
        assert self.code is not None
        return self.code

    def told(self) -> str:
        """What it wrote, for a person."""
        return f"{self.out.read_text(errors='replace')[-2000:]}\n{self.err.read_text(errors='replace')[-3000:]}"


class Forge:
    """The process that forks commands (`zygote.py`); used by any number of threads."""

    def __init__(self) -> None:
        self._commands: dict[str, Command] = {}
        self._begun: dict[str, threading.Event] = {}
        self._ready = threading.Event()
        self._write = threading.Lock()
        self._words = tempfile.TemporaryFile()  # noqa: SIM115  closed with the process
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("zygote.py"))],
            env={**os.environ, "PYTHONPATH": str(ROOT)}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0,
            stderr=self._words,
        )  # fmt: skip
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        assert self._ready.wait(60), "the process that forks commands did not come up"

    def _read(self) -> None:
        assert self._process.stdout
        for line in self._process.stdout:
            message = json.loads(line)
            if message.get("ready"):
                self._ready.set()
            elif "pid" in message:
                self._commands[message["key"]].pid = message["pid"]
                self._begun[message["key"]].set()
            else:
                command = self._commands.pop(message["key"])
                command.code = message["code"]
                command.ended.set()

    def start(self, words: tuple[str, ...], env: dict[str, str], cwd: Path, folder: Path) -> Command:
        """Fork a command; its output goes to files in `folder`."""
        key = uuid.uuid4().hex
        command = Command(words, folder / f"{key}.out", folder / f"{key}.err")
        command.out.touch(0o600)
        command.err.touch(0o600)
        self._commands[key] = command
        self._begun[key] = threading.Event()
        request = {"key": key, "argv": words, "env": env, "cwd": str(cwd), "out": str(command.out)}
        line = json.dumps({**request, "err": str(command.err)}).encode() + b"\n"
        assert self._process.stdin
        assert self._process.poll() is None, (
            f"what forks commands has ended: {self._process.poll()} {self._last_words()}"
        )
        with self._write:
            self._process.stdin.write(line)
        assert self._begun[key].wait(30), f"{words} was not forked"
        del self._begun[key]
        return command

    def _last_words(self) -> str:
        self._words.seek(0)
        return self._words.read()[-3000:].decode("utf-8", "replace")

    def close(self) -> None:
        """End it. Commands must have ended."""
        assert self._process.stdin and self._process.stdout
        self._process.stdin.close()
        self._process.wait(10)
        self._reader.join(10)
        self._process.stdout.close()
        self._words.close()


_forge: list[Forge] = []
_making = threading.Lock()


def forge() -> Forge:
    """The one of this process, made at first use."""
    with _making:
        if not _forge:
            _forge.append(Forge())
            atexit.register(end_forge)
        return _forge[0]


def end_forge() -> None:
    """End the one of this process."""
    while _forge:
        _forge.pop().close()


class Laptop(Client):
    """A client whose commands are forked."""

    def begin(self, *words: str) -> Command:
        """Start a command."""
        outputs = self.folder / "outputs"
        outputs.mkdir(exist_ok=True)
        return forge().start(words, self.env, self.folder, outputs)

    def run(self, *words: str, code: int | None = 0, limit: float = 60.0) -> subprocess.CompletedProcess[str]:
        command = self.begin(*words)
        got = command.wait(limit)
        out = command.out.read_bytes().decode("utf-8", "surrogateescape")
        err = command.err.read_text(errors="replace")
        assert code is None or got == code, f"{words} exited {got}\n{out[-3000:]}\n{err[-3000:]}"
        return subprocess.CompletedProcess(list(words), got, out, err)

    def ask(self, *words: str, limit: float = 60.0) -> tuple[int, dict[str, Any]]:
        """Run with --json: exit code, and the document."""
        done = self.run(*words, "--json", code=None, limit=limit)
        assert done.stdout, f"{words} --json printed nothing (exit {done.returncode})\n{done.stderr}"
        return done.returncode, json.loads(done.stdout)
