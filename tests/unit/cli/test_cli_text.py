"""What people read: golden text for every command, and whatever comes from hosts made harmless."""

from __future__ import annotations

import json
from dataclasses import replace
from textwrap import dedent

from cli_fakes import CARD_HOST, DONE, GOOD, ROW

from jobrunner.core.errors import AuthError, ConnectError, NotFoundError
from jobrunner.core.states import JobState
from jobrunner.service import results


def golden(text: str) -> str:
    return dedent(text).lstrip("\n")


def test_ls(cli):
    ran = cli("ls")
    assert ran.code == 0 and ran.err == ""
    assert ran.out == golden(
        """
        ID          NAME      STATE          HOST   CARDS  SUBMITTED   RAN        NOTE
        k3f9x2a1bc  resnet18  RUNNING        npu-a  2-3    30 min ago  20 min     held
        m7d2qqe4rt  训练      FAILED exit 3  mlu-b  0      1 d ago     2 h 5 min  attempt 2
        """
    )


def test_ls_says_what_is_not_known(cli, fake):
    row = replace(
        ROW, unreachable=True, cancel_requested_at="2026-12-01T09:29:00.000000Z", last_seen="2026-12-01T09:25:00Z"
    )
    silent = ConnectError("npu-a: no answer on port 22 within 10 s", host="npu-a", code="silent", remedy="is it on?")
    fake.answers["jobs.list_jobs"] = results.Listing(rows=[row], errors=[silent], hosts_asked=1, hosts_answered=0)
    ran = cli("ls")
    assert ran.code == 3
    assert "RUNNING" in ran.out and "no answer, seen 5 min ago; cancel asked for" in ran.out
    assert ran.err == "error: npu-a: no answer on port 22 within 10 s\n→ is it on?\n"


def test_one_silent_host_of_several_is_no_failure(cli, fake):
    silent = ConnectError("npu-a: no answer", host="npu-a")
    fake.answers["jobs.list_jobs"] = results.Listing(rows=[ROW], errors=[silent], hosts_asked=2, hosts_answered=1)
    assert cli("ls").code == 0
    assert cli("ls", "--json").doc["errors"][0]["code"] == "connect"


def test_ls_passes_its_options_on(cli, fake):
    cli("ls", "--all", "--state", "running", "--state", "QUEUED", "--name", "res*", "--host", "npu-a", "--offline")
    name, _, options = fake.calls[-1]
    assert name == "jobs.list_jobs"
    assert options == {
        "all": True,
        "states": (JobState.RUNNING, JobState.QUEUED),
        "name": "res*",
        "host": "npu-a",
        "offline": True,
    }


def test_a_wrong_state_gets_the_nearest_word(cli):
    ran = cli("ls", "--state", "complete")
    assert ran.code == 2 and "→ did you mean COMPLETED?" in ran.err


def test_names_from_elsewhere_cannot_move_the_cursor(cli, fake):
    evil = replace(ROW, name="\x1b[2J\x1b]0;x\x07evil\nFAKE ROW", host="\x9bhost")
    fake.answers["jobs.list_jobs"] = results.Listing(rows=[evil], warnings=["from \x1b[31mafar"])
    ran = cli("ls")
    assert ran.out.count("\n") == 2
    assert not set("\x1b\x07\x9b") & set(ran.out + ran.err)
    fake.answers["jobs.list_jobs"] = NotFoundError("no job \x1b[31m", remedy="\x1b]0;x\x07")
    assert "\x1b" not in cli("ls").err


def test_a_job_that_a_signal_ended(cli, fake):
    ended = replace(ROW, state=JobState.FAILED, reason="signal", signal="SIGKILL", exit_code=None)
    fake.answers["jobs.list_jobs"] = results.Listing(rows=[ended])
    ran = cli("ls")
    assert ran.code == 0 and "FAILED signal SIGKILL" in ran.out


def test_show(cli):
    ran = cli("show", "m7")
    assert ran.code == 0
    assert ran.out == golden(
        """
        训练  m7d2qqe4rt  FAILED exit 3
          host       mlu-b (mlu card 0)
          submitted  2026-11-30 09:30:00 (1 d ago)
          started    2026-11-30 09:40:00 (23 h ago)
          ended      2026-11-30 11:45:00 (21 h ago)
          ran        2 h 5 min
          last seen  2026-12-01 09:29:58 (2 s ago)
          note       attempt 2
          evidence   exit record: code 3

        attempts
        #  STARTED              RAN        CARDS  ENDED
        1  2026-11-30 09:40:00  2 h 5 min  -      exit 3

        timeline
          2026-11-30 09:40:00  started  cards 0

        checkpoints
        NAME            STEP    SIZE  WRITTEN    STATE     METRICS        PULLED TO
        ckpt/epoch3.pt     3  3.5 MB  1 min ago  complete  val_loss=0.25  -

        spec
          name: 训练
          args: ["--lr", "5e-5"]
          env:
            A: "x y"
        """
    )


def test_cards(cli, fake):
    silent = {
        "name": "mlu-b",
        "reachable": False,
        "error": {"code": "refused", "message": "refused", "remedy": ""},
        "cards": [],
    }
    none = {"name": "box", "reachable": True, "error": None, "cards": []}
    fake.answers["hosts.cards"] = results.CardsResult(hosts=[CARD_HOST, silent, none])
    ran = cli("cards")
    assert ran.out == golden(
        """
        HOST   CARD  MODEL  HEALTH          MEMORY   USE   TEMP    POWER  TAKEN BY
        npu-a     2  910B3  ok       3051/65536 MB  93 %  51 °C  210.5 W  ml job k3f9x2a1bc
        npu-a     3  910B3  warning     -/65536 MB  93 %  51 °C  210.5 W  free
        """
    )
    assert ran.err == "mlu-b: refused\nbox: it has no cards that we know of\n"


def test_a_tool_that_is_not_understood_is_shown_with_what_it_said(cli, fake):
    """Also where another host does not answer."""
    error = {"code": "not_understood", "message": "npu-smi answered in a form that is not known", "remedy": "report it"}
    raw = "".join(f"line {number}\x1b[2J\n" for number in range(14))
    odd = {"name": "npu-a", "reachable": True, "error": error, "cards": [], "raw": raw}
    gone = ConnectError("mlu-b: no answer", host="mlu-b")
    silent = {"name": "mlu-b", "reachable": False, "error": gone.as_json(), "cards": []}
    fake.answers["hosts.cards"] = results.CardsResult(
        hosts=[odd, silent], errors=[gone], hosts_asked=2, hosts_answered=1
    )
    said = cli("cards").err
    assert said.count("mlu-b") == 1 and "npu-a: npu-smi answered in a form that is not known\n→ report it\n" in said
    assert "    line 0" in said and "line 11" in said and "line 12" not in said and "\x1b" not in said
    assert "… and 2 more" in said


def test_doctor_and_why(cli):
    assert cli("doctor").out == golden(
        """
        npu-a
          ✓ python: 3.9.9
          ✗ disk: full
              → free some
          ? driver
              → ask

        npu-a: 1 ✗ wrong, 1 ? not known, or not there, 1 ✓ fine
        """
    )
    assert cli("why", "k3").out == golden(
        """
        k3f9x2a1bc (resnet18) RUNNING
        2 cards are wanted, 1 is free
            card 2: ml
          → wait
        """
    )


def test_hosts(cli):
    assert cli("hosts", "ls").out == golden(
        """
        HOST   ADDRESS      DEVICE  CARDS  TAGS  LAST SEEN  NOTE
        npu-a  ml@10.0.0.5  npu     8      910b  -
        """
    )
    assert "its clock is 61 s ahead" in cli("hosts", "check").out
    assert cli("hosts", "drain", "npu-a").out == "npu-a  drained: none of your queued jobs starts there\n"
    ran = cli("hosts", "drain")
    assert ran.code == 2 and "name it" in ran.err


def test_submit(cli, fake):
    ran = cli("submit", "a.yaml", "b.yaml", "--host", "npu-a", "--set", "a.b=v", "--set", "c=d=e", "--large")
    assert ran.code == 0 and "k3f9x2a1bc" in ran.out
    assert ran.err == "sent 3 of 5 files (2.0 kB), the others were there already\n"
    _, arguments, options = fake.calls[-1]
    assert [str(path) for path in arguments[1]] == ["a.yaml", "b.yaml"]
    assert options == {"host": "npu-a", "overrides": ["a.b=v", "c=d=e"], "dry_run": False, "large": True}


def test_dry_run(cli, fake):
    plan = {"name": "resnet18", "file": "a.yaml", "host": "npu-a", "device": "npu", "cards": 2, "files": 1, "bytes": 9}
    fake.answers["submit.submit"] = results.SubmitResult(plans=[plan])
    ran = cli("submit", "a.yaml", "--dry-run")
    assert ran.out == golden(
        """
        resnet18: would go to npu-a
          spec     a.yaml
          device   npu
          cards    2
          code     1 file, 9 B
        """
    )


def test_a_job_that_did_not_arrive_fails_the_submit(cli, fake):
    error = AuthError("npu-a turned every key down", host="npu-a")
    fake.answers["submit.submit"] = results.SubmitResult(rows=[ROW], errors=[error], hosts_asked=2, hosts_answered=1)
    assert cli("submit", "a.yaml", "b.yaml").code == 3
    ran = cli("submit", "a.yaml", "b.yaml", "--wait", "--json")
    assert ran.code == 3
    assert ran.doc["errors"][0]["code"] == "auth" and ran.doc["data"]["jobs"][0]["state"] == "COMPLETED"


def test_submit_and_wait(cli, fake):
    assert cli("submit", "a.yaml", "--wait").code == 0
    fake.answers["jobs.wait"] = results.WaitResult(rows=[DONE])
    assert cli("submit", "a.yaml", "--wait").code == 1


def test_submit_and_follow(cli, fake):
    ran = cli("submit", "a.yaml", "--follow")
    assert ran.code == 0 and ran.out.endswith("hello\n") and "COMPLETED" in ran.err
    fake.answers["logs.follow"] = [results.LogPiece("end", row=DONE)]
    assert cli("submit", "a.yaml", "--follow").code == 1
    assert cli("submit", "a.yaml", "b.yaml", "--follow").code == 2
    assert cli("submit", "a.yaml", "--dry-run", "--wait").code == 2


def test_wait(cli, fake):
    def wait(session, words, *, timeout, on_change):
        on_change([replace(ROW, phase="setup")])
        assert timeout == 5400 and list(words) == ["k3", "m7"]
        return results.WaitResult(rows=[GOOD, DONE])

    fake.answers["jobs.wait"] = wait
    ran = cli("wait", "k3", "m7", "--timeout", "90m")
    assert ran.code == 1
    assert ran.err == "k3f9x2a1bc (resnet18) RUNNING setup\n"
    fake.answers["jobs.wait"] = results.WaitResult(rows=[ROW], timed_out=True)
    assert cli("wait", "k3").code == 124


def test_cancel(cli, fake):
    fake.answers["control.cancel"] = results.CancelResult(rows=[ROW], kept=[ROW.id])
    ran = cli("cancel", "k3", "--grace", "2m")
    assert ran.code == 3 and "The cancel is kept" in ran.err
    assert fake.calls[-1][2] == {"grace": 120.0}
    fake.answers["control.cancel"] = results.CancelResult(rows=[ROW], left={ROW.id: [{"pid": 7, "command": "py\x1b"}]})
    ran = cli("cancel", "k3")
    assert ran.code == 3 and "process 7 py\\x1b" in ran.err


def test_checkpoints_and_pull(cli, fake):
    assert "ckpt/epoch3.pt" in cli("checkpoints", "k3").out
    ran = cli("checkpoints", "k3", "--pull", "best", "--to", "here")
    assert "1 file (3.5 MB) in /out" in ran.err
    assert fake.calls[-1][1][1:3] == ("k3", "best") and str(fake.calls[-1][1][3]) == "here"
    assert cli("checkpoints", "k3", "--to", "here").code == 2
    cli("pull", "k3", "a", "b/")
    assert fake.calls[-1][1][1:] == ("k3", ["a", "b/"], None)


def test_logs(cli, fake):
    ran = cli("logs", "k3", "-n", "5", "--attempt", "2", "--grep", "loss")
    assert ran.out == "hello\n" and ran.err == ""
    assert fake.calls[-1][2] == {"follow": False, "lines": 5, "attempt": 2, "grep": "loss", "since": None}
    assert cli("logs", "k3", "--grep", "(").code == 2
    assert cli("logs", "k3", "--attempt", "0").code == 2


def test_following_tells_of_attempts_and_of_the_end(cli, fake):
    fake.answers["logs.follow"] = [
        results.LogPiece("attempt", attempt=1, offset=0, size=0),
        results.LogPiece("data", data=b"half a line"),
        results.LogPiece("note", note="link lost, reconnecting"),
        results.LogPiece("attempt", attempt=1, offset=11, size=11),
        results.LogPiece("data", data="训".encode()[:2]),
        results.LogPiece("attempt", attempt=1, offset=13, size=13),
        results.LogPiece("data", data="训".encode()[2:]),
        results.LogPiece("attempt", attempt=2, offset=0, size=0),
        results.LogPiece("data", data=b"again\n"),
        results.LogPiece("end", row=DONE),
    ]
    ran = cli("logs", "-f", "k3")
    assert ran.code == 0
    assert ran.out == "half a line训again\n"
    assert ran.err == (
        "link lost, reconnecting\n--- attempt 2 ---\nm7d2qqe4rt (训练) FAILED exit 3\n"
        "jobrunner explain m7d2qqe4rt says more\n"
    )


def test_a_followed_log_is_closed_however_it_ends(cli, fake):
    closed = []

    def pieces(*_, **__):
        try:
            yield results.LogPiece("data", data=b"x")
            raise KeyboardInterrupt
        finally:
            closed.append(True)

    fake.answers["logs.follow"] = pieces
    ran = cli("logs", "-f", "k3")
    assert ran.code == 130 and closed and "the job goes on" in ran.err


def test_init_gc_adopt_version(cli):
    assert cli("init", "d").out == "wrote job.yaml\nwrote hosts.yaml\n"
    assert "jobs/x" in cli("gc", "--dry-run").out
    assert "would be freed" in cli("gc", "--dry-run").err
    assert "1 job, 1 of them new here" in cli("adopt").err
    assert cli("--version").out == "jobrunner 0.1.0\n"


def test_timings_and_the_hosts_file(cli, fake):
    ran = cli("ls", "--timings", "--hosts", "h.yaml")
    lines = [line.split() for line in ran.err.splitlines() if line.startswith("timing: ")]
    assert [words[1] for words in lines] == ["import", "connect", "ledger", "total"]
    assert lines[1][2:] == ["0.013", "s"] and float(lines[3][2]) > 0
    assert "timing" not in cli("ls").err
    told = json.loads(cli("ls", "--timings", "--json").out)["timings"]
    assert list(told) == ["import", "connect", "ledger", "total"] and told["connect"] == 0.0125
    assert "timings" not in json.loads(cli("ls", "--json").out)
    cli("--transport", "openssh", "ls")
    assert fake.session.options["transport"] == "openssh"
    assert cli("ls", "--transport", "telnet").code == 2
    cli("ls", "--hosts", "h.yaml")
    assert str(fake.session.options["hosts_file"]) == "h.yaml"
    cli("--hosts", "g.yaml", "ls")
    assert str(fake.session.options["hosts_file"]) == "g.yaml"


def test_warnings_come_once_and_on_standard_error(cli, fake):
    fake.answers["jobs.list_jobs"] = results.Listing(rows=[ROW], warnings=["mind this", "mind this"])
    assert cli("ls").err == "warning: mind this\n"


def test_what_an_upload_tells():
    from jobrunner.cli.views import upload_words

    assert upload_words({}) == ""
    assert upload_words({"files": 1, "sent": 1, "sent_bytes": 9, "biggest": [["a.py", 9]], "commit": "ab" * 20}) == (
        "sent 1 file (9 B); biggest: a.py 9 B; commit abababababab"
    )
    left_out = [{"path": f"{n}.bin", "rule": "*.bin", "source": ".gitignore"} for n in range(4)]
    assert upload_words(
        {"files": 2, "sent": 0, "sent_bytes": 0, "skipped": 4, "left_out": left_out, "dirty": True}
    ) == (
        "sent 0 of 2 files (0 B): all of it was there already; "
        "left out by rule: 0.bin (*.bin), 1.bin (*.bin), 2.bin (*.bin) and 1 more"
    )


COMMANDS = (
    "init submit ls show logs wait cancel retry hold release priority attach checkpoints pull cards doctor why explain "
    "adopt gc schema demo plot tick serve"
)
HOST_COMMANDS = ("ls", "check", "add", "drain", "undrain", "disconnect")
GROUPS = {
    "hosts": HOST_COMMANDS,
    "schedule": ("add", "ls", "next", "pause", "resume", "rm", "run", "history", "install", "uninstall"),
    "promote": ("ls", "rollback"),
}


def test_every_command_has_help_with_an_example(cli):
    commands = [[name] for name in COMMANDS.split()]
    commands += [[group, name] for group, names in GROUPS.items() for name in names]
    for words in commands:
        ran = cli(*words, "--help")
        assert ran.code == 0 and f"Example:\n    jobrunner {' '.join(words)}" in ran.out, words
        assert ("--json" in ran.out) == (words != ["attach"])
        assert max(map(len, ran.out.splitlines())) <= 100


def test_no_other_commands_are_there():
    import typer

    from jobrunner.cli.app import app

    program = typer.main.get_command(app)
    assert set(program.commands) == {*COMMANDS.split(), *GROUPS, "sweep"}
    for group, names in GROUPS.items():
        assert set(program.commands[group].commands) == set(names)
