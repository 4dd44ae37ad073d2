"""Opening a connection to a host: through jump hosts, again when the server is busy, never for longer than allowed."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from jobrunner.core.errors import ConnectError, HostError, JobrunnerError, LinkLostError
from jobrunner.transport.dial import ProxyProcess, dial
from jobrunner.transport.lean import without_unused
from jobrunner.transport.settings import HostTarget
from jobrunner.transport.sshconfig import parse_address, resolve

if TYPE_CHECKING:
    from jobrunner.transport.connection import HostConnection
    from jobrunner.transport.hostkeys import HostKey

MAX_HOPS = 8
_NEVER = threading.Event()
_loading: threading.Thread | None = None
_loading_lock = threading.Lock()
T = TypeVar("T")


def preload() -> threading.Thread:
    """Begin to import Fabric and paramiko beside other work (once); the thread that does it is returned."""
    global _loading
    with _loading_lock:
        if _loading is None:
            _loading = threading.Thread(target=_load, name="import-fabric", daemon=True)
            _loading.start()
        return _loading


def _load() -> None:
    # What fails here is raised again, and told, by the import that needs it.
    with suppress(ImportError), without_unused():
        import jobrunner.transport.connection  # noqa: F401


def open_connection(target: HostTarget, *, stop: threading.Event = _NEVER) -> HostConnection:
    """A connection of Fabric's that is logged in. Raises a HostError that says what is wrong.

    A server that turns connections away because it is busy is tried again with growing, uneven pauses for
    `retry_s` in all. Silent or refusing addresses, host keys and failed logins are not tried again. `stop` ends
    the waiting.
    """
    return again(target, stop, lambda: _open_once(target, 0))


def scan_host_key(target: HostTarget) -> HostKey:
    """The key that the host shows, judged by nobody (for `hosts add`); jump hosts on the way are checked as usual."""

    def scan() -> HostKey:
        loading = preload()
        carrier, _, behind = _carrier(target, 0)
        loading.join()
        from jobrunner.transport.connection import VerifyingClient

        client = VerifyingClient()
        try:
            with mapped(target, "asking for the host key"):
                client.connect(target.config.hostname, carrier=carrier, target=target, login=False)
                assert client.host_key is not None
                return client.host_key
        finally:
            transport = client.get_transport()
            if transport is not None:
                transport.settle(1.0)
            carrier.close()
            if behind is not None:
                behind.close()

    return again(target, _NEVER, scan)


def again(target: HostTarget, stop: threading.Event, attempt: Callable[[], T]) -> T:
    """What `attempt` gives, tried again for `retry_s` while the server turns connections away for load."""
    ends = time.monotonic() + target.settings.retry_s
    pause = 0.4
    while True:
        try:
            return attempt()
        except ConnectError as error:
            wait = pause * random.uniform(0.5, 1.5)
            if error.code != "throttled" or time.monotonic() + wait > ends or stop.wait(wait):
                raise
            pause = min(pause * 1.7, 8.0)


def _open_once(target: HostTarget, depth: int) -> HostConnection:
    loading = preload()
    began = time.monotonic()
    carrier, round_trip, behind = _carrier(target, depth)
    carried = time.monotonic()
    try:
        loading.join()
        from jobrunner.transport.connection import HostConnection

        connection = HostConnection(target, carrier, round_trip, behind)
        connection.took.update({"import": time.monotonic() - carried, "connect": carried - began})
    except BaseException:
        carrier.close()
        if behind is not None:
            behind.close()
        raise
    try:
        with mapped(target, "connecting"):
            connection.open()
    except ConnectError as error:
        raise _with_proxy_words(error, carrier) from error
    return connection


def _carrier(target: HostTarget, depth: int) -> tuple[Any, float, HostConnection | None]:
    """The byte stream to the host, the round trip if it is known, and the connection it runs over if any."""
    config = target.config
    if config.proxy_jump:
        behind = _open_once(_hop(target, depth), depth + 1)
        try:
            return behind.open_channel_to(target), behind.round_trip, behind
        except BaseException:
            behind.close()
            raise
    if config.proxy_command:
        return ProxyProcess(target), 0.0, None
    sock, took = dial(target)
    return sock, took, None


def _hop(target: HostTarget, depth: int) -> HostTarget:
    """The last jump host before `target`; the ones before it are its own way, as OpenSSH has it."""
    before, _, last = target.config.proxy_jump.rpartition(",")
    if depth >= MAX_HOPS:
        raise ConnectError(
            f"the way to {target.alias} has more than {MAX_HOPS} jump hosts: a ProxyJump may name itself",
            host=target.alias,
            code="proxy",
            remedy="Put `ProxyJump none` into the jump host's own block of the SSH configuration.",
        )
    name = last.strip().removeprefix("ssh://").rstrip("/")
    wanted = parse_address(name)
    config = resolve(wanted.host, ssh_config=target.ssh_config, address=name)
    if before:
        config = replace(config, proxy_jump=before, proxy_command="")
    return replace(target, alias=wanted.host, config=config)


def _with_proxy_words(error: ConnectError, carrier: Any) -> ConnectError:
    """Behind a ProxyCommand, what failed is most likely the command: tell what it said."""
    if not isinstance(carrier, ProxyProcess):
        return error
    said = carrier.said
    return ConnectError(
        f"{error.message}; its ProxyCommand was `{carrier.command}`" + (f" and said: {said}" if said else ""),
        host=error.host,
        code="proxy",
        remedy="Run the ProxyCommand by hand: it must pass on the SSH server's greeting.",
    )


@contextmanager
def mapped(target: HostTarget, doing: str) -> Iterator[None]:
    """Let no exception of paramiko, Fabric or the socket through: each becomes a HostError."""
    try:
        yield
    except JobrunnerError:
        raise
    except (OSError, EOFError) as error:
        raise LinkLostError(
            f"the link to {target.alias} died while {doing}: {error or type(error).__name__}",
            host=target.alias,
            remedy="Run the command again: whatever reached the host is kept.",
        ) from error
    except Exception as error:
        if type(error).__module__.partition(".")[0] not in ("paramiko", "fabric", "invoke", "cryptography", "nacl"):
            raise
        raise HostError(
            f"SSH to {target.alias} failed while {doing}: {type(error).__name__}: {error}",
            host=target.alias,
            code="ssh",
            remedy=f"See whether `ssh {target.alias}` works.",
        ) from error
