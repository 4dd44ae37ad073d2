"""Commands of a laptop, each a process of its own that can be killed, forked from one that has everything loaded."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import uuid
from collections.abc import Callable, Mapping
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
    kill: Callable[[int], None]
    pid: int = 0
    code: int | None = None
    rss_kb: int = 0  # the most memory that it held
    broken: str = ""  # why nobody knows how it ended
    ended: threading.Event = field(default_factory=threading.Event)

    def signal(self, number: int) -> None:
        """Signal it, unless it has ended."""
        if not self.ended.is_set():
            self.kill(number)

    def wait(self, seconds: float) -> int:
        """Its exit code; AssertionError, and it is killed, if it takes longer."""
        if not self.ended.wait(seconds):
            self.signal(signal.SIGKILL)
            self.ended.wait(5)
            raise AssertionError(f"{self.words} hangs after {seconds} s\n{self.told()}")
        assert not self.broken, f"{self.words}: {self.broken}"
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
        self.death = ""
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("zygote.py"))],
            env={**_plain(os.environ), "PYTHONPATH": str(ROOT)}, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=self._words, start_new_session=True,  # what is sent to the group of the tests is not for it
        )  # fmt: skip
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        assert self._ready.wait(60) and not self.death, f"what forks commands did not come up: {self.death}"

    def _read(self) -> None:
        """Hear what happens until its end; that is loud, whoever waits for a command of it hears of it at once."""
        assert self._process.stdout
        try:
            for line in self._process.stdout:
                self._hear(json.loads(line))
        finally:
            self._mourn()

    def _hear(self, message: dict[str, Any]) -> None:
        if message.get("ready"):
            self._ready.set()
        elif "pid" in message:
            self._commands[message["key"]].pid = message["pid"]
            self._begun[message["key"]].set()
        else:
            command = self._commands.pop(message["key"])
            command.code, command.broken = message.get("code"), message.get("error", "")
            command.rss_kb = message.get("rss_kb", 0)
            command.ended.set()
            if command.broken:
                self._begun[message["key"]].set()

    def _mourn(self) -> None:
        code = self._process.wait()
        lost = list(self._commands.items())
        if code or lost:
            memory = Path("/proc/meminfo").read_text().split("\n")[2] if Path("/proc/meminfo").exists() else ""
            self.death = (
                f"what forks commands (pid {self._process.pid}) has ended with {code}, {len(lost)} commands of it ran; "
                f"{memory}; its last words: {self._last_words() or 'none'}"
            )
            print(self.death, file=sys.stderr, flush=True)
        else:
            self.death = "it was closed"
        self._ready.set()
        for key, command in lost:
            command.broken = self.death
            command.ended.set()
            self._begun.get(key, command.ended).set()

    def start(self, words: tuple[str, ...], env: dict[str, str], cwd: Path, folder: Path) -> Command:
        """Fork a command; its output goes to files in `folder`."""
        key = uuid.uuid4().hex
        command = Command(
            words, folder / f"{key}.out", folder / f"{key}.err", lambda number: self._send(key=key, signal=number)
        )
        command.out.touch(0o600)
        command.err.touch(0o600)
        self._begun[key] = begun = threading.Event()
        self._commands[key] = command
        self._send(key=key, argv=words, env=env, cwd=str(cwd), out=str(command.out), err=str(command.err))
        assert begun.wait(30), f"{words} was not forked within 30 s"
        assert not command.broken, f"{words}: {command.broken}"
        del self._begun[key]
        return command

    def _send(self, **message: Any) -> None:
        """One line, whole."""
        assert self._process.stdin
        try:
            with self._write:
                self._process.stdin.write(json.dumps(message).encode() + b"\n")
                self._process.stdin.flush()
        except (BrokenPipeError, ValueError):
            self._reader.join(5)
            raise AssertionError(self.death) from None

    def _last_words(self) -> str:
        self._words.seek(0)
        return self._words.read()[-3000:].decode("utf-8", "replace")

    def close(self) -> None:
        """End it. Commands must have ended."""
        assert self._process.stdin and self._process.stdout
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._reader.join(10)
        self._process.stdout.close()
        self._words.close()


def _plain(environ: Mapping[str, str]) -> dict[str, str]:
    """Without what makes a process look like a host's or a job's: those are found by it, and killed."""
    return {name: value for name, value in environ.items() if not name.startswith("JOBRUNNER_")}


_forge: list[Forge] = []
_making = threading.Lock()


def forge() -> Forge:
    """The one of this process, made at first use and kept: loading everything again costs a second."""
    with _making:
        if _forge and _forge[0].death:  # it has said why; what comes later need not suffer from that
            _forge.pop().close()
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
