"""What the host picks from logs: little of much, the right lines with their numbers, under every Python found."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jobrunner.agent import diagnose
from tests.support.agentproc import STAMP, AgentFailed, AgentHost, agent_host, job, pythons
from tests.support.pythons import run_snippet

ID = "job00001"
STEP = b"[2026-12-01 09:30:00] [rank0] step %d loss 1.%d lr 5e-05 tokens/s 18234.2\n"
NOISE = b"".join(STEP % (number, number) for number in range(20000))


def read(tmp_path: Path, data: bytes, *words: str) -> dict[str, Any]:
    path = tmp_path / "log"
    path.write_bytes(data)
    handle = os.open(path, os.O_RDONLY)
    try:
        return diagnose.read_log(handle, diagnose.trouble(words))
    finally:
        os.close(handle)


def texts(answer: dict[str, Any]) -> list[str]:
    return [text for _, text in answer["picked"] + answer["tail"]]


def size(answer: dict[str, Any]) -> int:
    return len(json.dumps(answer))


def test_trouble_in_the_middle_is_found_with_its_number(tmp_path: Path) -> None:
    answer = read(tmp_path, NOISE + b"RuntimeError: NPU out of memory\n        Solution: less\n" + NOISE)
    assert [20001, "RuntimeError: NPU out of memory"] in answer["picked"]
    assert [20002, "        Solution: less"] in answer["picked"]
    assert answer["lines"] == 40002 and answer["tail"][-1][0] == 40002 and answer["picked"][0][0] == 1
    assert size(answer) < 30_000 and not answer["cut"]


def test_no_line_travels_twice(tmp_path: Path) -> None:
    answer = read(tmp_path, b"error 1\nfine\nerror 2\n")
    assert answer["picked"] == [] and [number for number, _ in answer["tail"]] == [1, 2, 3]


def test_much_trouble_stays_small_and_keeps_the_first_and_the_last(tmp_path: Path) -> None:
    lines = [
        b"FileNotFoundError: " + os.urandom(40).hex().translate(str.maketrans("0123456789", "ghijklmnop")).encode()
        for _ in range(20000)
    ]
    answer = read(tmp_path, b"KeyError: 'the first'\n" + b"\n".join(lines) + b"\nNameError: the last\n" + NOISE)
    assert size(answer) < 400_000 and answer["cut"]
    found = texts(answer)
    assert "KeyError: 'the first'" in found and "NameError: the last" in found


def test_a_line_repeated_a_million_times_leaves_room(tmp_path: Path) -> None:
    repeated = b"".join(b"WARNING: failed to read %d\n" % number for number in range(50000))
    answer = read(tmp_path, repeated + b"ValueError: at last\n" + NOISE)
    assert "ValueError: at last" in texts(answer) and size(answer) < 40_000


def test_progress_bars_and_endless_lines(tmp_path: Path) -> None:
    bar = b"".join(b"\r%3d%%|####" % number for number in range(100)) + b"\rCUDA error: oops\r100%|####|\n"
    endless = b"x" * 3_000_000 + b" OSError: [Errno 28] No space left on device " + b"y" * 3_000_000 + b"\n"
    answer = read(tmp_path, NOISE + bar + endless + NOISE)
    found = dict(reversed([(text, number) for number, text in answer["picked"]]))
    assert found["CUDA error: oops"] == found["100%|####|"] == 20001
    [clipped] = [text for text in found if "Errno 28" in text]
    assert found[clipped] == 20002 and len(clipped) < 1100 and clipped.startswith("… ") and clipped.endswith(" …")
    assert size(answer) < 40_000


def test_chinese_in_any_encoding(tmp_path: Path) -> None:
    answer = read(
        tmp_path, "CNCL未初始化\n".encode() + "训练失败：异常\n".encode("gb18030") + b"\xff\xfe error\n" + NOISE
    )
    found = texts(answer)
    assert "CNCL未初始化" in found and "训练失败：异常" in found and any(text.endswith(" error") for text in found)


def test_a_clients_own_words(tmp_path: Path) -> None:
    data = NOISE + b"LICENCE ran away\n" + NOISE
    assert "LICENCE ran away" not in texts(read(tmp_path, data))
    assert "LICENCE ran away" in texts(read(tmp_path, data, "LICENCE ran"))


def test_of_a_huge_log_both_ends_are_read_and_lines_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(diagnose, "HEAD_BYTES", 300_000)
    monkeypatch.setattr(diagnose, "TAIL_BYTES", 500_000)
    data = b"ImportError: early\n" + NOISE + b"KeyError: unseen\n" + NOISE + b"ValueError: late\n" + NOISE[:300_000]
    answer = read(tmp_path, data)
    numbered = {text: number for number, text in answer["picked"] + answer["tail"]}
    lines = data.split(b"\n")
    assert numbered["ImportError: early"] == 1 and "KeyError: unseen" not in numbered
    assert numbered["ValueError: late"] == lines.index(b"ValueError: late") + 1
    assert answer["lines"] == len(lines) and answer["cut"]


def test_reading_ends_in_time(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(NOISE)
    handle = os.open(path, os.O_RDONLY)
    try:
        answer = diagnose.read_log(handle, diagnose.trouble(), time.monotonic() - 1)
    finally:
        os.close(handle)
    assert answer["cut"] and answer["tail"] == []


@pytest.fixture(params=[pythons()[0], pythons()[-1]], ids=lambda path: path.split("/")[-3])
def host(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[AgentHost]:
    with agent_host(tmp_path, python=request.param) as made:
        made.drain()
        yield made


def staged(host: AgentHost, **run: Any) -> None:
    host.channel().stage([job(ID, **run)], None)


def test_the_operation(host: AgentHost) -> None:
    staged(host)
    assert host.ask("diagnose", id=ID)["attempt"] is None
    host.begin(ID, 1, b"KeyError: old\n")
    host.begin(ID, 2, NOISE + b"KeyError: new\n" + NOISE)
    answer = host.ask("diagnose", id=ID, words=["x" * 500, 3, ""])
    assert answer["attempt"] == 2 and [20001, "KeyError: new"] in answer["picked"] and answer["plog"] == []
    assert host.ask("diagnose", id=ID, attempt=1)["tail"] == [[1, "KeyError: old"]]
    assert all(disk["total"] > 0 and disk["mount"].startswith("/") for disk in answer["disks"])
    with pytest.raises(AgentFailed, match="no_such_job"):
        host.ask("diagnose", id="job99999")


def test_a_log_that_is_a_link_is_not_followed(host: AgentHost, tmp_path: Path) -> None:
    staged(host)
    folder = host.begin(ID)
    (tmp_path / "other").write_text("secret error\n")
    (folder / "log").unlink()
    (folder / "log").symlink_to(tmp_path / "other")
    assert host.ask("diagnose", id=ID)["tail"] == []


def test_only_cann_logs_of_that_time(host: AgentHost, tmp_path: Path) -> None:
    plog = tmp_path / "plog"
    staged(host, host_env={"ASCEND_PROCESS_LOG_PATH": "/nowhere"}, env={"ASCEND_PROCESS_LOG_PATH": str(plog)})
    host.begin(ID)
    host.end(ID, state="FAILED", at=STAMP.replace("09:30:00", "09:40:00"))
    began = 1796117400  # STAMP
    error = b"[INFO] EI: fine\n[ERROR] HCCL(7,python):2026-12-01-09:35:00.100.200 EI0019: taken\n"
    for name, at in (("plog-7_1.log", 60), ("plog-8_1.log", -60), ("plog-9_1.log", 6000), ("notes.txt", 60)):
        path = plog / "debug" / "plog" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(error)
        os.utime(path, (began + at, began + at))
    [found] = host.ask("diagnose", id=ID)["plog"]
    assert found["path"].endswith("/debug/plog/plog-7_1.log")
    assert found["picked"] == [[2, "[ERROR] HCCL(7,python):2026-12-01-09:35:00.100.200 EI0019: taken"]]


@pytest.mark.parametrize("python", pythons(), ids=lambda path: path.split("/")[-3])
def test_every_python_picks_the_same(python: str, tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(NOISE[:200_000] + "训练失败 EI0006: x\n".encode() + NOISE[:200_000])
    code = (
        "import json, os\nfrom jobrunner.agent import diagnose\n"
        f"handle = os.open({str(path)!r}, os.O_RDONLY)\n"
        "print(json.dumps(diagnose.read_log(handle, diagnose.trouble()), sort_keys=True))\n"
    )
    handle = os.open(path, os.O_RDONLY)
    try:
        expected = diagnose.read_log(handle, diagnose.trouble())
    finally:
        os.close(handle)
    assert json.loads(run_snippet(Path(python), code)) == json.loads(json.dumps(expected))
