"""Submits that are cut: afterwards there is one job or none, `ls` tells the truth, and the same submit goes on."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.lab import Client, Lab, end
from tests.support.relay import Relay
from tests.support.waiting import eventually

pytestmark = pytest.mark.needs_sshd


@pytest.fixture
def relay(lab: Lab, client: Client) -> Iterator[Relay]:
    """The client's way to the host leads through a relay."""
    relay = Relay(lab.sshd.port)
    config = Path(client.folder / "ssh_config")
    text = config.read_text().replace(f"Port {lab.sshd.port}", f"Port {relay.port}")
    config.write_text(text.replace("  IdentitiesOnly", f"  HostKeyAlias [127.0.0.1]:{lab.sshd.port}\n  IdentitiesOnly"))
    yield relay
    relay.close()


def starts(lab: Lab, id_: str) -> int:
    """How often the job has run."""
    marker = lab.folder / "home" / f"ran-{id_}"
    return len(marker.read_text().splitlines()) if marker.exists() else 0


SPEC = "device: cpu\ncommand: echo run >> ~/ran-$JOBRUNNER_JOB_ID\n"
BALLAST = {f"data{i}__bin": chr(97 + i) * 120_000 for i in range(6)}


@pytest.mark.parametrize("seed", range(6))
def test_client_killed_at_any_moment(lab: Lab, client: Client, seed: int) -> None:
    """kill -9 of the client while it submits; then the same submit again: one job, one run."""
    moment = random.Random(seed)
    spec = client.spec(SPEC, f"kill{seed}", **{key: text + f"kill{seed}" for key, text in BALLAST.items()})
    process = client.start("submit", str(spec))
    time.sleep(moment.uniform(0.15, 1.2))  # the moment is what is tested
    end(process, signal.SIGKILL)
    again = client.json("submit", str(spec))
    id_ = again["jobs"][0]["id"]
    client.run("wait", id_)
    rows = client.json("ls", "--all")["jobs"]
    known = {row["id"]: row for row in rows}
    assert known[id_]["state"] == "COMPLETED" and starts(lab, id_) == 1
    folders = {path.name for path in lab.root.glob("hosts/*/jobs/*")}
    for other in rows:
        # A submit that had its answer before it was killed is a job of its own; nothing is left half sent.
        assert other["state"] == "COMPLETED", other
        assert starts(lab, other["id"]) == 1 and other["id"] in folders


# From the exchange of keys to the last of the blobs; the host's answers are some kilobytes in all.
CUTS = [("up", 1500), ("up", 4000), ("up", 6000), ("up", 20_000), ("up", 200_000), ("up", 600_000),
        ("down", 1500), ("down", 4000), ("down", 6000)]  # fmt: skip


@pytest.mark.parametrize(("direction", "limit"), CUTS)
def test_link_cut_at_any_byte(lab: Lab, client: Client, relay: Relay, direction: str, limit: int) -> None:
    """Every connection dies after so many bytes: the submit fails, is repeated over a sound link, and runs once."""
    name = f"cut{direction}{limit}"
    client.settings(retry_for="2s")
    spec = client.spec(SPEC, name, **{key: text + name for key, text in BALLAST.items()})
    relay.direction, relay.limit = direction, limit
    first = client.run("submit", str(spec), code=None, limit=90)
    assert first.returncode in (0, 3), first
    relay.limit = None
    if first.returncode == 3:
        client.run("submit", str(spec))
    rows = client.json("ls", "--all")["jobs"]
    assert len(rows) == 1
    client.run("wait", rows[0]["id"])
    assert starts(lab, rows[0]["id"]) == 1


def test_a_broken_off_submit_is_closed_by_the_next_look(lab: Lab, client: Client, relay: Relay) -> None:
    """Nobody repeats the submit: `ls` says FAILED/interrupted, and a later submit is a new job."""
    spec = client.spec(SPEC, "left", **{key: text + "left" for key, text in BALLAST.items()})
    relay.limit = 30_000
    assert client.run("submit", str(spec), code=None).returncode == 3
    relay.limit = None
    [row] = client.json("ls", "--all")["jobs"]
    assert (row["state"], row["reason"]) == ("FAILED", "interrupted")
    id_ = client.json("submit", str(spec))["jobs"][0]["id"]
    assert id_ != row["id"]
    client.run("wait", id_)
    assert starts(lab, id_) == 1 and starts(lab, row["id"]) == 0


def test_following_survives_cuts_byte_for_byte(lab: Lab, client: Client, relay: Relay) -> None:
    """`logs -f` over a link that is cut again and again prints exactly the file."""
    command = "for i in $(seq 1 400); do echo line $i of the log; sleep 0.005; done"
    id_ = client.submit(f"device: cpu\ncommand: '{command}'\n", "chatty")
    relay.direction, relay.limit = "down", 12_000
    viewer = client.start("logs", id_, "-f", "--raw")
    out, err = viewer.communicate(timeout=90)
    relay.limit = None
    log = (lab.job_folder(id_) / "1" / "log").read_bytes()
    assert out == log, err.decode()
    assert log.count(b"\n") == 400


def test_an_unreachable_host_changes_nothing_but_last_seen(lab: Lab, client: Client, relay: Relay) -> None:
    id_ = client.submit("device: cpu\ngrace: 1s\ncommand: sleep 60\n", "away")
    client.until(id_, "RUNNING")
    before = client.row(id_)
    client.settings(retry_for="1s")
    relay.limit = 0
    began = time.monotonic()
    data = client.json("ls", code=3)
    assert time.monotonic() - began < 15
    [row] = data["jobs"]
    assert row["unreachable"] is True and data["errors"]
    assert {key: row[key] for key in ("state", "phase", "attempt")} == {
        key: before[key] for key in ("state", "phase", "attempt")
    }
    kept = client.json("cancel", id_, code=3)
    assert kept["kept"] == [id_] and kept["jobs"][0]["cancel_requested_at"]
    relay.limit = None
    client.run("ls")
    eventually(lambda: client.row(id_)["state"] == "CANCELLED", 20, "the kept cancel")
