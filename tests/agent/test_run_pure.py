"""Decisions of the runtime by values: how an attempt ended, retries, argument vectors, environments, evidence."""

from __future__ import annotations

import errno
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from jobrunner.agent import conclude, env, evidence, jobs, leases, readings, room, runtime, share, usage
from jobrunner.agent.accelerators import KINDS


def status(code: int = 0, number: int = 0) -> int:
    return code << 8 | number


@pytest.mark.parametrize(
    ("record", "state"),
    [
        ({"exit_code": 0, "reason": None, "stopped_by": None}, "COMPLETED"),
        ({"exit_code": 1, "reason": "exit", "stopped_by": None}, "FAILED"),
        ({"exit_code": 0, "reason": None, "stopped_by": "cancel"}, "CANCELLED"),
        ({"exit_code": None, "signal": "SIGTERM", "reason": None, "stopped_by": "timeout"}, "TIMEOUT"),
        ({"exit_code": None, "reason": "killed", "stopped_by": None}, "LOST"),
        ({"exit_code": None, "reason": "launch", "stopped_by": None}, "FAILED"),
        ({}, "FAILED"),
    ],
)
def test_state_of(record: dict[str, Any], state: str) -> None:
    assert conclude.state_of(record) == state


def test_classify() -> None:
    assert conclude.classify(status(0))[:3] == (0, None, None)
    assert conclude.classify(status(137))[:3] == (137, None, "exit")
    assert conclude.classify(status(137), oom="counted")[2:] == ("oom", "counted")
    assert conclude.classify(status(number=signal.SIGKILL), oom="counted")[1:3] == ("SIGKILL", "oom")
    assert conclude.classify(status(1), oom="counted")[2] == "exit", "a count alone proves nothing about this command"
    assert conclude.classify(status(number=signal.SIGABRT))[1:3] == ("SIGABRT", "signal")
    assert conclude.classify(status(1), disk_full="log says")[2] == "disk_full"
    assert conclude.classify(status(9), setup_error="line")[:3] == (9, None, "setup")
    assert conclude.classify(status(125), launch_error="no x")[:3] == (None, None, "launch")


@pytest.mark.parametrize(
    ("policy", "attempt", "state", "reason", "delay"),
    [
        (None, 1, "FAILED", "exit", None),
        ({"max": 2, "on": ["exit"], "backoff_s": 30}, 1, "FAILED", "exit", 30),
        ({"max": 2, "on": ["exit"], "backoff_s": 30}, 2, "FAILED", "exit", 60),
        ({"max": 2, "on": ["exit"], "backoff_s": 30}, 3, "FAILED", "exit", None),
        ({"max": 2, "on": ["exit"], "backoff_s": 30}, 1, "FAILED", "oom", None),
        ({"max": 1, "on": ["lost"], "backoff_s": 0}, 1, "LOST", "host_reboot", 0),
        ({"max": 1, "on": ["timeout"]}, 1, "TIMEOUT", None, 0),
        ({"max": 9, "on": ["exit", "signal", "oom", "lost", "timeout"]}, 1, "CANCELLED", None, None),
        ({"max": 9, "on": ["exit", "signal", "oom", "lost", "timeout"]}, 1, "FAILED", "setup", None),
        ({"max": 40, "on": ["exit"], "backoff_s": 30}, 30, "FAILED", "exit", 86400),
    ],
)
def test_retry(policy: Any, attempt: int, state: str, reason: str | None, delay: float | None) -> None:
    assert conclude.retry_delay(policy, attempt, state, reason) == delay


def test_states_from_files_and_lock() -> None:
    """The table of docs/host.md."""
    start, entry, ended = {"at": "x"}, {"attempt": 1}, {"exit_code": 0}
    assert jobs.state_of({"state": "LOST"}, entry, start, None, True) == ("LOST", False)
    assert jobs.state_of(None, None, start, None, True) == ("RUNNING", False)
    assert jobs.state_of(None, entry, None, None, False) == ("QUEUED", False)
    assert jobs.state_of(None, entry, start, ended, False) == ("QUEUED", False)
    assert jobs.state_of(None, None, start, ended, False) == ("RUNNING", True)
    assert jobs.state_of(None, None, start, None, False) == ("RUNNING", True)
    assert jobs.state_of(None, None, None, None, False) == ("QUEUED", True)


def test_visible_devices() -> None:
    assert runtime.visible_devices("npu", [10, 2]) == {"ASCEND_RT_VISIBLE_DEVICES": "2,10"}
    assert runtime.visible_devices("mlu", [3], in_container=True) == {"MLU_VISIBLE_DEVICES": "0"}
    for device in ("gpu", "cpu"):
        none = runtime.visible_devices(device, [])
        assert set(none.values()) == {""} and set(none) >= {kind.variable for kind in KINDS.values()}


def test_command_argv() -> None:
    def argv(checkpoint: str | None = None, **run: Any) -> list[str]:
        return runtime.command_argv(run, "/w", "/home/u", checkpoint)

    assert argv(command={"shell": "echo {x} $HOME"}) == ["bash", "-c", "echo {x} $HOME"]
    assert argv(command={"argv": ["a", "{checkpoint}"]}, resume_args=["--r", "{checkpoint}"]) == ["a", ""]
    run: dict[str, Any] = {"command": {"script": "t.py", "args": ["x"]}, "resume_args": ["--r", "{checkpoint}"]}
    assert argv("/c k", **run) == ["python3", "t.py", "x", "--r", "/c k"]
    assert argv(**run, runtime={"venv": "v"})[0] == "python"
    assert argv(**run, runtime={"python": "~/py"})[0] == "/home/u/py"
    assert argv(command={"script": "a.sh"}) == ["bash", "a.sh"]
    assert argv(command={"script": "d/go", "args": ["1"]}) == ["/w/d/go", "1"]


FACTS: dict[str, Any] = {
    "job": "ajob00001", "attempt": 2, "device": "npu", "cards": [3, 1], "work": "/j/2/work", "out": "/j/out",
    "uid": 5, "gid": 6, "names": ["B", "A"],
    "nodes": {"/dev/davinci1", "/dev/davinci3", "/dev/davinci_manager", "/usr/local/dcmi"},
}  # fmt: skip


def test_docker_argv() -> None:
    words = runtime.docker_argv({"image": "img:1", "options": ["--user=0"]}, ["python3", "t.py"], FACTS)
    assert words[-4:] == ["--entrypoint", "python3", "img:1", "t.py"]
    text = " ".join(words)
    assert "--label jobrunner.job=ajob00001" in text and "--name jobrunner-ajob00001-2" in text
    assert (
        "--device /dev/davinci1 --device /dev/davinci3 --device /dev/davinci_manager --volume /usr/local/dcmi" in text
    )
    assert "--user 5:6" not in text and "--user=0" in text and "--env A --env B" in text
    words = runtime.docker_argv({"image": "i"}, ["run me"], {**FACTS, "setup": ["export A=1"]})
    assert words[words.index("i") - 1] == "bash" and words[-4:] == ["jobrunner", "1", "export A=1", "run me"]
    assert "--user 5:6" in " ".join(words)


def test_environment_parts() -> None:
    recorded = {b"SSH_CLIENT": b"1", b"XDG_RUNTIME_DIR": b"2", b"TMUX_PANE": b"3", b"DISPLAY": b":0", b"PATH": b"/bin"}
    assert env.session_part(recorded) == {b"PATH": b"/bin"}
    before = {b"A": b"1", b"B": b"2", b"C": b"3", b"SECONDS": b"9"}
    after = {b"A": b"1", b"B": b"x", b"D": b"4", b"_": b"/usr/bin/env", b"__jr_i": b"0"}
    made = env.merged({**before, b"a.b": b"odd"}, before, after)
    assert made == {b"A": b"1", b"B": b"x", b"D": b"4", b"a.b": b"odd", b"SECONDS": b"9"}


def test_vendor_set_up() -> None:
    there = {b"/usr/local/Ascend/ascend-toolkit/set_env.sh", b"/usr/local/Ascend/nnal/atb/set_env.sh"}
    found = env.vendor_scripts("npu", b"/home/u", there.__contains__, lambda _: [])
    assert found == sorted(there)
    mine = {b"/home/u/Ascend/cann/set_env.sh"}
    assert env.vendor_scripts("npu", b"/home/u", mine.__contains__, lambda _: []) == list(mine)
    assert env.vendor_scripts("gpu", b"/home/u", there.__contains__, lambda _: []) == []
    made = env.vendor_values("mlu", {b"PATH": b"/bin"}, lambda path: path.startswith(b"/usr/local/neuware"))
    assert made[b"PATH"] == b"/usr/local/neuware/bin:/bin" and made[b"LD_LIBRARY_PATH"] == b"/usr/local/neuware/lib64"
    conda = {b"/opt/miniconda3/etc/profile.d/conda.sh"}
    assert env.conda_base({}, b"/home/u", conda.__contains__) == b"/opt/miniconda3"
    assert env.conda_base({}, b"/home/u", lambda _: False) is None


def test_vendor_and_conda_scripts_are_sourced(tmp_path: Path) -> None:
    base = tmp_path / "conda"
    (base / "etc/profile.d").mkdir(parents=True)
    (base / "etc/profile.d/conda.sh").write_text('conda() { export CONDA_DEFAULT_ENV="$2"; }\n')
    vendor = tmp_path / "set_env.sh"
    vendor.write_text('export SEEN_ARGS="$#"; export OK=$UNSET_NAME; [ -e /nope ] && x=1\n')
    items = [
        (b"vendor", os.fsencode(vendor), b""),
        (b"conda", os.fsencode(base), b"my env"),
        (b"line", b"export L=$OK.", b""),
    ]
    made = env.source(items, {b"PATH": os.environb[b"PATH"]}, b"/")
    assert made[b"CONDA_DEFAULT_ENV"] == b"my env" and made[b"SEEN_ARGS"] == b"0" and made[b"L"] == b"."
    for line, code in ((b"exit 6", 6), (b"(exit 7)", 7), (b"if", 2), (b"exit 0", 1)):
        with pytest.raises(env.SetupFailed) as failed:
            env.source([(b"line", line, b"")], {b"PATH": os.environb[b"PATH"]}, b"/")
        assert failed.value.code == code, line


def test_evidence(tmp_path: Path) -> None:
    assert evidence.oom({"/proc/vmstat": 3}, {"/proc/vmstat": 4}) and not evidence.oom({"a": 3}, {"a": 3, "b": 9})
    log = tmp_path / "log"
    log.write_bytes(b"x\nOSError: [Errno 28] No space left on device\nbye\n")
    assert "No space left" in (evidence.disk_full(os.fsencode(log), []) or "")
    log.write_bytes(b"all fine\n")
    assert evidence.disk_full(os.fsencode(log), [os.fsencode(tmp_path)]) is None
    assert all(isinstance(count, int) for count in evidence.oom_counts().values())


def test_readings_tell_ours_from_strangers() -> None:
    cards = [
        {"index": 0, "model": "m", "processes": []},
        {"index": 1, "model": "m", "processes": [{"pid": 5}]},
        {"index": 2, "model": "m", "processes": [{"pid": 5}, {"pid": 6}]},
        {"index": 3, "model": "m", "processes": []},
    ]
    judged = {"cards": [{"free": free, "why_busy": None} for free in (True, False, False, False)]}
    healthy = {"cards": [{"free": True}] * 4}
    found = readings.compact({"cards": cards}, {1, 2}, {5}, judged, healthy)
    assert [(card["idle"], card["handed"]) for card in found.values()] == [
        (True, False), (False, True), (False, False), (False, False),
    ]  # fmt: skip
    assert found[2]["strangers"] == [6]


def test_locks_exclude_and_come_back() -> None:
    name = b"\0jobrunner/1/test/" + os.urandom(6).hex().encode()
    lock = leases.bind(name)
    assert lock is not None and leases.bind(name) is None and name in leases.held_names()
    assert leases.bind_all([name + b"x", name]) is None and name + b"x" not in leases.held_names()
    leases.release([lock])
    assert name not in leases.held_names()


def test_reserved_room_is_used_and_published_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = os.fsencode(tmp_path / "final.json")
    assert room.reserve(path)
    before = os.stat(path + b".room").st_ino
    assert room.publish(path, {"a": 1}, once=True) and os.stat(path).st_ino == before
    assert not room.publish(path, {"a": 2}, once=True)
    assert (tmp_path / "final.json").read_bytes() == b'{"a":1}' and sorted(os.listdir(tmp_path)) == ["final.json"]
    real = os.open

    def full(name: Any, flags: int, *more: Any, **named: Any) -> int:
        if flags & os.O_CREAT:
            raise OSError(errno.ENOSPC, "full")
        return real(name, flags, *more, **named)

    other = os.fsencode(tmp_path / "exit.json")
    room.reserve(other)
    monkeypatch.setattr(os, "open", full)
    assert room.publish(other, {"b": 1})
    with pytest.raises(OSError):
        room.publish(os.fsencode(tmp_path / "none.json"), {})


def test_usage_decays() -> None:
    assert usage.decayed(100.0, usage.HALF_LIFE_S) == 50.0 and usage.decayed(100.0, -5) == 100.0


def test_share_trusts_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(share, "BASE", os.fsencode(tmp_path))
    assert share.publish("ticket.json", {"v": 1})
    mine = share.own_folder()
    assert mine and share.read(mine, "ticket.json") == {"v": 1} and share.folders() == [(os.getuid(), mine)]
    Path(os.fsdecode(mine), "odd.json").write_text("[1, 2")
    Path(os.fsdecode(mine), "list.json").write_text("[" * 100000)
    Path(os.fsdecode(mine), "large.json").write_text('{"a": "' + "x" * share.LIMIT + '"}')
    os.symlink("/etc/passwd", os.path.join(mine, b"link.json"))
    os.mkfifo(os.path.join(mine, b"pipe.json"))
    for name in ("odd", "list", "large", "link", "pipe", "missing"):
        assert share.read(mine, name + ".json") is None
    os.chmod(mine, 0o777)
    assert share.folders() == []
    (tmp_path / ".jobrunner-1-12345").mkdir()
    assert share.folders() == []
