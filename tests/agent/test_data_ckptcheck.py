"""Is a checkpoint whole? Files cut anywhere are not; folders count once what is written last is there."""

from __future__ import annotations

import io
import json
import math
import os
import struct
import zipfile
from pathlib import Path
from typing import Any

import pytest

from jobrunner.agent import ckptcheck, ckptmetrics, ckptorder
from jobrunner.agent.files import AgentError


def zipped(size: int = 5000, comment: bytes = b"") -> bytes:
    """What `torch.save` writes: an uncompressed zip."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02}.")
        archive.writestr("archive/data/0", os.urandom(size))
        archive.comment = comment
    return out.getvalue()


def zip64() -> bytes:
    """As a file of over 4 GB would end: the sizes are in the wider record."""
    plain = zipped()
    at = plain.rfind(b"PK\x05\x06")
    count, length, offset = struct.unpack("<HII", plain[at + 10 : at + 20])
    wide = b"PK\x06\x06" + struct.pack("<QHHIIQQQQ", 44, 45, 45, 0, 0, count, count, length, offset)
    locator = b"PK\x06\x07" + struct.pack("<IQI", 0, at, 1)
    end = b"PK\x05\x06" + struct.pack("<HHHHIIH", 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0)
    return plain[:at] + wide + locator + end


def safetensors(values: int = 100) -> bytes:
    header = json.dumps(
        {"__metadata__": {"format": "pt"}, "w": {"dtype": "F32", "shape": [values], "data_offsets": [0, values * 4]}}
    ).encode()
    return struct.pack("<Q", len(header)) + header + os.urandom(values * 4)


def npy(values: int = 100) -> bytes:
    header = b"{'descr': '<f8', 'fortran_order': False, 'shape': (%d, 2), }" % values
    header += b" " * (-(len(header) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + os.urandom(values * 16)


def whole(path: Path) -> bool:
    return bool(ckptcheck.whole(os.fsencode(path)))


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("5.pt", zipped()),
        ("5.ckpt", zipped(comment=b"a comment")),
        ("5.pth", zip64()),
        ("model.safetensors", safetensors()),
        ("a.npy", npy()),
        ("a.npz", zipped()),
    ],
)
def test_a_file_cut_anywhere_is_not_whole(tmp_path: Path, name: str, data: bytes) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    assert whole(path)
    for cut in [0, 1, 4, 30, len(data) // 2, len(data) - 30, len(data) - 1]:
        path.write_bytes(data[:cut])
        if cut in (1, 4) and name.endswith((".pt", ".ckpt", ".pth", ".npy")) and not data[:cut].startswith(b"PK\3\4"):
            continue  # too short to be told from a user's own format
        assert not whole(path), f"cut at {cut}"
    path.write_bytes(data[: len(data) // 2] + b"\0" * (len(data) - len(data) // 2))
    assert not whole(path) or name.endswith((".safetensors", ".npy"))


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"step 5", True),
        (b"", False),
        (b"\0" * 9000, False),
        (b"\x80\x02old torch.save", True),
        (b"\0" * 600 + b"x", True),
    ],
)
def test_formats_that_nobody_knows(tmp_path: Path, data: bytes, expected: bool) -> None:
    (tmp_path / "5.pt").write_bytes(data)
    assert whole(tmp_path / "5.pt") is expected


def put(top: Path, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        (top / name).write_bytes(data)
    return top


def test_hugging_face_folders_need_what_is_written_last(tmp_path: Path) -> None:
    top = put(tmp_path / "checkpoint-500", {"model.safetensors": safetensors(), "optimizer.pt": zipped()})
    assert not whole(top)
    put(top, {"trainer_state.json": b'{"global_step": 5'})
    assert not whole(top)
    put(top, {"trainer_state.json": b'{"global_step": 500}'})
    assert whole(top)
    put(top, {"optimizer.pt": zipped()[:-10]})
    assert not whole(top)


def test_sharded_folders_need_every_shard(tmp_path: Path) -> None:
    index = json.dumps({"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}).encode()
    top = put(tmp_path / "final", {"model-1.safetensors": safetensors(), "model.safetensors.index.json": index})
    assert not whole(top)
    put(top, {"model-2.safetensors": safetensors()})
    assert whole(top)


def test_accelerate(tmp_path: Path) -> None:
    top = put(tmp_path / "checkpoint-7", {"model.safetensors": safetensors()})
    assert not whole(top)
    assert whole(put(top, {"random_states_0.pkl": b"\x80"}))
    assert whole(put(tmp_path / "checkpoint_3", {"optimizer.bin": zipped()}))


def test_deepspeed(tmp_path: Path) -> None:
    top = put(tmp_path / "ds", {"global_step10/mp_rank_00_model_states.pt": zipped()})
    assert not whole(top / "global_step10"), "the pointer is written after the data"
    put(top, {"latest": b"global_step10\n"})
    assert whole(top) and whole(top / "global_step10")
    put(top, {"global_step20/mp_rank_00_model_states.pt": zipped()[:100]})
    assert not whole(top / "global_step20")
    put(top, {"latest": b"global_step30"})
    assert not whole(top)
    put(top, {"latest": b"../../etc"})
    assert not whole(top)


def test_megatron(tmp_path: Path) -> None:
    top = put(tmp_path / "mega", {"iter_0000500/mp_rank_00/model_optim_rng.pt": zipped()})
    put(top, {"latest_checkpointed_iteration.txt": b"500"})
    assert whole(top) and whole(top / "iter_0000500")
    put(top, {"iter_0000600/mp_rank_00/model_optim_rng.pt": zipped()})
    assert not whole(top / "iter_0000600")
    put(top, {"latest_checkpointed_iteration.txt": b"600"})
    assert whole(top / "iter_0000600")


def test_other_folders(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    assert not whole(tmp_path / "own")
    put(tmp_path / "own", {"empty": b""})
    assert not whole(tmp_path / "own")
    assert whole(put(tmp_path / "own", {"state": b"x"}))
    assert not whole(tmp_path / "missing")


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("ckpt/5.pt", 5),
        ("ckpt/epoch=3-step=500.ckpt", 500),
        ("checkpoint-500", 500),
        ("checkpoint-500/", 500),
        ("global_step10", 10),
        ("iter_0000500", 500),
        ("epoch_12.pth", 12),
        ("epoch12.pth", 12),
        ("ckpt_0005.pt", 5),
        ("model-7.safetensors", 7),
        ("resnet18.pt", None),
        ("last.pt", None),
        ("best-0.95.pt", None),
        ("epoch=3-val_loss=0.25.ckpt", 3),
        ("run2/step_40.pt", 40),
        ("vit_b16_epoch_9.pt", 9),
        ("20260102-ckpt-3.pt", 3),
    ],
)
def test_steps_from_names(name: str, step: int | None) -> None:
    assert ckptorder.step_of(name) == step


def record(name: str, mtime: int, attempt: int | None = 1, complete: bool = True, **more: Any) -> dict[str, Any]:
    path = f"/j/{attempt}/{name}"
    fields = {"name": name, "path": path, "step": ckptorder.step_of(name), "mtime_ns": mtime, "complete": complete}
    return {**fields, "attempt": attempt, "metrics": {}, **more}


def order(*records: dict[str, Any]) -> list[tuple[str, int | None]]:
    return [(entry["name"], entry["attempt"]) for entry in ckptorder.newest_first(list(records))]


def test_order_is_by_step_within_names_of_one_kind_and_by_time_between() -> None:
    assert order(record("c-9.pt", 1), record("c-10.pt", 2)) == [("c-10.pt", 1), ("c-9.pt", 1)]
    # Began again from the start: the furthest is still the newest.
    began_again = order(record("c-100.pt", 1), record("c-500.pt", 2), record("c-100.pt", 3, 2))
    assert began_again[0] == ("c-500.pt", 1) and began_again[1] == ("c-100.pt", 2)
    assert order(record("last.pt", 9), record("c-1.pt", 3), record("c-2.pt", 5))[0] == ("last.pt", 1)
    assert order(record("last.pt", 4), record("c-1.pt", 3), record("c-2.pt", 5))[0] == ("c-2.pt", 1)
    assert order(record("last.pt", 4, 1), record("last.pt", 7, 2))[0] == ("last.pt", 2)


def drop(keep: Any, *records: dict[str, Any], spared: set[str] | None = None) -> list[str]:
    return sorted(entry["name"] for entry in ckptorder.to_drop(list(records), keep, spared or set()))


def test_keep() -> None:
    records = [record(f"c-{n}.pt", n) for n in range(1, 6)]
    assert drop(None, *records) == []
    assert drop({"last": 2, "best": None}, *records) == ["c-1.pt", "c-2.pt", "c-3.pt"]
    assert drop({"last": 2}, *records, spared={records[0]["path"]}) == ["c-2.pt", "c-3.pt"]
    assert drop({"last": 0}, *records) == ["c-1.pt", "c-2.pt", "c-3.pt", "c-4.pt"], "the newest always stays"
    # What is not whole does not count, and does not go.
    records[4]["complete"] = False
    assert drop({"last": 1}, *records) == ["c-1.pt", "c-2.pt", "c-3.pt"]
    assert drop({"last": 1}, record("c-1.pt", 1, link=True), record("c-2.pt", 2)) == []


def test_best() -> None:
    values = {1: 0.5, 2: 0.2, 3: 0.2, 4: float("nan")}
    records = [record(f"c-{n}.pt", n, metrics={"val_loss": value}) for n, value in values.items()] + [
        record("c-5.pt", 5)
    ]
    assert ckptorder.best(records, "val_loss min")["name"] == "c-3.pt"
    assert ckptorder.best(records, "val_loss max")["name"] == "c-1.pt"
    assert ckptorder.best(records, "acc max") is None
    assert drop({"last": 1, "best": "val_loss max"}, *records) == ["c-2.pt", "c-3.pt", "c-4.pt"]
    assert drop({"last": 1, "best": "acc max"}, *records) == [], "which is best is not known: all stay"
    with pytest.raises(AgentError):
        ckptorder.parse_best("val_loss")


def test_metrics_from_names_and_logs() -> None:
    assert ckptorder.metrics_in("epoch=3-step=9-val_loss=0.25.ckpt") == {"val_loss": 0.25}
    assert ckptorder.metrics_in("c/acc=-1.5e-3.pt") == {"acc": -1.5e-3}
    told = [{"attempt": 1, "name": "loss", "step": step, "value": value} for step, value in ((1, 0.9), (2, 0.7))]
    told += [{"attempt": 1, "name": "loss", "step": 40, "steps": [40, 12], "value": "nan"}]
    told += [{"attempt": 2, "name": "loss", "step": 2, "value": 9}]
    rate = ckptmetrics.from_samples
    assert rate(told, 1, 2, False) == {"loss": 0.7}
    assert rate(told, 1, 1, False) == {"loss": 0.9}
    assert rate(told, None, 2, False) == {"loss": 9}, "in the folder of all attempts the last one holds"
    assert math.isnan(rate(told, 1, 12, False)["loss"]), "a line that names epoch and step rates either"
    assert rate(told, 1, 5, False) == {}
    assert math.isnan(rate(told, 1, 5, True)["loss"])
    assert rate(told, 1, None, False) == {}


@pytest.mark.parametrize(
    ("patterns", "top"),
    [
        (["ckpt/*.pt"], "ckpt/"),
        (["a/b/*.pt", "a/b/last"], "a/b/"),
        (["ckpt/*.pt", "best/*.pt"], ""),
        (["ckpt/*.pt", "*.pt"], ""),
        (["**/*.pt"], ""),
        (["out/run-*/checkpoint-*"], "out/"),
        (["last.pt"], ""),
        ([], ""),
    ],
)
def test_names_leave_out_the_folder_that_all_patterns_share(patterns: list[str], top: str) -> None:
    from jobrunner.agent.checkpoints import shared_folder

    assert shared_folder(patterns) == top
