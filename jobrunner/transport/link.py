"""A host that can be asked: one connection, the agent at its other end, requests and streams over it."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from jobrunner.core.errors import AuthError, ConnectError, HostError, LinkLostError
from jobrunner.transport.bootstrap import AgentImage, agent_image, bootstrap_command
from jobrunner.transport.channel import ChannelRefused, Connection
from jobrunner.transport.choice import MOST_SPARE, Way
from jobrunner.transport.connect import mapped
from jobrunner.transport.diagnosis import shown, start_file
from jobrunner.transport.failures import link_lost
from jobrunner.transport.openssh import Inherited
from jobrunner.transport.session import Session
from jobrunner.transport.settings import HostTarget

ASKED_FOR = ("passphrase", "second_factor")  # what a login may want of a person
BULK_PLACES = 9  # sshd gives ten channels to a connection, if it is not told otherwise
BUSY_S = 5.0  # how long a server that refuses channels is asked again: ended ones take it a moment to forget


class HostLink:
    """One host. Nothing is opened before the first use; a connection that died is opened anew at the next one.

    `host_facts` is what the host said of itself with its first answer. All methods may be called from any thread;
    at most `settings.sessions` channels are open at once, further callers wait. `greeting` gives arguments that
    go with the first request, unless it has them already. `bulk`: it is for big transfers (see `Way`).
    """

    def __init__(self, target: HostTarget, *, image: AgentImage | None = None, bulk: bool = False) -> None:
        self.target = target
        self.alias = target.alias
        self.host_facts: dict[str, Any] = {}
        self.notes: list[str] = []
        self.greeting: Callable[[], dict[str, Any]] | None = None
        self._image = image
        self._connection: Connection | None = None
        self._opening = threading.Lock()
        self._lock = threading.Condition()
        self._idle: list[Session] = []
        self._open: set[Session] = set()
        self._places = BULK_PLACES if bulk else target.settings.sessions
        self._bulk: HostLink | None = None
        self._stop = threading.Event()
        self._round_trip = 0.0
        self._preparing = threading.Event()
        self._preparing.set()
        self._ready: Session | None = None
        self._not_ready: Exception | None = None
        self._way = Way(bulk=bulk)
        self._noisy = False
        self._spent: dict[str, float] = {}

    # What others use

    def open(self) -> None:
        """Connect and log in now, if that has not been done. Raises HostError."""
        self._prepared()
        self._connected()

    def load(self) -> None:
        """Load the libraries that opening it will need, in this thread. Nothing is connected."""
        self._way.load(self.target)

    def expect(self) -> None:
        """`prepare` is going to be called: whoever uses the link waits for it from now on."""
        self._preparing.clear()

    def prepare(self, op: str) -> None:
        """Connect, and begin to start an agent for the first exchange, `op`. Errors are raised by the first use; but a
        login that a person could help with is tried again there."""
        try:
            self._idle_or_place(reuse=False)
            try:
                self._ready = self._launch(op)
            except BaseException:
                self._place_free(None)
                raise
        except Exception as error:  # nobody hears of it in this thread
            self._not_ready = None if isinstance(error, AuthError) and error.code in ASKED_FOR else error
        finally:
            self._preparing.set()

    def adopt(self, target: HostTarget) -> None:
        """Go on as the link to `target`, which leads the same way (see `HostTarget.same_way`) with other limits."""
        self.target = target

    def request(
        self, op: str, timeout: float | None = None, *, working: bool = False, **args: Any
    ) -> dict[str, Any]:  # fmt: skip
        """Ask the agent and return the data of its answer.

        `timeout` in seconds for the whole (default: the settings' `request_s`); with `working` it is for each sign of
        life, for what may take long on a big host. Raises AgentError with the agent's
        own code, LinkLostError, ConnectError, HostKeyError, AuthError or HostSetupError.
        """
        session = self._borrow()
        limit = self.target.settings.request_s if timeout is None else timeout
        healthy = False
        try:
            session.op = op
            session.send_json({"v": 1, "op": op, **self._greeting(), **args})
            try:
                data = session.result(limit, silence=limit if working else None)
            except HostError as error:
                healthy = error.code not in ("timeout", "bad_answer", "agent_died") and session.usable
                raise self._named(error, op, limit) from None
            healthy = True
            return data
        finally:
            if session.host:
                self.host_facts = session.host
            if healthy and session.usable:
                with self._lock:
                    self._idle.append(session)
                    self._lock.notify()
            else:
                session.close()

    def stream(self, op: str, timeout: float | None = None, *, at_once: bool = False, **args: Any) -> Session:
        """Begin a request that exchanges frames, on a channel of its own; close it when done.

        `timeout` is the longest silence between two frames (default: `request_s`). `at_once`: a server that gives no
        channel now is not asked again (ConnectError `sessions_full`).
        """
        self._idle_or_place(reuse=False)
        session = self._start_session(at_once=at_once)
        try:
            session.op, session.timeout = op, self.target.settings.request_s if timeout is None else timeout
            session.send_json({"v": 1, "op": op, **self._greeting(), **args})
        except BaseException:
            session.close()
            raise
        return session

    def bulk(self) -> HostLink:
        """The same host over a connection of its own, for big transfers: they do not hold up requests here."""
        if self._way.bulk:
            return self
        with self._lock:
            if self._bulk is None:
                self._bulk = HostLink(self.target, image=self._image, bulk=True)
                self._bulk._round_trip = self._round_trip
            return self._bulk

    def interactive(self, argv: list[str]) -> int:
        """Run a program of the host on this terminal until it ends; its exit code. Raises UsageError without one."""
        connection = self._connected()
        with mapped(self.target, "using the terminal"):
            return connection.run_on_terminal(argv)

    @property
    def round_trip(self) -> float:
        """About how long a packet takes there and back, in seconds; 0 before the first contact."""
        if self._round_trip:
            return self._round_trip
        return self._connection.round_trip if self._connection is not None else 0.0

    @property
    def kind(self) -> str:
        """What carries the connection: `fabric`, `openssh`, or "" before it is open."""
        return self._connection.kind if self._connection is not None else ""

    @property
    def banner(self) -> str:
        """What the server says before a login; "" before the first contact."""
        return self._connection.banner if self._connection is not None else ""

    def close(self) -> None:
        """End everything. Waiting calls of other threads fail with LinkLostError."""
        self._stop.set()
        with self._lock:
            sessions, self._open, self._idle = list(self._open), set(), []
            connection, self._connection = self._connection, None
            bulk, self._bulk = self._bulk, None
            self._lock.notify_all()
        if connection is not None:
            connection.close()
        for session in sessions:
            session.close()
        if bulk is not None:
            self._count(bulk.spent)
            bulk.close()

    def __enter__(self) -> HostLink:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # How

    def _connected(self) -> Connection:
        with self._opening:
            current = self._connection
            if current is not None and current.is_connected:
                return current
            if current is not None:
                self._forget_connection(current)
            if self._stop.is_set():
                raise self._closed()
            fresh = self._way.open(self.target, stop=self._stop)
            self._count(fresh.took)
            if self._way.note and self._way.note not in self.notes:
                self.notes.append(self._way.note)
            with self._lock:
                if not self._stop.is_set():
                    self._connection = fresh
                    return fresh
            fresh.close()
            raise self._closed()

    def _forget_connection(self, connection: Connection) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
            self._connection = None
        for session in idle:
            session.close()
        connection.close()

    def _borrow(self) -> Session:
        """A session that nobody uses, else a new one."""
        session = self._idle_or_place(reuse=True)
        return session if session is not None else self._start_session()

    def _idle_or_place(self, *, reuse: bool) -> Session | None:
        """An idle session, or None with a place taken for a new one. Waits for a while when all places are taken."""
        ends = time.monotonic() + self.target.settings.channel_s
        unwanted: list[Session] = []
        try:
            with self._lock:
                while True:
                    while self._idle and (reuse or self._places <= 0):
                        session = self._idle.pop()
                        if reuse and session.usable:
                            return session
                        unwanted.append(session)  # closed below; its place is free at once
                        self._open.discard(session)
                        self._places += 1
                    if self._places > 0:
                        self._places -= 1
                        return None
                    left = ends - time.monotonic()
                    if left <= 0 or self._stop.is_set():
                        raise self._busy()
                    self._lock.wait(left)
        finally:
            for session in unwanted:
                session.abandon()

    def _busy(self) -> HostError:
        if self._stop.is_set():
            return self._closed()
        return ConnectError(
            f"{self.target.settings.sessions} exchanges with {self.alias} are going on already",
            host=self.alias,
            code="busy",
            remedy="Let one of them end.",
        )

    def _closed(self) -> LinkLostError:
        return LinkLostError(f"the link to {self.alias} was closed", host=self.alias, code="closed")

    def _prepared(self) -> Session | None:
        """Wait for `prepare`, if it is going on: its session, once. Raises what went wrong there, once."""
        self._preparing.wait()
        with self._lock:
            error, self._not_ready = self._not_ready, None
        if error is not None:
            raise error
        return self._ready

    def _start_session(self, *, at_once: bool = False) -> Session:
        """A new session in the place that has been taken for it."""
        session: Session | None = None
        try:
            ready = self._prepared()
            with self._lock:
                ready, self._ready = (ready if ready is self._ready else None), None
            if ready is not None:
                self._place_free(None)  # it has a place of its own
            session = ready or self._launch(at_once=at_once)
            session.start()
            self._note(session)
            return session
        except BaseException:
            if session is not None:
                session.close()
            else:
                self._place_free(None)
            raise

    def _launch(self, warm: str = "", *, at_once: bool = False) -> Session:
        """A session on which the agent is being started, in the place that has been taken for it.

        `warm` is the operation that is likely to come: the agent loads what it needs meanwhile.
        """
        target, fence = self.target, secrets.token_hex(16)
        command = bootstrap_command(target.root, target.python, self._packed(), fence, warm)
        session = Session(self._channel(command, at_once), target, self._packed(), fence, self._place_free)
        session.count, session.round_trip = self._count, self._round_trip
        with self._lock:
            self._open.add(session)
        return session

    def _place_free(self, session: Session | None) -> None:
        with self._lock:
            if session is not None:
                self._open.discard(session)
            self._places += 1
            self._lock.notify()

    def _packed(self) -> AgentImage:
        if self._image is None:
            self._image = agent_image(self.target.settings.cache)
        return self._image

    def _channel(self, command: str, at_once: bool = False) -> Any:
        """A channel on which a command has been started. A server that allows few gets back the idle ones first.

        A shared connection that is dead or full is replaced by another one.
        """
        connection = self._connected()
        ends, pause, inherited = time.monotonic() + BUSY_S, 0.02, 0
        while True:
            try:
                return self._open_channel(connection, command)
            except Inherited:
                inherited += 1
                if inherited > 2:
                    raise
                self._forget_connection(connection)
                connection = self._connected()
                continue
            except HostError as error:
                if not connection.is_connected:
                    raise link_lost(self.alias, connection.transport) from error
                raise
            except ChannelRefused as error:
                if not connection.is_connected:
                    raise link_lost(self.alias, connection.transport) from error
                refusal = str(error)
            given = self._give_back_idle()
            if not given and connection.shared and self._way.spare < MOST_SPARE and not at_once:
                self._way.spare += 1  # others use it as well: take one that they do not
                self._forget_connection(connection)
                connection = self._connected()
                continue
            if at_once or time.monotonic() > ends or self._stop.wait(pause):
                raise ConnectError(
                    f"{self.alias} allows no further channel on its connection: {refusal}",
                    host=self.alias,
                    code="sessions_full",
                    remedy="Its sshd has a low MaxSessions, or forbids commands; ask its administrator for 4 or more.",
                )
            pause = min(pause * 2, 0.5)

    def _open_channel(self, connection: Connection, command: str) -> Any:
        began = time.monotonic()
        with mapped(self.target, "opening a channel"):
            channel = connection.start_channel(command, self.target.settings.channel_s, self._round_trip)
        # Opening a channel is one round trip and nothing else: the best measure there is.
        took = time.monotonic() - began
        self._round_trip = min(self._round_trip, took) if self._round_trip else took
        self._count({"request": took})
        return channel

    def _give_back_idle(self) -> bool:
        """Close the sessions that nobody uses; True if there were any."""
        with self._lock:
            idle, self._idle = self._idle, []
        for session in idle:
            session.close()
        return bool(idle)

    def _count(self, seconds: Mapping[str, float]) -> None:
        with self._lock:
            for name, more in seconds.items():
                self._spent[name] = self._spent.get(name, 0.0) + more

    @property
    def spent(self) -> dict[str, float]:
        """Where the time went so far: seconds by phase, as `--timings` names them."""
        with self._lock:
            total, bulk = dict(self._spent), self._bulk
        for name, seconds in (bulk.spent if bulk is not None else {}).items():
            total[name] = total.get(name, 0.0) + seconds
        return total

    def _greeting(self) -> dict[str, Any]:
        """The arguments of the greeting, at the first call."""
        with self._lock:
            greeting, self.greeting = self.greeting, None
        return greeting() if greeting is not None else {}

    def _named(self, error: HostError, op: str, limit: float) -> HostError:
        if error.code == "timeout":
            return LinkLostError(
                f"{self.alias} did not answer `{op}` within {limit:.0f} s",
                host=self.alias,
                code="timeout",
                remedy=error.remedy,
            )
        return error

    def _note(self, session: Session) -> None:
        """One line for a person about a shell that talks when it should not."""
        if session.noise and not self._noisy:
            self._noisy = True
            self.notes.append(
                f"the login shell of {self.alias} prints text for every command, which can break other tools "
                f"({start_file(session.shell)}): {shown(session.noise, 80)!r}"
            )
