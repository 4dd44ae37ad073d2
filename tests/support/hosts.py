"""Hosts for tests: real OpenSSH servers on loopback, and an agent that does what a test wants."""

from __future__ import annotations

import functools
import hashlib
import io
import os
import sys
import textwrap
import threading
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jobrunner.agent.wire
from jobrunner.lab.sshd import LoopbackHost
from jobrunner.transport import sockets
from jobrunner.transport.bootstrap import AgentImage
from jobrunner.transport.settings import HostTarget, TransportSettings

SYSTEM_PATH = "/usr/local/bin:/usr/bin:/bin"

# The operations of the test agent, beside those of the protocol. Python 3.6, like the real one.
_OPERATIONS = """
import json, os, signal, sys, time
from .wire import Reader, pack, pack_json


def write(data):
    view = memoryview(data)
    while view:
        view = view[os.write(1, view):]


def answer(**data):
    write(pack_json({"v": 1, "ok": True, "data": data, "host": {"instance": "test", "pid": os.getpid()}}))


def serve(root, name):
    reader = Reader(lambda count: os.read(0, count))
    while True:
        request = reader.json()
        if request is None:
            return
        run(reader, request, root)


def run(reader, request, root):
    op = request["op"]
    if op == "echo":
        answer(value=request.get("value"), root=os.path.basename(root).decode("utf-8", "replace"), pid=os.getpid())
    elif op == "big":
        answer(value="x" * request["bytes"])
    elif op == "both":
        for _ in range(request["pieces"]):
            write(pack(b"B", b"o" * 65536))
            os.write(2, b"e" * 65536)
        answer()
    elif op == "flood":
        for _ in range(request["pieces"]):
            os.write(2, b"e" * 65536)
        answer()
    elif op == "fail":
        error = {"code": request["code"], "message": "as asked", "remedy": "do not ask"}
        write(pack_json({"v": 1, "ok": False, "error": error}))
    elif op == "die":
        sys.stderr.write("last words\\n")
        sys.stderr.flush()
        os._exit(3)
    elif op == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    elif op == "sleep":
        time.sleep(request["seconds"])
        answer()
    elif op == "garbage":
        os.write(1, request["text"].encode("latin-1"))
        answer()
    elif op == "download":
        left, piece = request["bytes"], os.urandom(262144)
        while left:
            write(pack(b"B", piece[:left]))
            left -= min(left, len(piece))
        write(pack(b"E", b""))
        answer()
    elif op == "upload":
        total, digest = 0, __import__("hashlib").sha256()
        while True:
            kind, payload = reader.frame()
            if kind == b"E":
                break
            total += len(payload)
            digest.update(payload)
            time.sleep(request.get("pause", 0))
        answer(bytes=total, sha256=digest.hexdigest())
    elif op == "slowly":
        data = {"text": "x" * (request["pieces"] * 100000)}
        whole = pack_json({"v": 1, "ok": True, "data": data, "host": {"instance": "test"}})
        for at in range(0, len(whole), 100000):
            write(whole[at : at + 100000])
            time.sleep(request["pause"])
    elif op == "ticks":
        for _ in range(request.get("count", 1 << 30)):
            write(pack_json({"tick": True}))
            time.sleep(request.get("pause", 0.02))
        answer()
    elif op == "cat":
        answer(text=os.popen("cat").read())
"""


@functools.cache
def test_agent(salt: str = "") -> AgentImage:
    """An agent with the operations above; another `salt` is another version of it. Packed once per test run."""
    packed = io.BytesIO()
    wire = Path(jobrunner.agent.wire.__file__).read_text("utf-8")
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("jobrunner/__init__.py", "")
        archive.writestr("jobrunner/agent/__init__.py", f"# {salt}\n")
        archive.writestr("jobrunner/agent/wire.py", wire)
        archive.writestr("jobrunner/agent/rpc.py", textwrap.dedent(_OPERATIONS))
    data = packed.getvalue()
    return AgentImage(hashlib.sha256(data).hexdigest()[:16], data)


test_agent.__test__ = False  # type: ignore[attr-defined]


def loopback(folder: Path, alias: str = "lab", *, env: dict[str, str] | None = None, **more: Any) -> LoopbackHost:
    """A started host whose sessions have a home of their own, `folder/home`; stop it in the end."""
    home = folder / "home"
    home.mkdir(parents=True, exist_ok=True)
    values = {"HOME": str(home), "PATH": SYSTEM_PATH, "JOBRUNNER_LEASE_SCOPE": f"{alias}-{os.getpid()}", **(env or {})}
    return LoopbackHost(folder, alias, env=values, **more).start()


def target_of(host: LoopbackHost, *, root: str = "~/root", python: str = "python3", **limits: Any) -> HostTarget:
    """How to reach a loopback host, with other limits than the usual ones if wanted."""
    settings = TransportSettings(**limits)
    return HostTarget.of(host.alias, ssh_config=host.ssh_config, root=root, python=python, settings=settings)


def end_shared(folder: Path) -> None:
    """End every connection whose socket belongs to that folder for shared ones."""
    for shared in list(sockets.existing(folder)):
        sockets.disconnect(shared)
        for left in shared.path.parent.glob("*.asks"):
            left.unlink()
    sockets.tidy(folder)


def private_etc(folder: Path, accounts: Sequence[tuple[str, str, Path]]) -> list[str]:
    """A wrapper for LoopbackHost: its server sees further accounts `(name, shell, home)`, the machine does not.

    Needs root. The accounts have root's uid; each is its own entry of an /etc that only the server's mounts show.
    """
    etc = folder / "etc"
    script = folder / "with-etc.sh"
    lines = "".join(f"{name}:x:0:0:test:{home}:{shell}\n" for name, shell, home in accounts)
    (folder / "accounts").write_text(lines, encoding="utf-8")
    steps = [f'cp -a /etc "{etc}"', f'cat "{folder / "accounts"}" >> "{etc}/passwd"', f'mount --bind "{etc}" /etc']
    script.write_text(" && ".join([*steps, 'exec "$@"']) + "\n", encoding="utf-8")
    return ["unshare", "-m", "sh", str(script)]


class ServerOf:
    """A TCP server on loopback for the length of a `with`: each connection is handed to `serve(sock)` in a thread.

    What the client still sends afterwards is read and forgotten, until it closes.
    """

    def __init__(self, serve: Any) -> None:
        import socket

        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.accepted = 0
        self._serve = serve
        self._socks: list[Any] = []
        self._thread = threading.Thread(target=self._accept, daemon=True)

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self.listener.accept()
            except OSError:
                return
            self.accepted += 1
            self._socks.append(sock)
            threading.Thread(target=self._run, args=(sock,), daemon=True).start()

    def _run(self, sock: Any) -> None:
        try:
            self._serve(sock)
            while sock.recv(65536):
                pass
        except OSError:
            pass
        finally:
            sock.close()

    def __enter__(self) -> ServerOf:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        import contextlib
        import socket

        with contextlib.suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        for sock in self._socks:
            sock.close()
        self._thread.join(2)


def open_sockets() -> int:
    """How many sockets this process has open (Linux)."""
    if not sys.platform.startswith("linux"):
        return 0
    count = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            count += os.readlink(f"/proc/self/fd/{name}").startswith("socket:")
        except OSError:
            continue
    return count


def link_threads() -> list[str]:
    """Threads of this process that belong to connections."""
    return [
        thread.name
        for thread in threading.enumerate()
        if "Transport" in repr(thread) or thread.name.startswith(("link-", "proxy-", "resolve-"))
    ]
