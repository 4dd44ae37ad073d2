"""What somebody does on the first day: init, a host that is new, a typing mistake, a host that is down, completion."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.lab import ROOT, Client, Lab

pytestmark = pytest.mark.needs_sshd


def newcomer(lab: Lab, folder: Path) -> Client:
    """A laptop whose SSH configuration knows the host, with no hosts file and nothing pinned."""
    client = Client(folder, lab)
    (folder / "hosts.yaml").unlink()
    home = folder / "home"
    (home / ".ssh").mkdir(parents=True)
    text = lab.sshd.ssh_config.read_text().replace(str(lab.sshd.known_hosts), str(folder / "known_hosts"))
    (home / ".ssh" / "config").write_text(text)
    client.env |= {"HOME": str(home), "JOBRUNNER_SSH_CONFIG": str(home / ".ssh" / "config")}
    return client


def test_from_an_unknown_host_to_a_retry_that_goes_on(lab: Lab, tmp_path: Path) -> None:
    client = newcomer(lab, tmp_path / "laptop")
    assert "jobrunner hosts add" in client.run("hosts", "ls").stderr
    refused = client.run("cards", lab.alias, code=3).stderr
    assert "SHA256:" in refused and f"jobrunner hosts add {lab.alias}" in refused
    assert client.json("hosts", "add", lab.alias, "--yes")["pinned"] is True
    wrong = client.json("hosts", "add", lab.alias, "--fingerprint", "SHA256:" + "A" * 43, code=3)
    assert wrong["errors"][0]["code"] == "hostkey_changed"
    assert f"\n  {lab.alias}:" in (client.folder / "hosts.yaml").read_text(), "a plain word needs no quotes"
    listed = client.run("hosts", "ls")
    assert str(client.folder / "hosts.yaml") in listed.stderr and listed.stdout.count(" npu ") == 1

    begun = client.run("init", "project")
    assert "jobrunner submit project/job.yaml" in begun.stderr
    assert str(client.folder / "hosts.yaml") in (client.folder / "project" / "hosts.yaml").read_text()
    root = client.folder / "project" / "root.yaml"
    root.write_text(json.dumps({"hosts": {lab.alias: {"root": str(lab.root)}}}))
    spec = "project/job.yaml"
    followed = client.run(
        "--hosts", str(root), "submit", spec, "--host", lab.alias, "--follow", "--set", "args=[--epochs, '2']"
    )
    assert "epoch=2" in followed.stdout and "epoch=3" not in followed.stdout and "COMPLETED" in followed.stderr
    client.run("--hosts", str(root), "retry", "my-job")
    client.run("--hosts", str(root), "wait", "my-job")
    assert "going on from epoch 2" in client.run("--hosts", str(root), "logs", "my-job").stdout


def test_a_mistyped_host_is_not_remembered(client: Client, lab: Lab) -> None:
    npu, cpu = (client.spec(f"device: {device}\ncommand: 'true'\n", device) for device in ("npu", "cpu"))
    asked = [["submit", str(spec), "--host", "lba", *more] for spec in (npu, cpu) for more in ([], ["--dry-run"])]
    for words in (*asked, ["cards", "lba"], ["ls", "--host", "lba"], *asked):
        assert client.json(*words, code=5)["errors"][0]["code"] == "no_such_host", words
    assert [host["name"] for host in client.json("hosts", "ls")["hosts"]] == [lab.alias]
    assert client.json("cards")["errors"] == []
    assert client.json("ls", "--all")["jobs"] == []


def test_a_submit_that_reaches_no_host_leaves_no_row(client: Client, lab: Lab) -> None:
    first = client.submit("device: npu\ncommand: sleep 60\ngrace: 1s\n")
    client.settings(retry_for="1s")
    lab.sshd.stop()
    try:
        silent = client.json("submit", str(client.spec("device: npu\ncommand: 'true'\n")), code=3)
        assert silent["errors"][0]["code"] == "refused"
        assert [row["id"] for row in client.json("ls", "--offline")["jobs"]] == [first]
        assert client.run("wait", "job", "--timeout", "1s", code=124).stdout
        noted = client.run("ls", code=3).stdout
        assert noted.count("no answer") == 1 and "T" not in noted.split("no answer")[1], noted
    finally:
        lab.sshd.start()
    client.run("cancel", "job")
    assert client.row(first)["state"] == "CANCELLED", "the name means the job that is there"


def test_what_after_names_is_looked_for_before_anything_is_sent(client: Client) -> None:
    good = client.spec("device: cpu\ncommand: 'true'\n", "good")
    bad = client.spec("device: cpu\ncommand: 'true'\nafter: [nothere]\n", "bad")
    [error] = client.json("submit", str(good), str(bad), code=5)["errors"]
    assert error["code"] == "no_such_job" and "spec.yaml:4:9: after: no job" in error["message"]
    assert client.json("ls", "--all")["jobs"] == []


def test_silence_is_explained(client: Client) -> None:
    busy = client.submit("device: npu\ncards: 4\ncommand: sleep 60\ngrace: 1s\n", "busy")
    client.until(busy, "RUNNING")
    waiting = client.submit("device: npu\ncommand: 'true'\n", "waiting")
    assert "has not begun: it is QUEUED" in client.run("logs", "waiting").stderr
    client.run("priority", "waiting", "-5")
    assert "priority -5" in client.run("ls").stdout
    assert "nothing to fetch" in client.run("pull", "busy").stderr
    client.run("cancel", waiting, busy)
    setup = client.spec("device: cpu\ncommand: 'true'\nruntime: {venv: /no/such}\n", "setup")
    assert "no virtual environment in /no/such" in client.run("submit", str(setup), "--follow", code=1).stderr


@pytest.mark.parametrize(
    ("typed", "expected"),
    [("su", "submit"), ("hosts dr", "drain"), ("submit --fo", "--follow"), ("cards la", "lab"), ("show nam", "named")],
)
def test_completion(client: Client, typed: str, expected: str) -> None:
    if expected == "named":
        client.submit("device: cpu\ncommand: 'true'\n", "named")
    words = f"jobrunner {typed}"
    asked = {"COMP_WORDS": words, "COMP_CWORD": str(words.count(" ")), "_JOBRUNNER_COMPLETE": "complete_bash"}
    done = subprocess.run(
        [sys.executable, "-c", "import sys; sys.argv[0] = 'jobrunner'; from jobrunner.cli import main; main()"],
        env={**client.env, **asked, "PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"]},
        capture_output=True, text=True, timeout=30,
    )  # fmt: skip
    assert expected in done.stdout.split(), done
