"""The ledger's rows: submitting, listing, wishes, hosts, checkpoints, adopting."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from jobrunner.core.errors import NotFoundError
from jobrunner.core.jobs import JobRow
from jobrunner.core.states import JobState
from jobrunner.ledger import EventBatch, Ledger, Outcome, whereabouts


def at(second: int) -> str:
    return f"2026-12-01T09:{second // 60:02d}:{second % 60:02d}.000000Z"


def staging(id_: str, name: str = "train", second: int = 0, host: str = "npu-a") -> JobRow:
    return JobRow(id_, name, JobState.STAGING, host=host, submitted_at=at(second))


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger(tmp_path / "state" / "ledger.db") as opened:
        yield opened


def add(ledger: Ledger, id_: str, name: str = "train", second: int = 0, host: str = "npu-a") -> None:
    ledger.insert_staging(staging(id_, name, second, host), {"id": id_}, "spec", "code", {"pid": 7})


def test_a_staged_job_is_found_again_until_its_host_is_seen_to_have_it(ledger: Ledger) -> None:
    add(ledger, "aaaaaaaa")
    (found,) = ledger.find_resumable("spec", "code")
    assert (found.row.id, found.request, found.submitter) == ("aaaaaaaa", {"id": "aaaaaaaa"}, {"pid": 7})
    assert ledger.find_resumable("spec", "other") == []
    assert ledger.find_resumable("spec", None) == []
    ledger.apply_view("npu-a", "m1", {"id": "aaaaaaaa", "state": "QUEUED"}, at(1))
    assert ledger.find_resumable("spec", "code") == []
    assert ledger.delete_unsent("aaaaaaaa") is False
    assert ledger.get("aaaaaaaa").state is JobState.QUEUED


def test_only_one_takes_over_a_dead_submitters_job(ledger: Ledger) -> None:
    add(ledger, "aaaaaaaa")
    assert ledger.take_over("aaaaaaaa", {"pid": 7}, {"pid": 8}) is True
    assert ledger.take_over("aaaaaaaa", {"pid": 7}, {"pid": 9}) is False
    assert ledger.unsent()[0].submitter == {"pid": 8}


def test_a_job_that_never_left_leaves_no_trace(ledger: Ledger) -> None:
    add(ledger, "aaaaaaaa")
    ledger.add_event("aaaaaaaa", "sending", at(1))
    ledger.request_cancel(["aaaaaaaa"], at(2), 5)
    assert ledger.delete_unsent("aaaaaaaa") is True
    assert ledger.list(all=True) == []
    assert ledger.events("aaaaaaaa") == []
    assert ledger.pending_wishes("npu-a") == []


def test_a_listing_has_every_live_job_and_the_newest_hundred_final_ones(ledger: Ledger) -> None:
    views = {}
    for number in range(130):
        add(ledger, f"a{number:07d}", f"n{number}", number)
        views[f"a{number:07d}"] = {"state": "RUNNING" if number < 5 else "FAILED", "reason": "exit", "exit_code": 3}
    ledger.apply_views("npu-a", "m1", views, at(200))
    rows = ledger.list()
    assert [row.name for row in rows] == [f"n{n}" for n in range(129, 29, -1)] + [f"n{n}" for n in range(4, -1, -1)]
    assert rows[0].exit_code == 3 and rows[0].reason == "exit"
    assert len(ledger.list(all=True)) == 130
    assert len(ledger.list(all=True, limit=7)) == 7
    assert [row.name for row in ledger.list(limit=2)] == ["n129", "n128"]
    assert {row.name for row in ledger.list(states=[JobState.RUNNING])} == {f"n{n}" for n in range(5)}
    assert [row.name for row in ledger.list(name="n1?", all=True)] == [f"n{n}" for n in range(19, 9, -1)]
    assert ledger.list(host="gpu-b") == []
    assert ledger.counts() == {JobState.RUNNING: 5, JobState.FAILED: 125}


def test_live_jobs_by_host_say_where_to_read_on(ledger: Ledger) -> None:
    add(ledger, "aaaaaaaa")
    add(ledger, "bbbbbbbb", host="gpu-b")
    ledger.apply_view(
        "npu-a",
        "m1",
        {"id": "aaaaaaaa", "state": "RUNNING"},
        at(1),
        EventBatch(0, 40, [{"at": at(1), "kind": "started"}]),
    )
    live = ledger.live_by_host()
    assert {
        alias: [(job.id, job.instance, job.offset, job.confirmed) for job in jobs] for alias, jobs in live.items()
    } == {
        "npu-a": [("aaaaaaaa", "m1", 40, True)],
        "gpu-b": [("bbbbbbbb", None, 0, False)],
    }


def test_a_wish_stays_until_the_host_knows_it(ledger: Ledger) -> None:
    add(ledger, "aaaaaaaa")
    add(ledger, "bbbbbbbb")
    ledger.apply_view("npu-a", "m1", {"id": "bbbbbbbb", "state": "COMPLETED", "exit_code": 0}, at(1))
    assert ledger.request_cancel(["aaaaaaaa", "bbbbbbbb"], at(2), 12.5) == ["aaaaaaaa"]
    assert ledger.get("aaaaaaaa").cancel_requested_at == at(2)
    (wish,) = ledger.pending_wishes("npu-a")
    assert (wish.job, wish.kind, wish.at, wish.grace_s) == ("aaaaaaaa", "cancel", at(2), 12.5)
    assert ledger.pending_wishes("gpu-b") == []
    ledger.request_cancel(["aaaaaaaa"], at(5), 1)
    assert [(w.at, w.grace_s) for w in ledger.pending_wishes("npu-a")] == [(at(2), 1)]
    ledger.applied(["aaaaaaaa"], at(6))
    assert ledger.pending_wishes("npu-a") == []
    ledger.request_cancel(["aaaaaaaa"], at(7), None)
    assert len(ledger.pending_wishes("npu-a")) == 1
    ledger.apply_view("npu-a", "m1", {"id": "aaaaaaaa", "state": "RUNNING", "cancel_requested_at": at(7)}, at(8))
    assert ledger.pending_wishes("npu-a") == []
    assert ledger.get("aaaaaaaa").cancel_requested_at == at(2)
    with pytest.raises(NotFoundError):
        ledger.request_cancel(["zzzzzzzz"], at(9), None)


def test_no_answer_changes_no_state(ledger: Ledger) -> None:
    add(ledger, "aaaaaaaa")
    add(ledger, "bbbbbbbb")
    ledger.apply_views("npu-a", "m1", {"aaaaaaaa": {"state": "RUNNING"}, "bbbbbbbb": {"state": "LOST"}}, at(1))
    ledger.mark_unreachable("npu-a", "no route to host", at(9))
    row = ledger.get("aaaaaaaa")
    assert (row.state, row.unreachable, row.last_seen) == (JobState.RUNNING, True, at(1))
    assert ledger.get("bbbbbbbb").unreachable is False
    assert ledger.detail("aaaaaaaa").error == "no route to host"
    host = ledger.host("npu-a")
    assert host is not None and host.error == "no route to host" and host.last_seen == at(1)
    ledger.apply_view("npu-a", "m1", {"id": "aaaaaaaa", "state": "RUNNING"}, at(10))
    assert ledger.get("aaaaaaaa").unreachable is False
    assert ledger.detail("aaaaaaaa").error is None


def test_checkpoints_are_replaced_and_remember_where_they_were_pulled_to(ledger: Ledger) -> None:
    add(ledger, "aaaaaaaa")
    odd = b"ckpt/\xff\n.pt".decode("utf-8", "surrogateescape")
    first = {
        "name": odd,
        "path": odd,
        "step": 5,
        "size": 10,
        "sha256": None,
        "complete": True,
        "metrics": {"loss": 0.5},
    }
    ledger.replace_checkpoints("aaaaaaaa", [first, {"name": "检查点.pt", "size": 3, "sha256": "aa"}, {"no": "name"}])
    ledger.set_pulled("aaaaaaaa", odd, "/tmp/" + odd)
    ledger.set_pulled("aaaaaaaa", "检查点.pt", "/tmp/x")
    ledger.replace_checkpoints(
        "aaaaaaaa", [{**first, "sha256": "bb"}, {"name": "检查点.pt", "size": 3, "sha256": "cc"}]
    )
    one, two = ledger.checkpoints("aaaaaaaa")
    assert (one.name, one.path, one.step, one.sha256, one.metrics) == (odd, odd, 5, "bb", {"loss": 0.5})
    assert one.complete and one.pulled_to == "/tmp/" + odd
    assert two.path == "检查点.pt" and two.pulled_to is None
    with pytest.raises(NotFoundError, match="no checkpoint"):
        ledger.set_pulled("aaaaaaaa", "other.pt", "/tmp/x")


def test_hosts_and_meta_are_remembered_field_by_field(ledger: Ledger) -> None:
    ledger.put_host("npu-a", device="npu", facts={"cpus": 8}, drained=True)
    row = ledger.put_host("npu-a", address="ml@10.0.0.5")
    assert (row.device, row.address, row.facts, row.drained) == ("npu", "ml@10.0.0.5", {"cpus": 8}, True)
    assert [host.alias for host in ledger.hosts()] == ["npu-a"]
    assert ledger.host("other") is None
    with pytest.raises(TypeError, match="colour"):
        ledger.put_host("npu-a", colour="red")
    assert ledger.meta("k") is None
    ledger.set_meta("k", "1")
    ledger.set_meta("k", "2")
    assert ledger.meta("k") == "2"


RECORD = {
    "request": {"id": "aaaaaaaa", "name": "train", "submitted_at": at(0), "retry_of": "bbbbbbbb"},
    "view": {
        "id": "aaaaaaaa",
        "name": "train",
        "state": "FAILED",
        "reason": "exit",
        "exit_code": 2,
        "submitted_at": at(0),
    },
    "attempts": [{"number": 1, "cards": [2, 3], "exit_code": 2, "log_bytes": 99}],
    "events": [{"at": at(0), "kind": "submitted"}, {"at": at(3), "kind": "ended", "code": 2}],
    "checkpoints": [{"name": "a.pt", "path": "ckpt/a.pt", "size": 5}],
}


def test_adopting_twice_is_adopting_once(ledger: Ledger) -> None:
    for second in (50, 51):
        assert ledger.put_record("npu-a", "m1", RECORD, at(second)) in (Outcome.APPLIED, Outcome.FINAL)
    row = ledger.get("aaaaaaaa")
    assert (row.state, row.reason, row.exit_code, row.host, row.retry_of) == (
        JobState.FAILED,
        "exit",
        2,
        "npu-a",
        "bbbbbbbb",
    )
    assert row.submitted_at == at(0)
    assert [(event.kind, event.data) for event in ledger.events("aaaaaaaa")] == [
        ("submitted", {}),
        ("ended", {"code": 2}),
    ]
    assert [(a.number, a.cards, a.log_bytes) for a in ledger.attempts("aaaaaaaa")] == [(1, [2, 3], 99)]
    assert [c.name for c in ledger.checkpoints("aaaaaaaa")] == ["a.pt"]
    assert ledger.detail("aaaaaaaa").request == RECORD["request"]
    ledger.put_record("renamed", "m1", RECORD, at(60))
    assert ledger.get("aaaaaaaa").host == "renamed"
    assert ledger.put_record("npu-a", "m2", RECORD, at(61)) is Outcome.OTHER_MACHINE


@pytest.mark.parametrize("id_", ["../../x", "", "AAAAAAAA", "aaaa", "a" * 17, "1aaaaaaa", "ａaaaaaaa", None])
def test_a_record_whose_id_is_none_is_not_adopted(ledger: Ledger, id_: str | None) -> None:
    assert ledger.put_record("npu-a", "m1", {"view": {"id": id_, "state": "QUEUED"}}, at(1)) is Outcome.UNKNOWN_JOB
    assert ledger.list(all=True) == []


def test_a_record_that_cannot_be_understood_leaves_no_row(ledger: Ledger) -> None:
    record = {"view": {"id": "aaaaaaaa", "state": "DREAMING"}}
    assert ledger.put_record("npu-a", "m1", record, at(1)) is Outcome.UNKNOWN_STATE
    assert ledger.list(all=True) == []


def test_a_queued_job_that_moves_is_staging_again_and_its_old_host_has_no_say(ledger: Ledger) -> None:
    add(ledger, "aaaaaaaa")
    ledger.apply_view("npu-a", "m1", {"id": "aaaaaaaa", "state": "QUEUED"}, at(1), EventBatch(0, 9, [{"kind": "x"}]))
    ledger.place("aaaaaaaa", "gpu-b", "m2", at(2))
    assert (ledger.get("aaaaaaaa").state, ledger.get("aaaaaaaa").host) == (JobState.STAGING, "gpu-b")
    assert ledger.apply_view("npu-a", "m1", {"id": "aaaaaaaa", "state": "RUNNING"}, at(3)) is Outcome.OTHER_MACHINE
    assert ledger.apply_view("gpu-b", "m2", {"id": "aaaaaaaa", "state": "QUEUED"}, at(4)) is Outcome.APPLIED
    assert ledger.get("aaaaaaaa").state is JobState.QUEUED


@pytest.mark.parametrize(
    "events", [[], [7, None, {"kind": "seen"}], {"next": "x", "items": None}, {"next": 9, "items": ["?"]}]
)
def test_odd_journals_in_a_record_do_no_harm(ledger: Ledger, events: object) -> None:
    assert ledger.put_record("npu-a", "m1", {**RECORD, "events": events}, at(1)) is Outcome.APPLIED
    assert len(ledger.events("aaaaaaaa")) == (1 if isinstance(events, list) and events else 0)


def test_forgotten_jobs_leave_nothing(ledger: Ledger) -> None:
    ledger.put_record("npu-a", "m1", RECORD, at(1))
    ledger.forget(["aaaaaaaa"])
    assert ledger.list(all=True) == [] and ledger.events("aaaaaaaa") == [] and ledger.checkpoints("aaaaaaaa") == []
    with pytest.raises(NotFoundError):
        ledger.detail("aaaaaaaa")


def test_where_jobs_are_shows_before_a_ledger_is_opened(ledger: Ledger, tmp_path: Path) -> None:
    path = tmp_path / "state" / "ledger.db"
    add(ledger, "aaaaaaaa", "one", host="npu-a")
    add(ledger, "bbbbbbbb", "two", host="npu-b")
    ledger.apply_view("npu-b", "m1", {"id": "bbbbbbbb", "state": "COMPLETED"}, at(1))
    assert sorted(whereabouts.hosts(path, None, live=False)) == ["npu-a", "npu-b"]
    assert whereabouts.hosts(path, None, live=True) == ["npu-a"]
    assert (
        whereabouts.hosts(path, ["two"], live=False) == whereabouts.hosts(path, ["bbbbbbbb"], live=False) == ["npu-b"]
    )
    assert whereabouts.hosts(path, ["two"], live=True) == whereabouts.hosts(path, [], live=False) == []
    ledger.replace_checkpoints("aaaaaaaa", [{"name": "big.pt", "size": 100}, {"name": "small.pt", "size": 3}])
    assert whereabouts.has_checkpoint(path, ["one"], 100) and whereabouts.has_checkpoint(path, ["aaaaaaaa"], 4)
    assert not whereabouts.has_checkpoint(path, ["one"], 101) and not whereabouts.has_checkpoint(path, ["big.pt"], 1)
    assert whereabouts.hosts(tmp_path / "none.db", None, live=False) == []
