"""A client with sweeps that are visited when a test says so, and visits that end in the middle."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from jobrunner.ledger.store import Store
from jobrunner.service.reconcile import reconcile
from jobrunner.service.session import Session, open_session
from jobrunner.service.sweeps import adaptive, early, view

from .lab import Lab
from .quick import QuickClient
from .waiting import eventually


class Sweeper(QuickClient):
    """A laptop with a host that runs four jobs without cards at once."""

    def __init__(self, folder: Path, lab: Lab) -> None:
        super().__init__(folder, lab, lab={"cpu_jobs": 4})

    def session(self) -> Session:
        return open_session(home=self.folder / "state", hosts_file=self.folder / "hosts.yaml", environ=self.env)

    def begin(self, text: str, script: str) -> str:
        """Submit a sweep of `train.py`; its id."""
        text = f"device: cpu\nscript: train.py\ngrace: 1s\n{text}"
        return str(self.json("submit", str(self.spec(text, "sweep", train__py=script)))["sweep"]["id"])

    def look(self) -> None:
        """Ask the host, and judge nothing."""
        with self.session() as session:
            reconcile(session)

    def visit(self) -> list[str]:
        """What `tick` does with sweeps; what it told."""
        with self.session() as session:
            found = reconcile(session)
            told = early.judge(session, found) + adaptive.advance(session, found)
            for row in session.ledger.sweeps.list():
                view.settle(session, row.id)
            return told + session.warnings

    def shown(self, sweep: str) -> dict[str, Any]:
        """`sweep show`."""
        return self.json("sweep", "show", sweep)

    def trials(self, sweep: str, parameter: str = "lr") -> dict[str, dict[str, Any]]:
        """The trials by the text of one parameter."""
        return {trial["parameters"][parameter]: trial for trial in self.shown(sweep)["trials"]}

    def visit_until(self, done: Callable[[], Any], what: str, seconds: float = 60.0, at_once: int = 1) -> list[str]:
        """Visit until something holds, with so many visits at the same time; everything that they told."""
        told: list[str] = []

        def there() -> Any:
            with ThreadPoolExecutor(at_once) as pool:
                for texts in pool.map(lambda _: self.visit(), range(at_once)):
                    told.extend(texts)
            return done()

        eventually(there, seconds, what)
        return told

    def to_the_end(self, sweep: str, at_once: int = 1) -> list[str]:
        """Visit until the sweep is done."""
        over = f"the end of sweep {sweep}"
        return self.visit_until(lambda: self.shown(sweep)["sweep"]["state"] == "done", over, at_once=at_once)


class Death(BaseException):
    """The process is gone."""


@contextlib.contextmanager
def dying(patch: pytest.MonkeyPatch, at: int) -> Iterator[list[int]]:
    """Inside, the process dies at so many-th edge of a change to the ledger: an odd one is before it, an even after.

    Everything that a visit does to hosts lies between two such edges. Gives how many are left: more than none, and it
    did not die.
    """
    left, write = [at], Store.write

    def edge() -> None:
        if threading.current_thread() is threading.main_thread():
            left[0] -= 1
            if left[0] == 0:
                raise Death

    @contextlib.contextmanager
    def mortal(self: Store, *args: Any, **more: Any) -> Iterator[Any]:
        edge()
        with write(self, *args, **more) as db:
            yield db
        edge()

    with patch.context() as patched:
        patched.setattr(Store, "write", mortal)
        with contextlib.suppress(Death):
            yield left
