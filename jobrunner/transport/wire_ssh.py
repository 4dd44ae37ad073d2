"""paramiko's transport with what it lacks for us: signs of life, a safe key exchange, no left-over threads.

Importing this module imports paramiko, which takes a while: import it only where a connection is about to be made.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from typing import Any

import paramiko
from paramiko.auth_handler import AuthHandler
from paramiko.packet import Packetizer

from jobrunner.transport import dial

_theirs = logging.getLogger("paramiko")
_theirs.addHandler(logging.NullHandler())
if _theirs.level == logging.NOTSET:
    _theirs.setLevel(logging.CRITICAL)  # it logs tracebacks of what is told as an error here
log = logging.getLogger("jobrunner.transport")

FAST_CIPHERS = ("aes128-gcm@openssh.com", "aes256-gcm@openssh.com")
FAR_AWAY_S = 0.02  # round trips longer than this profit from a larger window
FAR_WINDOW = 16 * 1024 * 1024


class LinkPacketizer(Packetizer):  # type: ignore[misc]
    """Packets with a note of when the last one came, and time limits without timer threads.

    The limits for exchanging keys are those of the protocol's own (the server asks when it wants to): paramiko's
    habit of doing so every 512 MiB costs more than it gives.
    """

    REKEY_BYTES = 2**40
    REKEY_PACKETS = 2**31

    def __init__(self, sock: Any) -> None:
        super().__init__(sock)
        self.heard_at = time.monotonic()
        self.greeting: list[str] = []
        self.greeting_fault: BaseException | None = None
        self.handshake_late = False
        self.prompt = True
        self._sock = sock
        self._handshake_ends: float | None = None

    def read_message(self) -> Any:
        """The next packet. Until `prompt` is over it is acknowledged at once: a server that does not send small packets
        while one of its own is on the way (OpenSSH's, until a command runs) would wait for our kernel's 40 ms."""
        message = super().read_message()
        self.heard_at = time.monotonic()
        if self.prompt:
            dial.acknowledge(self._sock)
        return message

    def readline(self, timeout: float) -> str:
        """A line of the server's greeting; kept, so that a server that is not SSH can be named."""
        try:
            line = str(super().readline(timeout))
        except Exception as error:
            self.greeting_fault = error
            raise
        self.heard_at = time.monotonic()
        self.greeting.append(line)
        return line

    def start_handshake(self, timeout: float) -> None:
        self._handshake_ends = time.monotonic() + timeout

    def handshake_timed_out(self) -> bool:
        ends = self._handshake_ends
        self.handshake_late = self.handshake_late or (ends is not None and time.monotonic() > ends)
        return self.handshake_late

    def complete_handshake(self) -> None:
        self._handshake_ends = None


class PromptAuth(AuthHandler):  # type: ignore[misc]
    """Proves who we are in the same breath as asking to be let in: a round trip less than with a pause between.

    Servers take messages in order. Only with an RSA key is the answer waited for until the server has said which of
    the algorithms for such keys it takes.
    """

    _waits = True

    def _request_auth(self) -> None:
        # Decided before anything is sent: the answer comes in another thread.
        self._waits = waits = "rsa" in self.private_key.get_name() and not self.transport.server_extensions
        super()._request_auth()
        if not waits:
            accepted = paramiko.Message()
            accepted.add_string("ssh-userauth")
            accepted.rewind()
            super()._parse_service_accept(accepted)

    def _parse_service_accept(self, message: Any) -> None:
        """Once at most: the answer to a key before, which could not sign after all, may come as well."""
        waits, self._waits = self._waits, False
        if waits:
            super()._parse_service_accept(message)


class LinkTransport(paramiko.Transport):  # type: ignore[misc]
    """One SSH connection.

    Differences from paramiko's: plain host keys only, in the order wanted; AES-GCM first; a message that the
    transport's own thread must send during a key exchange is put off instead of waiting for itself; `watch` ends
    a connection from which nothing is heard any more; `close` closes the socket in every state.
    """

    def __init__(self, sock: Any, host_key_algorithms: tuple[str, ...], window: int | None = None) -> None:
        self.host_key_algorithms = host_key_algorithms
        self.farewell = ""  # why the server ended the connection, in its words
        self.fell_silent = False
        self._closing = threading.Event()
        self._put_off: list[Any] = []
        more = {} if window is None else {"default_window_size": window}
        super().__init__(sock, packetizer_class=LinkPacketizer, **more)

    @property
    def preferred_keys(self) -> tuple[str, ...]:
        return tuple(name for name in self.host_key_algorithms if name in self._key_info)

    @property
    def preferred_ciphers(self) -> tuple[str, ...]:
        names = super().preferred_ciphers
        fast = [name for name in FAST_CIPHERS if name in self._cipher_info]
        return tuple(fast) + tuple(name for name in names if name not in fast and not name.endswith("-cbc"))

    def _send_user_message(self, data: Any) -> None:
        if threading.current_thread() is self and not self.clear_to_send.is_set():
            self._put_off.append(data)
            return
        super()._send_user_message(data)

    def _parse_newkeys(self, message: Any) -> None:
        super()._parse_newkeys(message)
        waiting, self._put_off = self._put_off, []
        for data in waiting:
            self._send_message(data)

    def auth_publickey(self, username: str, key: Any, event: Any = None) -> list[str]:
        """As paramiko's, a round trip quicker (see PromptAuth)."""
        if not self.active or not self.initial_kex_done:
            raise paramiko.SSHException("not connected")
        mine = threading.Event()
        self.auth_handler = PromptAuth(self)
        self.auth_handler.auth_publickey(username, key, event or mine)
        return [] if event is not None else list(self.auth_handler.wait_for_response(mine))

    def _parse_disconnect(self, message: Any) -> None:
        message.get_int()
        self.farewell = str(message.get_text())

    def watch(self, probe_s: float, dead_after_s: float) -> None:
        """From now on ask for a sign of life when nothing came for `probe_s`; give up `dead_after_s` later."""
        thread = threading.Thread(target=self._watch, args=(probe_s, dead_after_s), name="link-watch", daemon=True)
        thread.start()

    def _watch(self, probe_s: float, dead_after_s: float) -> None:
        asked_at: float | None = None
        looked_at = time.monotonic()
        while not self._closing.wait(1.0) and self.active:
            now = time.monotonic()
            if now - looked_at > 5.0:  # this machine slept: whatever was asked before does not count
                asked_at = None
            looked_at = now
            if self.packetizer.heard_at > (asked_at if asked_at is not None else now - probe_s):
                asked_at = None
            elif asked_at is None:
                asked_at = now
                # In a thread of its own: a send can block for as long as the other side takes nothing.
                threading.Thread(target=self._probe, name="link-probe", daemon=True).start()
            elif now - asked_at > dead_after_s:
                self.fell_silent = True
                self.close()

    def _probe(self) -> None:
        message = paramiko.Message()
        message.add_byte(paramiko.common.cMSG_GLOBAL_REQUEST)
        message.add_string("keepalive@openssh.com")
        message.add_boolean(True)
        with contextlib.suppress(paramiko.SSHException, OSError, EOFError):
            self._send_user_message(message)

    def close(self) -> None:
        self._closing.set()
        if hasattr(self.sock, "shutdown"):
            with contextlib.suppress(OSError, EOFError, paramiko.SSHException):
                self.sock.shutdown(2)  # wakes the transport's thread, which otherwise looks up every 0.1 s
        super().close()
        if not self.sock_closed():
            self.packetizer.close()

    def sock_closed(self) -> bool:
        """True if the byte stream below is closed."""
        return bool(getattr(self.sock, "_closed", False))

    def settle(self, seconds: float) -> None:
        """Close, and wait until the transport's thread has ended."""
        self.close()
        if self.is_alive() and threading.current_thread() is not self:
            self.join(seconds)


def start_exec(channel: Any, command: str) -> None:
    """Ask for a command without waiting for the answer: it shows in what the channel brings, or in its end.

    Saves a round trip against `Channel.exec_command`.
    """
    message = paramiko.Message()
    message.add_byte(paramiko.common.cMSG_CHANNEL_REQUEST)
    message.add_int(channel.remote_chanid)
    message.add_string("exec")
    message.add_boolean(True)
    message.add_string(command)
    channel._event_pending()
    channel.get_transport()._send_user_message(message)
