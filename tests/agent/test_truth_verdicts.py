"""Verdicts with evidence: memory, full disks, and what shows every other state."""

from __future__ import annotations

import errno
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from jobrunner.agent import conclude, evidence, supervisor
from tests.support.agentproc import Tree, agent_host, until
from tests.support.running import Runs, kill, of_job

CGROUP = Path("/sys/fs/cgroup")
EAT = (
    "import os, subprocess, sys\n"
    "worker = [sys.executable, '-c', 'x = bytearray(200 << 20)']\n"
    "with open(sys.argv[2] + '/cgroup.procs', 'w') as group:\n"
    "    group.write(str(os.getpid()))\n"
    "if sys.argv[1] == 'itself':\n"
    "    x = bytearray(200 << 20)\n"
    "code = subprocess.call(worker)\n"
    "assert code == -9, code\n"
    "if sys.argv[1] == 'shell':\n"
    "    sys.exit(137)\n"
    "print('Root cause: traceback : Signal 9 (SIGKILL) received by PID 1')\n"
    "sys.exit(1)\n"
)


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[Runs]:
    with agent_host(tmp_path) as host:
        yield Runs(host)


@pytest.fixture
def small_group() -> Iterator[Path]:
    """A control group with 30 MB of memory, of either version."""
    old = (CGROUP / "memory").is_dir()
    group = (CGROUP / "memory" if old else CGROUP) / f"jobrunner-test-{os.getpid()}"
    try:
        group.mkdir()
        (group / ("memory.limit_in_bytes" if old else "memory.max")).write_text(str(30 << 20))
        swap = group / ("memory.memsw.limit_in_bytes" if old else "memory.swap.max")
        if swap.exists():
            swap.write_text(str(30 << 20 if old else 0))
    except OSError as error:
        pytest.skip(f"NOT TESTED HERE: no memory control group can be made: {error}")
    try:
        yield group
    finally:
        end = time.monotonic() + 10
        while time.monotonic() < end:
            try:
                group.rmdir()
                break
            except OSError:
                time.sleep(0.05)


@pytest.mark.root
@pytest.mark.parametrize(
    ("how", "code", "signal"), [("itself", None, "SIGKILL"), ("shell", 137, None), ("worker", 1, None)]
)
def test_killed_for_want_of_memory(runs: Runs, small_group: Path, how: str, code: int | None, signal: str) -> None:
    """The kernel really kills: the command, what a shell waits for, or a worker whose launcher only reports it."""
    tree = Tree().file("eat.py", EAT.encode())
    job_id = f"aoom{how}0"
    runs.submit(job_id, tree=tree, command={"argv": ["python3", "eat.py", how, str(small_group)]})
    view = runs.final(job_id)
    assert (view["state"], view["reason"], view["exit_code"], view["signal"]) == ("FAILED", "oom", code, signal), view
    assert "Killed process" in view["evidence"] or "want of memory" in view["evidence"], view["evidence"]


@pytest.mark.root
def test_killed_for_want_of_memory_without_a_parent(runs: Runs, small_group: Path) -> None:
    """Its supervisor was killed before, so nobody sees its exit code: the kernel's log tells all the same."""
    if evidence.Mark().kills() is None:
        pytest.skip("NOT TESTED HERE: the kernel's log cannot be read")
    wait = (
        "import os, time\nwhile not os.path.exists(os.environ['JOBRUNNER_OUTPUT_DIR'] + '/go'):\n    time.sleep(0.05)\n"
    )
    runs.submit(
        "aoomalone",
        tree=Tree().file("eat.py", wait.encode() + EAT.encode()),
        command={"argv": ["python3", "eat.py", "itself", str(small_group)]},
    )
    start = runs.running("aoomalone")
    kill(start["supervisor"]["pid"])
    until(lambda: runs.start("aoomalone")["supervisor"]["pid"] != start["supervisor"]["pid"], what="adopted")
    (runs.host.job("aoomalone") / "out" / "go").touch()
    view = runs.final("aoomalone")
    assert (view["state"], view["reason"], view["exit_code"]) == ("FAILED", "oom", None), view
    assert f"Killed process {start['command']['pid']} " in view["evidence"]


KMSG = (
    b"6,1,100000000,-;usb 1-1: new device\n"
    b"3,2,100000001,-;Memory cgroup out of memory: Killed process 70 (python3) total-vm:356kB, UID:1000 pgtables:1kB\n"
    b" SUBSYSTEM=memory\n"
    b"3,3,200000000,-;Out of memory: Killed process 71 (train) total-vm:1kB, anon-rss:9kB, UID:1001 oom_score_adj:0\n"
    b"3,4,300000000,-;Out of memory: Killed process 72 (old kernels say no user) total-vm:1kB\n"
    b"garbage\n"
)


def test_the_kernels_log_is_read_from_the_mark_on(tmp_path: Path) -> None:
    path = tmp_path / "kmsg"
    path.write_bytes(KMSG)
    mark = evidence.Mark(path)
    with path.open("ab") as log:
        log.write(KMSG.replace(b"Killed process 7", b"Killed process 8"))
    assert [kill[:2] for kill in mark.kills() or ()] == [(80, 1000), (81, 1001), (82, None)]
    mark.close()
    assert evidence.Mark(tmp_path / "none").kills() is None


@pytest.mark.parametrize(
    ("rose", "kills", "victim", "found"),
    [
        (1, None, 55, "rose from 0 to 1"),  # the log cannot be read: the count stands
        (1, [(70, 1000, "Killed process 70")], None, None),  # a colleague's: explains the count
        (2, [(70, 1000, "Killed process 70")], None, "rose from 0 to 2"),
        (1, [(70, 0, "Killed process 70")], None, "Killed process 70"),  # of this user
        (1, [(70, 0, "Killed process 70")], 55, None),  # of this user, but not the command, which was killed too
        (1, [(55, None, "Killed process 55")], 55, "Killed process 55"),
        (0, [(55, 0, "Killed process 55")], 55, "Killed process 55"),
        (0, [], None, None),
    ],
)
def test_another_process_s_end_is_not_ours(
    rose: int, kills: list[tuple[int, int | None, str]] | None, victim: int | None, found: str | None
) -> None:
    said = evidence.oom({"/proc/vmstat": 0}, {"/proc/vmstat": rose}, kills, victim, 0)
    assert (said is None) if found is None else (said is not None and found in said)


def test_137_without_evidence_is_an_exit_code(runs: Runs) -> None:
    runs.submit("aexit137", "sh -c 'kill -9 $$'; exit 137")
    view = runs.final("aexit137")
    assert (view["reason"], view["exit_code"]) == ("exit", 137) and "SIGKILL" in view["evidence"]
    assert "137" in view["evidence"]
    assert conclude.classify(99 << 8)[3] == "the command ended with exit code 99"
    assert conclude.classify(255 << 8)[3] == "the command ended with exit code 255"
    assert conclude.classify(1 << 8, oom="counted", worker="exitcode: -9")[2] == "oom"


@pytest.fixture
def tiny(tmp_path: Path) -> Iterator[Path]:
    """A disk of 6 MB and 400 files."""
    path = tmp_path / "disk of mine"
    path.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=6m,nr_inodes=400", "tmpfs", str(path)], check=False)
    if mounted.returncode:
        pytest.skip("NOT TESTED HERE: no tmpfs can be mounted")
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


@pytest.mark.root
def test_disk_of_the_jobs_full(tiny: Path) -> None:
    """The job's own disk is full, so that not even the log can say so: mount and free bytes are in the evidence."""
    with agent_host(tiny) as host:
        runs = Runs(host)
        runs.submit("afullown1", "head -c 9000000 /dev/zero > big")
        view = runs.final("afullown1")
        assert (view["state"], view["reason"]) == ("FAILED", "disk_full"), view
        assert f"{tiny} has 0 of {6 << 20} bytes free" in view["evidence"]
        (host.job("afullown1") / "1" / "work" / "big").unlink()
        runs.submit("afullfile", "i=0; while echo > f$i; do i=$((i+1)); done; exit 3")
        view = runs.final("afullfile")
        assert view["reason"] == "disk_full" and f"{tiny} has" in view["evidence"]
        assert "no inodes" in view["evidence"]
        runs.channel.ask("checkpoints", id="afullfile")  # the host goes on


@pytest.mark.root
def test_another_disk_full(runs: Runs, tiny: Path) -> None:
    """What the log says names the disk, which is not that of the job."""
    code = "import sys; open(sys.argv[1], 'wb', 0).write(bytes(9 << 20)); open(sys.argv[1], 'ab', 0).write(b'x')"
    runs.submit("afullothr", command={"argv": ["python3", "-c", code, f"{tiny}/x"]})
    view = runs.final("afullothr")
    assert (view["reason"], view["exit_code"]) == ("disk_full", 1)
    assert "No space left on device" in view["evidence"] and "bytes free" in view["evidence"], view["evidence"]
    log = tiny.parent / "log"
    log.write_text(f"OSError: [Errno 28] No space left on device: '{tiny}/a/b'\n")
    assert f"({tiny} has 0 of" in (evidence.disk_full(os.fsencode(log), [b"/"]) or "")


@pytest.mark.root
def test_disk_full_while_the_code_is_written_out(tiny: Path) -> None:
    with agent_host(tiny) as host:
        runs = Runs(host)
        runs.channel.ask("drain", on=True)
        runs.submit("afullcode", "true", tree=Tree().file("weights.bin", os.urandom(2 << 20)))
        (tiny / "ballast").write_bytes(bytes(3 << 20))
        runs.channel.ask("drain", on=False)
        view = runs.final("afullcode")
        assert (view["state"], view["reason"]) == ("FAILED", "disk_full"), view
        assert str(tiny) in view["evidence"] and "bytes" in view["evidence"]


@pytest.mark.root
def test_what_fills_the_disk_can_be_cancelled(tiny: Path) -> None:
    """Neither the wish nor the records of the end need room then: it was taken at the start."""
    with agent_host(tiny) as host:
        runs = Runs(host)
        # It waits until its start has been noted: a disk that is full before that ends it with `disk_full`.
        wait = "while [ ! -e $JOBRUNNER_OUTPUT_DIR/go ]; do sleep 0.02; done"
        runs.submit("afullstop", f"{wait}; head -c 9000000 /dev/zero > big; sleep 600", grace_s=1)
        runs.running("afullstop")
        (host.job("afullstop") / "out" / "go").touch()
        until(lambda: evidence.is_full(os.fsencode(tiny)), what="the disk is full")
        view = runs.channel.ask("stop", ids=["afullstop"], wait_s=10)["jobs"]["afullstop"]
        assert (view["state"], of_job("afullstop")) == ("CANCELLED", [])
        names = {path.name for path in host.job("afullstop").iterdir()}
        assert {"final.json", "cancel.json"} <= names and not any(name.endswith((".room", ".tmp")) for name in names)


def test_a_phase_that_a_full_disk_hid_is_shown_once_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    room, shown = [False, False, True], []

    def save(_: Any, sync: bool) -> None:
        if not room.pop(0):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        shown.append(sync)

    monkeypatch.setattr(supervisor.Supervisor, "save_start", save)
    for name in ("note_oom_counts", "take_notes"):
        monkeypatch.setattr(supervisor.Supervisor, name, lambda _: None)
    one = supervisor.Supervisor.__new__(supervisor.Supervisor)
    one.status, one.check_s, one._checked = None, 0.0, 1.0
    one.log_guard = SimpleNamespace(look=lambda now: None)
    one.show_phase()
    for count in (0, 1, 1):
        one.now_and_then()
        assert len(shown) == count
    assert not room


def test_every_state_says_what_shows_it(runs: Runs) -> None:
    runs.channel.ask("drain", on=True)
    runs.submit("astate001", "sleep 600", timeout_s=0.5)
    assert "queue since 20" in runs.view("astate001")["evidence"]
    runs.channel.ask("drain", on=False)
    start = runs.running("astate001")
    said = runs.view("astate001")["evidence"]
    assert f"pid {start['supervisor']['pid']}" in said and f"pid {start['command']['pid']}" in said
    assert "time limit of 0.5 s" in runs.final("astate001")["evidence"]
    runs.submit("astate002", "true")
    assert runs.final("astate002")["evidence"] == "the command ended with exit code 0"
    runs.submit("astate003", "sleep 600")
    runs.running("astate003")
    view = runs.channel.ask("stop", ids=["astate003"], wait_s=10, by="ann")["jobs"]["astate003"]
    assert (
        view["evidence"].startswith("stopped because ann asked at 20") and "nothing of it is left" in view["evidence"]
    )
    runs.submit("astate004", command={"argv": ["/nowhere/at/all"]})
    assert "/nowhere/at/all" in runs.final("astate004")["evidence"]
