"""Logs as they are: any bytes, over any cut, at little cost, for a terminal, a file or a pipe."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from jobrunner.core.errors import LinkLostError
from jobrunner.service import wider
from jobrunner.transport import mux, openssh
from jobrunner.transport.session import Session
from tests.support.lab import Client, Lab
from tests.support.quick import QuickClient
from tests.support.relay import relayed

pytestmark = pytest.mark.needs_sshd

WILD = r"""
import os, sys
out = os.fdopen(1, "wb", 0)
out.write(b"start \x00 NUL \xff\xfe not UTF-8 \xc3\n")
out.write(b"\x1b[31mred\x1b[0m \x1b]0;title\x07 \x1b[2J\n")
for i in range(0, 101, 5):
    out.write(b"\repoch 1: %3d%%|%s| loss 0.5" % (i, b"#" * (i // 10)))
out.write(b"\nlong ")
out.write(b"x" * 5_000_000)
out.write(b" end\nlast, without an end")
"""


@pytest.fixture
def quick(lab: Lab, tmp_path: Path) -> QuickClient:
    return QuickClient(tmp_path / "quick", lab)


def test_any_bytes(quick: QuickClient, lab: Lab) -> None:
    id_ = quick.submit("device: cpu\nscript: w.py\n", "wild", w__py=WILD)
    quick.run("wait", id_)
    log = (lab.job_folder(id_) / "1" / "log").read_bytes()
    assert len(log) > 5_000_000
    raw = quick.run("logs", id_, "--raw").stdout.encode("utf-8", "surrogateescape")
    assert hashlib.sha256(raw).digest() == hashlib.sha256(log).digest()
    followed = quick.run("logs", id_, "-f", "--raw").stdout.encode("utf-8", "surrogateescape")
    assert followed == log
    view = quick.run("logs", id_).stdout
    lines = view.split("\n")
    assert lines[0] == "start  NUL \ufffd\ufffd not UTF-8 \ufffd" and lines[1] == "red  "
    assert lines[2] == "epoch 1: 100%|##########| loss 0.5", "a bar is its last drawing"
    assert len(lines[3]) == 5_000_009 and lines[4] == "last, without an end"
    assert not {sign for sign in view if sign < " "} - {"\n"}
    assert quick.run("logs", id_, "-n", "1").stdout.rstrip("\n") == "last, without an end"
    assert quick.run("logs", id_, "--grep", "loss.*0.5", "--raw").stdout.count("\r") == 21


@pytest.mark.parametrize("follow", [(), ("-f",)])
def test_a_big_log_goes_on_over_the_connection_for_big_transfers(
    quick: QuickClient, lab: Lab, monkeypatch: pytest.MonkeyPatch, follow: tuple[str, ...]
) -> None:
    id_ = quick.submit("device: cpu\ncommand: seq 1 900000\n", "counts")
    quick.run("wait", id_)
    monkeypatch.setattr(wider, "BIG", 1_000_000)
    monkeypatch.setattr(wider, "FAR_S", 10.0)
    monkeypatch.setattr(wider, "Thread", AtOnce)
    opened: list[object] = []
    real = openssh.open_own
    monkeypatch.setattr(openssh, "open_own", lambda *given: opened.append(given) or real(*given))
    shown = quick.run("logs", id_, "--raw", *follow).stdout
    assert shown == (lab.job_folder(id_) / "1" / "log").read_text() and len(opened) == 1
    quick.run("logs", id_, "--raw", "--transport", "fabric")
    assert len(opened) == 1, "nothing is opened where Fabric is wanted"


@pytest.mark.parametrize("follow", [(), ("-f",)])
def test_a_big_log_goes_on_where_its_second_connection_breaks(
    quick: QuickClient, lab: Lab, monkeypatch: pytest.MonkeyPatch, follow: tuple[str, ...]
) -> None:
    id_ = quick.submit("device: cpu\ncommand: seq 1 900000\n", "breaks")
    quick.run("wait", id_)
    monkeypatch.setattr(wider, "BIG", 1_000_000)
    monkeypatch.setattr(wider, "FAR_S", 10.0)
    monkeypatch.setattr(wider, "Thread", AtOnce)
    broken: list[int] = []
    real = Session.parts

    def parts(stream: Session) -> Iterator[tuple[bytes, bytes]]:
        for number, part in enumerate(real(stream)):
            if number == 3 and isinstance(stream._channel, mux.MuxChannel):
                broken.append(number)
                raise LinkLostError("the link was lost", host="lab")
            yield part

    monkeypatch.setattr(Session, "parts", parts)
    assert quick.run("logs", id_, "--raw", *follow).stdout == (lab.job_folder(id_) / "1" / "log").read_text()
    assert broken == [3] and quick.row(id_)["unreachable"] is not True


class AtOnce:
    """A thread that has done its work once it is started."""

    def __init__(self, target: Callable[[], None], **_: object) -> None:
        self.start = target


def test_following_a_filtered_log_over_cuts(client: Client, lab: Lab) -> None:
    """Each line that matches once, through a retry and links that are cut again and again."""
    shell = (
        "for i in $(seq 1 200); do echo $JOBRUNNER_ATTEMPT hay $i; echo $JOBRUNNER_ATTEMPT pin $i; sleep 0.003; done"
    )
    text = f"device: cpu\ncommand: '{shell}; test $JOBRUNNER_ATTEMPT = 2'\nretry: {{max: 1, on: [exit], backoff: 0s}}\n"
    with relayed(client, lab) as relay:
        id_ = client.submit(text, "filtered")
        relay.direction, relay.limit = "down", 9500
        viewer = client.start("logs", id_, "-f", "--raw", "--grep", "pin", "--attempt", "1")
        out, err = viewer.communicate(timeout=90)
    lines = out.decode().splitlines()
    assert lines == [f"{attempt} pin {i}" for attempt in (1, 2) for i in range(1, 201)], err.decode()
    assert b"lost" in err, "nothing was cut"


def test_the_end_of_two_gigabytes_costs_kilobytes(quick: QuickClient, lab: Lab) -> None:
    id_ = quick.submit("device: cpu\ncommand: echo begun\n", "huge")
    quick.run("wait", id_)
    now = datetime.now(timezone.utc)
    tail = "".join(f"{now - timedelta(seconds=100 - i):%Y-%m-%dT%H:%M:%SZ} line {i}\n" for i in range(100))
    with (lab.job_folder(id_) / "1" / "log").open("wb") as log:
        log.truncate(2 << 30)
        log.seek(0, 2)
        log.write(b"\n" + tail.encode())
    with relayed(quick, lab) as relay:
        began = time.monotonic()
        assert quick.run("logs", id_, "-n", "20").stdout == "".join(tail.splitlines(True)[-20:])
        moved = sum(relay.passed.values())
        print(f"logs -n 20 of 2 GB: {moved} bytes, {time.monotonic() - began:.2f} s")
        assert moved < 64 * 1024
        with (lab.job_folder(id_) / "1" / "log").open("wb") as log:
            log.truncate(64 << 20)
            log.seek(0, 2)
            log.write(b"\n" + tail.encode())
        shown = quick.run("logs", id_, "--since", "31s", "-n", "50").stdout.splitlines()
        assert shown[-1].endswith("line 99") and 10 <= len(shown) <= 32
        half = f"{now - timedelta(seconds=50):%Y-%m-%dT%H:%M:%SZ}"
        assert quick.run("logs", id_, "--since", half).stdout.startswith(f"{half} line 50\n")
        assert sum(relay.passed.values()) < 3 * 64 * 1024
    wrong = quick.run("logs", id_, "--since", "yesterday", code=2)
    assert "10m" in wrong.stderr


def test_a_pipe_that_ends_early_is_no_trouble(quick: QuickClient) -> None:
    id_ = quick.submit("device: cpu\ncommand: seq 1 400000\n", "piped")
    quick.run("wait", id_)
    for more in ([], ["--raw", "-f"], ["--json", "-f"]):
        viewer = quick.start("logs", id_, *more)
        assert viewer.stdout is not None and viewer.stderr is not None
        assert viewer.stdout.readline()
        viewer.stdout.close()
        assert viewer.stderr.read() == b"" and viewer.wait(20) in (0, 141), more
        viewer.stderr.close()
