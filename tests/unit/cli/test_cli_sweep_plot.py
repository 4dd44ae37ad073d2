"""`sweep plot` in a terminal, in a pipe, in an ASCII locale, as a page and as data."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from jobrunner.cli.chart import Axis, Look, plain, scatter, sparkline

from ...support.sweepsample import SPACE, Ran, digits_like, write


def plot(home: Path, *words: str, code: int = 0, **env: str) -> subprocess.CompletedProcess[bytes]:
    done = subprocess.run(
        [sys.executable, "-m", "jobrunner", "sweep", "plot", *words],
        env={**os.environ, "JOBRUNNER_HOME": str(home), "JOBRUNNER_HOSTS": str(home / "none.yaml"), **env},
        cwd=home,
        capture_output=True,
        timeout=60,
    )
    assert done.returncode == code, done.stderr.decode()
    return done


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("home")
    write(folder, digits_like(12), space=SPACE)
    return folder


def test_a_pipe_gets_charts_without_colour(home: Path) -> None:
    text = plot(home, "digits-sweep", "--offline", PYTHONUTF8="1").stdout.decode("utf-8")
    assert "val_loss: best so far, over" in text and "→" in text and "█" in text and "\x1b" not in text
    assert all(f"val_loss over {name}" in text for name in SPACE) and "(logarithms of lr" in text
    assert max(map(len, text.splitlines()[1:])) <= 80
    (labels,) = (line.split() for line in text.splitlines() if "adam" in line)
    assert labels == ["adam", "sgd", "lamb"]


def test_an_ascii_locale_gets_ascii(home: Path) -> None:
    text = plot(home, "digits-sweep", "--offline", PYTHONIOENCODING="ascii").stdout.decode("ascii")
    assert "->" in text and "@ best" in text and "*" in text and "\\u" not in text


def test_a_page_and_its_data(home: Path) -> None:
    data = json.loads(plot(home, "digits-sweep", "--offline", "--html", "--json").stdout)["data"]
    file = home / "digits-sweep-sweepaaaaa.html"
    assert data["html"] == str(file) and file.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert len(data["trials"]) == 12 and data["curves"]["shown"] and data["history"]
    said = plot(home, "digits-sweep", "--offline", "--html", "--to", "other.html")
    assert said.stdout == b"" and b"other.html" in said.stderr and (home / "other.html").is_file()
    assert b"--html is missing" in plot(home, "digits-sweep", "--to", "x.html", code=2).stderr


@pytest.mark.parametrize(
    ("more", "says"),
    [({"objective": None}, b"has no objective"), ({}, b"has told val_loss yet")],
    ids=["no objective", "nothing told"],
)
def test_nothing_to_draw_is_said(tmp_path: Path, more: dict[str, Any], says: bytes) -> None:
    write(tmp_path, [Ran({"lr": "1"}, [], "FAILED")], space={"lr": ["1"]}, **more)
    assert says in plot(tmp_path, "digits-sweep", "--offline").stderr


def test_a_scatter_marks_the_best_and_counts_what_it_cannot_draw() -> None:
    look = Look(columns=40, rows=4, braille=False)
    rows = plain(scatter("t", [(1, 0.1), (100, 1e3), (10, float("nan"))], look, across=Axis(log=True), log=True))
    assert rows[1].startswith("1000 |") and rows[1].endswith("*") and rows[4].startswith(" 0.1 |@")
    assert rows[5].split() == ["1", "100"] and "1 not finite" in rows[6]
    many = Axis(words=tuple(f"value-{at}" for at in range(30)))
    assert plain(scatter("t", [(0, 1.0), (29, 2.0)], look, across=many))[5].split() == ["value-0", "value-29"]
    assert plain(scatter("t", [], look, across=Axis())) == ["t", "  no finite values"]


def test_a_sparkline_in_ascii() -> None:
    assert sparkline([1.0, 2.0, 8.0], 10, ascii_only=True) == "_.#"
