"""Errors on the way out: words, remedies, exit codes, and nothing raw."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from cli_fakes import adds_unknown_host

from jobrunner.core.errors import (
    ConnectError,
    HostKeyError,
    LedgerError,
    NotFoundError,
    Problem,
    SecretError,
    SpecError,
)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (NotFoundError("no job k3", remedy="see jobrunner ls"), 5),
        (LedgerError("the ledger is broken", remedy="see jobrunner ls"), 4),
        (ConnectError("npu-a refused", remedy="see jobrunner ls"), 3),
        (SecretError("TOKEN is missing", remedy="see jobrunner ls"), 2),
    ],
)
def test_text_remedy_and_exit_code(cli, fake, error, code):
    fake.answers["jobs.show"] = error
    ran = cli("show", "k3")
    assert (ran.code, ran.out) == (code, "")
    assert ran.err == f"error: {error.message}\n→ see jobrunner ls\n"


def test_every_fault_of_a_spec_is_a_line(cli, fake):
    problems = [Problem("a.yaml", 3, 7, "no key 'comand'", "command"), Problem("a.yaml", 9, 1, "cards: -1")]
    fake.answers["submit.submit"] = SpecError(problems)
    assert cli("submit", "a.yaml").err == (
        "error: a.yaml:3:7: no key 'comand' (did you mean 'command'?)\nerror: a.yaml:9:1: cards: -1\n"
    )


def test_usage_errors_name_the_help(cli):
    ran = cli("hosts", "add")
    assert ran.code == 2 and ran.out == ""
    assert ran.err == "error: Missing argument 'NAME'\n→ see `jobrunner hosts add --help`\n"
    assert "ls" in cli("lss").err


@pytest.mark.parametrize(
    ("arguments", "command"),
    [
        (["ls", "--name"], "ls"),
        (["wait", "k3", "--timeout"], "wait"),
        (["--hosts", "x.yaml", "hosts", "add", "npu-a", "--address"], "hosts add"),
        (["ls", "--all=yes"], "ls"),
        (["--transport"], ""),
    ],
)
def test_an_option_without_its_value_names_its_command(cli, arguments, command):
    at = len(arguments) - 1
    refused = cli(*arguments[:at], "--json", *arguments[at:])
    assert refused.code == 2 and refused.doc["command"] == command
    assert refused.doc["errors"][0]["remedy"] == f"see `{f'jobrunner {command}'.strip()} --help`"


@pytest.mark.parametrize("every", ["0s", "0", "0.5s", "", "soon"])
def test_serve_does_not_run_without_a_pause(cli, every):
    assert cli("serve", "--every", every, "--json").doc["errors"][0]["code"] == "usage"


def test_an_interrupt_that_a_library_wraps(cli, fake):
    """Ctrl-C while pydantic builds a model is a SchemaError whose text ends with the interrupt's name."""
    fake.answers["jobs.show"] = RuntimeError("Error building the validator:\n  KeyboardInterrupt: ")
    assert cli("show", "k3").code == 130
    inner = RuntimeError("something else")
    inner.__cause__ = KeyboardInterrupt()
    fake.answers["jobs.show"] = inner
    ran = cli("show", "k3")
    assert (ran.code, ran.err) == (130, "interrupted\n")


def test_alone_it_shows_its_help(cli):
    ran = cli()
    assert ran.code in (0, 2) and "Commands:" in ran.out + ran.err  # typers differ
    ran = cli("hosts")
    assert "undrain" in ran.out + ran.err


def test_the_unforeseen_is_one_line_and_a_file(cli, fake):
    fake.answers["jobs.list_jobs"] = ZeroDivisionError("deep\x1b[31m inside")
    ran = cli("ls")
    assert ran.code == 1
    first, second = ran.err.splitlines()
    assert first == "error: something unforeseen happened: ZeroDivisionError: deep\\x1b[31m inside"
    path = Path(second.removeprefix("→ the traceback is in ").removesuffix("; please report it"))
    assert "Traceback" in path.read_text() and path.stat().st_mode & 0o777 == 0o600
    assert cli("ls", "--json").doc["errors"][0]["code"] == "internal"


def test_debugging_shows_the_traceback(cli, fake, monkeypatch):
    monkeypatch.setenv("JOBRUNNER_DEBUG", "1")
    fake.answers["jobs.list_jobs"] = ZeroDivisionError("deep inside")
    with pytest.raises(ZeroDivisionError):
        cli("ls")


def test_a_crash_in_a_process_of_its_own(process):
    ran = process("crash", "ls")
    out, err = ran.communicate(timeout=20)
    assert ran.returncode == 1 and out == b""
    assert b"Traceback" not in err and err.count(b"\n") == 2


@pytest.mark.parametrize("words", [["hosts", "drain"], ["cards"], ["ls", "--host"], ["show"], ["sweep", "show"]])
def test_a_word_that_is_no_text_is_said_so(environ, words):
    argv = [os.fsencode(word) for word in (sys.executable, "-m", "jobrunner", *words)]
    ran = subprocess.run([*argv, b"npu\xff"], env=environ, capture_output=True, timeout=60, check=False)
    assert ran.returncode in (2, 5) and b"npu" in ran.stderr and b"unforeseen" not in ran.stderr, ran.stderr


def test_a_new_key_is_not_trusted_without_a_person(cli, fake):
    fake.answers["hosts.add"] = adds_unknown_host
    ran = cli("hosts", "add", "npu-a")
    assert ran.code == 3
    assert "SHA256:abcDEF" in ran.err and "no terminal to ask on" in ran.err
    assert "→ if that is the right key: jobrunner hosts add npu-a --fingerprint SHA256:abcDEF\n" in ran.err
    assert cli("hosts", "add", "npu-a", "--json").doc["errors"][0]["code"] == "hostkey_unknown"


def test_a_new_key_is_trusted_by_word(cli, fake):
    fake.answers["hosts.add"] = adds_unknown_host
    assert cli("hosts", "add", "npu-a", "--yes").code == 0
    ran = cli("hosts", "add", "npu-a", "--fingerprint", "SHA256:abcDEF=", "--address", "ml@h:22", "--json")
    assert ran.doc["data"]["pinned"] is True and ran.doc["data"]["host"]["address"] == "ml@h:22"
    ran = cli("hosts", "add", "npu-a", "--fingerprint", "SHA256:other")
    assert ran.code == 3 and "not SHA256:other" in ran.err


def test_a_changed_key_stays_refused_even_with_yes(cli, fake):
    fake.answers["hosts.add"] = HostKeyError("npu-a shows another key than before", code="hostkey_changed")
    assert cli("hosts", "add", "npu-a", "--yes").code == 3


def test_ctrl_c(cli, fake):
    fake.answers["jobs.list_jobs"] = KeyboardInterrupt()
    ran = cli("ls")
    assert (ran.code, ran.err) == (130, "interrupted\n")
    ran = cli("ls", "--json")
    assert ran.code == 130 and ran.doc["errors"][0]["code"] == "interrupted"
    fake.answers["jobs.wait"] = KeyboardInterrupt()
    ran = cli("wait", "k3")
    assert ran.code == 130 and "the job goes on" in ran.err
    fake.answers["submit.submit"] = KeyboardInterrupt()
    assert "the same submit again goes on" in cli("submit", "a.yaml").err


@pytest.mark.parametrize("arguments", [["logs", "x"], ["logs", "x", "--raw"], ["logs", "x", "-f", "--json"]])
def test_a_reader_that_goes_away_ends_it_quietly(process, arguments):
    ran = process("flood", *arguments)
    assert ran.stdout.readline()
    ran.stdout.close()
    err = ran.stderr.read()
    assert ran.wait(timeout=20) == 0 and err == b""
    ran.stderr.close()


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")
@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["ls"], 1, b"writing to standard output: No space left on device"),
        (["ls", "--json"], 1, b"writing to standard output: No space left on device"),
        (["logs", "x", "-f", "--json"], 1, b"writing to standard output: No space left on device"),
        (["logs", "--help"], 1, b"writing to standard output: No space left on device"),
        (["lss", "--json"], 2, b"No such command 'lss'"),
    ],
)
def test_a_full_disk_below_standard_output_is_told(process, arguments, code, said):
    with open("/dev/full", "wb") as full:
        ran = process("flood", *arguments, stdout=full)
        _, err = ran.communicate(timeout=20)
    assert ran.returncode == code and err.startswith(b"error: " + said) and b"Traceback" not in err


@pytest.mark.parametrize("gone", ["reader", "space"])
def test_standard_error_that_takes_nothing_changes_no_result(process, gone):
    if gone == "space" and not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full here")
    if gone == "space":
        err = os.open("/dev/full", os.O_WRONLY)
    else:
        reader, err = os.pipe()
        os.close(reader)
    for arguments, code, result in (
        (["submit", "a.yaml"], 0, b"k3f9x2a1bc"),
        (["logs", "x", "-f"], 0, b"hello"),
        (["lss"], 2, b""),
    ):
        ran = process("none", *arguments, stderr=err)
        out, _ = ran.communicate(timeout=20)
        assert ran.returncode == code and result in out
    os.close(err)


@pytest.mark.parametrize("encoding", ["ascii", "gbk", "cp1252", "utf-8"])
@pytest.mark.parametrize("arguments", [["ls"], ["doctor"], ["show", "m7"], ["--help"], ["show"]])
def test_no_encoding_is_too_poor(process, encoding, arguments):
    ran = process("none", *arguments, env={"PYTHONIOENCODING": f"{encoding}:strict", "NO_COLOR": "1"})
    out, err = ran.communicate(timeout=20)
    assert ran.returncode == (2 if arguments == ["show"] else 0) and b"Traceback" not in err
    text = (out + err).decode(encoding)
    assert "->" in text or encoding not in ("ascii", "cp1252") or arguments not in (["doctor"], ["show"])
    if arguments == ["ls"]:
        assert ("训练" in text) == (encoding in ("gbk", "utf-8")) and ("\\u8bad" in text) == (
            encoding not in ("gbk", "utf-8")
        )


def test_ctrl_c_while_following_ends_only_the_looking(process):
    ran = process("endless", "logs", "-f", "k3", text=True)
    assert ran.stdout.readline() == "first line\n"
    assert ran.stdout.read(8) == "prompt> "  # without a line end, and yet it is there
    ran.send_signal(signal.SIGINT)
    _, err = ran.communicate(timeout=20)
    assert ran.returncode == 130
    assert err.startswith("stopped looking; the job goes on (jobrunner logs -f k3")


def test_completion_reads_only_the_ledger_and_never_fails(environ):
    env = {
        **environ,
        "_JOBRUNNER_COMPLETE": "complete_bash",
        "COMP_WORDS": "jobrunner show k",
        "COMP_CWORD": "2",
    }
    ran = subprocess.run([sys.executable, "-m", "jobrunner"], env=env, capture_output=True, text=True, timeout=20)
    assert ran.stderr == "" and ran.stdout.strip() == ""
    assert not Path(environ["JOBRUNNER_HOME"]).exists()


def test_help_comes_at_once_and_loads_nothing_heavy(environ):
    code = (
        "import sys, typer\nbefore = set(sys.modules)\n"
        "from jobrunner.cli.app import run\ncode = run(sys.argv[1:])\n"
        "heavy = ('paramiko', 'fabric', 'invoke', 'pydantic', 'ruamel', 'rich', 'sqlite_utils')\n"
        "print(code, [m for m in heavy if m in sys.modules and m not in before], file=sys.stderr)"
    )
    best = 60.0
    for arguments in (["--help"], ["submit", "--help"], ["hosts", "ls", "--help"]):
        begin = time.perf_counter()
        ran = subprocess.run([sys.executable, "-c", code, *arguments], env=environ, capture_output=True, text=True)
        best = min(best, time.perf_counter() - begin)
        assert ran.stderr == "0 []\n" and "Example:" in ran.stdout
    assert best < 2  # about 0.15 s on an idle machine


def test_a_listing_loads_nothing_heavy(environ):
    code = "import runpy, sys, typer\nbefore = set(sys.modules)\nsys.argv = sys.argv[1:]\n"
    code += "sys.path.insert(0, sys.argv[0].rpartition('/')[0])\n"
    code += "try:\n    runpy.run_path(sys.argv[0], run_name='__main__')\nexcept SystemExit:\n    pass\n"
    code += "heavy = ('paramiko', 'fabric', 'invoke', 'pydantic', 'ruamel', 'rich')\n"
    code += "print([m for m in heavy if m in sys.modules and m not in before], file=sys.stderr)"
    script = str(Path(__file__).parent / "cli_fakes.py")
    ran = subprocess.run(
        [sys.executable, "-c", code, script, "none", "ls", "--offline"], env=environ, capture_output=True, text=True
    )
    assert ran.stdout.startswith("ID ") and ran.stderr == "[]\n"
