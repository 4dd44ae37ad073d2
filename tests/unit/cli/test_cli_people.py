"""What a tired person reads: local times, no word twice, silence explained, sums at the end, room for what tells."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace

from cli_fakes import DONE, FINDING, ROW

from jobrunner.cli import output
from jobrunner.cli.tables import Column, Table
from jobrunner.cli.words import with_local_times
from jobrunner.core.errors import ConnectError
from jobrunner.core.states import JobState
from jobrunner.service import results


def test_times_are_the_readers_own(cli, fake):
    silent = ConnectError("npu-a: silent since 2026-12-01T09:00:00.123456Z", host="npu-a")
    found = {
        **FINDING,
        "summary": "it runs since 2026-12-01T09:10:00.000000Z",
        "evidence": ["seen 2026-12-01T09:20:00Z"],
    }
    fake.answers["explain.why"] = results.Findings(row=ROW, findings=[found], errors=[silent], hosts_answered=1)
    ran = cli("why", "k3")
    assert "since 2026-12-01 09:10:00\n" in ran.out and "seen 2026-12-01 09:20:00\n" in ran.out
    assert "since 2026-12-01 09:00:00\n" in ran.err
    assert found["summary"] in cli("why", "k3", "--json").doc["data"]["findings"][0]["summary"]
    assert with_local_times("step 2026-12-01 of T12") == "step 2026-12-01 of T12"


def test_findings_of_one_line_stand_together(cli, fake):
    cards = [{"code": "card", "summary": f"card {n}: taken"} for n in range(3)]
    fake.answers["explain.why"] = results.Findings(row=ROW, findings=[FINDING, *cards, FINDING])
    lines = cli("why", "k3").out.splitlines()[1:]
    assert lines[3:9] == ["", "card 0: taken", "card 1: taken", "card 2: taken", "", FINDING["summary"]]


def test_a_timeline_leaves_out_what_is_not_known(cli, fake):
    events = [
        {"at": "2026-12-01T09:00:00Z", "kind": "queued", "source": "host", "attempt": 1, "not_before": None},
        {"at": "2026-12-01T09:00:00Z", "kind": "hold", "source": "host", "hold": True},
        {"at": "2026-12-01T09:00:00Z", "kind": "priority", "source": "host", "priority": 5},
        {"at": "2026-12-01T09:00:01Z", "kind": "started", "source": "client", "cards": [0, 1, 2], "bad": "\x1b[2J"},
    ]
    fake.answers["jobs.show"] = results.JobDetails(row=ROW, events=events)
    out = cli("show", "k3").out
    assert "  2026-12-01 09:00:00  queued    attempt 1\n" in out
    assert "  2026-12-01 09:00:00  hold\n" in out and "  2026-12-01 09:00:00  priority  5\n" in out
    assert "  2026-12-01 09:00:01  started   source client, cards 0-2, bad \\x1b[2J\n" in out
    assert "host       npu-a (npu cards 2-3)\n" in out


def test_an_empty_log_says_why(cli, fake):
    queued = replace(ROW, state=JobState.QUEUED, phase=None, cards=[])
    fake.answers["logs.follow"] = [results.LogPiece("end", row=queued)]
    assert cli("logs", "k3").err == "k3f9x2a1bc (resnet18) has not begun: it is QUEUED (jobrunner why k3f9x2a1bc)\n"
    fake.answers["logs.follow"] = [results.LogPiece("end", row=ROW)]
    assert cli("logs", "k3").err == "nothing to show of k3f9x2a1bc (resnet18), which is RUNNING\n"
    assert cli("logs", "k3", "--json").doc["data"]["text"] == ""


def test_a_command_that_never_ran_says_why_at_once(cli, fake):
    failed = replace(DONE, reason="setup", exit_code=125, attempt=1)
    fake.answers["logs.follow"] = [
        results.LogPiece("attempt", attempt=1, offset=0, size=0),
        results.LogPiece("end", row=failed, evidence="there is no conda"),
    ]
    assert "FAILED setup, exit 125\nthere is no conda\n" in cli("logs", "-f", "k3").err
    fake.answers["logs.follow"] = [results.LogPiece("end", row=DONE, evidence="exit code 3")]
    assert "exit code 3" not in cli("logs", "-f", "k3").err


def test_a_priority_may_be_negative(cli, fake):
    assert cli("priority", "k3", "-5").code == 0
    assert fake.calls[-1][1][1:] == ("k3", -5)
    assert cli("priority", "--json", "k3", "-5").doc["command"] == "priority"
    wrong = cli("priority", "k3", "--hots", "x")
    assert wrong.code == 2 and "see `jobrunner priority --help`" in wrong.err


def test_a_time_limit_counts_for_more_than_a_silent_host(cli, fake):
    silent = ConnectError("npu-a: no answer", host="npu-a")
    fake.answers["jobs.wait"] = results.WaitResult(rows=[ROW], timed_out=True, errors=[silent], hosts_asked=1)
    ran = cli("wait", "k3", "--timeout", "1s")
    assert ran.code == 124 and "the time limit of the waiting has passed" in ran.err


def test_thousands_of_files_do_not_run_a_terminal_over(cli, fake, monkeypatch):
    files = [{"path": f"f{number:04}", "size": 5, "sha256": "cd" * 32} for number in range(2000)]
    fake.answers["data.pull"] = results.PullResult(row=DONE, to="/out", files=files)
    assert "f1999" in cli("pull", "k3").out  # into a pipe or file goes all of it
    monkeypatch.setattr(output, "is_terminal", lambda stream: True)
    ran = cli("pull", "k3")
    assert "f0029" in ran.out and "f0030" not in ran.out and "1,970 more" in ran.out
    assert "2000 files" in ran.err


def test_empty_answers_are_no_riddles(cli, fake):
    fake.answers["jobs.list_jobs"] = results.Listing()
    assert cli("ls").err.startswith("no jobs yet (jobrunner submit")
    assert cli("ls", "--name", "x*").err == "no such jobs\n"
    fake.answers["data.pull"] = results.PullResult(row=DONE, to="/out")
    assert "nothing to fetch" in cli("pull", "k3").err and "0 files" not in cli("pull", "k3").err
    fake.answers["hosts.ls"] = results.HostsResult()
    assert "jobrunner hosts add" in cli("hosts", "ls").err
    fake.answers["adopt.adopt"] = results.AdoptResult(errors=[ConnectError("npu-a: no answer")], hosts_asked=1)
    assert cli("adopt").err == "error: npu-a: no answer\n"


def test_help_tells_where_and_with_an_example(cli):
    assert "Example:\n    jobrunner hosts add" in cli("hosts", "--help").out
    assert "every known one" not in cli("hosts", "drain", "--help").out
    assert "any SSH alias" in cli("submit", "--help").out.replace("\n" + " " * 19, " ")


def test_what_was_sent_before_is_not_called_the_biggest():
    from jobrunner.cli.views import upload_words

    assert upload_words({"files": 9, "sent": 1, "sent_bytes": 5, "biggest": [["model.bin", 10**9]]}) == (
        "sent 1 of 9 files (5 B), the others were there already"
    )


def test_on_a_narrow_terminal_empty_columns_leave_first():
    table = Table([Column("HOST"), Column("ADDRESS", shrinks=True, leaves=1), Column("TAGS", leaves=2), Column("NOTE")])
    table.add("npu-a", "-", "910b", "a note that is long")
    table.add("npu-b", "-", "910b", "")
    assert str(table.fitted(35)).splitlines()[0].split() == ["HOST", "TAGS", "NOTE"]
    table.add("npu-c", "10.0.0.5", "-", "")
    assert str(table.fitted(36)).splitlines()[0].split()[:2] == ["HOST", "ADDRESS"]


def test_in_a_c_locale_there_are_words_instead_of_escapes(process):
    plain: dict[str, str | None] = {"LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    ran: subprocess.Popen[bytes] = process("plain", "cards", env={**plain, "PYTHONIOENCODING": None})
    out, _ = ran.communicate(timeout=30)
    assert b"51 C" in out and b"\\x" not in out, out
    assert os.linesep.encode() in out
