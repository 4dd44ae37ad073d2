"""The example specs load, say what they should, and their scripts do what a good job does."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

from jobrunner.core.errors import NotFoundError
from jobrunner.core.specdoc import read_spec
from jobrunner.lab.examples import example, examples_folder

REPOSITORY = Path(__file__).resolve().parents[2]
SPECS = sorted((REPOSITORY / "job_specs").glob("*.yaml"))
LINE = re.compile(r"epoch=(\d+) step=(\d+) loss=[\d.]+ val_loss=[\d.]+ val_acc=([\d.]+)")


def digits(folder: Path, *words: str, **env: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-W", "error", str(REPOSITORY / "job_specs/digits/train.py"), *words],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> tuple[int, str]:
    text, _ = process.communicate(timeout=60)
    return process.returncode, text


def test_there_are_specs() -> None:
    others = {"resnet18_npu", "resnet18_mlu", "llama_factory_mlu"}
    assert {path.stem for path in SPECS} == {"digits", "digits_sweep", "digits_retrain", *others}


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_spec_loads_and_its_files_are_there(path: Path) -> None:
    every = {"sweep", "schedule", "promote"}
    document = read_spec(path.read_text(encoding="utf-8"), str(path), default_name=path.stem, enabled=every)
    assert [str(problem) for problem in document.problems] == []
    spec = document.spec
    assert spec is not None and spec.code is not None
    code = path.parent / spec.code.path
    assert code.is_dir()
    assert spec.script is None or (code / spec.script).is_file()
    assert spec.timeout is not None, "an example without a time limit teaches a bad habit"
    for pattern in spec.metrics.values():
        assert re.compile(pattern).groups == 1


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_every_key_of_a_spec_is_explained(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.startswith("# ")
    assert text.count("#") >= 8


def test_example_finds_and_names() -> None:
    assert example("digits").parent == examples_folder()
    with pytest.raises(NotFoundError) as caught:
        example("digit")
    assert "digits" in caught.value.remedy


def test_metrics_of_the_digits_spec_match_what_the_script_prints(tmp_path: Path) -> None:
    code, text = finish(digits(tmp_path, "--epochs", "2"))
    assert code == 0, text
    spec = read_spec(example("digits").read_text(encoding="utf-8"), "digits.yaml").spec
    assert spec is not None
    for name, pattern in spec.metrics.items():
        assert len(re.findall(pattern, text)) >= 2, name


def test_digits_really_learns_and_leaves_whole_files(tmp_path: Path) -> None:
    code, text = finish(digits(tmp_path, "--epochs", "6"))
    assert code == 0, text
    rows = LINE.findall(text)
    assert [int(epoch) for epoch, _, _ in rows] == [1, 2, 3, 4, 5, 6]
    assert float(rows[-1][2]) > 0.93
    names = sorted(path.name for path in (tmp_path / "ckpt").iterdir())
    assert names == [f"step-{int(step):06d}.npz" for _, step, _ in rows]
    assert all(zipfile.is_zipfile(tmp_path / "ckpt" / name) for name in names)
    assert json.loads((tmp_path / "metrics.json").read_text())["step"] == int(rows[-1][1])


def test_digits_resumed_ends_as_if_never_stopped(tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    whole.mkdir()
    parts.mkdir()
    assert finish(digits(whole, "--epochs", "4"))[0] == 0
    assert finish(digits(parts, "--epochs", "2"))[0] == 0
    newest = max((parts / "ckpt").iterdir())
    code, text = finish(digits(parts, "--epochs", "4", JOBRUNNER_RESUME_FROM=str(newest)))
    assert code == 0 and "going on from" in text
    assert json.loads((whole / "metrics.json").read_text()) == json.loads((parts / "metrics.json").read_text())


def test_digits_saves_when_asked_to_stop(tmp_path: Path) -> None:
    process = digits(tmp_path, "--epochs", "50", "--pace", "0.02")
    assert process.stdout is not None
    deadline = time.monotonic() + 30
    while not LINE.search(line := process.stdout.readline()):
        assert line and time.monotonic() < deadline, "no epoch was finished"
    process.send_signal(signal.SIGTERM)
    code, text = finish(process)
    assert code == 128 + signal.SIGTERM
    saved = re.search(r"asked to stop: saved step (\d+)", text)
    assert saved and (tmp_path / "ckpt" / f"step-{int(saved.group(1)):06d}.npz").is_file()
    assert not list((tmp_path / "ckpt").glob("*.part"))


def test_digits_refuses_a_broken_checkpoint(tmp_path: Path) -> None:
    broken = tmp_path / "step-000001.npz"
    broken.write_bytes(b"PK\x03\x04 half of a file")
    code, _ = finish(digits(tmp_path, JOBRUNNER_RESUME_FROM=str(broken)))
    assert code == 1
    assert not (tmp_path / "metrics.json").exists()


def test_llama_factory_settings_agree_with_the_job() -> None:
    folder = REPOSITORY / "job_specs" / "llama_factory"
    spec = read_spec((REPOSITORY / "job_specs/llama_factory_mlu.yaml").read_text(encoding="utf-8"), "x").spec
    assert spec is not None
    assert spec.env["NPROC_PER_NODE"] == str(spec.card_count)
    settings = (folder / "sft.yaml").read_text(encoding="utf-8")
    data = json.loads((folder / "data/dataset_info.json").read_text())
    assert re.search(r"^dataset: (\w+)$", settings, re.M).group(1) in data  # type: ignore[union-attr]
    assert all((folder / "data" / entry["file_name"]).is_file() for entry in data.values())
    zero = re.search(r"^deepspeed: (\S+)$", settings, re.M)
    assert zero and json.loads((folder / zero.group(1)).read_text())["zero_optimization"]["stage"] == 2
