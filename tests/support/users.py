"""Several Unix users on one simulated host: each with a root and a dispatcher of its own, all in one lease scope."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jobrunner.lab.simcards import tools_dir, write_lab
from tests.support.agentproc import AgentHost, job, until
from tests.support.running import Runs

PYTHON = "/usr/bin/python3"  # one that every user may run


class UserHost(AgentHost):
    """What one user has on the host. The user is a number without a name, which no file of this machine knows."""

    def __init__(self, folder: Path, uid: int, scope: str) -> None:
        folder.mkdir()
        os.chown(folder, uid, uid)
        wrapper = folder / "python"
        drop = f"setpriv --reuid {uid} --regid {uid} --clear-groups --inh-caps=-all"
        wrapper.write_text(f'#!/bin/sh\nHOME={folder} exec {drop} {PYTHON} "$@"\n')
        wrapper.chmod(0o755)
        super().__init__(folder, python=str(wrapper))
        self.uid, self.scope = uid, scope

    @property
    def shown(self) -> Path:
        """What this user shows to the others."""
        return Path(f"/tmp/.jobrunner-1-{self.uid}-{self.scope}")

    def close(self) -> None:
        super().close()
        if self.shown.is_symlink() or self.shown.is_file():
            self.shown.unlink()
        shutil.rmtree(self.shown, ignore_errors=True)


class SharedHost:
    """A machine with simulated cards, and some users on it."""

    def __init__(
        self,
        folder: Path,
        count: int,
        uids: tuple[int, ...],
        *,
        scope: str = "",
        lab: Path | None = None,
        **overrides: Any,
    ) -> None:
        self.folder, self.count = folder, count
        self.scope = scope or "u" + uuid.uuid4().hex[:10]
        self.lab = lab or folder / "lab"
        if lab is None:
            self.cards(**overrides)
        self.env = {"PATH": f"{tools_dir()}:{os.environ['PATH']}", "JOBRUNNER_LAB": str(self.lab)}
        self.hosts = [UserHost(folder / f"u{uid}", uid, self.scope) for uid in uids]
        self.users = [Runs(host, **self.env) for host in self.hosts]

    def cards(self, **overrides: Any) -> None:
        """What the vendor's tool shows."""
        write_lab(self.lab, "npu", self.count, **overrides)
        for path in (self.lab, *self.lab.iterdir()):
            path.chmod(0o755)

    def submit_all(self, runs: Runs, wanted: list[tuple[str, str, dict[str, Any]]]) -> None:
        """Stage jobs `(id, shell command, run)` at once."""
        entries = [
            job(id_, **{"command": {"shell": shell}, "grace_s": 2, "device": "npu", **run})
            for id_, shell, run in wanted
        ]
        runs.channel.stage(entries, None)


@contextlib.contextmanager
def shared_host(count: int, *uids: int, **overrides: Any) -> Iterator[SharedHost]:
    """A `SharedHost` in a folder that every user may pass through."""
    with tempfile.TemporaryDirectory(prefix="jobrunner-users-", dir="/var/tmp") as name:
        folder = Path(name)
        folder.chmod(0o755)
        host = SharedHost(folder, count, uids, **overrides)
        try:
            yield host
        finally:
            for one in host.hosts:
                one.close()


def up(runs: Runs, job_id: str) -> list[int]:
    """Wait until a `HOLD` job runs; its cards."""
    until((runs.host.job(job_id) / "out" / "up").exists, timeout=60, what=f"{job_id} is up")
    return list(runs.view(job_id)["cards"])


def go(runs: Runs, job_id: str) -> None:
    """Let a `HOLD` job end."""
    path = runs.host.job(job_id) / "out" / "go"
    path.touch()
    path.chmod(0o644)


HOLD = ": > $JOBRUNNER_OUTPUT_DIR/up; while [ ! -e $JOBRUNNER_OUTPUT_DIR/go ]; do sleep 0.02; done"
