"""One channel to the agent: answers, errors, ends; under every Python found, from a folder and from a zipapp."""

from __future__ import annotations

import hashlib
import os
import re
import signal
import subprocess
import zipapp
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobrunner.agent import rpc, wire
from jobrunner.agent.rpc import OPERATIONS, operation, scrubbed
from tests.support.agentproc import REPO, AgentFailed, AgentHost, Tree, agent_host, job, pythons, until


@pytest.fixture
def host(tmp_path: Path) -> Iterator[AgentHost]:
    with agent_host(tmp_path) as made:
        yield made


@pytest.fixture(scope="module")
def pyz(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The agent as one file, as it lies on a host."""
    source = tmp_path_factory.mktemp("zip")
    package = source / "jobrunner"
    package.mkdir()
    (package / "__init__.py").write_bytes((REPO / "jobrunner" / "__init__.py").read_bytes())
    for path in (REPO / "jobrunner" / "agent").rglob("*.py"):
        target = package / path.relative_to(REPO / "jobrunner")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(path.read_bytes())
    (source / "__main__.py").write_text(
        "import sys\nfrom jobrunner.agent.__main__ import main\nif __name__ == '__main__':\n    sys.exit(main())\n"
    )
    target = tmp_path_factory.mktemp("agent") / "agent-0123abcd.pyz"
    zipapp.create_archive(source, target, compressed=True)
    return target


@pytest.mark.parametrize("python", pythons(), ids=lambda path: path.split("/")[-3])
def test_every_python_from_a_zipapp(python: str, pyz: Path, tmp_path: Path) -> None:
    tree = Tree().file("train.py", b"print(1)\n").file("a/b/data.bin", os.urandom(300_000)).folder("empty")
    with agent_host(tmp_path, python=python, place=pyz) as host:
        host.drain()
        channel = host.channel()
        answer = channel.stage([job("job00001", checkpoints={"paths": ["ckpt/*"]}, outputs=["*.txt"])], tree)
        assert answer["need"] == [0, 1]
        assert answer["jobs"]["job00001"]["state"] == "QUEUED"
        (host.job("job00001") / "out").mkdir()
        (host.job("job00001") / "out" / "result.txt").write_bytes(b"fine\n")
        channel.send({"v": 1, "op": "collect", "id": "job00001"})
        assert [entry["path"] for entry in channel.json()["files"]] == ["result.txt"]
        channel.send({"done": True})
        channel.json()
        assert channel.ask("records", jobs="all")["jobs"]["job00001"]["request"]["id"] == "job00001"
        assert channel.ask("checkpoints", id="job00001") == {"checkpoints": []}
        (host.job("job00001") / "out" / "ckpt").mkdir()
        (host.job("job00001") / "out" / "ckpt" / "7.pt").write_bytes(b"x")
        (entry,) = until(
            lambda: [e for e in channel.ask("checkpoints", id="job00001")["checkpoints"] if e["sha256"]], what="a hash"
        )
        assert entry["step"] == 7 and entry["sha256"] == hashlib.sha256(b"x").hexdigest()
        host.begin("job00001", log=b"one\ntwo\n")
        host.end("job00001")
        channel.send({"v": 1, "op": "tail", "id": "job00001", "follow": True, "grep": "t.o"})
        frames = until(lambda: channel.reader.frame()) and [channel.reader.frame()]
        assert frames == [(b"B", b"two\n")]
        while "ok" not in channel.json():
            pass
        assert channel.ask("gc", dry_run=True)["removed"] == []
        assert channel.ask("probe")["python"]["version"] in subprocess.check_output(
            [python, "-V"], stderr=subprocess.STDOUT, text=True
        )
        assert channel.close() == 0


def test_every_operation_can_be_loaded() -> None:
    for name in OPERATIONS:
        assert callable(operation(name))


def test_the_first_answer_says_which_host_it_is(host: AgentHost) -> None:
    channel = host.channel()
    channel.send({"v": 1, "op": "gc", "dry_run": True})
    first = channel.json()
    assert first["host"]["instance"] == host.home.name
    assert set(first["host"]) >= {"hostname", "machine_id", "boot_id", "now", "python", "user", "uid", "cpus", "agent"}
    channel.send({"v": 1, "op": "gc", "dry_run": True})
    assert "host" not in channel.json()


def test_an_error_is_an_answer_and_the_channel_goes_on(host: AgentHost) -> None:
    channel = host.channel()
    for request, code in [
        ({"op": "conquer"}, "unknown_op"),
        ({"op": None}, "unknown_op"),
        ({"op": "tail", "id": "../../etc"}, "bad_id"),
        ({"op": "tail", "id": 7}, "no_such_job"),
        ({"op": "collect", "id": "nosuchjob1"}, "no_such_job"),
        ({"op": "stage", "jobs": []}, "bad_request"),
        ({"op": "gc", "keep_days": "many"}, "bad_request"),
        ({"op": "gc", "instance": "i123"}, "other_machine"),
    ]:
        with pytest.raises(AgentFailed) as failed:
            channel.ask(**request)
        assert failed.value.code == code
    channel.raw(wire.pack(b"J", b"[1, 2"))
    with pytest.raises(AgentFailed, match="bad_request"):
        channel.json()
    channel.raw(wire.pack(b"B", b"left over from an upload") + wire.pack(b"E", b"") + wire.pack_json({"done": True}))
    assert channel.ask("gc", dry_run=True)["removed"] == []


def test_what_is_no_frame_ends_the_channel_with_a_reason(host: AgentHost) -> None:
    channel = host.channel()
    channel.raw(b"GET / HTTP/1.1\r\n\r\n")
    with pytest.raises(AgentFailed, match="bad_frame"):
        channel.json()
    assert channel.close() == 0


def test_a_huge_frame_is_refused_unread(host: AgentHost) -> None:
    channel = host.channel()
    channel.raw(b"J\xff\xff\xff\xff")
    with pytest.raises(AgentFailed, match="over the limit"):
        channel.json()


@pytest.mark.parametrize("cut", [b"", b"J\0", b"J\0\0\0\x10{"])
def test_a_client_that_goes_away_ends_the_agent_quietly(host: AgentHost, cut: bytes) -> None:
    channel = host.channel()
    channel.ask("gc", dry_run=True)
    channel.raw(cut)
    assert channel.stderr() == ""
    assert channel.process.wait(10) == 0


def test_nobody_reads_the_answer(host: AgentHost) -> None:
    channel = host.channel()
    channel.ask("gc", dry_run=True)
    channel.stdout.close()
    channel.send({"v": 1, "op": "gc", "dry_run": True})
    assert channel.process.wait(10) == 0
    assert channel.stderr() == ""


def test_prints_of_others_do_not_get_into_the_stream(host: AgentHost, tmp_path: Path) -> None:
    """A module that writes to descriptor 1, as a library may, writes into nothing."""
    code = (
        "import os, sys; sys.path.insert(0, sys.argv[1]); from jobrunner.agent import rpc, probe\n"
        "real = probe.run\n"
        "def noisy(session, request):\n"
        "    os.write(1, b'noise'); print('more noise', flush=True); os.system('echo even more')\n"
        "    assert os.read(0, 1) == b''\n"
        "    return real(session, request)\n"
        "probe.run = noisy\n"
        "rpc.serve(sys.argv[2], 'abc', 'FENCE-1')\n"
    )
    host.ask("gc", dry_run=True)
    message = wire.pack_json({"v": 1, "op": "probe"})
    done = subprocess.run(
        [host.python, "-I", "-S", "-c", code, str(REPO), str(host.root)],
        input=message, capture_output=True, timeout=30,
        env={"JOBRUNNER_LEASE_SCOPE": host.scope, "PATH": os.environ["PATH"]},
    )  # fmt: skip
    assert done.stderr == b""
    head, _, rest = done.stdout.partition(b"\nFENCE-1\nH\n")
    assert head == b""
    pieces = memoryview(rest)

    def read(count: int) -> bytes:
        nonlocal pieces
        piece, pieces = bytes(pieces[:count]), pieces[count:]
        return piece

    reader = wire.Reader(read)
    answer = reader.json()
    assert answer is not None and answer["ok"] and answer["host"]["agent"] == "abc"
    assert reader.frame() is None


def test_silence_ends_a_channel(host: AgentHost) -> None:
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); from jobrunner.agent import rpc; "
        "rpc.serve(sys.argv[2], idle_s=0.2)"
    )
    process = subprocess.Popen([host.python, "-I", "-S", "-c", code, str(REPO), str(host.root)], stdin=subprocess.PIPE)
    try:
        assert process.wait(10) == 0
    finally:
        process.stdin.close()  # type: ignore[union-attr]


def test_an_unexpected_error_tells_where_and_no_value_of_an_environment() -> None:
    request = {"jobs": [{"secrets": {"KEY": "hunter2-secret"}, "request": {"run": {"env": {"A": "some-value"}}}}]}
    text = scrubbed("KeyError: 'hunter2-secret' and some-value and " + os.environ["PATH"], request)
    assert "hunter2" not in text and "some-value" not in text and os.environ["PATH"] not in text


def test_wrong_modes_say_what_there_is(host: AgentHost) -> None:
    done = subprocess.run(
        [host.python, "-m", "jobrunner.agent", "dance"], cwd=REPO, capture_output=True, text=True, timeout=30
    )
    assert done.returncode == 2
    assert re.search(r"usage: .*rpc", done.stderr)


def test_a_stopped_agent_is_ended_by_term(host: AgentHost) -> None:
    channel = host.channel()
    channel.ask("gc", dry_run=True)
    channel.process.send_signal(signal.SIGTERM)
    assert until(lambda: channel.process.poll() is not None)


def test_frames_leave_together_but_none_is_kept_long(monkeypatch: pytest.MonkeyPatch) -> None:
    outlet, inlet = os.pipe()
    os.set_blocking(outlet, False)
    now = [100.0]
    monkeypatch.setattr(rpc.time, "monotonic", lambda: now[0])
    session = rpc.Session(b"/nowhere", stdout=inlet)
    try:
        session.gather()
        for number in range(3):
            session.send_bytes(b"%d" % number)
        with pytest.raises(BlockingIOError):
            os.read(outlet, 1)
        now[0] += rpc.GATHER_S  # files that are slow to read: the client is not left waiting
        session.send_bytes(b"3")
        came = os.read(outlet, 1 << 16)
        session.send_bytes(b"4")
        session.leave()
        came += os.read(outlet, 1 << 16)
        assert came == b"".join(wire.pack(b"B", b"%d" % number) for number in range(5))
    finally:
        os.close(inlet)
        os.close(outlet)
