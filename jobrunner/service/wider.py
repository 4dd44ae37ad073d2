"""A big stream that has begun goes on over the connection for big transfers, which is opened beside its first bytes."""

from __future__ import annotations

from threading import Event, Thread
from typing import TYPE_CHECKING

from jobrunner.core.errors import JobrunnerError
from jobrunner.service.lanes import BIG, FAR_S

if TYPE_CHECKING:
    from jobrunner.transport.link import HostLink


class Wider:
    """Is told how much is left to come over `link`, and when it is better to go on over `bulk`.

    OpenSSH's client does with a byte about a third of Fabric's work. Its window is smaller, so that a far host is not
    asked over it.
    """

    def __init__(self, link: HostLink) -> None:
        self._link = link
        self._begun = False
        self._open = Event()

    def __call__(self, left: int) -> bool:
        """True once it is better to go on over `bulk`; `left` bytes are to come."""
        if left < BIG:
            return False
        if not self._begun:
            self._begun = True
            if self._worth_it():
                Thread(target=self._begin, name="wider", daemon=True).start()
        return self._open.is_set()

    @property
    def bulk(self) -> HostLink:
        """The link to go on over."""
        return self._link.bulk()

    def _worth_it(self) -> bool:
        from jobrunner.transport import openssh

        link = self._link
        near = link.kind == "fabric" and link.round_trip < FAR_S
        return near and link.target.transport != "fabric" and not openssh.impossible(link.target)

    def _begin(self) -> None:
        bulk = self.bulk
        try:
            bulk.open()
        except (JobrunnerError, OSError):
            return  # the bytes come as they do
        if bulk.kind != self._link.kind:
            self._open.set()
