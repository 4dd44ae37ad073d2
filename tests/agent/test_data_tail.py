"""A job's log: its exact bytes, from anywhere, as they come, through retries, until the job is final."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jobrunner.agent import jobs, leases, logview, tail
from jobrunner.agent.files import AgentError
from tests.support.agentproc import AgentFailed, AgentHost, Channel, agent_host, job, until


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[AgentHost]:
    with agent_host(tmp_path) as made:
        monkeypatch.setenv("JOBRUNNER_LEASE_SCOPE", made.scope)
        made.drain()
        made.channel().stage([job("job00001")], None)
        # Somebody acts on the job: nobody concludes that it is lost.
        lock = leases.bind(made.layout.job_lock("job00001"))
        yield made
        leases.release([lock])


class View:
    """One `tail`: what came, in order."""

    def __init__(self, channel: Channel, **fields: Any) -> None:
        self.channel = channel
        channel.send({"v": 1, "op": "tail", "id": "job00001", **fields})
        self.heads: list[dict[str, Any]] = []
        self.data = b""
        self.answer: dict[str, Any] | None = None

    def step(self) -> bool:
        """Take the next frame; False after the answer."""
        frame = self.channel.reader.frame()
        assert frame is not None
        if frame[0] == b"B":
            self.data += frame[1]
            return True
        from jobrunner.agent.rpc import parse

        message = parse(frame[1])
        if message.get("ok") is False:
            raise AgentFailed(message["error"])
        if "ok" in message:
            self.answer = message["data"]
            return False
        self.heads.append({key: value for key, value in message.items() if key != "host"})
        return True

    def all(self) -> bytes:
        while self.step():
            pass
        return self.data

    def until(self, text: bytes) -> None:
        while text not in self.data:
            assert self.step()


def lines(count: int, word: str = "line") -> bytes:
    return b"".join(f"{word} {n}\n".encode() for n in range(count))


def append(path: Path, data: bytes) -> None:
    with path.open("ab") as handle:
        handle.write(data)


def test_the_exact_bytes(host: AgentHost) -> None:
    log = b"\x1b[31mred\x1b[0m\r 50%\r100%\n\xff\xfe\0 no newline at the end"
    host.begin("job00001", log=log)
    view = View(host.channel())
    assert view.all() == log
    assert view.heads == [{"attempt": 1, "offset": 0, "size": len(log)}]
    assert view.answer == {"attempt": 1, "offset": len(log), "state": "RUNNING", "final": False}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"offset": 7}, lines(10)[7:]),
        ({"offset": 70}, b""),
        ({"offset": 1000}, lines(10)),
        ({"offset": -5}, lines(10)),
        ({"lines": 3}, b"line 7\nline 8\nline 9\n"),
        ({"lines": 0}, b""),
        ({"lines": 99}, lines(10)),
        ({"grep": "[37]$"}, b"line 3\nline 7\n"),
        ({"grep": "^line [1-4]$", "lines": 2}, b"line 3\nline 4\n"),
        ({"grep": "nothing"}, b""),
    ],
)
def test_parts(host: AgentHost, fields: dict[str, Any], expected: bytes) -> None:
    host.begin("job00001", log=lines(10))
    assert View(host.channel(), **fields).all() == expected


def test_attempts(host: AgentHost) -> None:
    host.begin("job00001", 1, b"first\n")
    host.begin("job00001", 2, b"second\n")
    assert View(host.channel()).all() == b"second\n"
    assert View(host.channel(), attempt=1).all() == b"first\n"
    with pytest.raises(AgentFailed, match="no_such_attempt"):
        View(host.channel(), attempt=3).all()


def test_a_job_that_has_not_begun_has_an_empty_log(host: AgentHost) -> None:
    view = View(host.channel())
    assert view.all() == b""
    assert view.heads == [{"attempt": 0, "offset": 0, "size": 0}]
    assert view.answer and view.answer["state"] == "QUEUED"


def test_bad_requests(host: AgentHost) -> None:
    host.begin("job00001", log=b"x\n")
    for fields, code in [({"grep": "("}, "bad_pattern"), ({"since": "yesterday"}, "bad_request")]:
        with pytest.raises(AgentFailed) as failed:
            View(host.channel(), **fields).all()
        assert failed.value.code == code


def test_since(host: AgentHost) -> None:
    log = b"start\n2026-12-01T08:00:00Z a\nno time\n[2026-12-01 10:00:00+01:00] b\n2026-12-01 09:30:00Z c\nd\n"
    host.begin("job00001", log=log)
    future = 4_000_000_000
    os.utime(host.job("job00001") / "1" / "log", (future, future))
    assert View(host.channel(), since="2026-12-01T09:10:00Z").all() == b"2026-12-01 09:30:00Z c\nd\n"
    assert View(host.channel(), since="2026-12-01T08:30:00Z").all().startswith(b"[2026-12-01 10:00")
    assert View(host.channel(), since="2026-12-02T00:00:00Z").all() == b"d\n", "nothing tells when that was written"
    (host.job("job00001") / "1" / "log").write_bytes(b"no\ntimes\n")
    os.utime(host.job("job00001") / "1" / "log", (future, future))
    assert View(host.channel(), since="2026-12-02T00:00:00Z").all() == b"no\ntimes\n"


def test_following_through_a_retry_until_the_end(host: AgentHost) -> None:
    view = View(host.channel(), follow=True)
    assert view.step() and view.heads[0]["attempt"] == 0
    first = host.begin("job00001", 1)
    append(first / "log", b"one\n")
    view.until(b"one\n")
    append(first / "log", b"two, without an end")
    host.end("job00001", 1, final=False)
    second = host.begin("job00001", 2, b"three\n")
    view.until(b"three\n")
    append(second / "log", b"the last bytes")
    host.end("job00001", 2)
    assert view.all() == b"one\ntwo, without an endthree\nthe last bytes"
    assert [head["attempt"] for head in view.heads if "size" in head] == [0, 1, 2]
    assert view.answer == {"attempt": 2, "offset": 20, "state": "COMPLETED", "final": True}


def test_coming_back_where_the_link_broke(host: AgentHost) -> None:
    host.begin("job00001", 1, b"one\ntwo\n")
    host.begin("job00001", 2, b"three\n")
    host.end("job00001", 2)
    view = View(host.channel(), follow=True, attempt=1, offset=4)
    assert view.all() == b"two\nthree\n"


def test_coming_back_when_nothing_had_begun(host: AgentHost) -> None:
    """The link broke before the first attempt: coming back, the viewer misses nothing of what was meanwhile."""
    view = View(host.channel(), follow=True)
    assert view.step() and view.heads[0]["attempt"] == 0
    host.begin("job00001", 1, b"one\n")
    host.begin("job00001", 2, b"two\n")
    host.end("job00001", 2)
    again = View(host.channel(), follow=True, attempt=0, offset=0)
    assert again.all() == b"one\ntwo\n"


def test_following_with_a_filter(host: AgentHost) -> None:
    folder = host.begin("job00001", 1, b"loss 1\nnoise\n")
    view = View(host.channel(), follow=True, grep="loss")
    view.until(b"loss 1\n")
    append(folder / "log", b"lo")
    time.sleep(0.05)
    append(folder / "log", b"ss 2\nmore noise\nloss 3")
    view.until(b"loss 2\n")
    told = len(b"loss 1\nnoise\nloss 2\nmore noise\n")
    while view.heads[-1]["offset"] != told:
        assert view.step()
    host.end("job00001")
    assert view.all() == b"loss 1\nloss 2\nloss 3"


def test_lag(host: AgentHost) -> None:
    folder = host.begin("job00001")
    view = View(host.channel(), follow=True)
    lags = []
    for n in range(40):
        mark = f"<{n}>".encode()
        begin = time.monotonic()
        append(folder / "log", mark)
        view.until(mark)
        lags.append(time.monotonic() - begin)
    lags.sort()
    assert lags[len(lags) // 2] < 0.02, f"median {lags[20] * 1000:.1f} ms"


def test_a_file_system_without_notices(host: AgentHost, monkeypatch: pytest.MonkeyPatch) -> None:
    from jobrunner.agent import watch

    assert watch.Watch.FALLBACK_S <= 0.02
    seen = watch.Watch()
    try:
        seen.notified = False
        outlet, inlet = os.pipe()
        begin = time.monotonic()
        assert seen.sleep(outlet, 5.0) is False
        assert time.monotonic() - begin < 1.0
        os.write(inlet, b"x")
        assert seen.sleep(outlet, 5.0) is True
        os.close(outlet)
        os.close(inlet)
    finally:
        seen.close()


@pytest.mark.parametrize("how", ["truncated", "replaced"])
def test_a_log_that_is_cut_or_replaced(host: AgentHost, how: str) -> None:
    folder = host.begin("job00001", 1, b"a long beginning\n")
    view = View(host.channel(), follow=True)
    view.until(b"beginning\n")
    if how == "truncated":
        os.truncate(folder / "log", 0)
        until(lambda: view.step() and view.heads[-1].get("reset"))
        append(folder / "log", b"again\n")
    else:
        (folder / "new").write_bytes(b"again\n")
        os.replace(folder / "new", folder / "log")
    view.until(b"again\n")
    assert view.heads[-1]["reset"] == how and view.heads[-1]["offset"] == 0
    host.end("job00001")
    assert view.all() == b"a long beginning\nagain\n"


def test_a_link_in_the_log_s_place_is_never_read(host: AgentHost) -> None:
    folder = host.begin("job00001", 1, b"mine\n")
    view = View(host.channel(), follow=True)
    view.until(b"mine\n")
    (folder / "log").unlink()
    (folder / "log").symlink_to("/etc/passwd")
    time.sleep(0.1)
    host.end("job00001")
    assert view.all() == b"mine\n"
    assert View(host.channel()).all() == b""


def test_a_viewer_that_goes_away_ends_the_agent(host: AgentHost) -> None:
    host.begin("job00001", 1, b"x\n")
    view = View(host.channel(), follow=True)
    view.until(b"x\n")
    begin = time.monotonic()
    assert view.channel.close() == 0
    assert time.monotonic() - begin < 2


def test_a_viewer_that_reads_no_more_ends_the_agent_with_its_tick(
    host: AgentHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its reading end is gone, its writing end is held open by somebody else."""
    host.begin("job00001", 1, b"x\n")
    view = View(host.channel(), follow=True)
    view.until(b"x\n")
    view.channel.stdout.close()
    assert view.channel.process.wait(tail.TICK_S + 5) == 0


def test_a_viewer_may_stop_and_ask_for_something_else(host: AgentHost) -> None:
    host.begin("job00001", 1, b"x\n")
    channel = host.channel()
    view = View(channel, follow=True)
    view.until(b"x\n")
    channel.send({"stop": True})
    assert view.all() == b"x\n" and view.answer and view.answer["offset"] == 2
    view = View(channel, follow=True)
    view.until(b"x\n")
    channel.send({"v": 1, "op": "checkpoints", "id": "job00001"})
    view.all()
    assert channel.json()["data"] == {"checkpoints": []}


def test_a_job_that_was_killed_becomes_final_while_somebody_watches(tmp_path: Path) -> None:
    with agent_host(tmp_path) as host:
        host.drain()
        host.channel().stage([job("job00001")], None)
        folder = host.begin("job00001", 1, b"x\n")
        (folder / "start.json").write_text(
            '{"v": 1, "supervisor": {"pid": 1, "ticks": 1, "boot_id": "before"}, "cards": []}'
        )
        view = View(host.channel(), follow=True)
        assert view.all() == b"x\n"
        assert view.answer and view.answer["final"] and view.answer["state"] == "LOST"


def test_the_last_lines_of_a_gigabyte_cost_kilobytes(host: AgentHost) -> None:
    folder = host.begin("job00001")
    with (folder / "log").open("wb") as handle:
        handle.truncate(1 << 30)
        handle.seek(0, os.SEEK_END)
        handle.write(b"\n" + lines(200))
    channel = host.channel()
    channel.ask("checkpoints", id="job00001")
    before = (Path("/proc") / str(channel.process.pid) / "io").read_text().split("rchar: ")[1].split()[0]
    view = View(channel, lines=100)
    begin = time.monotonic()
    assert view.all() == b"".join(lines(200).splitlines(True)[-100:])
    assert time.monotonic() - begin < 1
    after = (Path("/proc") / str(channel.process.pid) / "io").read_text().split("rchar: ")[1].split()[0]
    assert int(after) - int(before) < 1_000_000


def test_a_fast_log_takes_no_memory_and_misses_nothing(host: AgentHost) -> None:
    folder = host.begin("job00001")
    view = View(host.channel(), follow=True)
    size = 60 << 20

    def write() -> None:
        chunk = b"x" * 9999 + b"\n"
        with (folder / "log").open("ab", buffering=0) as handle:
            for _ in range(size // len(chunk)):
                handle.write(chunk)
        host.end("job00001")

    writer = threading.Thread(target=write)
    writer.start()
    count = 0
    while view.step():
        count += len(view.data)
        view.data = b""
    writer.join()
    assert count == size // 10_000 * 10_000
    status = Path(f"/proc/{view.channel.process.pid}/status").read_text()
    assert int(status.split("VmHWM:")[1].split()[0]) < 40_000


@pytest.mark.parametrize("block", [1, 2, 3, 7, 100])
@pytest.mark.parametrize("ending", [b"\n", b""])
def test_last_lines_whatever_the_block_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int, ending: bytes
) -> None:
    import re

    monkeypatch.setattr(logview, "BLOCK", block)
    text = b"a1\n\nb22\nc\na3\n\n\nlong line here a4" + ending
    (tmp_path / "log").write_bytes(text)
    parts = text.splitlines(True)
    with (tmp_path / "log").open("rb") as handle:
        for count in range(10):
            start = logview.start_of_last(handle.fileno(), len(text), count)
            assert text[start:] == b"".join(parts[len(parts) - count :] if count <= len(parts) else parts)
            start = logview.start_of_last(handle.fileno(), len(text), count, re.compile("a"))
            found = [line for line in text[start:].splitlines() if b"a" in line]
            assert found == [line for line in text.splitlines() if b"a" in line][-count:] if count else found == []


def test_a_line_without_end_is_looked_at_in_pieces() -> None:
    import re

    seen = logview.Filter(re.compile("needle"))
    assert seen.feed(b"x" * (logview.MAX_LINE + 1)) == b""
    assert seen.held == 0
    assert seen.feed(b"needle\n") == b"needle\n"
    with pytest.raises(AgentError):
        logview.compile_pattern("*")


def test_a_filter_knows_characters(host: AgentHost) -> None:
    host.begin(
        "job00001", log="损失 0.5\n精度 0.9\n\xff 失\n".encode("latin-1", "ignore") + "损失 0.5\n精度 0.9\n".encode()
    )
    assert View(host.channel(), grep="^损.").all() == "损失 0.5\n".encode()


def test_the_view_of_a_job_is_the_answer_s_state(host: AgentHost) -> None:
    host.begin("job00001", log=b"")
    host.end("job00001", state="FAILED")
    view = View(host.channel(), follow=True)
    view.all()
    seen = jobs.job_view(host.layout, "job00001")
    assert seen and view.answer == {"attempt": 1, "offset": 0, "state": seen["state"], "final": True}
