"""Drive the agent over plain pipes: one process, one channel, its own root and lease scope."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from jobrunner.agent import wire
from jobrunner.agent.layout import Layout

REPO = Path(__file__).resolve().parents[2]
PYENV = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
STAMP = "2026-12-01T09:30:00.000000Z"
CODE = (
    "import sys; sys.path.insert(0, sys.argv[1]); "
    "from jobrunner.agent.__main__ import main; sys.exit(main(sys.argv[2:]))"
)


def pythons() -> list[str]:
    """Every Python from 3.6 to 3.13 on this machine, oldest first; the running one if there are no others."""
    found: dict[tuple[int, int], str] = {}
    for path in sorted(PYENV.glob("3.*/bin/python")) if PYENV.is_dir() else []:
        major, minor = path.parents[1].name.split(".")[:2]
        found[int(major), int(minor)] = str(path)
    found.setdefault(sys.version_info[:2], sys.executable)
    return [found[key] for key in sorted(found) if key >= (3, 6)]


def until(condition: Callable[[], Any], timeout: float = 20.0, what: str = "") -> Any:
    """The first true value of `condition()`; an assertion error after `timeout` seconds."""
    end = time.monotonic() + timeout
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < end, f"not within {timeout} s: {what or condition}"
        time.sleep(0.01)


class AgentFailed(Exception):
    """The agent answered with an error."""

    def __init__(self, error: dict[str, str]) -> None:
        super().__init__(f"{error['code']}: {error['message']}")
        self.code = error["code"]
        self.message = error["message"]
        self.remedy = error["remedy"]


class Channel:
    """A running `agent rpc`: send requests and frames, read answers and frames."""

    def __init__(self, host: AgentHost, env: dict[str, str]) -> None:
        environ = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/"), **env}
        environ["JOBRUNNER_LEASE_SCOPE"] = host.scope
        words = [host.python, "-I", "-S", "-c", CODE, str(host.place), "rpc", str(host.root)]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=pipe, env=environ, bufsize=0)
        assert self.process.stdin and self.process.stdout
        self.stdin, self.stdout = self.process.stdin, self.process.stdout
        self.reader = wire.Reader(lambda n: self.stdout.read(n) or b"")

    def send(self, message: dict[str, Any]) -> None:
        """One J frame."""
        self.raw(wire.pack_json(message))

    def raw(self, data: bytes) -> None:
        """Bytes as they are."""
        view = memoryview(data)
        while view:
            view = view[self.stdin.write(view) :]

    def content(self, data: bytes) -> None:
        """One byte stream: B frames and E."""
        for at in range(0, len(data), wire.CHUNK):
            self.raw(wire.pack(b"B", data[at : at + wire.CHUNK]))
        self.raw(wire.pack(b"E", b""))

    def json(self) -> dict[str, Any]:
        """The next frame, which is a J frame; an answer that is an error is raised."""
        message = self.reader.json()
        assert message is not None, f"the agent ended: {self.stderr()}"
        if message.get("ok") is False:
            raise AgentFailed(message["error"])
        return message

    def stderr(self) -> str:
        """What the agent wrote to its standard error, once it has ended."""
        assert self.process.stderr
        self.stdin.close()
        return self.process.stderr.read().decode("utf-8", "replace")

    def ask(self, op: str, **fields: Any) -> Any:
        """One request without frames of its own: the answer's data."""
        self.send({"v": 1, "op": op, **fields})
        return self.json()["data"]

    def stage(self, jobs: list[dict[str, Any]], tree: Tree | None, **fields: Any) -> dict[str, Any]:
        """The whole exchange of `stage`: the answer's data, with `need` as the agent asked."""
        entries = tree.entries if tree else None
        self.send({"v": 1, "op": "stage", "jobs": jobs, "manifest": entries, **fields})
        message = self.json()
        for index in message["need"]:
            assert tree
            self.content(tree.contents[index])
        return {**self.json()["data"], "need": message["need"], "exists": message.get("exists")}

    def close(self) -> int:
        """End the channel; the agent's exit code."""
        with contextlib.suppress(OSError):
            self.stdin.close()
        try:
            code = self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        finally:
            for stream in (self.stdout, self.process.stderr):
                if stream:
                    stream.close()
        return code


class Tree:
    """A manifest in the making: entries, and the distinct contents in order of first appearance."""

    def __init__(self) -> None:
        self.entries: list[list[Any]] = []
        self.contents: list[bytes] = []
        self._known: set[str] = set()

    def file(self, path: str, data: bytes, mode: int = 0o644) -> Tree:
        digest = hashlib.sha256(data).hexdigest()
        self.entries.append(["f", path, mode, len(data), digest])
        if digest not in self._known:
            self._known.add(digest)
            self.contents.append(data)
        return self

    def folder(self, path: str, mode: int = 0o755) -> Tree:
        self.entries.append(["d", path, mode, 0, None])
        return self

    def link(self, path: str, target: str) -> Tree:
        self.entries.append(["l", path, 0o777, 0, target])
        return self


class AgentHost:
    """One host of the tests: a root and a lease scope, and the channels opened to it."""

    def __init__(self, folder: Path, *, python: str = "", place: Path | str = REPO) -> None:
        self.root = folder / "root"
        self.scope = "t" + uuid.uuid4().hex[:10]
        self.python = python or sys.executable
        self.place = place
        self._channels: list[Channel] = []
        self._home: Path | None = None

    def channel(self, **env: str) -> Channel:
        """A new channel; closed with the host."""
        channel = Channel(self, env)
        self._channels.append(channel)
        return channel

    def ask(self, op: str, **fields: Any) -> Any:
        """One request on a channel of its own."""
        channel = self.channel()
        try:
            return channel.ask(op, **fields)
        finally:
            channel.close()

    @property
    def home(self) -> Path:
        """The folder of this instance: the only one when it was first asked for."""
        if self._home is None:
            (self._home,) = [path for path in (self.root / "hosts").iterdir() if not path.name.startswith(".")]
        return self._home

    def job(self, job_id: str) -> Path:
        """The folder of a job."""
        return self.home / "jobs" / job_id

    def drain(self) -> None:
        """Let no staged job start: what is staged stays queued."""
        self.ask("probe")
        (self.home / "drain").write_bytes(b"")

    @property
    def layout(self) -> Layout:
        """The host's files, for functions of the agent that a test calls itself."""
        return Layout(os.fsencode(self.root), self.home.name)

    def begin(self, job_id: str, number: int = 1, log: bytes = b"") -> Path:
        """Make an attempt look begun: its folder, start record and log. The attempt's folder.

        Before that, a dispatcher is killed: it would see that no supervisor is there.
        """
        until(lambda: not self._kill(b"jobrunner-dispatcher"), what="the dispatcher ends")
        with contextlib.suppress(FileNotFoundError):
            (self.home / "queue" / job_id).unlink()
        folder = self.job(job_id) / str(number)
        (folder / "work").mkdir(parents=True, exist_ok=True)
        (self.job(job_id) / "out").mkdir(exist_ok=True)
        (folder / "log").write_bytes(log)
        (folder / "start.json").write_text(json.dumps({"v": 1, "cards": [], "phase": "command", "at": STAMP}))
        return folder

    def end(self, job_id: str, number: int = 1, state: str = "COMPLETED", at: str = STAMP, final: bool = True) -> None:
        """Make an attempt look ended, and the job final with it."""
        record = {"v": 1, "state": state, "reason": None, "exit_code": 0, "signal": None, "at": at, "attempt": number}
        (self.job(job_id) / str(number) / "exit.json").write_text(json.dumps(record))
        if final:
            (self.job(job_id) / "final.json").write_text(json.dumps(record))

    def close(self) -> None:
        """End every channel, and every process that was started on this host."""
        for channel in self._channels:
            channel.close()
        until(lambda: not self._kill(), what="processes of the host end")
        shutil.rmtree(f"/tmp/.jobrunner-1-{os.getuid()}-{self.scope}", ignore_errors=True)
        for copy in Path("/var/tmp").glob(f".jobrunner-instance-{os.geteuid()}-*"):
            with contextlib.suppress(FileNotFoundError):  # other tests clean up at the same time
                if (self.root / "hosts" / copy.read_text().strip()).is_dir():
                    copy.unlink()

    def _kill(self, word: bytes = b"") -> int:
        """Kill all processes that were started on this host, or those with that word in their command; how many."""
        mark, count = f"JOBRUNNER_LEASE_SCOPE={self.scope}".encode(), 0
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError, ValueError):
                pid = int(entry.name)
                if mark not in (entry / "environ").read_bytes().split(b"\0"):
                    continue
                if not word or word in (entry / "cmdline").read_bytes().split(b"\0"):
                    os.kill(pid, signal.SIGKILL)
                    count += 1
        return count


@contextlib.contextmanager
def agent_host(folder: Path, *, python: str = "", place: Path | str = REPO) -> Iterator[AgentHost]:
    """An `AgentHost` that leaves no process behind."""
    host = AgentHost(folder, python=python, place=place)
    try:
        yield host
    finally:
        host.close()


def job(job_id: str, **run: Any) -> dict[str, Any]:
    """An entry of `stage`'s `jobs`: a small job that needs no cards."""
    what = {"command": {"argv": ["true"]}, "device": "cpu", "cards": 0, "launcher": "nohup", **run}
    request = {"v": 1, "id": job_id, "name": job_id, "agent": "", "submitted_at": STAMP}
    return {"request": {**request, "spec": {}, "run": what}, "secrets": {}}


def load(path: Path) -> Any:
    """A JSON file."""
    return json.loads(path.read_bytes())
