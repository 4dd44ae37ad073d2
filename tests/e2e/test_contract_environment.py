"""What a job finds in its environment: every layer, in its order, and what nobody may change."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.lab import Client, Lab
from tests.support.quick import QuickClient

pytestmark = pytest.mark.needs_sshd
SESSION = {
    "XDG_SESSION_ID": "7",
    "XDG_RUNTIME_DIR": "/run/user/7",
    "TMUX": "/tmp/tmux",
    "TMUX_PANE": "%1",
    "DISPLAY": ":0",
    "SITE": "from the login",
}
ENTRY = {
    "env": {"HOSTV": "host $SITE", "BOTH": "host", "MASTER_ADDR": "10.0.0.5"},
    "setup": ['export TRACE="$TRACE host[$VENDOR,$SPECV]" SETUP=host', "alias x=y; export BOTH=$BOTH+setup"],
}


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """A host whose login brings a session's variables along, with a vendor's set-up and a virtual environment."""
    with Lab(tmp_path_factory.mktemp("lab"), env=SESSION) as host:
        home = host.folder / "home"
        toolkit = home / "Ascend" / "ascend-toolkit"
        toolkit.mkdir(parents=True)
        (toolkit / "set_env.sh").write_text('export VENDOR=ascend TRACE="vendor[$HOSTV,$SPECV,$TOKEN,$SITE]"\n')
        (home / "venv" / "bin").mkdir(parents=True)
        yield host


@pytest.fixture
def client(lab: Lab, tmp_path: Path) -> Client:
    return QuickClient(tmp_path / "client", lab, lab=ENTRY)


def environment(client: Client, text: str) -> dict[str, str]:
    """What a job with this spec finds: printed by `env -0`, which adds nothing of its own."""
    id_ = client.submit(f"command: [env, '-0']\n{text}")
    done = client.json("wait", id_, code=None)
    assert done["jobs"][0]["state"] == "COMPLETED", (done, client.log(id_))
    words = [entry.split("=", 1) for entry in client.log(id_).decode().split("\0") if entry]
    return {"id": id_, **dict(words)}


def test_layers_see_those_before_them(client: Client) -> None:
    client.env["TOKEN"] = "secret-1"
    found = environment(
        client,
        "device: npu\ncards: 1\ncode: null\nsecrets: [TOKEN]\nenv: {SPECV: 'spec $HOSTV', BOTH: spec}\n"
        "runtime: {venv: ~/venv, setup: ['export TRACE=\"$TRACE late[$VIRTUAL_ENV,$SETUP,$JOBRUNNER_CARDS]\"',\n"
        "  'export JOBRUNNER_JOB_ID=stolen JOBRUNNER_CARDS=7 ASCEND_RT_VISIBLE_DEVICES=0,1,2,3']}\n",
    )
    home = found["HOME"]
    # Values of env are data: nothing in them was expanded. What is exported by shell lines was.
    assert found["HOSTV"] == "host $SITE" and found["SPECV"] == "spec $HOSTV" and found["BOTH"] == "spec+setup"
    assert found["TRACE"] == (
        "vendor[host $SITE,spec $HOSTV,secret-1,from the login] host[ascend,spec $HOSTV] "
        f"late[{home}/venv,host,{found['JOBRUNNER_CARDS']}]"
    )
    assert found["PATH"].split(":")[0] == f"{home}/venv/bin" and found["VIRTUAL_ENV"] == f"{home}/venv"
    # Last of all what nobody may change.
    assert found["JOBRUNNER_JOB_ID"] == found["id"] and found["JOBRUNNER_CARDS"] != "7"
    assert found["ASCEND_RT_VISIBLE_DEVICES"] == found["JOBRUNNER_CARDS"]


def test_vendor_off_sources_nothing(client: Client) -> None:
    found = environment(client, "device: npu\ncards: 1\ncode: null\nruntime: {vendor: 'off'}\n")
    assert "VENDOR" not in found and found["TRACE"] == " host[,]"


def test_the_session_is_scrubbed_and_nothing_is_made_up(client: Client, lab: Lab) -> None:
    found = environment(client, "device: cpu\ncode: null\n")
    id_ = found.pop("id")
    prefixes = ("SSH_", "XDG_", "TMUX")
    assert not [name for name in found if name.startswith(prefixes) or name in ("DISPLAY", "_", "OLDPWD", "SHLVL")]
    folder = lab.job_folder(id_)
    exact = {
        "JOBRUNNER_JOB_ID": id_,
        "JOBRUNNER_JOB_NAME": "job",
        "JOBRUNNER_ATTEMPT": "1",
        "JOBRUNNER_DEVICE": "cpu",
        "JOBRUNNER_CARDS": "",
        "JOBRUNNER_NUM_CARDS": "0",
        "JOBRUNNER_OUTPUT_DIR": str(folder / "out"),
        "ASCEND_RT_VISIBLE_DEVICES": "",
        "MLU_VISIBLE_DEVICES": "",
        "CUDA_VISIBLE_DEVICES": "",
        "MUSA_VISIBLE_DEVICES": "",
        "PYTHONUNBUFFERED": "1",
        "MASTER_ADDR": "10.0.0.5",  # the host's own word
        "SITE": "from the login",
        "PWD": str(folder / "1" / "work"),
        "HOME": str(lab.folder / "home"),
    }
    assert {name: found.get(name) for name in exact} == exact
    assert int(found["MASTER_PORT"]) > 1024
    given = {"HOSTV", "BOTH", "SETUP", "TRACE", "MASTER_PORT", "JOBRUNNER_LAB", "JOBRUNNER_LEASE_SCOPE"}
    login = {"PATH", "SHELL", "USER", "LOGNAME", "MAIL", "LANG"}
    assert set(found) - set(exact) - given - login == set()
    assert (folder / "out").is_dir()


@pytest.mark.parametrize("cards", ["2", "[3, 1]", "0"])
def test_visible_devices_say_exactly_the_jobs_cards(client: Client, cards: str) -> None:
    found = environment(client, f"device: npu\ncards: {cards}\ncode: null\nenv: {{PYTHONUNBUFFERED: 0}}\n")
    row = client.row(found["id"])
    numbers = ",".join(str(card) for card in sorted(row["cards"]))
    assert found["JOBRUNNER_CARDS"] == found["ASCEND_RT_VISIBLE_DEVICES"] == numbers
    assert found["JOBRUNNER_NUM_CARDS"] == str(len(row["cards"])) and found["PYTHONUNBUFFERED"] == "0"
    if cards == "[3, 1]":
        assert numbers == "1,3"
    if cards == "0":
        assert numbers == "" and found["CUDA_VISIBLE_DEVICES"] == found["MLU_VISIBLE_DEVICES"] == ""


def test_port_ranges_of_two_jobs_at_once_are_apart(client: Client) -> None:
    hold = "device: npu\ncards: 1\ncode: null\ncommand: 'echo $MASTER_PORT $HCCL_IF_BASE_PORT; sleep 60'\ngrace: 1s\n"
    ids = [client.submit(hold, name) for name in ("a", "b")]
    starts = []
    for id_ in ids:
        client.until(id_, "RUNNING")
        words: list[str] = []
        while len(words) < 2:
            words = client.log(id_).decode().split()
        starts += [int(word) for word in words]
    client.run("cancel", *ids)
    assert len(starts) == 4 and min(b - a for a, b in zip(sorted(starts), sorted(starts)[1:], strict=False)) >= 32


def test_a_secret_leaves_with_the_job_and_setup_failures_say_which_line(client: Client, lab: Lab) -> None:
    client.env["TOKEN"] = "canary-27182818"
    text = "device: cpu\ncode: null\nsecrets: [TOKEN]\ncommand: 'true'\nruntime: {setup: ['echo one', '(exit 7)']}\n"
    id_ = client.submit(text)
    client.json("wait", id_, code=1)
    row: dict[str, Any] = client.row(id_)
    assert (row["state"], row["reason"], row["exit_code"], row["phase"]) == ("FAILED", "setup", 7, None)
    assert not (lab.job_folder(id_) / "secrets.json").exists()
    assert b"one\n" in client.log(id_) and b"(exit 7)" in client.log(id_)
    assert "canary" not in json.dumps(client.json("show", id_))
