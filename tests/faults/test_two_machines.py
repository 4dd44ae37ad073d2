"""Two machines that share one home folder never touch each other's jobs."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.commands import Laptop
from tests.faults.host import BreakableHost
from tests.support.waiting import eventually

pytestmark = [pytest.mark.needs_sshd, pytest.mark.root]
SLEEP = "device: cpu\ngrace: 1s\ncommand: echo $HOSTNAME; sleep 600\n"


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[BreakableHost, BreakableHost, Laptop]]:
    """Machines of the same user and machine-id, whose names, processes and local disks differ, and one home."""
    with BreakableHost(tmp_path / "a", name="alpha") as alpha:
        shared = {"HOME": str(tmp_path / "a" / "home"), "JOBRUNNER_LEASE_SCOPE": alpha.scope}
        beta = BreakableHost(tmp_path / "b", name="beta", env=shared)
        beta.scope, beta.root = alpha.scope, alpha.root
        with beta:
            yield alpha, beta, Laptop(tmp_path / "laptop", alpha, beta)


def job_on(laptop: Laptop, host: str) -> str:
    """A job that runs there until it is ended."""
    data = laptop.json("submit", str(laptop.spec(SLEEP, f"on-{host}")), "--host", host)
    id_ = str(data["jobs"][0]["id"])
    laptop.until(id_, "RUNNING")
    return id_


def test_no_machine_touches_the_jobs_of_the_other(pair: tuple[BreakableHost, BreakableHost, Laptop]) -> None:
    alpha, _, laptop = pair
    ids = {name: job_on(laptop, name) for name in ("alpha", "beta")}
    folders = {name: alpha.job_folder(id_) for name, id_ in ids.items()}
    assert folders["alpha"].parent != folders["beta"].parent, "each machine has an instance of its own"
    for name, folder in folders.items():
        log = folder / "1" / "log"
        assert eventually(lambda log=log: log.read_text().strip()) == name  # type: ignore[misc]

    # The other machine looks, cleans, adopts: nothing of it is about this machine's jobs.
    before = sorted(path for path in folders["alpha"].rglob("*"))
    laptop.run("gc", "beta")
    assert laptop.json("adopt", "beta")["added"] == []
    known = laptop.json("adopt", "beta")["jobs"]
    assert [row["id"] for row in known] == [ids["beta"]]
    assert sorted(path for path in folders["alpha"].rglob("*")) == before

    # Alpha is started anew. Beta, asked, knows nothing of it; alpha says it of its own job only.
    alpha.reboot()
    laptop.run("hosts", "check", "beta")
    assert not (folders["alpha"] / "final.json").exists()
    rows = {row["id"]: row for row in laptop.json("ls", "--all")["jobs"]}
    assert (rows[ids["alpha"]]["state"], rows[ids["alpha"]]["reason"]) == ("LOST", "host_reboot")
    assert rows[ids["beta"]]["state"] == "RUNNING"
    laptop.run("cancel", ids["beta"])
    assert laptop.row(ids["beta"])["state"] == "CANCELLED"


def test_an_alias_that_leads_to_the_other_machine_ends_nothing(
    pair: tuple[BreakableHost, BreakableHost, Laptop],
) -> None:
    """The name is moved to the other machine, with the same home: its job is neither lost nor cancelled there."""
    alpha, beta, laptop = pair
    id_ = job_on(laptop, "alpha")
    config = laptop.folder / "ssh_config"
    right = config.read_text()
    config.write_text(right.replace(f"Port {alpha.sshd.port}", f"Port {beta.sshd.port}"))
    keys = alpha.sshd.known_hosts.read_text() + f"[127.0.0.1]:{beta.sshd.port} {beta.sshd.host_public}\n"
    alpha.sshd.known_hosts.write_text(keys)
    # The key of the login has to be accepted there as well.
    os.replace(alpha.sshd.folder / "authorized_keys", beta.sshd.folder / "authorized_keys")
    (alpha.sshd.folder / "authorized_keys").write_text((beta.sshd.folder / "authorized_keys").read_text())
    code, document = laptop.ask("ls")
    assert code == 3 and document["errors"][0]["code"] == "other_machine", json.dumps(document)
    assert document["data"]["jobs"][0]["state"] == "RUNNING" and document["data"]["jobs"][0]["unreachable"]
    assert laptop.ask("cancel", id_)[0] == 3
    assert not (alpha.job_folder(id_) / "final.json").exists()
    config.write_text(right)
    laptop.run("ls")
    assert laptop.until(id_, "CANCELLED", "RUNNING")["state"] == "CANCELLED"
