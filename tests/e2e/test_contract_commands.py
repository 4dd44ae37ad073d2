"""What commands print for programs, and what they exit with; what a ledger remembers, and gets back from a host."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.lab import Client, Lab
from tests.support.quick import QuickClient
from tests.support.waiting import eventually

pytestmark = pytest.mark.needs_sshd
CPU = "device: cpu\ncode: null\n"
ROW = [
    "id",
    "name",
    "state",
    "phase",
    "reason",
    "exit_code",
    "signal",
    "host",
    "device",
    "cards",
    "attempt",
    "submitted_at",
    "started_at",
    "ended_at",
    "last_seen",
    "unreachable",
    "cancel_requested_at",
    "sweep",
    "schedule",
    "retry_of",
]
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z\Z")
STATES = ["STAGING", "QUEUED", "RUNNING", "COMPLETED", "FAILED", "TIMEOUT", "CANCELLED", "LOST"]


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with Lab(tmp_path_factory.mktemp("lab")) as host:
        yield host


@pytest.fixture
def client(lab: Lab, tmp_path: Path) -> QuickClient:
    return QuickClient(tmp_path / "client", lab, lab={"cpu_jobs": 16})


def check_row(row: dict[str, Any], *, exact: bool = True) -> None:
    """A job row has the promised keys, and each has its kind of value."""
    if exact:
        assert list(row) == ROW
    assert row["state"] in STATES and isinstance(row["cards"], list) and isinstance(row["unreachable"], bool)
    for key in ROW:
        if key.endswith("_at") or key == "last_seen":
            assert row[key] is None or TIME.match(row[key]), (key, row[key])
    assert row["phase"] is None or row["state"] == "RUNNING"
    assert (row["ended_at"] is not None) == (row["state"] in STATES[3:])
    assert row["reason"] is None or row["state"] in ("FAILED", "LOST")


def test_documents_of_every_command_about_jobs(client: Client) -> None:
    script = "import pathlib; pathlib.Path('m-1.pt').write_text('x'); print('epoch 1 loss=0.5')\n"
    text = "device: npu\nscript: t.py\nmetrics: {loss: 'loss=(.+)'}\ncheckpoints: {paths: ['m-*.pt']}\n"
    submitted = client.json("submit", str(client.spec(text, t__py=script)))
    check_row(submitted["jobs"][0])
    id_ = submitted["jobs"][0]["id"]
    assert re.fullmatch(r"[a-z][a-z0-9]{7,15}", id_)
    for words in (["wait", id_], ["ls"], ["cancel", id_], ["retry", id_], ["adopt"]):
        for row in client.json(*words)["jobs"]:
            check_row(row)
    shown = client.json("show", id_)["job"]
    check_row(shown, exact=False)
    assert set(ROW) | {"spec", "events", "attempts"} <= set(shown) and shown["spec"]["name"] == "job"
    kinds = [event["kind"] for event in shown["events"] if TIME.match(event["at"])]
    assert kinds == ["submitted", "queued", "started", "ended", "final"]
    assert shown["attempts"][0]["number"] == 1
    [checkpoint] = client.json("checkpoints", id_)["checkpoints"]
    assert list(checkpoint) == [
        "name",
        "path",
        "step",
        "size",
        "sha256",
        "modified_at",
        "complete",
        "metrics",
        "pulled_to",
    ]
    assert (checkpoint["name"], checkpoint["step"], checkpoint["size"], checkpoint["complete"]) == (
        "m-1.pt",
        1,
        1,
        True,
    )
    assert checkpoint["metrics"] == {"loss": 0.5} and TIME.match(checkpoint["modified_at"])
    for command in ("why", "explain"):
        for finding in client.json(command, id_)["findings"]:
            assert list(finding)[:4] == ["code", "summary", "evidence", "remedy"]
    lines = [json.loads(line) for line in client.run("logs", id_, "-f", "--json").stdout.splitlines()]
    assert all((line["v"], line["command"], line["errors"]) == (1, "logs", []) for line in lines)
    assert "".join(line["data"].get("text", "") for line in lines) == "epoch 1 loss=0.5\n"
    plan = client.json("submit", str(client.folder / "job" / "spec.yaml"), "--dry-run", "--set", "cards=3")
    assert plan["jobs"] == [] and (plan["plans"][0]["host"], plan["plans"][0]["cards"]) == ("lab", 3)


def test_documents_of_every_command_about_hosts(client: Client) -> None:
    [host] = client.json("cards")["hosts"]
    assert list(host)[:6] == ["name", "reachable", "error", "device", "tool_version", "cards"]
    keys = [
        "index",
        "model",
        "health",
        "memory_used_mb",
        "memory_total_mb",
        "utilization",
        "temperature_c",
        "power_w",
        "free",
        "lease",
        "processes",
    ]
    for card in host["cards"]:
        assert list(card)[: len(keys)] == keys and card["health"] in ("ok", "warning", "bad", "unknown")
    id_ = client.submit("device: npu\ncode: null\ncommand: sleep 60\ngrace: 1s\n")
    client.until(id_, "RUNNING")
    [taken] = [card for card in client.json("cards")["hosts"][0]["cards"] if card["lease"]]
    assert taken["lease"] == {"user": taken["lease"]["user"], "job": id_} and taken["free"] is False
    client.run("cancel", id_)
    for check in client.json("doctor", "lab", code=None)["hosts"][-1]["checks"]:
        assert list(check)[:4] == ["name", "ok", "found", "remedy"]
    for words in (["hosts", "ls"], ["hosts", "check"], ["hosts", "drain", "lab"], ["hosts", "undrain", "lab"], ["gc"]):
        assert client.json(*words)["hosts"][0]["name"] == "lab"
    assert client.json("schema", "spec")["schema"]["$defs"] and client.json("init", "fresh")["files"]


def test_exit_codes(client: Client) -> None:
    good, bad = (client.spec(f"{CPU}command: '{word}'\n", f"is-{word}") for word in ("true", "false"))
    for code, words in {
        0: [
            ["submit", str(good), "--wait"],
            ["submit", str(good), "--follow"],
            ["wait", "is-true"],
            ["ls"],
            ["logs", "is-true"],
        ],
        1: [["submit", str(bad), "--wait"], ["submit", str(bad), "--follow"], ["wait", "is-true", "is-false"]],
        2: [["ls", "--state", "FAIL"], ["nosuch"], ["submit", "none.yaml"], ["wait", "is-true", "--timeout", "soon"]],
        5: [["show", "nosuch"], ["logs", "is-true", "--attempt", "9"], ["checkpoints", "is-true", "--pull", "last"]],
    }.items():
        for line in words:
            client.run(*line, code=code)
            out = client.run(*line, "--json", code=code).stdout.splitlines()
            assert all(json.loads(text)["v"] == 1 for text in out) and out, line
    ledger = client.folder / "state" / "ledger.db"
    ledger.write_bytes(b"no ledger at all" * 100)
    assert client.json("ls", code=4)["errors"][0]["code"]


def test_ids_names_prefixes_and_filters(client: Client) -> None:
    ids = [client.submit(CPU + "command: 'true'\n", name) for name in ("net-a", "net-a", "net-b")]
    bad = client.submit(CPU + "command: exit 1\n", "other")
    client.json("wait", *ids, bad, code=1)
    assert len({*ids, bad}) == 4, "two submits of the same spec are two jobs"
    assert client.row("net-a")["id"] == ids[1] and client.row(ids[0][:6])["id"] == ids[0]
    for words, found in {
        ("--name", "net-*"): {*ids},
        ("--state", "failed"): {bad},
        ("--state", "FAILED", "--state", "COMPLETED", "--name", "*-b"): {ids[2]},
        ("--host", "lab"): {*ids, bad},
        ("--offline",): {*ids, bad},
        ("--name", "net"): set(),
    }.items():
        assert {row["id"] for row in client.json("ls", *words)["jobs"]} == found, words


def test_final_states_never_change(client: Client) -> None:
    id_ = client.submit(CPU + "command: exit 3\n")
    before = client.json("wait", id_, code=1)["jobs"][0]
    assert client.json("cancel", id_)["already_final"] == [id_]
    for words in (["hold", id_], ["release", id_], ["priority", id_, "3"]):
        assert client.json(*words, code=2)["errors"]
    after = client.row(id_)
    assert {key: after[key] for key in ROW} == {**before, "last_seen": after["last_seen"]}


def test_the_ledger_comes_back_row_for_row(client: Client, lab: Lab, tmp_path: Path) -> None:
    client.env["TOKEN"] = "canary-16180339"
    texts = {
        "good": "command: 'true'\nsecrets: [TOKEN]\n",
        "bad": "command: exit 9\n",
        "again": "command: '[ $JOBRUNNER_ATTEMPT = 2 ]'\nretry: {max: 1, backoff: 0s}\n",
        "limit": "command: sleep 60\ntimeout: 1s\ngrace: 0s\n",
        "setup": "command: 'true'\nruntime: {setup: ['false']}\n",
        "stopped": "command: sleep 60\ngrace: 1s\n",
        "waits": "command: 'true'\nafter: [runs]\n",
    }
    runs = client.submit(CPU + "command: sleep 60\ngrace: 1s\n", "runs")
    ids = {name: client.submit(CPU + text, name) for name, text in texts.items()}
    client.until(runs, "RUNNING")
    client.run("cancel", ids["stopped"])
    client.json("wait", *(ids[name] for name in ("good", "bad", "again", "limit", "setup")), code=1)
    ids["retried"] = client.json("retry", ids["bad"])["jobs"][0]["id"]
    client.json("wait", ids["retried"], code=1)
    other = QuickClient(tmp_path / "other", lab)
    other.json("adopt", "lab")
    for id_ in (runs, *ids.values()):
        one, two = (side.json("show", id_)["job"] for side in (client, other))
        for key in (*ROW, "spec", "attempts", "checkpoints", "evidence"):
            assert one[key] == two[key] or key == "last_seen", (one["name"], key, one[key], two[key])
        mine, theirs = ([(e["at"], e["kind"]) for e in side["events"] if e["source"] == "host"] for side in (one, two))
        assert mine == theirs, one["name"]
    assert client.row(ids["retried"])["retry_of"] == ids["bad"]
    client.run("cancel", runs, ids["waits"])
    for place in (lab.root, client.folder / "state", other.folder / "state"):
        for path in place.rglob("*"):
            assert not path.is_file() or b"canary-16180339" not in path.read_bytes(), path


def test_a_job_that_is_being_sent_can_be_cancelled(client: Client, lab: Lab) -> None:
    spec = client.spec("device: cpu\ncommand: 'true'\n", "big", blob="x")
    (spec.parent / "blob").write_bytes(bytes(range(256)) * 200_000)
    sender = client.start("submit", str(spec), "--json")
    try:
        row = eventually(lambda: next(iter(client.json("ls", "--offline")["jobs"]), None), 20, "the row")
        assert row is not None
        sender.send_signal(signal.SIGSTOP)
        if row["state"] == "STAGING" and not list(lab.root.glob(f"hosts/*/jobs/{row['id']}")):
            assert client.json("hold", row["id"], code=2)["errors"][0]["code"] == "not_queued"
        [stopped] = client.json("cancel", row["id"])["jobs"]
        assert stopped["state"] == "CANCELLED" and stopped["cancel_requested_at"]
    finally:
        sender.send_signal(signal.SIGCONT)
        out, _ = sender.communicate(timeout=30)
    assert json.loads(out)["data"]["jobs"][0]["state"] == "CANCELLED"
    assert client.row(row["id"])["state"] == "CANCELLED"


def test_secrets_file_and_a_retry_without_its_secret(client: Client) -> None:
    spec = client.spec(CPU + "command: 'echo ${#TOKEN}'\nsecrets: [TOKEN]\n")
    file = client.folder / "secrets.env"
    assert client.json("submit", str(spec), code=2)["errors"][0]["code"] == "secret_missing"
    file.write_text("TOKEN=abcde\n")
    file.chmod(0o644)
    errors = client.json("submit", str(spec), code=2)["errors"]
    assert "secrets_file" in {error["code"] for error in errors} and "chmod 600" in errors[-1]["remedy"]
    file.chmod(0o600)
    id_ = client.json("submit", str(spec), "--wait")["jobs"][0]["id"]
    assert client.log(id_) == b"5\n"
    file.unlink()
    refused = client.json("retry", id_, code=2)["errors"][0]
    assert refused["code"] == "secret_missing" and "TOKEN" in refused["message"]
    assert len(client.json("ls", "--all")["jobs"]) == 1
    client.env["TOKEN"] = "1234567"
    again = client.json("retry", id_)["jobs"][0]["id"]
    client.run("wait", again)
    assert client.log(again) == b"7\n"


def test_two_machines_with_one_home_keep_to_their_own(lab: Lab, tmp_path: Path) -> None:
    with Lab(tmp_path / "twin", alias="twin") as twin:
        client = QuickClient(tmp_path / "client", lab, twin, lab={"cpu_jobs": 16}, twin={"root": str(lab.root)})
        text = CPU + "command: sleep 60\ngrace: 1s\n"
        mine, theirs = (client.submit(text, name, "--host", name) for name in ("lab", "twin"))
        for id_ in (mine, theirs):
            client.until(id_, "RUNNING")
        assert lab.job_folder(mine).parents[1] != lab.job_folder(theirs).parents[1]
        for alias, other in (("lab", theirs), ("twin", mine)):
            seen = QuickClient(tmp_path / f"only-{alias}", lab, twin, twin={"root": str(lab.root)})
            assert other not in {row["id"] for row in seen.json("adopt", alias)["jobs"]}
        client.run("gc", "lab")
        assert client.row(theirs)["state"] == "RUNNING"
        ended = client.json("cancel", mine, theirs)["jobs"]
        assert [row["state"] for row in ended] == ["CANCELLED", "CANCELLED"]
