"""An SSH server in Python, for the demo on machines without OpenSSH's sshd.

    python -m jobrunner.lab.paramikohost SETTINGS.json

It listens on loopback only, knows one user and the keys in one file, and does what sshd does for a command: the user's
shell runs it with the environment of the settings. It is for the demo and for tests, not for a network.

SETTINGS: {"port", "user", "home", "shell", "env": {…}, "host_key", "authorized_keys", "ready"}. Port 0 lets the system
choose; the port is written to the file `ready` once connections are answered.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
from dataclasses import dataclass
from pathlib import Path

import paramiko

from jobrunner.lab.paramikoexec import Execution

HANDSHAKE_SECONDS = 30
MSG_CHANNEL_SUCCESS = 99  # RFC 4254


@dataclass(frozen=True)
class Settings:
    """What the host is told at its start; see the module's text."""

    port: int
    user: str
    home: str
    shell: str
    env: dict[str, str]
    host_key: str
    authorized_keys: str
    ready: str

    @classmethod
    def read(cls, path: Path) -> Settings:
        """From a JSON file."""
        return cls(**json.loads(path.read_text(encoding="utf-8")))


class Gate(paramiko.ServerInterface):  # type: ignore[misc]  # paramiko has no types
    """One connection: who may come in, and what they may ask for (commands and terminals, nothing else)."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.running: list[Execution] = []
        self.lock = threading.Lock()

    def get_allowed_auths(self, username: str) -> str:
        return "publickey"

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
        if username == self.settings.user and key.get_base64() in authorized_keys(self.settings.authorized_keys):
            return int(paramiko.AUTH_SUCCESSFUL)
        return int(paramiko.AUTH_FAILED)

    def check_channel_request(self, kind: str, chanid: int) -> int:
        if kind == "session":
            return int(paramiko.OPEN_SUCCEEDED)
        return int(paramiko.OPEN_FAILED_ADMINISTRATIVELY_PROHIBITED)

    def check_channel_env_request(self, channel: paramiko.Channel, name: bytes, value: bytes) -> bool:
        return False  # as sshd without AcceptEnv

    def check_channel_pty_request(
        self,
        channel: paramiko.Channel,
        term: bytes,
        width: int,
        height: int,
        pixelwidth: int,
        pixelheight: int,
        modes: bytes,
    ) -> bool:
        self._of(channel).want_terminal(term, width, height)
        return True

    def check_channel_window_change_request(
        self, channel: paramiko.Channel, width: int, height: int, pixelwidth: int, pixelheight: int
    ) -> bool:
        self._of(channel).resize(width, height)
        return True

    def check_channel_exec_request(self, channel: paramiko.Channel, command: bytes) -> bool:
        self._of(channel).start(["-c", os.fsdecode(command)])
        return True

    def check_channel_shell_request(self, channel: paramiko.Channel) -> bool:
        self._of(channel).start([])
        return True

    def _of(self, channel: paramiko.Channel) -> Execution:
        with self.lock:
            self.running = [one for one in self.running if not one.channel.closed]
            for one in self.running:
                if one.channel is channel:
                    return one
            settings = self.settings
            self.running.append(Execution(channel, shell=settings.shell, home=settings.home, env=settings.env))
            return self.running[-1]

    def answered(self) -> None:
        """The request that came last has been answered."""
        with self.lock:
            for one in self.running:
                one.answered.set()


class Wire(paramiko.Transport):  # type: ignore[misc]
    """paramiko's transport, which tells its gate when a granted request has been answered."""

    gate: Gate

    def _send_user_message(self, data: paramiko.Message) -> None:
        super()._send_user_message(data)
        if data.asbytes()[0] == MSG_CHANNEL_SUCCESS:
            self.gate.answered()


def authorized_keys(path: str) -> set[str]:
    """The base64 parts of an authorized_keys file."""
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except OSError:
        return set()
    split = [line.split() for line in lines]
    return {words[1] for words in split if len(words) > 1 and not words[0].startswith("#")}


def serve_connection(connection: socket.socket, settings: Settings, host_key: paramiko.PKey) -> None:
    """One client until it leaves. Its commands are not ended with it: sshd does not do that either."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    transport = Wire(connection)
    transport.gate = Gate(settings)
    transport.add_server_key(host_key)
    try:
        transport.start_server(server=transport.gate, event=(started := threading.Event()))
        if not started.wait(HANDSHAKE_SECONDS) or not transport.is_active():
            return
        channels: list[paramiko.Channel] = []  # paramiko itself holds a channel by a weak reference only
        while transport.is_active():
            new = transport.accept(1.0)
            channels = [channel for channel in [*channels, new] if channel is not None and not channel.closed]
    except (paramiko.SSHException, EOFError, OSError) as error:
        sys.stderr.write(f"connection ended: {error}\n")
    finally:
        transport.close()


def listen(settings: Settings) -> None:
    """Answer connections until TERM."""
    host_key = paramiko.Ed25519Key.from_private_key_file(settings.host_key)
    with socket.create_server(("127.0.0.1", settings.port), backlog=64) as server:
        ready = Path(settings.ready)
        aside = ready.with_name(ready.name + ".part")
        aside.write_text(str(server.getsockname()[1]), encoding="ascii")
        aside.replace(ready)
        while True:
            connection, _ = server.accept()
            threading.Thread(target=serve_connection, args=(connection, settings, host_key), daemon=True).start()


def main(arguments: list[str]) -> int:
    """Run until TERM; the exit code is 0 then."""
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    for number in (signal.SIGINT, signal.SIGHUP):  # a handler, since commands would inherit "ignored"
        signal.signal(number, lambda *_: None)
    listen(Settings.read(Path(arguments[0])))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
