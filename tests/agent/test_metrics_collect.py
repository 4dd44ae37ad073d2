"""A job's numbers on the host: collected from log and files, once each, whatever the job writes and whoever is killed."""

from __future__ import annotations

import json
import resource
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jobrunner.agent import jobs, leases, metricjournal, metrics
from jobrunner.agent.layout import lock_name
from tests.support.agentproc import AgentHost, agent_host, job, pythons, until

ID = "job00001"
LOSS = {"loss": r"loss=([-+.0-9eE]+)"}


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[AgentHost]:
    with agent_host(tmp_path) as made:
        monkeypatch.setenv("JOBRUNNER_LEASE_SCOPE", made.scope)
        monkeypatch.setattr(metrics, "AGAIN_S", 0.0)
        made.drain()
        yield made


def begun(host: AgentHost, sources: dict[str, Any], log: bytes = b"", number: int = 1) -> Path:
    if number == 1:
        host.channel().stage([job(ID, metrics=sources)], None)
        # As its supervisor would: otherwise the host's own processes find out that there is none.
        assert leases.bind_patiently(host.layout.job_lock(ID), 5.0) is not None
    return host.begin(ID, number, log)


def told(host: AgentHost, name: str = "loss", ended: bool = False) -> list[tuple[Any, Any]]:
    """`(step, value)` of every sample after a pass."""
    metrics.refresh(host.layout, {ID: ended})
    return [(item["step"], item["value"]) for item in journal(host) if item["name"] == name]


def journal(host: AgentHost) -> list[dict[str, Any]]:
    path = host.job(ID) / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def grow(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


def test_a_log_is_read_on_and_its_end_with_the_job(host: AgentHost) -> None:
    log = (
        begun(host, {**LOSS, "epoch": r"epoch (\d+)"}, b"epoch 1\nloss=0.5\nloss=0.4\rloss=nan\nepoch 2 loss=0.")
        / "log"
    )
    assert told(host) == [(1, 0.5), (1, 0.4), (1, "nan")]
    grow(log, b"3\nloss=7")
    assert told(host)[3:] == [(2, 0.3)]
    assert told(host, ended=True)[4:] == [(2, 7)]
    grow(log, b"\nloss=9\n")
    assert len(told(host, ended=True)) == 5, "what was read to its end is not read again"
    assert told(host, "epoch") == [(1, 1), (2, 2)]


def test_attempts_count_for_themselves(host: AgentHost) -> None:
    begun(host, LOSS, b"loss=1\nloss=2")
    assert told(host) == [(1, 1)]
    host.end(ID, 1, final=False)
    begun(host, LOSS, b"loss=3\n", number=2)
    assert told(host) == [(1, 1), (2, 2), (1, 3)], "the last words of the first attempt are not lost"
    assert [item["attempt"] for item in journal(host)] == [1, 1, 2]


def test_json_lines_in_the_log_and_files(host: AgentHost) -> None:
    sources = {"loss": {"json": "loss"}, "acc": {"file": "metrics.jsonl", "key": "val.acc"}}
    folder = begun(
        host, sources, b'noise\n{"loss": 0.5, "step": 10, "time": "2026-12-01T09:30:00Z"}\n{"loss": Infinity}\n'
    )
    (folder / "work" / "metrics.jsonl").write_text('{"val": {"acc": 0.1}, "epoch": 4}\n[]\n{"val": {"acc": 0.2}, "epo')
    assert told(host) == [(10, 0.5), (10, "inf")]
    assert journal(host)[0]["at"] == "2026-12-01T09:30:00.000000Z"
    assert told(host, "acc") == [(4, 0.1)]
    grow(folder / "work" / "metrics.jsonl", b'ch": 5}\n')
    out = host.job(ID) / "out"
    out.mkdir(exist_ok=True)
    (out / "metrics.jsonl").write_text('{"val": {"acc": 0.9}}\n')
    assert sorted(told(host, "acc")) == [(3, 0.9), (4, 0.1), (5, 0.2)]
    (folder / "work" / "metrics.jsonl").unlink()
    (folder / "work" / "metrics.jsonl").symlink_to("/etc/passwd")
    assert len(told(host, "acc")) == 3


def test_event_files_are_handed_on_as_they_are(host: AgentHost) -> None:
    folder = begun(host, {"loss": {"tensorboard": "runs", "tag": "val/loss"}})
    place = folder / "work" / "runs" / "version_0"
    place.mkdir(parents=True)
    event = b"\x09" + b"x" * 8 + b"val/loss"
    (place / "events.out.tfevents.1.host").write_bytes(struct.pack("<QI", len(event), 0) + event + b"0000")
    metrics.refresh(host.layout, {ID: False})
    (line,) = journal(host)
    assert (line["board"], line["attempt"], "value" in line) == ("runs", 1, False)
    metrics.refresh(host.layout, {ID: True})
    assert len(journal(host)) == 1


def test_an_expression_that_never_ends_is_given_up(host: AgentHost) -> None:
    sources = {"bad": r"((a+)+)+b", **LOSS}
    log = b"".join(b"loss=%d %s\n" % (number, b"a" * 60) for number in range(20))
    begun(host, sources, log)
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    assert [value for _, value in told(host)] == list(range(20))
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before < 4
    (said,) = jobs.warnings(host.layout, ID)
    assert "metrics.bad" in said


def test_a_reader_that_is_killed_three_times_is_not_started_again(host: AgentHost, monkeypatch) -> None:
    log = begun(host, LOSS, b"loss=1\n") / "log"
    monkeypatch.setattr(metrics, "collect", lambda *_: 1 / 0)
    for number in range(5):
        grow(log, b"loss=%d\n" % number)
        assert told(host) == []
    (said,) = jobs.warnings(host.layout, ID)
    assert "ZeroDivisionError" in said
    monkeypatch.undo()
    monkeypatch.setenv("JOBRUNNER_LEASE_SCOPE", host.scope)
    assert told(host, ended=True) == []


def test_only_readers_that_are_killed_in_a_row_count(host: AgentHost, monkeypatch) -> None:
    """A host under load breaks one off now and then."""
    log, collect = begun(host, LOSS, b"") / "log", metrics.collect
    for number in range(3):
        monkeypatch.setattr(metrics, "collect", lambda *_: 1 / 0)
        for _ in range(2):
            grow(log, b"loss=%d\n" % number)
            told(host)
        monkeypatch.setattr(metrics, "collect", collect)
        assert len(told(host)) == 2 * (number + 1)
    assert not jobs.warnings(host.layout, ID)


def test_a_pass_that_dies_between_its_files_tells_nothing_twice(host: AgentHost) -> None:
    log = begun(host, LOSS, b"loss=1\nloss=2\n") / "log"
    assert len(told(host)) == 2
    state = (host.job(ID) / "metrics.state").read_bytes()
    grow(log, b"loss=3\n")
    assert len(told(host)) == 3
    (host.job(ID) / "metrics.state").write_bytes(state)
    grow(host.job(ID) / "metrics.jsonl", b'{"attempt":1,"na')  # and a full disk cut its last line
    grow(log, b"loss=4\n")
    assert metrics.answer(host.layout, {ID: 0})[ID]["items"][-1]["value"] == 4
    assert [item["value"] for item in metrics.answer(host.layout, {ID: 0})[ID]["items"]] == [1, 2, 3, 4]


def test_last_and_best_stay_of_very_many_values(host: AgentHost, monkeypatch) -> None:
    values = [1000 - number for number in range(9000)]
    values[8003], values[8500] = -10_000, 5000
    begun(host, LOSS, b"".join(b"loss=%d\n" % value for value in values))
    found = [value for _, value in told(host)]
    assert (min(found), max(found), found[-1]) == (-10_000, 5000, values[-1])
    assert len(found) < 6500


def test_somebody_else_who_reads_is_not_disturbed(host: AgentHost) -> None:
    begun(host, LOSS, b"loss=1\n")
    lock = leases.bind(lock_name("metrics", host.layout.instance, ID))
    assert told(host) == []
    leases.release([lock])
    assert told(host) == [(1, 1)]


def test_the_answer_is_cut_and_goes_on(host: AgentHost, monkeypatch) -> None:
    begun(host, LOSS, b"".join(b"loss=%d\n" % number for number in range(3000)))
    monkeypatch.setattr(metrics, "ANSWER", 100_000)
    offset, found = 0, []
    while True:
        part = metrics.answer(host.layout, {ID: offset, "nosuchjob1": 0, "../x": 0})
        assert part["nosuchjob1"] is None
        assert "../x" not in part
        assert part[ID]["start"] == offset
        found += part[ID]["items"]
        offset = part[ID]["next"]
        if not part[ID]["more"]:
            break
    assert [item["value"] for item in found] == list(range(3000))
    assert part[ID]["end"] is False
    assert metrics.answer(host.layout, {ID: 10**9})[ID]["start"] == 0
    host.end(ID)
    assert metrics.answer(host.layout, {ID: offset})[ID]["end"] is True


@pytest.mark.parametrize("python", pythons()[:1] + pythons()[-1:])
def test_a_job_that_runs_is_read_without_a_client(tmp_path: Path, python: str) -> None:
    """Real processes: the supervisor collects now and then, and all of it before the verdict."""
    lines = "for i in 1 2 3; do echo epoch $i loss=0.$i; done; "
    wait = "while ! [ -e go ]; do sleep 0.02; done; printf 'loss=7 '"
    with agent_host(tmp_path, python=python) as host:
        host.ask("probe")
        (host.home / "settings.json").write_text('{"check_s": 0.1}')
        host.channel().stage([job(ID, metrics=LOSS, command={"shell": lines + wait}, grace_s=1)], None)
        until(lambda: len(journal(host)) == 3, what="the first lines are collected")
        assert not (host.job(ID) / "final.json").exists()
        (host.job(ID) / "1" / "work" / "go").touch()
        until((host.job(ID) / "final.json").exists)
        assert [(item["step"], item["value"]) for item in journal(host)] == [(1, 0.1), (2, 0.2), (3, 0.3), (3, 7)]
        found = host.ask("look", jobs=[ID], metrics={ID: 0})["metrics"][ID]
        assert (len(found["items"]), found["end"]) == (4, True)
        assert metricjournal.read_state(host.layout, ID)["ended"] == 1


def test_a_full_disk_is_no_strike_and_the_next_pass_reads_the_same(host: AgentHost, monkeypatch) -> None:
    begun(host, LOSS, b"loss=1\n")

    def full(*_: Any) -> None:
        raise OSError(28, "no space left")

    with monkeypatch.context() as patch:
        patch.setattr(metricjournal.Journal, "_append", full)
        for _ in range(4):
            assert told(host) == []
    assert jobs.warnings(host.layout, ID) == []
    assert told(host) == [(1, 1)]


def test_sources_outside_the_job_are_not_looked_at(host: AgentHost, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "metrics.jsonl").write_text('{"loss": 1}\n')
    far = "../" * 12 + str(tmp_path / "outside").lstrip("/")
    sources = {"loss": {"file": far + "/metrics.jsonl", "key": "loss"}, "b": {"tensorboard": far, "tag": "x"}}
    sources["c"] = {"file": far + "/*.jsonl", "key": "loss"}
    folder = begun(host, {**sources, "d": {"file": "link/metrics.jsonl", "key": "loss"}})
    (folder / "work" / "link").symlink_to(tmp_path / "outside")
    metrics.refresh(host.layout, {ID: True})
    assert journal(host) == []
    assert metricjournal.read_state(host.layout, ID)["ended"] == 1
