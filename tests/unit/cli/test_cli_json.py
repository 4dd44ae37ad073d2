"""`--json`: every command prints one document of the promised shape, and nothing else on standard output."""

from __future__ import annotations

import jsonschema
import pytest
from cli_fakes import DONE, GOOD, ROW

from jobrunner.core.errors import ConnectError, LedgerError, NotFoundError, Problem, SpecError
from jobrunner.service import results

ROW_KEYS = [
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
JOB = {
    "type": "object",
    "required": ROW_KEYS,
    "properties": {
        "state": {"enum": ["STAGING", "QUEUED", "RUNNING", "COMPLETED", "FAILED", "TIMEOUT", "CANCELLED", "LOST"]},
        "cards": {"type": "array", "items": {"type": "integer"}},
        "unreachable": {"type": "boolean"},
        "submitted_at": {"type": ["string", "null"], "pattern": r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z$"},
    },
}
JOBS = {"type": "object", "required": ["jobs"], "properties": {"jobs": {"type": "array", "minItems": 1, "items": JOB}}}


def listed(key: str, words: str) -> dict[str, object]:
    """A schema: `key` is a list of objects with these keys."""
    item = {"type": "object", "required": words.split()}
    return {"type": "object", "required": [key], "properties": {key: {"type": "array", "minItems": 1, "items": item}}}


CHECKPOINTS = listed("checkpoints", "name path step size sha256 modified_at complete metrics pulled_to")
FINDINGS = listed("findings", "code summary evidence remedy")
COMMANDS = [
    ("submit", ["submit", "a.yaml"], JOBS),
    ("submit", ["submit", "a.yaml", "--wait"], JOBS),
    ("ls", ["ls"], JOBS),
    ("wait", ["wait", "k3"], JOBS),
    ("cancel", ["cancel", "k3"], JOBS),
    ("retry", ["retry", "k3"], JOBS),
    ("hold", ["hold", "k3"], JOBS),
    ("release", ["release", "k3"], JOBS),
    ("priority", ["priority", "k3", "5"], JOBS),
    (
        "show",
        ["show", "k3"],
        {"required": ["job"], "properties": {"job": {**JOB, "required": [*ROW_KEYS, "spec", "events", "attempts"]}}},
    ),
    ("logs", ["logs", "k3"], {"required": ["job", "attempt", "text"]}),
    ("why", ["why", "k3"], FINDINGS),
    ("explain", ["explain", "k3"], FINDINGS),
    ("checkpoints", ["checkpoints", "k3"], CHECKPOINTS),
    ("checkpoints", ["checkpoints", "k3", "--pull", "last"], CHECKPOINTS),
    ("pull", ["pull", "k3"], listed("files", "path size sha256")),
    ("init", ["init"], {"required": ["files"]}),
    ("demo", ["demo"], {"required": ["exit_code"]}),
    ("hosts ls", ["hosts", "ls"], listed("hosts", "name")),
    ("hosts check", ["hosts", "check"], listed("hosts", "name reachable error")),
    ("hosts add", ["hosts", "add", "npu-a"], {"required": ["host"]}),
    ("hosts drain", ["hosts", "drain", "npu-a"], listed("hosts", "name drained")),
    ("hosts undrain", ["hosts", "undrain", "npu-a"], listed("hosts", "name drained")),
    ("hosts disconnect", ["hosts", "disconnect", "npu-a"], listed("hosts", "name ended")),
    ("cards", ["cards"], listed("hosts", "name reachable error device tool_version cards")),
    ("doctor", ["doctor"], listed("hosts", "name checks")),
    ("adopt", ["adopt"], JOBS),
    ("gc", ["gc"], listed("hosts", "name removed bytes")),
]


@pytest.mark.parametrize(("name", "arguments", "schema"), COMMANDS, ids=[" ".join(item[1]) for item in COMMANDS])
def test_one_document(cli, name, arguments, schema):
    ran = cli(*arguments, "--json")
    assert ran.code == 0
    assert ran.doc["command"] == name
    assert ran.doc["errors"] == []
    jsonschema.validate(ran.doc["data"], {"type": "object", **schema})


def test_json_before_the_command_is_the_same(cli):
    assert cli("--json", "ls").doc == cli("ls", "--json").doc


def test_rows_have_exactly_the_promised_keys(cli):
    for row in cli("ls", "--json").doc["data"]["jobs"]:
        assert sorted(row) == sorted(ROW_KEYS)


def test_output_is_ascii_and_keeps_odd_text(cli, fake):
    from dataclasses import replace

    odd = replace(DONE, name="训练\x1b[31m\udcff\n")
    fake.answers["jobs.list_jobs"] = results.Listing(rows=[odd])
    ran = cli("ls", "--json")
    assert ran.out.isascii()
    assert ran.doc["data"]["jobs"][0]["name"] == odd.name


def test_not_a_number_becomes_null(cli, fake):
    checkpoint = {"name": "a", "metrics": {"loss": float("nan"), "acc": float("inf"), "n": [1.5]}}
    fake.answers["data.checkpoints"] = results.CheckpointList(row=DONE, checkpoints=[checkpoint])
    ran = cli("checkpoints", "k3", "--json")
    assert "NaN" not in ran.out and "Infinity" not in ran.out
    assert ran.doc["data"]["checkpoints"][0]["metrics"] == {"loss": None, "acc": None, "n": [1.5]}


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (NotFoundError("no job k3", remedy="see jobrunner ls"), 5),
        (LedgerError("the ledger is broken", code="ledger_corrupt"), 4),
        (ConnectError("npu-a refused the connection", host="npu-a", code="refused"), 3),
    ],
)
def test_an_error_is_a_document_too(cli, fake, error, code):
    fake.answers["jobs.list_jobs"] = error
    ran = cli("ls", "--json")
    assert ran.code == code
    assert ran.doc == {
        "v": 1,
        "command": "ls",
        "data": {},
        "errors": [{"code": error.code, "message": error.message, "remedy": error.remedy}],
    }
    assert ran.err == ""


def test_every_fault_of_a_spec_is_an_entry(cli, fake):
    fake.answers["submit.submit"] = SpecError(
        [
            Problem("a.yaml", 3, 7, "there is no key 'comand'", "command"),
            Problem("a.yaml", 9, 1, "cards: -1", code="range"),
        ]
    )
    ran = cli("submit", "a.yaml", "--json")
    assert ran.code == 2
    assert [entry["code"] for entry in ran.doc["errors"]] == ["spec", "range"]
    assert ran.doc["errors"][0]["message"] == "a.yaml:3:7: there is no key 'comand' (did you mean 'command'?)"


@pytest.mark.parametrize(
    ("arguments", "command"),
    [
        (["frobnicate", "--json"], ""),
        (["ls", "--nope", "--json"], "ls"),
        (["show", "--json"], "show"),
        (["priority", "k3", "many", "--json"], "priority"),
        (["hosts", "frob", "--json"], "hosts"),
        (["--json"], ""),
        (["ls", "--state", "RUNING", "--json"], "ls"),
        (["wait", "k3", "--timeout", "soon", "--json"], "wait"),
        (["attach", "k3", "--json"], "attach"),
    ],
)
def test_usage_errors_are_documents_too(cli, arguments, command):
    ran = cli(*arguments)
    assert ran.code == 2
    assert ran.doc["command"] == command
    assert ran.doc["errors"][0]["code"] == "usage"
    assert ran.doc["errors"][0]["message"] and ran.doc["errors"][0]["remedy"]


def test_a_word_after_two_dashes_is_no_option(cli):
    ran = cli("ls", "--nope", "--", "--json")
    assert ran.code == 2 and ran.out == "" and ran.err.startswith("error: ")


def test_following_prints_json_lines(cli, fake):
    fake.answers["logs.follow"] = [
        results.LogPiece("attempt", attempt=1, offset=0, size=0),
        results.LogPiece("data", data="训".encode()[:2]),
        results.LogPiece("data", data="训".encode()[2:] + b"\n"),
        results.LogPiece("note", note="link lost, reconnecting"),
        results.LogPiece("attempt", attempt=2, offset=0, size=0),
        results.LogPiece("data", data=b"\xff"),
        results.LogPiece("end", row=GOOD),
    ]
    ran = cli("logs", "-f", "k3", "--json")
    assert ran.code == 0 and ran.err == ""
    assert all(doc["v"] == 1 and doc["command"] == "logs" and doc["errors"] == [] for doc in ran.docs)
    assert "".join(doc["data"].get("text", "") for doc in ran.docs) == "训\n\ufffd"
    assert [doc["data"]["attempt"] for doc in ran.docs] == [1, 1, 1, 2, 2, 2]
    assert ran.docs[-1]["data"]["job"]["state"] == "COMPLETED" and ran.docs[-1]["data"]["end"] is True


def test_submit_and_follow_prints_json_lines(cli):
    ran = cli("submit", "a.yaml", "--follow", "--json")
    assert ran.code == 0
    assert ran.docs[0]["data"]["jobs"][0]["id"] == ROW.id
    assert ran.docs[-1]["data"]["job"]["id"] == GOOD.id


def test_raw_json_holds_the_exact_bytes(cli, fake):
    import base64

    fake.answers["logs.follow"] = [results.LogPiece("data", data=b"\x00\xff\r\n"), results.LogPiece("end", row=ROW)]
    assert base64.b64decode(cli("logs", "k3", "--raw", "--json").doc["data"]["base64"]) == b"\x00\xff\r\n"


def test_a_demo_tells_its_story_on_standard_error(process):
    import json

    out, err = process("story", "demo", "--json").communicate(timeout=20)
    assert json.loads(out)["data"] == {"exit_code": 0}
    assert b"once upon a time" in err and b"said a child" in err


@pytest.mark.parametrize("kind", [[], ["spec"], ["hosts"]])
def test_schemas_are_schemas(cli, kind):
    import json

    plain = json.loads(cli("schema", *kind).out)
    jsonschema.Draft202012Validator.check_schema(plain)
    assert cli("schema", *kind, "--json").doc["data"]["schema"] == plain
    assert cli("schema", "frob").code == 2
