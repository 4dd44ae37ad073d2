"""Two people on one host, through the commands that they type: who has what, who waits, what is not theirs."""

from __future__ import annotations

import json
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.lab import Client, Lab
from tests.support.users import HOLD, SharedHost, go, shared_host, up
from tests.support.waiting import eventually

pytestmark = pytest.mark.needs_sshd
COLLEAGUE = 61003
SLEEP = "device: npu\ncommand: [sleep, '60']\ngrace: 2s\n"


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    """A host with four simulated cards, in a folder that other users may pass through; pytest's own is root's."""
    with tempfile.TemporaryDirectory(prefix="jobrunner-lab-", dir="/var/tmp") as name:
        Path(name).chmod(0o755)
        with Lab(Path(name) / "lab") as made:
            yield made


@pytest.fixture
def colleague(lab: Lab) -> Iterator[SharedHost]:
    """Another user of the lab's host, with a root of its own and the same cards."""
    with shared_host(4, COLLEAGUE, scope=lab.scope, lab=lab.folder / "lab") as host:
        yield host


@pytest.mark.root
def test_who_has_what_and_who_waits(client: Client, lab: Lab, colleague: SharedHost) -> None:
    (bob,) = colleague.users
    bob.submit("abobjob01", HOLD, device="npu", cards=2)
    assert up(bob, "abobjob01") == [0, 1]
    mine = client.submit(SLEEP + "cards: 2\n", "mine")
    client.until(mine, "RUNNING")
    bob.submit("abobjob02", HOLD, device="npu", cards=1)
    wide = client.submit(SLEEP + "cards: 4\n", "wide")
    [host] = client.json("cards")["hosts"]
    me = {str(os.getuid()), "root"}
    assert [card["lease"]["job"] for card in host["cards"]] == ["abobjob01", "abobjob01", mine, mine]
    assert host["cards"][0]["lease"]["user"] == str(COLLEAGUE) and host["cards"][2]["lease"]["user"] in me
    assert host["cards"][0]["since"] == bob.start("abobjob01")["at"] and host["cards"][2]["job_name"] == "mine"
    waiting = eventually(lambda: two(client), 20, "both wait")
    assert {(entry["job"], entry["cards"], entry["mine"]) for entry in waiting} == {
        ("abobjob02", 1, False), (wide, 4, True),
    }  # fmt: skip
    text = client.run("cards").stdout
    assert f"{COLLEAGUE} job abobjob01 since " in text and f"{COLLEAGUE}'s job abobjob02, 1 npu card since " in text
    findings = {finding["code"]: finding for finding in client.json("why", wide)["findings"]}
    assert "that wait for npu cards here" in findings["place"]["summary"]
    lines = client.run("why", wide).stdout
    assert (
        f"card 0: leased by {COLLEAGUE} for job abobjob01 since " in lines
        and f"card 2: leased by root for job {mine}" in lines
    )
    client.run("cancel", mine, wide)
    for job_id in ("abobjob01", "abobjob02"):
        up(bob, job_id)
        go(bob, job_id)


def two(client: Client) -> list[dict[str, object]] | None:
    found = client.json("cards")["hosts"][0]["waiting"]
    return found if len(found) == 2 else None


def test_a_stray_is_in_the_timeline_and_in_ls(client: Client, lab: Lab) -> None:
    id_ = client.submit("device: npu\ngrace: 1s\ncommand: [env, 'JOBRUNNER_LAB_OPENS=0,3', sleep, '60']\n", "stray")
    client.until(id_, "RUNNING")
    words = "it uses card 3, which is not its own (it was given 0): sleep"
    eventually(lambda: words[:20] in client.run("ls").stdout, 40, "the note in ls")
    events = client.json("show", id_)["job"]["events"]
    [event] = [event for event in events if event["kind"] == "warning"]
    assert event["text"].startswith(words)
    client.run("cancel", id_)


def test_a_set_that_never_fits_is_said(client: Client, lab: Lab) -> None:
    lab.cards(8, model="910A")
    try:
        client.json("cards")
        said = client.run("submit", str(client.spec("device: npu\ncards: 3\ncommand: 'true'\n", "odd")))
        assert "odd: a job on 910A takes 1, 2, 4, 8 cards, not 3" in said.stderr
        id_ = client.json("ls")["jobs"][0]["id"]
        first = client.json("why", id_)["findings"][0]
        assert first["code"] == "never" and "takes 1, 2, 4, 8 cards, not 3" in first["summary"] and first["remedy"]
        assert "takes 1, 2, 4, 8" in json.dumps(client.json("show", id_)["job"]["events"])
        named = client.run("submit", str(client.spec("device: npu\ncards: [3, 4]\ncommand: 'true'\n", "straddles")))
        text = "cards 3, 4 are not in one linked group of 4 910A cards: it can never start here"
        assert f"straddles: {text}" in named.stderr
        assert client.json("why", "straddles")["findings"][0]["summary"] == text
        client.json("submit", str(client.spec("device: npu\ncards: [4, 5]\ncommand: 'true'\n", "fits")), "--wait")
        assert client.json("ls", "--name", "straddles")["jobs"][0]["state"] == "QUEUED", "others pass it"
        client.run("cancel", id_, "straddles")
    finally:
        lab.cards()


def test_a_card_whose_name_a_stranger_holds(client: Client, lab: Lab) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as stranger:
        stranger.bind(f"\0jobrunner/1/card/npu/2@{lab.scope}".encode())
        card = client.json("cards")["hosts"][0]["cards"][2]
        assert card["free"] is False and card["lease"]["job"] is None
        assert (
            "leased by somebody who shows no job for it" in card["why_busy"]
            and f"process {os.getpid()}" in card["why_busy"]
        )
        id_ = client.submit(SLEEP + "cards: 4\n", "all")
        codes = {finding["code"] for finding in client.json("why", id_)["findings"]}
        assert {"cards", "place", "unshown"} <= codes
        client.run("cancel", id_)


def test_left_overs_of_the_shared_folder_are_no_harm(client: Client, lab: Lab) -> None:
    folder = Path(f"/tmp/.jobrunner-1-{os.getuid()}-{lab.scope}")
    shutil.rmtree(folder, ignore_errors=True)
    folder.write_text("not a folder")
    try:
        id_ = client.submit("device: npu\ncommand: 'true'\n", "unseen")
        client.run("wait", id_)
        assert client.row(id_)["state"] == "COMPLETED"
    finally:
        folder.unlink()
