"""Big contents sent in ranges over several channels: kept over cuts, named by their whole hash alone."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import pytest

from jobrunner.agent import parted
from jobrunner.service import uplanes
from tests.support.lab import Lab
from tests.support.quick import QuickClient
from tests.support.relay import relayed

pytestmark = pytest.mark.needs_sshd
SIZE = 24_000_000
SPEC = "device: cpu\ncommand: sha256sum m.bin\n"


@pytest.fixture
def quick(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> QuickClient:
    monkeypatch.setattr(uplanes, "LEAST", SIZE // 2)
    monkeypatch.setattr(uplanes, "NEAR", 3)
    return QuickClient(tmp_path / "quick", lab)


def content(quick: QuickClient, name: str) -> bytes:
    data = os.urandom(SIZE)
    (quick.folder / name).mkdir()
    (quick.folder / name / "m.bin").write_bytes(data)
    return data


def has_run_with(quick: QuickClient, lab: Lab, id_: str, data: bytes) -> None:
    digest = hashlib.sha256(data).hexdigest()
    quick.run("wait", id_)
    assert digest in (lab.job_folder(id_) / "1" / "log").read_text()
    assert (lab.root / "blobs" / digest[:2] / digest).read_bytes() == data
    assert not list(lab.root.glob("blobs/*/.tmp-*"))


@pytest.mark.parametrize("transport", ["fabric", "auto"])
def test_a_cut_upload_moves_each_byte_once(quick: QuickClient, lab: Lab, transport: str) -> None:
    data = content(quick, transport)
    with relayed(quick, lab) as relay:
        relay.direction, relay.limit = "up", 14_000_000
        id_ = quick.submit(SPEC, transport, "--transport", transport)
        passed = relay.passed["up"]
        has_run_with(quick, lab, id_, data)
    # Without what is kept it would never end. What was on its way at one of two cuts comes again: a window of each channel.
    assert SIZE < passed < SIZE + 2 * 3 * 2_200_000 + 2_000_000, passed


def test_what_another_process_left_is_gone_on_with(quick: QuickClient, lab: Lab) -> None:
    """A part with gaps, some bytes of it in the middle; hardly more than what it lacks has to pass."""
    data = content(quick, "left")
    digest = hashlib.sha256(data).hexdigest()
    part = lab.root / "blobs" / digest[:2] / f".tmp-part-{digest}"
    part.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(part, os.O_RDWR | os.O_CREAT, 0o600)
    there: Any = parted.Parted(handle, SIZE)  # type: ignore[no-untyped-call]
    for begin, count in ((0, 3_000_000), (parted.CHUNK, parted.CHUNK), (3 * parted.CHUNK, 1_000_000)):
        assert there.put(begin, data[begin : begin + count])
    os.close(handle)
    with relayed(quick, lab) as relay:
        id_ = quick.submit(SPEC, "left")
        assert SIZE - there.there < relay.passed["up"] < SIZE - there.there + 1_500_000
        has_run_with(quick, lab, id_, data)


def test_bytes_that_are_not_what_was_announced_get_no_name(quick: QuickClient, lab: Lab) -> None:
    """Left-over bytes of something else: the hash of the whole refuses them, and the next submit begins anew."""
    data = content(quick, "spoilt")
    digest = hashlib.sha256(data).hexdigest()
    part = lab.root / "blobs" / digest[:2] / f".tmp-part-{digest}"
    part.parent.mkdir(parents=True, exist_ok=True)
    part.write_bytes(b"x" * 1_000_000)
    path = quick.spec(SPEC, "spoilt")
    failed = quick.json("submit", str(path), code=None)
    assert [error["code"] for error in failed["errors"]] == ["changed"]
    assert not part.exists() and not (part.parent / digest).exists()
    has_run_with(quick, lab, quick.submit(SPEC, "spoilt"), data)
