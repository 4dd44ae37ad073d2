"""What has to hold after every scenario, whatever happened: judged against what the job itself wrote down."""

from __future__ import annotations

import hashlib
import sqlite3
from typing import TYPE_CHECKING, Any

from tests.faults.clockwork import check_times
from tests.faults.commands import Laptop
from tests.faults.host import BreakableHost
from tests.faults.scenario import AMPLE_S
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from tests.faults.play import Story

FINAL = ("COMPLETED", "FAILED", "TIMEOUT", "CANCELLED", "LOST")
REBOOTS = {"reboot"}
KILLS = {"reused_pid", "kill_job", "kill_both", "kill_everything", "kill_supervisor", "kill_tmux"}


def check(story: Story, host: BreakableHost, laptop: Laptop) -> None:
    """All of them; AssertionError names the first that does not hold."""
    for id_ in story.rows:
        starts_once(story, host, id_)
        verdict(story, host, id_)
        shown = same_everywhere(story, laptop, id_)
        logs(host, laptop, id_)
        nothing_left(host, id_)
        check_times(story, host, id_, shown)
    assert host.living_strangers() == host.expected, "a stranger that had a job's pid was signalled"
    followed(story, host)
    pulled(story, host)
    resumed(story, host)
    ledger(laptop)
    adopted(story, laptop)
    no_litter(host)


def truth(host: BreakableHost, id_: str, word: str, attempt: int | None = None) -> list[list[str]]:
    """The marks of a kind that a job left, of one attempt or of all."""
    marks = [words for words in host.truth(id_) if words[0] == word]
    return [words for words in marks if attempt is None or int(words[1]) == attempt]


def starts_once(story: Story, host: BreakableHost, id_: str) -> None:
    """No attempt ran twice, attempts came in order, and not more of them than the spec allows."""
    numbers = [int(words[1]) for words in truth(host, id_, "start")]
    assert len(numbers) == len(set(numbers)), f"{id_} was started twice: {host.truth(id_)}"
    assert numbers == sorted(numbers), host.truth(id_)
    allowed = 1 + (story.scenario.retry or {"max": 0})["max"]
    assert not numbers or max(numbers) <= allowed, host.truth(id_)


def verdict(story: Story, host: BreakableHost, id_: str) -> None:
    """The verdict is what really happened, or says honestly that nobody knows."""
    row, s = story.rows[id_], story.scenario
    state, reason, attempt = row["state"], row["reason"], row["attempt"]
    assert state in FINAL, row
    ended = [words[2] for words in truth(host, id_, "end", attempt)] if attempt else []
    shown = f"{row}\ntruth: {host.truth(id_)}\nfired: {story.fired}"
    if state == "COMPLETED":
        assert ended == ["0"] and row["exit_code"] == 0, shown
    elif state == "FAILED":
        _failed(story, host, row, ended, shown)
    elif state == "TIMEOUT":
        assert s.timeout and s.timeout < AMPLE_S and ended != ["0"], shown
    elif state == "CANCELLED":
        assert s.cancel_at is not None and not ended, shown
    else:
        assert reason in ("host_reboot", "killed", "unobserved"), shown
        assert reason != "host_reboot" or "reboot" in story.fired, shown
        assert reason == "host_reboot" or set(story.fired) & KILLS, shown
    if not s.host_faults and id_ == story.id:
        _exactly(story, host, row, shown)


def _failed(story: Story, host: BreakableHost, row: dict[str, Any], ended: list[str], shown: str) -> None:
    reason = row["reason"]
    if reason == "exit":
        assert ended == [str(row["exit_code"])], shown
    elif reason == "signal":
        own = [row["signal"]] == ended
        assert own or (row["signal"] == "SIGKILL" and set(story.fired) & KILLS), shown
    elif reason == "interrupted":
        assert not truth(host, row["id"], "start") and row["id"] != story.id, shown
    elif reason == "disk_full":
        assert {"full_disk", "no_inodes"} & set(story.fired), shown
    elif reason in ("launch", "setup"):
        assert story.scenario.kinds & {
            "full_disk",
            "no_inodes",
            "read_only",
            "kill_tmux",
            "kill_everything",
            "kill_job",
            "kill_both",
            "reused_pid",
        }, shown
    else:
        raise AssertionError(f"no such failure can have happened: {shown}")


def _exactly(story: Story, host: BreakableHost, row: dict[str, Any], shown: str) -> None:
    """Faults that cannot touch the job change nothing about how it ends."""
    ends, s = story.scenario.plan["ends"], story.scenario
    if ends == ["hang"]:
        assert row["state"] == ("TIMEOUT" if s.timeout else "CANCELLED"), shown
        return
    number, allowed = 1, 1 + (s.retry or {"max": 0})["max"]
    while (end := ends[min(number, len(ends)) - 1]) != 0 and number < allowed:
        number += 1
    assert row["attempt"] == number, shown
    if end == 0:
        assert row["state"] == "COMPLETED", shown
    else:
        found = row["signal"] if isinstance(end, str) else row["exit_code"]
        assert (row["state"], found) == ("FAILED", end), shown


def same_everywhere(story: Story, laptop: Laptop, id_: str) -> dict[str, Any]:
    """Final is final: what the host's files and a later look say is the verdict that was told first. What `show` says."""
    row = story.rows[id_]
    _, document = laptop.ask("show", id_)
    later: dict[str, Any] = document["data"]["job"]
    tellers = (("ls", "--all", "--offline"), ("show", id_), ("explain", id_))
    words = tellers[story.scenario.seed % len(tellers)]  # a process each: over the seeds all have their turn
    assert row["state"] in laptop.run(*words).stdout, words
    for key in ("state", "reason", "exit_code", "signal", "attempt", "cards", "ended_at"):
        assert later[key] == row[key], (key, later, row)
    assert later["state"] != "LOST" or later.get("evidence") or later["events"], later
    return later


def logs(host: BreakableHost, laptop: Laptop, id_: str) -> None:
    """`logs --raw` gives the file's bytes, for every attempt that has one."""
    for attempt in sorted({int(words[1]) for words in truth(host, id_, "start")}):
        got = laptop.run("logs", id_, "--raw", "--attempt", str(attempt)).stdout.encode("utf-8", "surrogateescape")
        assert got == host.log_of(id_, attempt), f"log of attempt {attempt} of {id_} differs"


def followed(story: Story, host: BreakableHost) -> None:
    """What `logs -f` printed is the log of the attempts from where it began, each byte once."""
    for command in story.followed:
        if command.code is None:
            command.wait(60)
        got = command.out.read_bytes()
        starts = [int(words[1]) for words in truth(host, story.id, "start")]
        last = max([story.rows[story.id]["attempt"] or 1, *starts])
        whole = [b"".join(host.log_of(story.id, n) for n in range(first, last + 1)) for first in range(1, last + 2)]
        if command.code == 0:
            assert got in whole, f"logs -f printed {len(got)} bytes: {_difference(got, whole[0])}\n{command.told()}"
        else:
            assert command.code in (3, 5, -9), f"logs -f exited {command.code}\n{command.told()}"
            assert any(text.startswith(got) for text in whole), _difference(got, whole[0])


def _difference(got: bytes, wanted: bytes) -> str:
    at = next((n for n, (a, b) in enumerate(zip(got, wanted, strict=False)) if a != b), min(len(got), len(wanted)))
    return f"{len(wanted)} bytes wanted; they differ at {at}: {got[at : at + 80]!r}, {wanted[at : at + 80]!r}"


def pulled(story: Story, host: BreakableHost) -> None:
    """Every checkpoint that was pulled is whole."""
    for name, path in story.pulled.items():
        number, plan = int(name.rpartition("-")[2][:4]), story.scenario.plan
        wanted = hashlib.sha512(f"{plan['seed']} {number}".encode()).digest() * plan["checkpoint_blocks"]
        assert path.read_bytes() == wanted, f"{name} was pulled damaged"


def resumed(story: Story, host: BreakableHost) -> None:
    """A checkpoint that a job was told to go on from was whole; a retried job had the newest."""
    for id_ in story.rows:
        for words in truth(host, id_, "resume"):
            assert words[3] == "whole", host.truth(id_)
    if story.again and story.pulled:
        marks = truth(host, story.again, "resume", 1)
        began = truth(host, story.again, "start", 1)
        assert not began or [words[2] for words in marks] == [max(story.pulled).rpartition("/")[2]], (
            marks, sorted(story.pulled)
        )  # fmt: skip


def nothing_left(host: BreakableHost, id_: str) -> None:
    """A final job has no process, no secret, no place in the queue."""
    assert not host.carriers(id_), f"{id_} is final, and these live: {host.carriers(id_)}"
    for folder in host.root.glob(f"hosts/*/jobs/{id_}"):
        assert not (folder / "secrets.json").exists()
        assert not (folder.parents[1] / "queue" / id_).exists(), f"{id_} is final and queued"


def ledger(laptop: Laptop) -> None:
    """The ledger is sound."""
    base = sqlite3.connect(laptop.folder / "state" / "ledger.db")
    try:
        assert base.execute("pragma integrity_check").fetchall() == [("ok",)]
        assert not base.execute("pragma foreign_key_check").fetchall()
    finally:
        base.close()


def adopted(story: Story, laptop: Laptop) -> None:
    """Another laptop, which knows nothing, learns the same from the host."""
    env, laptop.env = laptop.env, {**laptop.env, "JOBRUNNER_HOME": str(laptop.folder / "other")}
    try:
        code, document = laptop.ask("adopt")
    finally:
        laptop.env = env
    assert code == 0, document
    rows = {row["id"]: row for row in document["data"]["jobs"]}
    for id_, row in story.rows.items():
        for key in ("name", "state", "reason", "exit_code", "signal", "attempt", "cards", "ended_at", "retry_of"):
            assert rows[id_][key] == row[key], (key, rows[id_], row)


def no_litter(host: BreakableHost) -> None:
    """Nothing runs and nothing is held once every job is final and nobody is connected."""
    eventually(lambda: not host.held(), 15, f"no lock and no lease is left of {host.held()}")
    eventually(lambda: not host.processes(), 15, "no process of ours is left")
    for path in host.root.rglob("*"):
        mode = path.lstat().st_mode & 0o777
        parts = path.relative_to(host.root).parts  # the code has modes of its own, within a folder that is closed
        inside_work = any(part in ("work", "out") or part.startswith(".work-") for part in parts)
        assert inside_work or path.is_symlink() or not mode & 0o077, f"{path} is {mode:o}"
