"""The demo's host: it comes up, is found again, lets a command in, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import re
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from jobrunner.core.errors import HostError, UsageError
from jobrunner.core.hosts import load_hosts
from jobrunner.lab import demo, processes, story

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the demo's host needs Linux")


def start(folder: Path, server: str, monkeypatch: pytest.MonkeyPatch, **more: object) -> demo.DemoHost:
    """A host of that kind; `python` on a machine that seems to have no sshd."""
    with monkeypatch.context() as patched:
        if server == "python":
            patched.setattr("jobrunner.lab.sshd._PLACES", ())
            patched.setenv("PATH", str(folder.parent))
        host = demo.start(folder, **more)  # type: ignore[arg-type]
    assert host.server == server
    return host


def command(host: demo.DemoHost, text: str) -> str:
    """What a command prints on the host, by way of its own ssh_config."""
    import paramiko

    wanted = dict(line.split(None, 1) for line in host.ssh_config.read_text().splitlines())
    client = paramiko.SSHClient()
    client.load_host_keys(wanted["UserKnownHostsFile"].strip('"'))
    try:
        client.connect(
            wanted["HostName"],
            int(wanted["Port"]),
            wanted["User"],
            key_filename=wanted["IdentityFile"].strip('"'),
            allow_agent=False,
            look_for_keys=False,
            timeout=20,
        )
        _, out, _ = client.exec_command(text, timeout=20)
        return bytes(out.read()).decode()
    finally:
        client.close()


@pytest.fixture(params=[pytest.param("sshd", marks=pytest.mark.needs_sshd), "python"])
def server(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_life_of_a_host(server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "de mo's"  # a blank and a quote, as folders have them
    host = start(folder, server, monkeypatch, device="mlu", cards=3)
    try:
        assert demo.running(folder) == host
        assert demo.start(folder) == host, "a second start is not a second host"
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        environ = command(host, "env")
        assert f"HOME={folder}/home" in environ
        assert f"JOBRUNNER_LEASE_SCOPE={host.scope}" in environ
        assert command(host, "python3 -c 'import numpy, sklearn; print(42)'") == "42\n"
        assert len(re.findall(r"MLU370-X8", command(host, "cnmon"))) == 3
        assert command(host, "command -v npu-smi") == ""
    finally:
        assert demo.stop(folder)
    assert demo.running(folder) is None
    assert not demo.stop(folder)


def test_its_hosts_file_is_a_good_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = start(tmp_path / "x: #y", "python", monkeypatch)
    demo.stop(Path(host.folder))
    text = host.hosts_file.read_text()
    loaded = load_hosts(text, "hosts.yaml")
    assert loaded.ssh_config == str(host.ssh_config)
    assert loaded.hosts["demo"].root == f"{host.folder}/home/.jobrunner"
    assert "simulated" in text


def test_stop_ends_what_the_host_has_started(server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = start(tmp_path, server, monkeypatch)
    job = "setsid sh -c 'trap \"\" TERM; while :; do sleep 1; done' </dev/null >/dev/null 2>&1 & echo $!"
    pid = int(command(host, job))
    assert processes.start_ticks(pid) is not None
    assert demo.stop(tmp_path, grace=0.3)
    assert processes.start_ticks(pid) is None
    assert processes.carrying(demo.SCOPE, host.scope) == {}


def test_a_dead_host_makes_way_for_a_new_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = start(tmp_path, "python", monkeypatch)
    (tmp_path / "home" / "old").write_text("")
    processes.end_all({first.pid: first.ticks})
    assert demo.running(tmp_path) is None
    second = start(tmp_path, "python", monkeypatch)
    try:
        assert second.scope != first.scope
        assert command(second, "ls") == ""
    finally:
        demo.stop(tmp_path)


def test_another_process_with_that_pid_is_not_the_host(tmp_path: Path) -> None:
    record = demo.DemoHost(str(tmp_path), "sshd", 1, "me", "npu", 4, "demo-none", os.getpid(), 1)
    (tmp_path / "demo.json").write_text(json.dumps(record.__dict__))
    assert demo.running(tmp_path) is None
    assert not demo.stop(tmp_path), "and is left alone"


def test_a_server_that_turns_us_down_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "_lets_us_in", lambda *_: False)  # as with a locked account
    host = demo.start(tmp_path)
    try:
        assert host.server == "python"
        assert command(host, "echo in") == "in\n"
    finally:
        demo.stop(tmp_path)


def test_a_server_that_dies_is_told_with_its_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr("jobrunner.lab.sshd._PLACES", ())
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(HostError) as caught:
        demo.start(tmp_path, python="/bin/false")
    assert "did not come up" in caught.value.message and "server.log" in caught.value.remedy


def test_only_where_there_is_linux(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(UsageError, match="Linux"):
        demo.start(tmp_path)


def test_unknown_device_and_useless_folder(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no simulated tpu"):
        demo.start(tmp_path, device="tpu")
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot be made"):
        demo.start(tmp_path / "file" / "demo")


def a_host(folder: Path) -> demo.DemoHost:
    return demo.DemoHost(str(folder), "sshd", 2022, "me", "npu", 4, "demo-1", 1, 1)


def test_story_says_simulated_and_goes_step_by_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JOBRUNNER_HOSTS", "mine")
    monkeypatch.delenv("JOBRUNNER_HOME", raising=False)
    said: list[str] = []
    ran: list[list[str]] = []

    def run(words: list[str]) -> int:
        ran.append(words)
        assert os.environ["JOBRUNNER_HOSTS"] == str(tmp_path / "hosts.yaml")
        assert os.environ["JOBRUNNER_HOME"] == str(tmp_path / "state")
        if "--pull" in words:
            target = Path(words[-1])
            target.mkdir(parents=True)
            (target / "step-000460.npz").write_bytes(b"x" * 10)
        return 0

    assert story.run_demo(run, a_host(tmp_path), say=said.append, keep=True) == 0
    assert [words[0] for words in ran] == ["cards", "submit", "logs", "ls", "checkpoints"]
    text = "\n".join(said)
    assert "SIMULATED" in text and "step-000460.npz (10 bytes)" in text and "demo --stop" in text
    assert f"export JOBRUNNER_HOME={tmp_path}/state" in text
    assert os.environ["JOBRUNNER_HOSTS"] == "mine" and "JOBRUNNER_HOME" not in os.environ


@pytest.mark.parametrize(
    ("by", "keep", "stop"),
    [("make", "make demo DEMO_ARGS=--keep", "make demo-stop"), ("", "demo --keep", "demo --stop")],
)
def test_story_says_how_to_go_on_in_the_words_it_was_called_by(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str, keep: str, stop: str
) -> None:
    monkeypatch.setenv("JOBRUNNER_DEMO_BY", by)
    assert any(keep in line for line in story._how_to_go_on(a_host(tmp_path), keep=False))
    assert any(stop in line for line in story._how_to_go_on(a_host(tmp_path), keep=True))


@pytest.mark.parametrize(
    ("subject", "commands"),
    [
        ("sweep", ["cards", "submit", "sweep show", "sweep plot", "sweep plot", "sweep best"]),
        ("schedule", ["schedule add", "schedule next", *["schedule run", "wait", "tick"] * 2, "schedule history",
                      "promote ls", "checkpoints", "schedule rm"]),
    ],
)  # fmt: skip
def test_the_other_stories(tmp_path: Path, subject: Any, commands: list[str]) -> None:
    ran: list[str] = []
    said: list[str] = []

    def run(words: list[str]) -> int:
        ran.append(" ".join(words[: 2 if words[0] in ("sweep", "schedule", "promote") else 1]))
        if "--pull" in words:
            Path(words[-1]).mkdir(parents=True)
            (Path(words[-1]) / "best.npz").write_bytes(b"x")
        return 0

    assert story.run_demo(run, a_host(tmp_path), say=said.append, keep=False, subject=subject) == 0
    assert ran == commands
    (more,) = (line for line in said if line.startswith("More to see"))
    assert f"--{subject}" not in more and "demo --" in more


def test_story_ends_at_the_first_step_that_fails(tmp_path: Path) -> None:
    said: list[str] = []
    codes = {"submit": 3}
    assert story.run_demo(lambda words: codes.get(words[0], 0), a_host(tmp_path), say=said.append, keep=False) == 3
    assert "exit code 3" in said[-1]


def test_story_without_a_checkpoint_is_no_success(tmp_path: Path) -> None:
    assert story.run_demo(lambda _: 0, a_host(tmp_path), say=lambda _: None, keep=False) == 1


def test_story_names_what_python_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    story.check_python()
    monkeypatch.setattr(story, "NEEDED", ("numpy", "no_such_module"))
    with pytest.raises(UsageError, match="no_such_module") as caught:
        story.check_python()
    assert "pip install" in caught.value.remedy


def test_waiting_for_processes_is_bounded() -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as child:
        ticks = processes.start_ticks(child.pid)
        assert ticks is not None
        began = time.monotonic()
        assert processes.wait_gone({child.pid: ticks}, 0.1) == {child.pid: ticks}
        assert time.monotonic() - began < 5
        assert child.pid in processes.descendants(os.getpid())
        processes.send({child.pid: ticks + 1}, signal.SIGKILL)
        assert child.poll() is None, "another process with its pid is not meant"
        assert processes.end_all({child.pid: ticks}) == {}
