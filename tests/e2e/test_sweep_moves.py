"""Waiting trials go to a host that is idle; whatever is cut, each runs once."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jobrunner.core.jobs import JobRow
from jobrunner.core.spec import JobSpec, spec_from_json
from jobrunner.core.states import JobState
from jobrunner.ledger.sweeps import SweepRow
from jobrunner.service import moving, staging
from jobrunner.service.clock import now
from jobrunner.service.reconcile import reconcile
from jobrunner.service.session import Session, open_session
from tests.support.lab import ROOT, Lab
from tests.support.quick import QuickClient
from tests.support.waiting import eventually

pytestmark = pytest.mark.needs_sshd
NUMBERS = itertools.count(1)
SCRIPT = (
    "import os, time\n"
    "out = os.environ['OUT']\n"
    "with open(out, 'a') as file:\n"
    "    file.write(os.environ['JOBRUNNER_JOB_ID'] + ' ' + os.environ.get('TOKEN', '') + '\\n')\n"
    "while not os.path.exists(out + '.go'):\n"
    "    time.sleep(0.02)\n"
)


@pytest.fixture(scope="module")
def labs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Lab, Lab]]:
    top = tmp_path_factory.mktemp("labs")
    with Lab(top / "one", alias="one") as one, Lab(top / "two", alias="two") as two:
        yield one, two


class Laptop(QuickClient):
    """A client with one sweep, whose trials the tests put where they want them."""

    def __init__(self, folder: Path, *labs: Lab) -> None:
        super().__init__(folder, *labs, one={"cpu_jobs": 1}, two={"cpu_jobs": 1})
        self.labs = {lab.alias: lab for lab in labs}
        self.env["TOKEN"] = "s3cret"
        self.out = folder / "out"
        self.sweep = f"asweep{next(NUMBERS):04d}"
        self.code = folder / "code"
        self.code.mkdir()
        (self.code / "t.py").write_text(SCRIPT)

    def session(self) -> Session:
        return open_session(home=self.folder / "state", hosts_file=self.folder / "hosts.yaml", environ=self.env)

    def spec(self, **more: Any) -> JobSpec:  # type: ignore[override]
        told = {"name": "s", "device": "cpu", "cards": 0, "code": {"path": "."}, "script": "t.py", "grace": "0s"}
        return spec_from_json({**told, "secrets": ["TOKEN"], "env": {"OUT": str(self.out)}, **more})

    def send(self, session: Session, host: str, *ids: str, share: int | None = None, **more: Any) -> None:
        """Trials of the sweep, on one host."""
        spec, at = self.spec(**more), now()
        tree = staging.read_code(session, self.code, spec.code)  # type: ignore[arg-type]
        digest = staging.code_digest(tree)
        plain = spec.as_json()
        session.ledger.sweeps.add(
            SweepRow(self.sweep, "s", "grid", "running", at, plain, folder=str(self.code), code_digest=digest)
        )
        jobs = []
        for id_ in ids:
            told = {"id": self.sweep, "parallel": share, "stop_after": None, "parameters": {}}
            request = staging.request_for(
                session, spec, host, job_id=id_, at=at, code={"files": 1}, client={}, sweep=told
            )
            row = JobRow(id_, id_, JobState.STAGING, host=host, device="cpu", submitted_at=at, sweep=self.sweep)
            session.ledger.insert_staging(row, request, "x", digest, {})
            jobs.append({"request": request, "secrets": {"TOKEN": "s3cret"}})
        staging.stage(session, host, jobs, tree)

    def trials(self, host: str = "one", share: int | None = None, **more: Any) -> tuple[str, str]:
        """One trial that runs, and one that waits behind it."""
        first, second = (f"atrial{next(NUMBERS):04d}" for _ in range(2))
        with self.session() as session:
            self.send(session, host, first, second, share=share, **more)
        eventually(lambda: self.runs() == [first], what="the first trial runs")
        return first, second

    def rebalance(self) -> list[moving.Moved]:
        with self.session() as session:
            return moving.rebalance(session, reconcile(session))

    def visit(self, id_: str) -> JobRow:
        with self.session() as session:
            reconcile(session)
            return session.ledger.get(id_)

    def runs(self) -> list[str]:
        """The ids of the jobs that began, in order."""
        return [line.split()[0] for line in self.out.read_text().splitlines()] if self.out.exists() else []

    def finish(self, *ids: str) -> None:
        """Let all trials end, and see that each ran just once."""
        Path(f"{self.out}.go").touch()
        for id_ in ids:
            eventually(lambda id_=id_: self.visit(id_).state is JobState.COMPLETED, what=f"{id_} is completed")
        assert sorted(self.runs()) == sorted(ids)
        assert all(line.endswith(" s3cret") for line in self.out.read_text().splitlines())
        with self.session() as session:
            assert session.ledger.moves.all() == {}


@pytest.fixture
def laptop(labs: tuple[Lab, Lab], tmp_path: Path) -> Laptop:
    return Laptop(tmp_path / "client", *labs)


def test_a_waiting_trial_goes_to_the_idle_host(laptop: Laptop) -> None:
    first, second = laptop.trials()
    [moved] = laptop.rebalance()
    assert (moved.job, moved.source, moved.target) == (second, "one", "two")
    eventually(lambda: laptop.runs() == [first, second], what="it runs there")
    job = laptop.json("show", second)["job"]
    assert (job["host"], job["state"], job["id"]) == ("two", "RUNNING", second)
    [event] = [event for event in job["events"] if event["kind"] == "moved"]
    assert (event["from"], event["to"]) == ("one", "two")
    assert laptop.rebalance() == []
    laptop.finish(first, second)


def test_shares_and_what_is_tied_to_its_host(laptop: Laptop) -> None:
    first, second = laptop.trials(share=1)
    assert laptop.rebalance() == [], "the sweep may run one trial at once, and does"
    laptop.finish(first, second)


def test_code_and_secrets_have_to_be_there_before_anything_is_moved(laptop: Laptop) -> None:
    first, second = laptop.trials()
    (laptop.code / "t.py").write_text(SCRIPT + "\n")
    assert laptop.rebalance() == [], "another code than the sweep's goes nowhere"
    (laptop.code / "t.py").write_text(SCRIPT)
    del laptop.env["TOKEN"]
    assert laptop.rebalance() == []
    laptop.env["TOKEN"] = "s3cret"
    assert [moved.job for moved in laptop.rebalance()] == [second]
    laptop.finish(first, second)


def test_what_the_new_host_does_not_take_goes_home(laptop: Laptop, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = laptop.trials()
    deliver = moving.Courier.deliver

    def refused(self: Any, alias: str, *words: Any) -> Any:
        if alias == "two":
            return moving.JobrunnerError("no room there", code="no_space")
        return deliver(self, alias, *words)

    monkeypatch.setattr(moving.Courier, "deliver", refused)
    assert laptop.rebalance() == []
    row = laptop.visit(second)
    assert (row.host, row.state) == ("one", JobState.QUEUED)
    monkeypatch.undo()
    [moved] = laptop.rebalance()
    assert (moved.job, moved.target) == (second, "two"), "it may try again"
    laptop.finish(first, second)


def test_a_cancel_reaches_a_job_that_is_between_hosts(laptop: Laptop, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = laptop.trials()
    monkeypatch.setattr(moving, "_send", lambda *words: [])
    assert laptop.rebalance() == []
    monkeypatch.undo()
    [row] = laptop.json("cancel", second)["jobs"]
    assert row["state"] == "CANCELLED"
    laptop.finish(first)


def test_another_laptop_finds_what_was_moved(laptop: Laptop, labs: tuple[Lab, Lab], tmp_path: Path) -> None:
    first, second = laptop.trials()
    other = Laptop(tmp_path / "other", *labs)
    other.run("adopt")
    assert other.visit(second).host == "one"
    assert [moved.job for moved in laptop.rebalance()] == [second]
    eventually(lambda: (row := other.visit(second)).host == "two" and row.state is JobState.RUNNING)
    laptop.finish(first, second)


def test_a_ledger_is_lost_while_a_job_is_between_hosts(laptop: Laptop, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = laptop.trials()
    monkeypatch.setattr(moving, "_send", lambda *words: [])
    assert laptop.rebalance() == []
    monkeypatch.undo()
    for path in (laptop.folder / "state").glob("ledger.db*"):
        path.unlink()
    laptop.run("adopt")
    row = laptop.visit(second)
    assert row.state in (JobState.QUEUED, JobState.RUNNING) and row.sweep == laptop.sweep
    assert row.host == "one", "nobody has its code but the host that it left"
    laptop.finish(first, second)


KILLED = """
import os, signal, sys
from pathlib import Path
from jobrunner.service import courier, moving
from jobrunner.ledger import moves
from jobrunner.service.reconcile import reconcile
from jobrunner.service.session import open_session

place, name, when = sys.argv[1:]
owner = getattr({"moves": moves, "courier": courier, "moving": moving}[place.split(".")[0]], place.split(".")[1], None)
owner = moving if owner is None else owner
real = getattr(owner, name)

def cut(*words, **more):
    if when == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    result = real(*words, **more)
    os.kill(os.getpid(), signal.SIGKILL)

setattr(owner, name, cut)
with open_session() as session:
    moving.rebalance(session, reconcile(session))
"""


@pytest.mark.parametrize(
    ("place", "name", "when"),
    [
        ("moves.Moves", "begin", "before"),
        ("moves.Moves", "begin", "after"),
        ("moving.", "_take_back", "after"),
        ("moves.Moves", "place", "after"),
        ("courier.Courier", "deliver", "after"),
    ],
)
def test_killed_at_any_step_a_trial_runs_once(laptop: Laptop, place: str, name: str, when: str) -> None:
    first, second = laptop.trials()
    done = subprocess.run(
        [sys.executable, "-c", KILLED, place, name, when], env=laptop.env, cwd=ROOT, capture_output=True, timeout=60
    )
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    row = laptop.visit(second)
    assert row.state is not JobState.STAGING and not row.state.final
    if name in ("place", "deliver", "_take_back"):
        assert row.host == "two"
    else:
        assert row.host == "one"
        assert [moved.job for moved in laptop.rebalance()] == [second]
    laptop.finish(first, second)
    assert os.path.exists(laptop.labs["one"].job_folder(second) / "final.json")


def test_the_new_host_goes_away_while_the_job_is_on_its_way(laptop: Laptop, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = laptop.trials()
    two = laptop.labs["two"]
    place = moving._place

    def cut(*words: Any) -> Any:
        two.sshd.stop()
        return place(*words)

    monkeypatch.setattr(moving, "_place", cut)
    try:
        assert laptop.rebalance() == []
        monkeypatch.undo()
        row = laptop.visit(second)
        assert (row.state, row.host, row.unreachable) == (JobState.STAGING, "two", True)
        assert laptop.runs() == [first]
    finally:
        two.sshd.start()
    assert laptop.visit(second).state in (JobState.QUEUED, JobState.RUNNING)
    laptop.finish(first, second)
