"""Cards of a real queue: strays are told, cards set aside, sets that never fit are said, a newer agent takes over."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jobrunner.agent import stray
from jobrunner.agent.layout import lock_name
from jobrunner.lab.simcards import tools_dir, write_lab
from tests.support.agentproc import REPO, AgentHost, agent_host, job, until
from tests.support.running import Runs, kill
from tests.support.users import HOLD, go, up

LASTING = f"sleep 60 & {HOLD}; kill $!"  # a tool names processes that live on: HOLD's own are gone when asked about


class Cards:
    """A host with simulated cards."""

    def __init__(self, host: AgentHost, lab: Path, count: int = 4, **overrides: Any) -> None:
        self.lab, self.host = lab, host
        write_lab(lab, "npu", count, **overrides)
        self.runs = Runs(host, PATH=f"{tools_dir()}:{os.environ['PATH']}", JOBRUNNER_LAB=str(lab))

    def report(self) -> dict[str, Any]:
        found: dict[str, Any] = self.runs.channel.ask("look", jobs=[], cards=True, max_age_s=0)["cards"]
        return found

    def codes(self, job_id: str) -> dict[str, str]:
        findings = self.runs.channel.ask("why", id=job_id)["findings"]
        return {finding["code"]: finding["summary"] for finding in findings}


@pytest.fixture
def cards(tmp_path: Path) -> Iterator[Cards]:
    with agent_host(tmp_path) as host:
        yield Cards(host, tmp_path / "lab")


def test_a_job_on_a_card_that_is_not_its_own_is_warned(cards: Cards) -> None:
    """Nothing is queued and nobody looks at the cards: its own supervisor does, soon after the start."""
    runs = cards.runs
    runs.submit("aother001", LASTING, device="npu", cards=1)
    assert up(runs, "aother001") == [0]
    runs.submit("astray001", LASTING, device="npu", cards=1, env={"JOBRUNNER_LAB_OPENS": "0,1"})
    assert up(runs, "astray001") == [1]
    began = time.monotonic()
    (text,) = until(lambda: runs.view("astray001")["warnings"], what="the warning")
    assert text.startswith("it uses card 0, which is not its own (it was given 1): ")
    assert time.monotonic() - began < stray.CHECKS_S[0] + 10
    (victim,) = runs.view("aother001")["warnings"]
    assert victim.startswith("on its card 0 runs a process that is not of this job: my job astray001's ")
    cards.report()
    for job_id, code in (("astray001", "stray"), ("aother001", "stranger")):
        (event,) = [event for event in runs.events(job_id) if event["kind"] == "warning"]
        assert (event["code"], event["card"]) == (code, 0), "once, however often it is seen"
    for job_id in ("aother001", "astray001"):
        go(runs, job_id)
        assert runs.final(job_id)["state"] == "COMPLETED"


def test_a_stranger_on_a_running_jobs_card_is_told(cards: Cards) -> None:
    cards.runs.submit("avictim01", HOLD, device="npu", cards=1)
    assert up(cards.runs, "avictim01") == [0]
    write_lab(cards.lab, "npu", 4, cards={0: {"processes": [{"pid": 1, "name": "train", "memory_mb": 900}]}})
    cards.report()
    (text,) = cards.runs.view("avictim01")["warnings"]
    assert text == "on its card 0 runs a process that is not of this job: root's train (pid 1)"
    go(cards.runs, "avictim01")
    cards.runs.final("avictim01")


def test_a_job_that_keeps_to_its_cards_hears_nothing(cards: Cards) -> None:
    cards.runs.submit("atidy0001", f"setsid sleep 60 & {HOLD}", device="npu", cards=2)
    assert up(cards.runs, "atidy0001") == [0, 1]
    shown = cards.report()["cards"]
    assert all(card["processes"] for card in shown[:2]) and not any(card["processes"] for card in shown[2:])
    assert cards.runs.view("atidy0001")["warnings"] == []
    go(cards.runs, "atidy0001")
    cards.runs.final("atidy0001")


def test_a_job_that_leaves_its_cards_alone_is_told(cards: Cards) -> None:
    """Its own supervisor looks after five minutes; whoever looks at the cards makes it earlier here."""
    cards.host.root.mkdir(exist_ok=True)
    (cards.host.root / "settings.json").write_text('{"unused_after_s": 1}')
    runs = cards.runs
    runs.submit("acpu00001", HOLD, device="npu", cards=1, env={"JOBRUNNER_LAB_OPENS": "none"})
    runs.submit("anpu00001", HOLD, device="npu", cards=1)
    assert (up(runs, "acpu00001"), up(runs, "anpu00001")) == ([0], [1])
    until(lambda: cards.report() and runs.view("acpu00001")["warnings"], what="the warning")
    assert runs.view("acpu00001")["warnings"] == [
        "nothing uses its card 0, 1 minute after its command began: it may compute on the CPU"
    ]
    assert runs.view("anpu00001")["warnings"] == []
    for job_id in ("acpu00001", "anpu00001"):
        go(runs, job_id)
        assert runs.final(job_id)["state"] == "COMPLETED"


BAD_CARD = 'test "$JOBRUNNER_CARDS" != 0'


def test_a_card_on_which_jobs_die_at_start_is_set_aside(cards: Cards) -> None:
    runs = cards.runs
    for number in range(3):
        runs.submit(f"adying00{number}", BAD_CARD, device="npu", cards=1)
        assert runs.final(f"adying00{number}")["state"] == "FAILED"
        assert runs.view(f"adying00{number}")["cards"] == [0]
    card = cards.report()["cards"][0]
    assert not card["free"] and card["why_busy"].startswith("set aside until 2")
    assert "the last jobs on it (adying000, adying001, adying002) died at their start" in card["why_busy"]
    runs.submit("awell0001", BAD_CARD, device="npu", cards=1)
    assert runs.final("awell0001")["state"] == "COMPLETED" and runs.view("awell0001")["cards"] == [1]
    runs.submit("aboth0001", HOLD, device="npu", card_ids=[0, 1], cards=2)
    codes = until(lambda: (found := cards.codes("aboth0001")) and "broken" in found and found, what="why")
    assert codes["aside"].startswith("card 0: set aside until")
    assert runs.channel.ask("drain", on=False) == {"drained": False}, "the way back"
    assert up(runs, "aboth0001") == [0, 1]
    go(runs, "aboth0001")
    assert runs.final("aboth0001")["state"] == "COMPLETED"


def test_a_bad_script_sets_no_host_aside(cards: Cards) -> None:
    """It dies on every card: it is the script."""
    ids = [f"abroken{number:02d}" for number in range(16)]
    cards.runs.channel.stage([job(id_, command={"argv": ["false"]}, device="npu", cards=1) for id_ in ids], None)
    views = cards.runs.channel.ask("wait", ids=ids, timeout_s=60)["jobs"]
    assert {(view["state"], view["reason"]) for view in views.values()} == {("FAILED", "exit")}
    assert {card for view in views.values() for card in view["cards"]} == {0, 1, 2, 3}
    assert all(card["free"] for card in cards.report()["cards"])


def test_a_tool_that_lags_does_not_stop_the_next_job(cards: Cards) -> None:
    """After my job's end the tool still shows its process and its memory."""
    write_lab(cards.lab, "npu", 1)
    runs = cards.runs
    runs.submit("afirst001", HOLD, device="npu", cards=1)
    assert up(runs, "afirst001") == [0]
    go(runs, "afirst001")
    runs.final("afirst001")
    write_lab(cards.lab, "npu", 1, cards={0: {"processes": [{"pid": 4_000_000, "name": "python", "memory_mb": 9000}]}})
    assert cards.report()["cards"][0]["free"]
    runs.submit("asecond01", "true", device="npu", cards=1)
    assert runs.final("asecond01")["state"] == "COMPLETED"
    (cards.host.root / "settings.json").write_text('{"linger_s": 0, "idle_margin_mb": "much"}')
    report = cards.report()
    assert "python (pid 4000000" in report["cards"][0]["why_busy"], "after a while it is somebody's"
    assert any("idle_margin_mb cannot be 'much'" in text for text in report["warnings"])


def test_sets_that_never_fit_are_said_at_submit_and_after(tmp_path: Path) -> None:
    with agent_host(tmp_path) as host:
        cards = Cards(host, tmp_path / "lab", 8, model="910A")
        runs = cards.runs
        runs.submit("anever001", HOLD, device="npu", cards=3)
        (text,) = until(lambda: runs.view("anever001")["warnings"], what="the warning after the first reading")
        assert text.startswith("a job on 910A takes 1, 2, 4, 8 cards, not 3") and text.endswith("never start here")
        view = runs.submit("anever002", HOLD, device="npu", cards=9)
        assert view["warnings"] == ["it wants 9 cards and this host has 8: it can never start here"], "at once"
        assert runs.submit("afits0001", HOLD, device="npu", cards=4)["warnings"] == []
        assert up(runs, "afits0001") == [0, 1, 2, 3]
        runs.submit("aring0001", HOLD, device="npu", cards=1)
        assert up(runs, "aring0001") == [4]
        runs.submit("aring0002", HOLD, device="npu", cards=4)
        codes = cards.codes("aring0002")
        assert codes["cards"] == "it wants 4 cards, and of those that it may have 3 are free"
        go(runs, "afits0001")
        assert up(runs, "aring0002") == [0, 1, 2, 3]
        for job_id in ("aring0001", "aring0002"):
            go(runs, job_id)


def agent_copy(host: AgentHost, name: str, **changes: str) -> Path:
    """An unpacked agent under the root, some of whose constants differ."""
    place = host.root / "agent" / f"agent-{name}"
    shutil.copytree(REPO / "jobrunner/agent", place / "jobrunner/agent", ignore=shutil.ignore_patterns("__pycache__"))
    (place / "jobrunner/__init__.py").touch()
    for constant, text in changes.items():
        file, _, name = constant.partition("__")
        path = place / "jobrunner/agent" / f"{file}.py"
        source = path.read_text()
        assert f"\n{name} = 1\n" in source
        path.write_text(source.replace(f"\n{name} = 1\n", f"\n{name} = {text}\n"))
    return place


def test_a_dispatcher_hands_over_to_a_newer_agent(tmp_path: Path) -> None:
    """Two agents side by side: the older one's dispatcher meets an entry of the newer one's format."""
    with agent_host(tmp_path) as host:
        old, new = agent_copy(host, "aaaa1111"), agent_copy(host, "bbbb2222", jobs__FORMAT="2")
        host.place = old
        runs = Runs(host)
        runs.submit("aolder001", HOLD, limits={"cpu_jobs": 4})
        up(runs, "aolder001")
        until(lambda: not runs.dispatcher(), what="the end of the first dispatcher, as nothing waits")
        runs.channel.ask("wish", ids=[], kind="hold")
        runs.submit("awaits001", "true", after=[{"job": "aolder001", "when": "any"}], limits={"cpu_jobs": 4})
        dispatcher = until(runs.dispatcher, what="the old dispatcher")
        assert place_of(dispatcher) == str(old)
        host.place = new
        newer = Runs(host)
        entry = job("anewer001", command={"shell": HOLD}, limits={"cpu_jobs": 4})
        entry["request"].update(v=2, agent="bbbb2222")
        newer.channel.stage([entry], None)
        up(newer, "anewer001")
        assert place_of(dispatcher) == str(new), "the same process, another agent"
        assert (
            lock_name("dispatcher", host.home.name)[1:].decode() + f"@{host.scope}"
            in Path("/proc/net/unix").read_text()
        )
        assert json.loads((host.job("anewer001") / "1/start.json").read_text())["v"] == 2
        go(newer, "aolder001")
        assert newer.final("aolder001")["state"] == "COMPLETED", "a job of the old one goes on under its supervisor"
        assert newer.final("awaits001")["state"] == "COMPLETED"
        go(newer, "anewer001")
        assert newer.final("anewer001")["state"] == "COMPLETED"
        until(lambda: not runs.dispatcher(), what="the dispatcher ends")


def place_of(pid: int) -> str:
    words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    return words[words.index(b"-c") + 2].decode()


def test_a_newer_format_whose_agent_is_not_here_waits_quietly(tmp_path: Path) -> None:
    with agent_host(tmp_path) as host:
        host.drain()
        runs = Runs(host)
        entry = job("anewer001")
        entry["request"].update(v=2, agent="cccc3333")
        runs.channel.stage([entry], None)
        runs.channel.ask("drain", on=False)
        runs.submit("amine0001", "true")
        assert runs.final("amine0001")["state"] == "COMPLETED"
        assert runs.view("anewer001")["state"] == "QUEUED"
        assert runs.channel.ask("why", id="anewer001")["findings"][0]["code"] == "format"
        pid = until(runs.dispatcher, what="a dispatcher")
        before = Path(f"/proc/{pid}/stat").read_text().split()[13:15]
        time.sleep(1)
        after = Path(f"/proc/{pid}/stat").read_text().split()[13:15]
        assert int(after[0]) + int(after[1]) - int(before[0]) - int(before[1]) <= 2, "it sleeps"
        kill(pid)


@pytest.mark.parametrize("name", ["order", "limits", "succession", "yielding", "cardlog", "why"])
def test_what_decides_touches_no_files_at_import(name: str) -> None:
    """Loading them starts nothing and reads nothing but modules; under the oldest Python, too, see the syntax."""
    done = subprocess.run(
        [sys.executable, "-I", "-c", f"import sys; sys.path.insert(0, {str(REPO)!r}); import jobrunner.agent.{name}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
