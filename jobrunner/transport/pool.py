"""Links to all hosts of a command: opened at first use, shared, asked in parallel, closed together."""

from __future__ import annotations

import functools
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from jobrunner.core.errors import ConnectError, JobrunnerError, LinkLostError, NotFoundError
from jobrunner.transport.link import HostLink
from jobrunner.transport.settings import HostTarget, PassphraseSource, TransportSettings

if TYPE_CHECKING:
    from jobrunner.core.inventory import Inventory

T = TypeVar("T")
SLACK_S = 5.0


@dataclass(frozen=True)
class Outcome(Generic[T]):
    """What became of one host's part: a value, or the error."""

    value: T | None = None
    error: JobrunnerError | None = None


class LinkPool:
    """Links by alias. `resolver` makes the target of an alias; it may raise HostError, UsageError or NotFoundError.

    `begun` gives a link that somebody has begun to open to a target already, or None. `greeting` gives the arguments
    that go with the first request to a host.
    """

    def __init__(
        self,
        resolver: Callable[[str], HostTarget],
        begun: Callable[[HostTarget], HostLink | None] | None = None,
        greeting: Callable[[str], dict[str, Any]] | None = None,
    ) -> None:
        self._resolver = resolver
        self._begun = begun
        self._greeting = greeting
        self._spent: dict[str, float] = {}
        self._links: dict[str, HostLink] = {}
        self._lock = threading.Lock()
        self._closed = False

    def link(self, alias: str, *, bulk: bool = False) -> HostLink:
        """The link to a host, connected; one for big transfers if it is wanted for such first. Raises HostError."""
        link = self._link(alias, bulk)
        link.open()
        return link

    def target(self, alias: str) -> HostTarget:
        """How a host is reached; nothing is opened. Raises HostError, UsageError."""
        return self._resolver(alias)

    def _link(self, alias: str, bulk: bool) -> HostLink:
        with self._lock:
            link = self._links.get(alias)
        if link is None:
            target = self._resolver(alias)
            fresh = (self._begun(target) if self._begun else None) or HostLink(target, bulk=bulk)
            if self._greeting is not None:
                fresh.greeting = functools.partial(self._greeting, alias)
            with self._lock:
                if self._closed:
                    raise LinkLostError(f"the link to {alias} was closed", host=alias, code="closed")
                link = self._links.setdefault(alias, fresh)
        return link

    def map(
        self, fn: Callable[[HostLink], T], aliases: Iterable[str], *, deadline: float | None = None
    ) -> dict[str, Outcome[T]]:
        """`fn(link)` for every host at once; what is raised becomes that host's outcome.

        Connecting is part of it. `deadline` in seconds for all together: what is not done by then is an outcome with
        an error of code `timeout`, and its link is closed. A host that cannot be reached delays the others' answers
        by its connect limit at most. An interrupt closes every link and goes on up.
        """
        wanted = list(dict.fromkeys(aliases))
        outcomes: dict[str, Outcome[T]] = {}
        changed = threading.Condition()

        def work(alias: str) -> None:
            outcome = self._one(fn, alias)
            with changed:
                outcomes.setdefault(alias, outcome)
                changed.notify()

        if len(wanted) == 1 and deadline is None:
            try:
                return {wanted[0]: self._one(fn, wanted[0])}
            except BaseException:
                self.close()
                raise
        for alias in wanted:
            threading.Thread(target=work, args=(alias,), name=f"host-{alias}", daemon=True).start()
        ends = None if deadline is None else time.monotonic() + deadline
        try:
            with changed:
                while len(outcomes) < len(wanted):
                    left = None if ends is None else ends - time.monotonic()
                    if left is not None and left <= 0:
                        break
                    changed.wait(1.0 if left is None else min(left, 1.0))
                for alias in wanted:
                    if alias not in outcomes:
                        outcomes[alias] = Outcome(error=_late(alias, deadline or 0.0))
                        threading.Thread(target=self.forget, args=(alias,), daemon=True).start()
        except BaseException:
            self.close()
            raise
        return {alias: outcomes[alias] for alias in wanted}

    def _one(self, fn: Callable[[HostLink], T], alias: str) -> Outcome[T]:
        try:
            return Outcome(value=fn(self.link(alias)))
        except JobrunnerError as error:
            return Outcome(error=error)
        except Exception as error:
            return Outcome(error=_fault(alias, error))

    def forget(self, alias: str) -> None:
        """Close the link to a host; the next use opens another."""
        with self._lock:
            link = self._links.pop(alias, None)
        if link is not None:
            link.close()
            with self._lock:
                _add(self._spent, link.spent)

    @property
    def spent(self) -> dict[str, float]:
        """Where the time went so far, over all hosts: seconds by phase. Those of several hosts may overlap."""
        with self._lock:
            total = dict(self._spent)
            for link in self._links.values():
                _add(total, link.spent)
        return total

    @property
    def reached(self) -> list[HostTarget]:
        """The targets that are connected."""
        with self._lock:
            return [link.target for link in self._links.values() if link.kind]

    @property
    def notes(self) -> list[str]:
        """Sentences for standard error that the links have gathered."""
        with self._lock:
            return [note for link in self._links.values() for note in link.notes]

    @property
    def closed(self) -> bool:
        """True once `close` was called: no link opens any more."""
        return self._closed

    def close(self) -> None:
        """Close every link, at once and together."""
        with self._lock:
            links, self._links, self._closed = list(self._links.values()), {}, True
        threads = [threading.Thread(target=link.close, name="close", daemon=True) for link in links]
        for thread in threads:
            thread.start()
        ends = time.monotonic() + 1.0
        for thread in threads:
            thread.join(max(0.0, ends - time.monotonic()))
        with self._lock:
            for link in links:
                _add(self._spent, link.spent)

    def __enter__(self) -> LinkPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _add(total: dict[str, float], more: Mapping[str, float]) -> None:
    for name, seconds in more.items():
        total[name] = total.get(name, 0.0) + seconds


def _late(alias: str, seconds: float) -> ConnectError:
    return ConnectError(
        f"{alias} did not answer within {seconds:.0f} s",
        host=alias,
        code="timeout",
        remedy="The host or the way to it is slow; try it alone.",
    )


def _fault(alias: str, error: Exception) -> JobrunnerError:
    return JobrunnerError(
        f"talking to {alias} failed: {type(error).__name__}: {error}",
        code="internal",
        remedy="This is a fault of jobrunner: please report it with this text.",
    )


def open_pool(
    hosts: Inventory,
    *,
    environ: Mapping[str, str] | None = None,
    state_folder: Path | None = None,
    retry_s: float | None = None,
    passphrase: PassphraseSource | None = None,
    transport: str | None = None,
    attended: bool = False,
    begun: Callable[[HostTarget], HostLink | None] | None = None,
    greeting: Callable[[str], dict[str, Any]] | None = None,
) -> LinkPool:
    """The pool of a command: hosts of the hosts file, and any alias that the SSH configuration knows.

    `retry_s` is how long throttled connects are tried again, if not for as long as the hosts file says; `transport`
    goes over what it says of each host; `attended`: a person at the terminal can be asked.
    """
    environ = os.environ if environ is None else environ
    file = hosts.ssh_config or environ.get("JOBRUNNER_SSH_CONFIG") or None
    settings = TransportSettings(
        connect_s=hosts.settings.connect_timeout.seconds,
        request_s=hosts.settings.request_timeout.seconds,
        retry_s=hosts.settings.retry_for.seconds if retry_s is None else min(retry_s, hosts.settings.retry_for.seconds),
        cache=state_folder / "cache" if state_folder is not None else None,
        sockets=state_folder / "ssh" if state_folder is not None else None,
        attended=attended,
        passphrase=passphrase,
    )

    def resolver(alias: str) -> HostTarget:
        if not alias:
            raise NotFoundError("a host has no empty name", code="no_host")
        spec = hosts.get(alias)
        return HostTarget.of(
            alias,
            ssh_config=file,
            address=spec.address,
            root=spec.root,
            python=spec.python,
            settings=settings,
            transport=transport or spec.transport,
        )

    return LinkPool(resolver, begun, greeting)
