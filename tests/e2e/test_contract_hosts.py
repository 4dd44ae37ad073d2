"""What a host must have is said before a job counts as submitted; silence and strangers change nothing."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobrunner.lab.sshd import write_key_pair
from tests.support.lab import Client, Lab
from tests.support.quick import QuickClient
from tests.support.waiting import eventually

pytestmark = pytest.mark.needs_sshd
CPU = "device: cpu\ncode: null\n"
TRUE = CPU + "command: 'true'\n"
SLEEP = CPU + "command: sleep 60\ngrace: 1s\n"
CRONTAB = """#!/bin/sh
# Stands for cron's own program: -l shows, -r removes, FILE replaces.
table="$HOME/table"
case "$1" in
  -l) if [ -f "$table" ]; then cat "$table"; else echo "no crontab for tester" >&2; exit 1; fi ;;
  -r) rm -f "$table" ;;
  *) cp "$1" "$table" ;;
esac
"""


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """A host with a crontab of its own."""
    with Lab(tmp_path_factory.mktemp("lab")) as host:
        program = host.folder / "bin" / "crontab"
        program.write_text(CRONTAB)
        program.chmod(0o755)
        yield host


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """A host without any vendor's tool, and without tmux."""
    folder = tmp_path_factory.mktemp("bare")
    (folder / "few").mkdir()
    for name in ("sh", "bash", "env", "sleep", "cat"):
        (folder / "few" / name).symlink_to(f"/usr/bin/{name}" if Path(f"/usr/bin/{name}").exists() else f"/bin/{name}")
    with Lab(folder / "host", alias="bare", env={"PATH": f"{folder / 'host' / 'bin'}:{folder / 'few'}"}) as host:
        yield host


def refused(client: Client, text: str, code: int, *options: str) -> dict[str, str]:
    """A submit that is refused: its error, after a look that nothing of it is left in the ledger."""
    data = client.json("submit", str(client.spec(text)), *options, code=code)
    assert client.json("ls", "--all", "--offline")["jobs"] == [] and data["errors"][0]["remedy"]
    return dict(data["errors"][0])


def test_what_a_host_lacks_is_said_before_the_job_counts(lab: Lab, bare: Lab, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    few = {
        "no_python": (lab, {"python": "python3.99"}, TRUE),
        "old_python": (lab, {"python": str(_python_2(tmp_path))}, TRUE),
        "root_not_writable": (lab, {"root": str(file / "x")}, TRUE),
        "no_tmux": (bare, {}, TRUE + "launcher: tmux\n"),
    }
    for code, (host, entry, text) in few.items():
        client = QuickClient(tmp_path / code, host, **{host.alias: entry})
        assert refused(client, text, 3)["code"] == code
    client = QuickClient(tmp_path / "by_host", bare, bare={"launcher": "tmux"})
    assert refused(client, TRUE, 3)["code"] == "no_tmux"


def _python_2(folder: Path) -> Path:
    """What answers as a Python 2.7 would: the interpreter that reads our line is told that it is one."""
    program = folder / "python2"
    program.write_text(
        f"#!{sys.executable}\nimport sys\nsys.version_info = (2, 7, 18)\nat = sys.argv.index('-c')\n"
        "code, sys.argv = sys.argv[at + 1], ['-c', *sys.argv[at + 2:]]\nexec(code)\n"
    )
    program.chmod(0o755)
    return program


@pytest.mark.root
def test_a_root_that_executes_nothing(lab: Lab, tmp_path: Path) -> None:
    place = tmp_path / "noexec"
    place.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "noexec,size=64m", "tmpfs", str(place)], check=False)
    if done.returncode:
        pytest.skip("NOT TESTED HERE: no file system can be mounted")
    try:
        client = QuickClient(tmp_path / "client", lab, lab={"root": str(place / "root")})
        files = {"tool": "\x7fELF", "script": "#!/bin/sh\necho ran\n"}
        spec = client.spec("device: cpu\nscript: tool\n", **files)
        error = client.json("submit", str(spec), code=3)["errors"][0]
        assert error["code"] == "noexec" and "tool" in error["message"]
        assert client.json("ls", "--all", "--offline")["jobs"] == []
        id_ = client.submit("device: cpu\nscript: script\n", **files)
        client.run("wait", id_)
        assert client.log(id_) == b"ran\n"
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def test_no_host_can_take_it_names_each_reason(lab: Lab, tmp_path: Path) -> None:
    npu = "code: null\ncommand: 'true'\ndevice: npu\n"
    cases = {
        "cards: 9": ({}, "has 4 cards"),
        "cards: [7]": ({}, "no card 7"),
        "cards: 2": ({"only_cards": [3]}, "has 1 card"),
        "cards: 3": ({"max_cards": 2}, "max_cards"),
        "tags: [z]": ({"tags": ["x"]}, "lacks the tag z"),
        "device: mlu": ({}, "not mlu"),
    }
    for more, (entry, words) in cases.items():
        client = QuickClient(tmp_path / more.replace(" ", ""), lab, lab=entry)
        text = npu.replace("device: npu\n", "") if more.startswith("device") else npu
        error = refused(client, f"{text}{more}\n", 2)
        assert error["code"] == "no_host" and words in error["message"], error


def test_cards_of_a_host_whose_tool_cannot_be_asked(bare: Lab, tmp_path: Path) -> None:
    client = QuickClient(tmp_path / "client", bare, bare={"device": "mlu", "cards": 2, "max_cards": 1})
    first, second = (
        client.submit(SLEEP.replace("cpu", "mlu").replace("sleep", "echo $MLU_VISIBLE_DEVICES; sleep"), name)
        for name in "ab"
    )
    client.until(first, "RUNNING")
    shown = client.json("cards")["hosts"][0]
    assert [(card["index"], card["lease"] and card["lease"]["job"]) for card in shown["cards"]] == [
        (0, first),
        (1, None),
    ]
    waiting = client.json("why", second)["findings"]
    assert client.row(second)["state"] == "QUEUED" and waiting[0]["code"] == "max_cards"
    eventually(lambda: client.log(first) == b"0\n", 10, "its cards")
    assert {row["state"] for row in client.json("cancel", first, second)["jobs"]} == {"CANCELLED"}


def test_a_name_that_nobody_knows_is_no_host(lab: Lab, tmp_path: Path) -> None:
    client = QuickClient(tmp_path / "client", lab)
    for words in (["cards", "nosuch"], ["ls", "--host", "nosuch"], ["hosts", "check", "nosuch"], ["gc", "nosuch"]):
        assert client.json(*words, code=5)["errors"][0]["code"] == "no_such_host", words
    assert refused(client, TRUE, 5, "--host", "lob")["remedy"] == "did you mean lab?"
    assert [host["name"] for host in client.json("hosts", "ls")["hosts"]] == ["lab"]


def test_what_cannot_be_a_name_is_said_so(lab: Lab, tmp_path: Path) -> None:
    client = QuickClient(tmp_path / "client", lab)
    for word in ("a b", "a/b", "a,b", "--json", "x\ny"):
        assert refused(client, TRUE, 2, "--host", word)["code"] == "host_name"
        assert client.json("ls", "--host", word, code=2)["errors"][0]["code"] == "host_name"
    for words in (["hosts", "check"], ["hosts", "drain"], ["cards"], ["adopt"]):
        assert client.json(*words, "a b", code=2)["errors"][0]["code"] == "host_name", words


def test_host_keys_unknown_and_changed(lab: Lab, tmp_path: Path) -> None:
    client = QuickClient(tmp_path / "client", lab)
    known = lab.sshd.known_hosts.read_text()
    try:
        lab.sshd.known_hosts.write_text("")
        error = refused(client, TRUE, 3)
        assert error["code"] == "hostkey_unknown" and lab.sshd.fingerprint in error["message"]
        assert "jobrunner hosts add lab" in error["remedy"]
        assert client.json("hosts", "add", "lab", code=3)["errors"][0]["code"] == "hostkey_unknown"
        client.json("hosts", "add", "lab", "--fingerprint", "SHA256:other", code=3)
        assert lab.sshd.known_hosts.read_text() == ""
        assert client.json("hosts", "add", "lab", "--fingerprint", lab.sshd.fingerprint)["pinned"] is True
        assert lab.sshd.known_hosts.read_text() == known
        client.submit(TRUE)
        write_key_pair(tmp_path / "other", "other")
        key = (tmp_path / "other.pub").read_text().split()[:2]
        lab.sshd.known_hosts.write_text(f"[127.0.0.1]:{lab.sshd.port} {' '.join(key)}\n")
        for words in (["submit", str(client.spec(TRUE))], ["hosts", "add", "lab", "--yes"], ["cards"]):
            assert client.json(*words, code=3)["errors"][0]["code"] == "hostkey_changed", words
    finally:
        lab.sshd.known_hosts.write_text(known)


def test_silence_changes_no_state_and_a_kept_cancel_comes_first(tmp_path: Path) -> None:
    with Lab(tmp_path / "host") as host:
        client = QuickClient(tmp_path / "client", host)
        id_ = client.submit(SLEEP)
        before = client.until(id_, "RUNNING")
        host.sshd.stop()
        [row] = client.json("ls", code=3)["jobs"]
        assert {**row, "unreachable": False} == {key: before[key] for key in row}
        assert row["unreachable"] is True and row["last_seen"] == before["last_seen"]
        for words in (["logs", id_], ["show", id_], ["hold", id_], ["pull", id_], ["retry", id_], ["why", id_]):
            client.json(*words, code=3)
        assert client.json("wait", id_, "--timeout", "1s", code=124)["timed_out"] is True
        kept = client.json("cancel", id_, code=3)
        assert kept["kept"] == [id_] and kept["jobs"][0]["state"] == "RUNNING"
        host.sshd.restart()
        client.run("hosts", "drain", "lab")  # any command at all brings it
        eventually((host.job_folder(id_) / "final.json").exists, 10, "the cancel")
        row = client.row(id_)
        assert row["state"] == "CANCELLED" and row["cancel_requested_at"] == kept["jobs"][0]["cancel_requested_at"]


def test_a_silent_host_does_not_put_the_clocks_of_others_back(lab: Lab, tmp_path: Path) -> None:
    client = QuickClient(tmp_path / "client", lab)
    client.settings(connect_timeout="4s", retry_for="1s")
    with socket.create_server(("127.0.0.1", 0)) as mute:  # accepts by its backlog, and says nothing
        file = json.loads((client.folder / "hosts.yaml").read_text())
        file["hosts"]["mute"] = {"address": f"127.0.0.1:{mute.getsockname()[1]}"}
        (client.folder / "hosts.yaml").write_text(json.dumps(file))
        data = client.json("hosts", "check")
    answered, silent = sorted(data["hosts"], key=lambda host: str(host["name"]))
    assert silent["error"]["code"] == "silent" and abs(answered["clock_skew_s"]) < 2.5


def test_an_alias_that_leads_to_another_machine(lab: Lab, tmp_path: Path) -> None:
    with Lab(tmp_path / "other") as other:
        client = QuickClient(tmp_path / "client", lab)
        id_ = client.submit(SLEEP)
        client.until(id_, "RUNNING")
        files = {name: (client.folder / name).read_text() for name in ("ssh_config", "hosts.yaml")}
        moved = QuickClient(client.folder, other)
        for words in (["logs", id_], ["hold", id_], ["show", id_], ["cancel", id_], ["retry", id_], ["ls"]):
            errors = moved.json(*words, code=3)["errors"]
            assert [error["code"] for error in errors] == ["other_machine" if words[0] != "retry" else "unreachable"]
        row = moved.json("ls", code=3)["jobs"][0]
        assert (row["state"], row["unreachable"], row["reason"]) == ("RUNNING", True, None)
        for name, text in files.items():
            (client.folder / name).write_text(text)
        assert client.until(id_, "CANCELLED")["unreachable"] is False


def test_a_job_waits_for_one_on_another_host(lab: Lab, bare: Lab, tmp_path: Path) -> None:
    client = QuickClient(tmp_path / "client", lab, bare)
    client.submit(CPU + "command: sleep 1; exit 1\n", "first", "--host", "bare")
    after = CPU + "command: 'true'\nafter: [{job: first, when: %s}]\n"
    good, bad = (client.submit(after % when, when, "--host", "lab") for when in ("failed", "ok"))
    rows = client.json("wait", good, bad, "--timeout", "30s", code=1)["jobs"]
    assert [(row["state"], row["reason"]) for row in rows] == [("COMPLETED", None), ("FAILED", "dependency")]


def test_the_checkpoint_of_a_job_is_brought_to_one_on_another_host(lab: Lab, bare: Lab, tmp_path: Path) -> None:
    client = QuickClient(tmp_path / "client", lab, bare)
    saves = "echo weights > step-5.bin; exit %s"
    spec = CPU + "command: {}\ncheckpoints: {{paths: ['*.bin']}}\n"
    first = client.submit(spec.format(saves % 0), "first", "--host", "bare")
    broken = client.submit(spec.format(saves % 1), "broken", "--host", "bare")
    reads = "device: cpu\ncode: null\ncommand: [cat, '{checkpoint:%s}']\nafter: [{job: %s, when: %s}]\n"
    ids = {
        (job, when): client.submit(reads % (job, job, when), f"{when}-{number}", "--host", "lab")
        for number, (job, when) in enumerate([(first, "ok"), (broken, "any"), (broken, "failed"), (broken, "ok")])
    }
    assert client.json("wait", first, broken, code=1)
    client.run("ls")
    assert [client.row(id_)["state"] for id_ in list(ids.values())[:3]] == ["QUEUED"] * 3, "a mere look brings nothing"
    assert client.until(ids[broken, "ok"], "FAILED")["reason"] == "dependency"
    client.run("tick")
    for id_ in list(ids.values())[:3]:
        row = client.until(id_, "COMPLETED", "FAILED")
        assert row["state"] == "COMPLETED", client.log(id_)
        assert client.log(id_) == b"weights\n"
        [event] = [event for event in client.row(id_)["events"] if event["kind"] == "given"]
        assert "/given/" in event["path"]
    client.run("tick")


def test_a_line_in_the_crontab_while_something_is_queued(lab: Lab, tmp_path: Path) -> None:
    table = lab.folder / "home" / "table"
    table.write_text("0 3 * * * backup\n")
    plain = QuickClient(tmp_path / "plain", lab)
    plain.run("wait", plain.submit(TRUE))
    assert table.read_text() == "0 3 * * * backup\n"
    client = QuickClient(tmp_path / "client", lab, lab={"on_reboot": "crontab", "cpu_jobs": 1})
    running, queued = client.submit(SLEEP, "a"), client.submit(CPU + "command: echo ran\n", "b")
    client.until(running, "RUNNING")
    lines = table.read_text().splitlines()
    assert lines[0] == "0 3 * * * backup" and len(lines) == 2 and lines[1].startswith("@reboot ")
    _reboot(lab)
    assert not (lab.job_folder(queued) / "final.json").exists()
    subprocess.run(["sh", "-c", lines[1].partition(" ")[2]], env={"PATH": "/usr/bin:/bin"}, check=True, timeout=30)
    eventually((lab.job_folder(queued) / "final.json").exists, 20, "the queued job, with no client connected")
    eventually(lambda: table.read_text() == "0 3 * * * backup\n", 10, "the end of the line")
    assert client.row(queued)["state"] == "COMPLETED" and client.row(running)["state"] == "LOST"
    table.unlink()
    (lab.folder / "bin" / "crontab").write_text(
        "#!/bin/sh\necho 'you are not allowed to use this program' >&2\nexit 1\n"
    )
    id_ = client.submit(TRUE)
    assert "not allowed" in client.run("show", id_).stderr


def _reboot(lab: Lab) -> None:
    """Kill every process of the host's jobs and queue at once, as the end of the machine does."""
    mark = f"JOBRUNNER_LEASE_SCOPE={lab.scope}".encode()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if (
                    mark in (entry / "environ").read_bytes().split(b"\0")
                    and b"sshd" not in (entry / "comm").read_bytes()
                ):
                    os.kill(int(entry.name), signal.SIGKILL)
            except OSError:
                continue
