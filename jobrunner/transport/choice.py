"""Which of the two transports carries a connection: Fabric, or OpenSSH's own client."""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass

from jobrunner.core.errors import AuthError, HostError, LinkLostError
from jobrunner.transport import openssh
from jobrunner.transport.channel import Connection
from jobrunner.transport.connect import again, open_connection, preload
from jobrunner.transport.settings import HostTarget

log = logging.getLogger("jobrunner.transport")
MOST_SPARE = 3  # so many shared connections to one host may be full before it is called full


@dataclass
class Way:
    """How a link came to its host, for when it has to go there again.

    `spare`: so many shared connections were full. `note`: what a person should know of it.
    `bulk`: it is for big transfers, which OpenSSH's client carries with less work than Fabric.
    """

    spare: int = 0
    note: str = ""
    bulk: bool = False

    def load(self, target: HostTarget) -> None:
        """Load what `open` will need: Fabric, unless OpenSSH's client is going to be taken."""
        if target.transport != "fabric" and not openssh.impossible(target):
            from jobrunner.transport.needs import why_openssh

            if self.bulk or target.transport == "openssh" or openssh.find(target) is not None or why_openssh(target):
                return
        preload().join()

    def open(self, target: HostTarget, *, stop: threading.Event) -> Connection:
        """A connection that is logged in, by the target's transport. Raises a HostError that says what is wrong.

        `auto` takes a shared connection that is up already; else OpenSSH where the SSH configuration needs what
        only that can do; else Fabric. Fabric is taken wherever there can be no shared connection.
        """
        if target.transport == "fabric":
            return open_connection(target, stop=stop)
        missing = openssh.impossible(target, make=target.transport == "openssh")
        if missing:
            if target.transport == "openssh":
                self.note = f"{target.alias} is reached by Fabric, not by OpenSSH's client: {missing}"
            return open_connection(target, stop=stop)
        if self.bulk:
            return self._for_bulk(target, stop)
        if target.transport == "openssh":
            return self._shared(target, stop)
        found = openssh.find(target, self.spare)
        if found is not None:
            return found
        from jobrunner.transport.master import may_ask
        from jobrunner.transport.needs import why_openssh

        reason = "" if self.spare else why_openssh(target)
        if reason:
            log.debug("%s: OpenSSH is taken: %s", target.alias, reason)
            return self._shared(target, stop)
        try:
            return open_connection(target, stop=stop)
        except AuthError as error:
            if error.code != "second_factor" or not may_ask(error, target):
                raise
            return self._shared(target, stop)  # which asks the person

    def _for_bulk(self, target: HostTarget, stop: threading.Event) -> Connection:
        """OpenSSH where it gets in without asking anybody, else the transport that control goes by."""
        try:
            return openssh.open_own(target, stop)
        except LinkLostError:
            raise
        except HostError as error:
            log.debug("%s: OpenSSH cannot carry the transfer: %s", target.alias, error.message)
            self.bulk = False
            return self.open(target, stop=stop)

    def _shared(self, target: HostTarget, stop: threading.Event) -> Connection:
        if openssh.impossible(target, make=True):
            return open_connection(target, stop=stop)
        return again(target, stop, lambda: openssh.open_shared(target, stop, self.spare))
