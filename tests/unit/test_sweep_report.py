"""A sweep's report: its data by values, and a page that is whole, loads nothing, and runs nothing of what it shows."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from jobrunner.core.errors import JobrunnerError, NotFoundError
from jobrunner.core.jobs import JobRow
from jobrunner.core.states import JobState
from jobrunner.ledger.metrics import Sample
from jobrunner.ledger.sweeps import Trial
from jobrunner.service.session import open_session
from jobrunner.service.sweeps import html, importance, report
from jobrunner.service.sweeps.report import Parameter, SweepReport
from jobrunner.service.sweeps.view import TrialView

from ..support.sweepsample import SPACE, Ran, digits_like, write

AT = datetime(2026, 12, 1, tzinfo=timezone.utc)
NAN, INF = math.nan, math.inf


def made(home: Path, trials: list[Ran], space: Any = None, **more: Any) -> SweepReport:
    word = write(home, trials, space=space or {"lr": {"min": 0, "max": 1}}, **more)
    with open_session(home=home, environ={}) as session:
        return report.report(session, word, offline=True)


def one(number: int, value: float | None, state: str = "COMPLETED", status: str | None = None, **lr: str) -> TrialView:
    trial = Trial("s", number, f"p{number}", lr or {"lr": str(number)}, "j", status)
    return TrialView(trial, JobRow("j", "t", JobState(state)), None if value is None else Sample("loss", 1.0, value))


def test_the_best_so_far_goes_by_numbers_and_leaves_out_what_does_not_count() -> None:
    trials = [
        one(3, 0.2, "FAILED"), one(2, 0.5), one(0, NAN), one(1, 0.7), one(4, 0.1, "RUNNING"), one(5, None),
        one(6, 0.4, "CANCELLED", "stopped"), one(7, 0.3, "CANCELLED", "paused"), one(8, INF),
    ]  # fmt: skip
    steps = report.history(trials, "min")
    assert [(step.number, step.best, step.early) for step in steps] == [
        (0, None, False), (1, 0.7, False), (2, 0.5, False), (6, 0.4, True), (8, 0.4, False),
    ]  # fmt: skip
    assert [step.best for step in report.history(trials, "max")] == [None, 0.7, 0.7, 0.7, INF]


def test_axes_follow_the_spec_and_reach_over_what_ran() -> None:
    space = {"lr": {"min": 0.01, "max": 0.1, "scale": "log"}, "batch": ["128", "32"], "opt": ["sgd", "adam"]}
    trials = [one(0, 1.0, lr="0.5", batch="64", opt="new"), one(1, 1.0, lr="0.02", batch="32", opt="adam")]
    assert report.parameters_of(space, trials) == [
        Parameter("lr", "number", "log", 0.01, 0.5),
        Parameter("batch", "category", values=("32", "64", "128")),
        Parameter("opt", "category", values=("sgd", "adam", "new")),
    ]
    points = [one(at, 1.0, lr=str(10**at), few=str(at % 2)) for at in range(9)]
    assert report.parameters_of([{"lr": "1"}], points) == [
        Parameter("lr", "number", "log", 1.0, 1e8),
        Parameter("few", "category", values=("0", "1")),
    ]
    odd = report.parameters_of({"lr": {"min": "x", "max": None}}, [one(0, 1.0, lr="nan")])
    assert odd == [Parameter("lr", "category", values=("nan",))]


def test_what_is_left_of_much_keeps_ends_and_extremes() -> None:
    ranked = [one(at, float(at)) for at in range(1000)]
    kept = [item.trial.number for item in report.chosen(ranked, 30)]
    assert kept[:10] == list(range(10)) and kept[-1] == 999 and len(kept) == len(set(kept)) == 30
    points = [(float(at), math.sin(at / 40)) for at in range(5000)]
    points[2345] = (2345.0, 99.0)
    thin = report.thinned(points, 120)
    assert len(thin) <= 120 and thin[0] == points[0] and thin[-1] == points[-1] and (2345.0, 99.0) in thin
    assert thin == sorted(thin) and report.thinned(points[:50], 120) == points[:50]


def test_curves_and_trials_of_a_report(tmp_path: Path) -> None:
    trials = [
        Ran({"lr": "0.1"}, [0.9, NAN, INF, 0.4]),
        Ran({"lr": "0.2"}, [0.9, 0.8], "CANCELLED", "stopped"),
        Ran({"lr": "0.3"}, [], "FAILED", reason="oom"),
        Ran({"lr": "0.4"}, [0.2], "RUNNING"),
    ]
    data = json.loads(json.dumps(made(tmp_path, trials, state="running").as_json(), allow_nan=False))
    assert data["metric"] == "val_loss" and data["direction"] == "min"
    curves = {curve["number"]: curve["points"] for curve in data["curves"]["shown"]}
    assert curves == {0: [[1, 0.9], [2, "nan"], [3, "inf"], [4, 0.4]], 1: [[1, 0.9], [2, 0.8]], 3: [[1, 0.2]]}
    assert data["curves"]["told"] == 3
    outcomes = {trial["number"]: (trial["outcome"], trial["rank"], trial["seconds"]) for trial in data["trials"]}
    assert outcomes[1] == ("stopped", 3, 6.4) and outcomes[2][:2] == ("failed", None) and outcomes[3][2] is None
    assert data["history"][-1] == {"number": 1, "value": 0.8, "best": 0.4, "stopped_early": True}
    assert data["importance"]["method"] is None and "there are 2" in data["importance"]["note"]


def test_what_matters_comes_first_with_optuna_and_without(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("sklearn")
    parameters = [Parameter("noise", "number", low=0, high=1), Parameter("kind", "category", values=("a", "b"))]
    views = [one(at, at % 2 + at / 1e3, noise=str((at * 7 % 40) / 40), kind="ab"[at % 2]) for at in range(40)]
    views[3] = one(3, NAN, **views[3].trial.parameters)
    found = importance.importance(parameters, views, "min")
    assert found.method == "fanova" and list(found.shares) == ["kind", "noise"] and "40 trials" in found.note
    assert found.shares["kind"] > 0.8 and sum(found.shares.values()) == pytest.approx(1)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    alone = importance.importance(parameters, views, "max")
    assert alone.method == "alone" and "pip install" in alone.note
    assert alone.shares["kind"] > 0.5 > 0.2 > alone.shares["noise"]


def test_nothing_is_said_of_what_nobody_can_know() -> None:
    parameters = [Parameter("lr", "number", low=0, high=100)]
    few = importance.importance(parameters, [one(at, float(at)) for at in range(19)], "min")
    same = importance.importance(parameters, [one(at, 1.0) for at in range(30)], "min")
    point = importance.importance(parameters, [one(at, float(at), lr="1") for at in range(30)], "min")
    assert [item.method for item in (few, same, point)] == [None, None, None]
    assert "needs 20" in few.note and "nothing to compare" in same.note == point.note
    assert importance.ranks([0.5, NAN, 0.1, 0.5], "min") == [1.5, 3.0, 0.0, 1.5]
    assert importance.ranks([0.5, NAN, 0.1, INF], "max") == [1.0, 3.0, 2.0, 0.0]
    assert importance.explained(["a", "b"], [1.0, 2.0]) == 0.0


EVIL = '</script><script>alert(1)</script><img src="https://evil.example/x" onerror=alert(2)>&amp;\u2028'


def embedded(page: str) -> Any:
    (text,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)
    return json.loads(text)


def test_the_page_is_whole_and_takes_text_for_text(tmp_path: Path) -> None:
    trials = [Ran({EVIL: EVIL, "b": text}, [0.5 + at]) for at, text in enumerate(("nan", "inf", "%%DATA%%", ""))]
    result = made(tmp_path, trials, {EVIL: [EVIL]}, name=EVIL, objective="val_loss max best")
    page = html.page(result, AT)
    data = embedded(page)
    assert data["parameters"][0]["name"] == EVIL and data["sweep"]["name"] == EVIL
    assert [row[-1][1] for row in data["trials"]] == ["", "%%DATA%%", "inf", "nan"]
    assert page.count("</script>") == page.count("<script") == 2 and "<img" not in page and "%%POLICY" not in page
    shell = page.replace(re.findall(r'id="data">(.*?)</script>', page, re.S)[0], "")
    shell = re.sub(r"<title>.*?</title>", "", shell)
    assert not re.search(r"https?:|//[a-z]|\bsrc=|\bhref=|@import|url\(|innerHTML|document\.write|eval\(", shell)


def test_only_its_own_script_and_style_may_run(tmp_path: Path) -> None:
    page = html.page(made(tmp_path, digits_like(3), SPACE), AT)
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="(.*?)"', page)
    assert policy.startswith("default-src 'none'") and "unsafe" not in policy
    for tag, rule in ((r"<style>(.*?)</style>", "style-src"), (r"</script>\s*<script>(.*?)</script>", "script-src")):
        (text,) = re.findall(tag, page, re.S)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{rule} 'sha256-{digest}'" in policy
    assert "style=" not in page, "such a style would be refused by the policy"


@pytest.mark.parametrize(
    ("trials", "objective"),
    [
        ([], "val_loss min"),
        ([Ran({"lr": "0.1"}, [0.5])], "val_loss min"),
        ([Ran({"lr": "0.1"}, [NAN]), Ran({"lr": "0.2"}, [INF])], "val_loss min"),
        ([Ran({"lr": "0.1"}, [], "FAILED")] * 1, "val_loss min"),
        ([Ran({"lr": "0.1"}, [0.5])], None),
    ],
    ids=["none", "one", "nothing finite", "all failed", "no objective"],
)
def test_little_is_no_trouble(tmp_path: Path, trials: list[Ran], objective: str | None) -> None:
    result = made(tmp_path, trials, objective=objective)
    data = embedded(html.page(result, AT))
    assert len(data["trials"]) == len(trials) and data["metric"] == (objective and "val_loss")


def test_a_thousand_trials_are_a_page_of_bounded_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "importance", lambda *_: None)  # its time is measured elsewhere
    result = made(tmp_path, digits_like(1000), SPACE)
    page = html.page(result, AT)
    assert len(page) < 600_000 and len(result.curves) == report.MOST_CURVES and result.told > 900
    monkeypatch.setattr(html, "MOST_TRIALS", 200)
    data = embedded(html.page(result, AT))
    ranks = [row[data["keys"].index("rank")] for row in data["trials"]]
    assert ranks == list(range(1, 201)) and data["all_trials"] == 1000


def test_a_page_that_cannot_be_written_says_so_and_leaves_nothing(tmp_path: Path) -> None:
    result = made(tmp_path, digits_like(2), SPACE)
    assert html.write(result, tmp_path / "a.html", AT) == (tmp_path / "a.html").stat().st_size
    with pytest.raises(JobrunnerError, match="writing the report"):
        html.write(result, tmp_path / "no" / "a.html", AT)
    (tmp_path / "folder").mkdir()
    with pytest.raises(JobrunnerError, match="writing the report"):
        html.write(result, tmp_path / "folder", AT)
    assert not list(tmp_path.glob(".*.part"))


def test_no_such_sweep(tmp_path: Path) -> None:
    with open_session(home=tmp_path, environ={}) as session, pytest.raises(NotFoundError):
        report.report(session, "nothing", offline=True)


def test_a_trial_that_went_on_after_a_pause_is_one_curve(tmp_path: Path) -> None:
    trials = [Ran({"lr": "1"}, [0.5, 0.3], more={"goes_on": "job0000001"}), Ran({"lr": "2"}, [0.9, 0.8])]
    result = made(tmp_path, trials, early_stop={"pause": True})
    curves = {curve.number: [value for _, value in curve.points] for curve in result.curves}
    assert curves == {0: [0.9, 0.8, 0.5, 0.3], 1: [0.9, 0.8]}
