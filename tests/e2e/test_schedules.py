"""Schedules against a real host: each due time once, whatever happens; models are kept only if they are better."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from jobrunner.core.duetimes import instant, stamp
from jobrunner.ledger import Ledger
from jobrunner.service.clock import now
from jobrunner.service.session import open_session
from jobrunner.service.submitters import Submitter
from jobrunner.service.tick import TickResult, tick
from tests.support.lab import Client, Lab, end
from tests.support.quick import QuickClient
from tests.support.waiting import eventually

pytestmark = pytest.mark.needs_sshd
MINUTE = timedelta(minutes=1)
CPU = "device: cpu\ncode: null\nschedule: {cron: '* * * * *', timezone: UTC%s}\ncommand: %s\n"


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with Lab(tmp_path_factory.mktemp("lab")) as host:
        yield host


@pytest.fixture
def client(lab: Lab, tmp_path: Path) -> QuickClient:
    return QuickClient(tmp_path / "client", lab, lab={"cpu_jobs": 16})


class Clock:
    """Ticks of a client at times of our own; the first comes a second after the next whole minute."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.now = (datetime.now(timezone.utc) + MINUTE).replace(second=1, microsecond=0)

    def tick(self, later: timedelta = timedelta(0)) -> TickResult:
        self.now += later
        home, hosts = Path(self.client.env["JOBRUNNER_HOME"]), Path(self.client.env["JOBRUNNER_HOSTS"])
        environ = {name: value for name, value in self.client.env.items() if name != "SECRET_WORD"}
        with open_session(home=home, hosts_file=hosts, environ=environ) as session:
            return tick(session, stamp(self.now))


def add(client: Client, command: str = "'true'", rules: str = "", more: str = "", name: str = "nightly") -> str:
    text = CPU % (f", {rules}" if rules else "", command) + more
    return str(client.json("schedule", "add", str(client.spec(text, name)))["schedules"][0]["id"])


def history(client: Client, id_: str) -> list[dict[str, Any]]:
    """Oldest first."""
    return list(reversed(client.json("schedule", "history", id_)["runs"]))


def test_the_commands_of_a_schedule(client: QuickClient) -> None:
    spec = client.spec(CPU % ("", "'true'"), "nightly")
    refused = client.json("submit", str(spec), code=2)["errors"][0]["message"]
    assert f"{spec}:4:1" in refused and "jobrunner schedule add" in refused
    [made] = client.json("schedule", "add", str(spec), "--set", "schedule.cron=0 3 * * 1-5")["schedules"]
    assert (made["name"], made["state"], made["cron"]) == ("nightly", "active", "0 3 * * 1-5")
    [listed] = client.json("schedule", "ls")["schedules"]
    assert (
        listed == made and json.loads((client.folder / "state/schedules" / f"{made['id']}.json").read_text())["v"] == 1
    )
    times = client.json("schedule", "next", "nightly", "-n", "3")["times"]
    assert len(times) == 3 and all("T03:00:00" in item["local"] for item in times)
    assert client.json("schedule", "pause", "nightly")["schedules"][0]["next"] is None
    assert "paused" in client.run("schedule", "ls").stdout
    assert client.json("schedule", "resume", made["id"][:5])["schedules"][0]["state"] == "active"
    ran = client.json("schedule", "run", "nightly")
    assert ran["run"]["manual"] and ran["jobs"][0]["schedule"] == made["id"]
    assert client.until(ran["jobs"][0]["id"], "COMPLETED")["schedule"] == made["id"]
    assert "by hand" in client.run("schedule", "history", "nightly").stdout
    client.run("schedule", "rm", "nightly")
    assert (
        client.json("schedule", "ls")["schedules"] == [] and len(client.json("schedule", "ls", "-a")["schedules"]) == 1
    )
    assert not list((client.folder / "state/schedules").glob("*.json"))
    assert client.json("schedule", "run", "nightly", code=2)["errors"][0]["code"] == "removed"
    assert client.json("schedule", "next", "other", code=5)["errors"][0]["code"] == "no_such_schedule"


def test_a_due_time_fires_once_whoever_asks_and_whatever_the_clock_does(client: QuickClient, lab: Lab) -> None:
    id_ = add(client)
    clock = Clock(client)
    [fired] = clock.tick().runs["fired"]
    assert fired["job"] and client.until(fired["job"], "COMPLETED")["schedule"] == id_
    assert clock.tick().runs["fired"] == [] and clock.tick(-MINUTE * 5).runs["fired"] == []
    assert clock.tick(MINUTE * 5).runs["fired"] == [], "the clock was set back and comes by again"
    again = clock.tick(MINUTE * 4)
    assert len(again.runs["fired"]) == 1 and len(again.runs["skipped"]) == 0
    runs = history(client, id_)
    assert [run["outcome"] for run in runs] == ["fired", "skipped", "skipped", "skipped", "fired"]
    assert "catch_up is latest" in runs[1]["why"] and runs[0]["job"] == fired["job"]
    request = json.loads((lab.job_folder(fired["job"]) / "request.json").read_text())
    assert request["schedule"] == {"id": id_, "name": "nightly", "due": runs[0]["due"], "manual": False}
    ahead = timedelta(days=400)
    client.until(again.runs["fired"][0]["job"], "COMPLETED")  # a run that is not over would have the next skipped
    [wrong] = clock.tick(ahead).runs["fired"]  # a clock that is wrong by a year
    client.until(wrong["job"], "COMPLETED")
    assert clock.tick(MINUTE - ahead).runs["fired"] == [] and len(clock.tick(MINUTE).runs["fired"]) == 1, (
        "and right again"
    )
    client.json("schedule", "pause", id_)
    assert clock.tick(MINUTE).runs["fired"] == []
    assert [run["why"] for run in history(client, id_) if run["due"] < stamp(clock.now)][-1] == "paused"


def test_runs_that_overlap(client: QuickClient) -> None:
    skip = add(client, "sleep 300", name="skips")
    queue = add(client, "sleep 300", "overlap: queue", name="queues")
    replaces = add(client, "sleep 300", "overlap: replace", name="replaces", more="grace: 0s\n")
    clock = Clock(client)
    first = {run["name"]: run["job"] for run in clock.tick().runs["fired"]}
    assert len(first) == 3
    second = clock.tick(MINUTE)
    assert [run["name"] for run in second.runs["fired"]] == ["replaces"]
    assert client.row(first["replaces"])["state"] == "CANCELLED"
    assert (
        f"job {first['skips']}" in history(client, skip)[-1]["why"]
        and history(client, skip)[-1]["outcome"] == "skipped"
    )
    waiting = history(client, queue)[-1]
    assert waiting["outcome"] == "waiting" and first["queues"] in waiting["why"]
    client.json("cancel", first["queues"], "--grace", "0s")
    assert [run["name"] for run in clock.tick().runs["fired"]] == ["queues"]
    assert history(client, replaces)[-1]["state"] in ("QUEUED", "RUNNING")
    client.run("schedule", "rm", "skips", "queues", "replaces")
    client.run("cancel", *(row["id"] for row in client.json("ls")["jobs"] if row["ended_at"] is None), "--grace", "0s")


def test_a_host_that_is_away_is_waited_for(client: QuickClient, lab: Lab) -> None:
    id_ = add(client)
    other = add(client, name="other")
    clock = Clock(client)
    lab.sshd.stop()
    try:
        away = clock.tick()
        assert away.runs["fired"] == [] and len(away.runs["waiting"]) == 2
        assert "waits for its host" in history(client, id_)[-1]["why"] == history(client, other)[-1]["why"]
        client.run("schedule", "rm", "other")
    finally:
        lab.sshd.start()
    [fired] = clock.tick(timedelta(seconds=30)).runs["fired"]
    [run] = history(client, id_)
    assert run["job"] == fired["job"] and "waits for its host" in run["why"]
    assert len(client.json("ls", "--all")["jobs"]) == 1


def test_a_missing_secret_is_said_and_nothing_is_sent(client: QuickClient) -> None:
    client.env["SECRET_WORD"] = "hush-hush"
    id_ = add(client, "echo $SECRET_WORD | tr a-z A-Z", more="secrets: [SECRET_WORD]\n")
    clock = Clock(client)
    [failed] = clock.tick().runs["failed"]
    assert "SECRET_WORD" in failed["why"] and client.json("ls", "--all")["jobs"] == []
    file = client.folder / "secrets.env"
    file.write_text("SECRET_WORD=hush-hush\n")
    file.chmod(0o600)
    [fired] = clock.tick(MINUTE).runs["fired"]
    client.until(fired["job"], "COMPLETED")
    assert client.log(fired["job"]) == b"HUSH-HUSH\n"
    assert [run["outcome"] for run in history(client, id_)] == ["failed", "fired"]
    assert b"hush-hush" not in (client.folder / "state" / "ledger.db").read_bytes()


def test_whoever_died_while_firing_leaves_no_run_out_and_none_double(client: QuickClient) -> None:
    id_ = add(client)
    clock = Clock(client)
    home = client.folder / "state"
    with Ledger(home / "ledger.db") as ledger:
        due = stamp(clock.now.replace(second=0))
        ledger.schedules.consider(id_, stamp(clock.now), [(due, "waiting", None)], now())
        [run] = ledger.schedules.open_runs()
        me = Submitter(home)
        assert ledger.schedules.claim(run, me.as_json(), now(), job="jobnever1")
        assert clock.tick().runs["fired"] == [], "its process lives"
        me.close()
        [fired] = clock.tick().runs["fired"]
        assert fired["job"] not in (None, "jobnever1") and client.row(fired["job"])["schedule"] == id_
        # The same with a job that has reached its host: it is taken for what it is.
        [run] = ledger.schedules.runs(id_)
        with ledger._store.write() as db:
            db.execute("UPDATE runs SET outcome = 'firing', fired_at = NULL, claimed_by = ?", ('{"token":"1-dead"}',))
        [again] = clock.tick().runs["fired"]
    assert again["job"] == fired["job"] and len(client.json("ls", "--all")["jobs"]) == 1


def test_pinned_code_stays_as_it_was_added(client: QuickClient) -> None:
    text = "device: cpu\nscript: say.sh\nschedule: {cron: '* * * * *', timezone: UTC, code: %s}\n"
    for name in ("latest", "pinned"):
        path = client.spec(text % name, name, say__sh="echo old\n", lib__txt="x", run__sh="echo unused\n")
        (path.parent / ".gitignore").write_text("*.txt\n")
        client.run("schedule", "add", str(path))
        (path.parent / "say.sh").write_text("echo new\n")
    fired = {run["name"]: run["job"] for run in Clock(client).tick().runs["fired"]}
    for id_ in fired.values():
        client.until(id_, "COMPLETED")
    assert (client.log(fired["latest"]), client.log(fired["pinned"])) == (b"new\n", b"old\n")
    client.run("schedule", "rm", "pinned")
    assert [path for path in (client.folder / "state/schedules/code").iterdir() if path.suffix != ".lock"] == []


def test_adopt_brings_schedules_back_and_repeats_nothing(client: QuickClient) -> None:
    id_, paused = add(client, rules="catch_up: all"), add(client, name="rests")
    client.run("schedule", "pause", "rests")
    clock = Clock(client)
    [fired] = clock.tick().runs["fired"]
    client.until(fired["job"], "COMPLETED")
    for path in (client.folder / "state").glob("ledger.db*"):
        path.unlink()
    lost = clock.tick()
    assert lost.runs["fired"] == [] and any("jobrunner adopt" in text for text in lost.warnings)
    client.run("adopt")
    assert {item["id"]: item["state"] for item in client.json("schedule", "ls")["schedules"]} == {
        id_: "active",
        paused: "paused",
    }
    assert clock.tick().runs["fired"] == []
    assert [run["job"] for run in history(client, id_)] == [fired["job"]]
    assert len(clock.tick(MINUTE).runs["fired"]) == 1


MODEL = """
import os, sys, pathlib
acc = os.environ["ACC"]
pathlib.Path("ckpt").mkdir()
for step in (1, 2):
    pathlib.Path(f"ckpt/m-{step}.pt").write_text(f"{acc} {step}")
    print(f"step={step} acc={acc if step == 1 else 0.1}", flush=True)
"""


def test_a_model_is_kept_only_if_it_is_better(client: QuickClient, lab: Lab) -> None:
    text = (
        "device: cpu\nscript: t.py\nenv: {ACC: 0.5}\ncheckpoints: {paths: ['ckpt/*.pt']}\n"
        "metrics: {acc: 'acc=(.+)', step: 'step=([0-9]+)'}\npromote: {metric: acc max, to: models/m, pull: true}\n"
        "schedule: {cron: '@daily', timezone: UTC}\n"
    )
    id_ = client.json("schedule", "add", str(client.spec(text, "model", t__py=MODEL)))["schedules"][0]["id"]
    top = lab.root / "models" / "m"
    clock = Clock(client)

    def train(acc: str) -> dict[str, Any]:
        with Ledger(client.folder / "state" / "ledger.db") as ledger, ledger._store.write() as db:
            db.execute("UPDATE schedules SET spec = json_set(spec, '$.env.ACC', ?)", (acc,))
        [row] = client.json("schedule", "run", "model")["jobs"]
        client.until(row["id"], "COMPLETED")
        [decision] = clock.tick().promotions
        assert decision["job"] == row["id"] and clock.tick().promotions == []
        return dict(decision)

    first = train("0.5")
    assert (first["decision"], first["value"], first["checkpoint"]) == ("promoted", 0.5, "m-1.pt"), first
    assert (top / "current" / "m-1.pt").read_text() == "0.5 1" and Path(first["pulled_to"]).read_text() == "0.5 1"
    worse = train("0.4")
    assert worse["decision"] == "kept" and "acc 0.4 is not better than 0.5" in worse["why"]
    better = train("0.75")
    assert better["decision"] == "promoted" and (top / "current" / "m-1.pt").read_text() == "0.75 1"
    assert (client.folder / "state/models/models-m/current/m-1.pt").read_text() == "0.75 1"
    listed = client.json("promote", "ls", "model")["promotions"]
    assert [(item["decision"], item["current"]) for item in listed] == [
        ("promoted", True), ("kept", False), ("promoted", False)
    ]  # fmt: skip
    assert [run["promoted"] for run in history(client, id_)] == [True, False, True]
    assert "is better than 0.5" in client.run("schedule", "history", "model").stdout
    [back] = client.json("promote", "rollback", "models/m")["promotions"]
    assert back["job"] == first["job"] and (top / "current" / "m-1.pt").read_text() == "0.5 1"
    assert (client.folder / "state/models/models-m/current/m-1.pt").read_text() == "0.5 1"
    assert client.json("promote", "rollback", "models/m", code=2)["errors"]
    client.json("promote", "rollback", "models/m", "--to", better["job"])
    assert (top / "current" / "m-1.pt").read_text() == "0.75 1"
    assert client.json("promote", "ls", "nowhere", code=5)["errors"][0]["code"] == "no_such_model"


def test_a_schedule_of_a_sweep_submits_a_sweep_each_time(client: QuickClient) -> None:
    text = (
        "device: cpu\ncode: null\ncommand: [echo, '{n}']\nsweep: {parameters: {n: [1, 2]}}\n"
        "schedule: {cron: '* * * * *', timezone: UTC}\n"
    )
    client.run("schedule", "add", str(client.spec(text, "grid")))
    clock = Clock(client)
    [fired] = clock.tick().runs["fired"]
    assert fired["job"] is None and fired["sweep"]
    rows = [row for row in client.json("ls", "--all")["jobs"] if row["sweep"] == fired["sweep"]]
    assert len(rows) == 2
    for row in rows:
        client.until(row["id"], "COMPLETED")
    assert any("is done" in text for text in clock.tick().sweeps)
    [again] = clock.tick(MINUTE).runs["fired"]
    assert again["sweep"] != fired["sweep"]


def test_checkpoints_that_are_wanted_here_come_by_themselves(client: QuickClient) -> None:
    text = "device: cpu\ncode: null\ncommand: echo x > m.pt\ncheckpoints: {paths: [m.pt], pull: last}\n"
    id_ = client.submit(text)
    client.until(id_, "COMPLETED")
    [pulled] = Clock(client).tick().pulled
    assert pulled["job"] == id_ and (Path(pulled["to"]) / "m.pt").read_text() == "x\n"
    assert Clock(client).tick().pulled == []


def test_serve_fires_what_was_missed_once_and_ends_at_once(client: QuickClient) -> None:
    id_ = add(client)
    with Ledger(client.folder / "state" / "ledger.db") as ledger:
        before = stamp(instant(now()) - MINUTE)
        ledger.schedules.consider(id_, before, [], before)
        with ledger._store.write() as db:
            db.execute("UPDATE schedules SET added_at = considered_until")
    paths = [client.folder / f"{name}.out" for name in "ab"]
    outs = [path.open("wb") for path in paths]
    both = [client.start("serve", "--json", stdout=out) for out in outs]
    try:
        eventually(lambda: any(path.stat().st_size for path in paths), 40, "a run that is told of")
        began = time.monotonic()
        end(both[0], signal.SIGTERM)
        end(both[1], signal.SIGINT)
        assert time.monotonic() - began < 5
    finally:
        for process, out in zip(both, outs, strict=True):
            process.kill()
            out.close()
    assert (both[0].returncode, both[1].returncode) == (0, 130)
    lines = [json.loads(line) for path in paths for line in path.read_text().splitlines()]
    assert [error["code"] for line in lines for error in line["errors"]] in ([], ["interrupted"])
    fired = [run for line in lines if line["data"] for run in line["data"]["runs"]["fired"]]
    due = [run["due"] for run in fired]
    assert due and len(set(due)) == len(due) and all((line["v"], line["command"]) == (1, "serve") for line in lines)
    assert len([run for run in history(client, id_) if run["outcome"] == "fired"]) == len(due)


def test_a_sweep_whose_firing_was_killed_goes_on_with_every_point_once(client: QuickClient) -> None:
    text = (
        "device: cpu\ncode: null\ncommand: [echo, '{n}']\nsweep: {parameters: {n: [1, 2, 3]}}\n"
        "schedule: {cron: '* * * * *', timezone: UTC}\n"
    )
    client.run("schedule", "add", str(client.spec(text, "grid")))
    clock = Clock(client)
    [fired] = clock.tick().runs["fired"]
    with Ledger(client.folder / "state" / "ledger.db") as ledger:
        # As if it had died after the first trial was sent, before it noted that the sweep is sent.
        trials = ledger.sweeps.trials(fired["sweep"])
        for trial in trials[1:]:
            client.until(str(trial.job), "COMPLETED")
        with ledger._store.write() as db:
            db.execute("UPDATE runs SET outcome = 'firing', sweep = NULL, claimed_by = ?", ('{"token":"1-dead"}',))
            db.execute("UPDATE sweeps SET state = 'staging'")
            db.execute("UPDATE trials SET job = NULL WHERE number > 0")
        [again] = clock.tick().runs["fired"]
        assert again["sweep"] == fired["sweep"] and len(ledger.sweeps.list()) == 1
        now_sent = ledger.sweeps.trials(fired["sweep"])
        assert now_sent[0].job == trials[0].job and all(trial.job for trial in now_sent)
        clock.tick()
        assert ledger.sweeps.get(fired["sweep"]).state in ("running", "done")


def test_a_model_has_to_beat_the_newest_wherever_that_is(client: QuickClient, lab: Lab, tmp_path: Path) -> None:
    spec = (
        "device: cpu\ncode: null\ncommand: 'echo acc=%s; echo %s > m.pt'\nmetrics: {acc: 'acc=(.+)'}\n"
        "checkpoints: {paths: [m.pt]}\npromote: {metric: acc max, to: models/both}\n"
    )
    with Lab(tmp_path / "second", alias="second") as second:
        both = QuickClient(tmp_path / "both", lab, second)

        def train(acc: str, host: str) -> dict[str, Any]:
            id_ = both.submit(spec % (acc, acc), f"m{acc[2:]}", "--host", host)
            both.until(id_, "COMPLETED")
            [decision] = Clock(both).tick().promotions
            return dict(decision)

        assert train("0.5", "lab")["decision"] == "promoted"
        worse = train("0.4", "second")
        assert (worse["decision"], worse["against"]) == ("kept", 0.5) and not (second.root / "models").exists()
        assert train("0.6", "second")["decision"] == "promoted"
        assert (second.root / "models/both/current/m.pt").read_text() == "0.6\n"
        [back] = both.json("promote", "rollback", "models/both")["promotions"]
        assert (back["host"], back["value"]) == ("lab", 0.5)
        again = train("0.55", "second")
        assert (again["decision"], again["against"]) == ("promoted", 0.5), "what was gone back from does not count"

        # The ledger is lost. The hosts know what they keep, and which of them was the last to change its mind.
        both.json("promote", "rollback", "models/both", "--to", back["version"])
        other = QuickClient(tmp_path / "other", lab, second)
        other.run("adopt")
        known = other.json("promote", "ls", "models/both")["promotions"]
        assert sorted((item["value"], item["current"]) for item in known) == [(0.5, True), (0.55, False), (0.6, False)]
        assert {item["host"] for item in known if item["value"] > 0.5} == {"second"}
        other.run("adopt")
        assert len(other.json("promote", "ls", "models/both")["promotions"]) == 3 and not Clock(other).tick().promotions
