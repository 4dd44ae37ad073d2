"""While a job runs: its log is watched and never stopped for it, its old checkpoints go, big logs are cheap."""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobrunner.agent import logguard, logview
from tests.support.agentproc import agent_host, until
from tests.support.running import Runs

GB = 1 << 30


@pytest.mark.parametrize(
    ("seen", "free", "codes"),
    [
        ([(0, 0), (60, GB), (120, 2 * GB)], 10 * GB, ["log_fills_disk"]),  # 1 GB a minute, 10 left
        ([(0, 0), (60, GB)], 10 * GB, []),  # a burst at the start is no rate
        ([(0, GB), (60, GB), (120, GB + 5000)], 100 * GB, []),
        ([(0, 0), (60, 2000), (120, 90_000)], 2 * 10**6, ["disk_low"]),  # small: it is not this log that fills it
        ([(0, 6 * GB), (60, 6 * GB), (120, 6 * GB)], 500 * GB, ["log_big"]),
        ([(0, 0)], 100 * GB, []),
        ([(0, 0), (0, 5)], 100 * GB, []),
    ],
)
def test_what_is_worth_a_warning(seen: list[tuple[float, int]], free: int, codes: list[str]) -> None:
    assert [code for code, _ in logguard.judge(seen, free, 1000 * GB, 5 * GB)] == codes


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[Runs]:
    with agent_host(tmp_path) as host:
        host.root.mkdir()
        (host.root / "settings.json").write_text(json.dumps({"check_s": 0.15, "log_warn_mb": 2}))
        yield Runs(host)


def test_a_noisy_job_is_warned_of_and_goes_on(runs: Runs) -> None:
    shell = "head -c 3000000 /dev/zero | tr '\\0' x; while [ ! -e $JOBRUNNER_OUTPUT_DIR/go ]; do sleep 0.05; done"
    runs.submit("anoisyjob", shell)
    view = until(lambda: (v := runs.view("anoisyjob"))["warnings"] and v, what="a warning")
    assert view["state"] == "RUNNING" and view["warnings"][0].startswith("its log has 2.9 MB ("), view["warnings"]
    [event] = [event for event in runs.events("anoisyjob") if event["kind"] == "warning"]
    assert event["code"] == "log_big" and "Nothing is stopped" in event["text"]
    time.sleep(0.5)  # some more looks: said once
    (runs.host.job("anoisyjob") / "out" / "go").touch()
    view = runs.final("anoisyjob")
    assert view["state"] == "COMPLETED" and len(view["warnings"]) == 1


def test_old_checkpoints_go_while_the_job_runs(runs: Runs) -> None:
    """`keep` is applied without a client and before the end: the newest two and the best stay."""
    shell = (
        "mkdir ckpt; for i in 1 2 3 4 5; do echo weights > ckpt/step=$i-loss=0.$(( (i * 7) % 5 + 1 )).bin; done; "
        "while [ ! -e $JOBRUNNER_OUTPUT_DIR/go ]; do sleep 0.05; done"
    )
    keep = {"last": 2, "best": "loss min"}
    runs.submit("akeepsrun", shell, checkpoints={"paths": ["ckpt/*.bin"], "keep": keep})
    runs.running("akeepsrun")
    runs.channel.close()
    folder = runs.host.job("akeepsrun") / "1" / "work" / "ckpt"
    wanted = {"step=4-loss=0.4.bin", "step=5-loss=0.1.bin"}
    until(lambda: {path.name for path in folder.glob("*")} == wanted, what="the others are gone")
    assert not (runs.host.job("akeepsrun") / "final.json").exists()
    (runs.host.job("akeepsrun") / "out" / "go").touch()


def stamped(path: Path, count: int, first: int = 1_800_000_000) -> int:
    """A log with a line a second, every tenth of which says its time; the length of ten lines."""
    ten = 0
    with path.open("wb") as log:
        for number in range(0, count, 10):
            when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(first + number))
            block = f"{when} step {number:09}\n".encode() + b"loss 0.12345 and a progress bar to fill the line\n" * 9
            ten = len(block)
            log.write(block)
    return ten


def test_a_time_is_found_in_a_big_log_by_looking_at_little(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "log"
    ten = stamped(path, 600_000)
    looked = 0
    real = os.pread

    def counted(handle: int, length: int, at: int) -> bytes:
        nonlocal looked
        looked += length
        return real(handle, length, at)

    monkeypatch.setattr(os, "pread", counted)
    handle = os.open(path, os.O_RDONLY)
    size = path.stat().st_size
    for second in (0, 5, 10, 123_450, 123_451, 599_990):
        looked = 0
        found = logview.start_since(handle, size, 1_800_000_000 + second)
        assert found == -(-second // 10) * ten and looked < 10_000_000 < size, (second, looked)
    # Nothing is later: only what follows the last line that says its time may be.
    assert logview.start_since(handle, size, 2_000_000_000) == size - ten + len("2027-01-15T08:00:00Z step 000000000\n")
    os.close(handle)


def plainly(data: bytes, moment: float) -> int:
    """Where a log is to be shown from, by reading all of it."""
    offset = following = 0
    for line in data.split(b"\n"):
        when = logview.moment_of(line)
        if when is not None and when >= moment:
            return offset
        offset += len(line) + 1
        following = min(len(data), offset) if when is not None else following
    return following


def test_halving_finds_what_reading_all_of_it_finds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(7)
    path = tmp_path / "log"
    for _ in range(120):
        monkeypatch.setattr(logview, "BLOCK", chance.choice([16, 64, 300]))
        monkeypatch.setattr(logview, "MAX_LINE", chance.choice([100, 400]))
        when, lines = 1_800_000_000, []
        for _ in range(chance.randint(0, 60)):
            when += chance.randint(0, 20)
            stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ ", time.gmtime(when)).encode()
            lines.append(
                stamp + b"y" * chance.randint(0, 50) if chance.random() < 0.4 else b"x" * chance.choice([0, 3, 900])
            )
        data = b"\n".join(lines) + b"\n" * chance.randint(0, 1)
        path.write_bytes(data)
        with path.open("rb") as log:
            for moment in range(1_799_999_995, when + 10, 7):
                found = logview.start_since(log.fileno(), len(data), moment)
                assert found == plainly(data, moment), (data, moment)


def test_lines_without_times_are_shown_in_doubt(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"x" * 3_000_000 + b"\n" + b"none of these says its time\n" * 50_000)
    with path.open("rb") as log:
        assert logview.start_since(log.fileno(), path.stat().st_size, 1e9) == 0
    head = b"2026-12-01T09:00:00Z begin\n"
    path.write_bytes(head + b"bars without an end, for hours\n" * 300_000)
    with path.open("rb") as log:
        assert logview.start_since(log.fileno(), path.stat().st_size, 1.9e9) == len(head)


def test_signs_of_life_while_a_big_log_is_searched(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"needle\n" + b"hay\n" * 500_000)
    calls = []
    with path.open("rb") as log:
        size = path.stat().st_size
        pattern = logview.compile_pattern("needle")
        assert logview.start_of_last(log.fileno(), size, 1, pattern, lambda: calls.append(1)) == 0
        assert len(calls) == -(-size // logview.BLOCK)
