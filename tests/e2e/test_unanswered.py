"""A submit whose agent dies: before the host has the job there is none, after it there is one, and the ledger knows which."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from jobrunner.core.errors import AgentError
from jobrunner.transport.session import Session
from tests.support.lab import Lab
from tests.support.quick import QuickClient

pytestmark = pytest.mark.needs_sshd
SPEC = "device: cpu\ncommand: echo run >> ~/ran-$JOBRUNNER_JOB_ID\n"


def die_at_answer(monkeypatch: pytest.MonkeyPatch, *, committed: bool) -> None:
    """The agent is gone at the next answer to a `stage`: after the host has done all of it, or before it has any."""
    true = Session.read_json

    def read(self: Session, timeout: float | None = -1.0) -> dict[str, Any]:
        message = true(self, timeout)
        if ("ok" in message) == committed:
            monkeypatch.setattr(Session, "read_json", true)
            raise AgentError("the agent ended by a signal before it had answered", code="agent_died")
        return message

    monkeypatch.setattr(Session, "read_json", read)


def test_a_job_that_was_committed_is_found_and_runs_once(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = QuickClient(tmp_path / "client", lab)
    spec = str(client.spec(SPEC, "answered"))
    die_at_answer(monkeypatch, committed=True)
    [row] = client.json("submit", spec)["jobs"]
    client.json("wait", row["id"])
    assert [item["id"] for item in client.json("ls", "--all")["jobs"]] == [row["id"]]
    assert (lab.folder / "home" / f"ran-{row['id']}").read_text() == "run\n"
    assert {path.name for path in lab.root.glob("hosts/*/jobs/*")} == {row["id"]}


def test_a_job_that_was_not_leaves_no_row(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    client = QuickClient(tmp_path / "client", lab)
    spec = str(client.spec(SPEC, "unanswered"))
    die_at_answer(monkeypatch, committed=False)
    failed = client.json("submit", spec, code=3)
    assert failed["errors"][0]["code"] == "agent_died"
    assert client.json("ls", "--all")["jobs"] == []
    [row] = client.json("submit", spec)["jobs"]
    client.json("wait", row["id"])
