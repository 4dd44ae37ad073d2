"""On a terminal: colours, fitted tables, bars, questions, and Ctrl-C."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import threading
import time
from dataclasses import replace

import pytest
from cli_fakes import DONE, ROW

from jobrunner.cli import output, views
from jobrunner.cli.progress import TerminalProgress
from jobrunner.cli.tables import Column, fit
from jobrunner.cli.watch import watch_jobs
from jobrunner.cli.words import shorten, width
from jobrunner.core.errors import ConnectError
from jobrunner.service import results

pty = pytest.importorskip("pty", reason="this machine has no pseudo-terminals")


class Terminal:
    """A program on a pseudo-terminal of a given width: `read_until`, `type`, `finish`."""

    def __init__(self, process, columns, scenario, *arguments, **options):
        import fcntl
        import struct
        import termios

        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        env = {"TERM": "xterm-256color", "NO_COLOR": None, "COLUMNS": None, "LINES": None}
        streams = {"stdin": slave, "stdout": slave, "stderr": slave, "start_new_session": True, **options}
        streams["preexec_fn"] = lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        self.ran = process(scenario, *arguments, env=env, **streams)
        os.close(slave)
        self.seen = ""

    def read_until(self, text, seconds=20):
        """Read until `text` has come (None: until the end)."""
        import select

        deadline = time.monotonic() + seconds
        while text is None or text not in self.seen:
            assert time.monotonic() < deadline, self.seen
            if select.select([self.master], [], [], 0.1)[0]:
                try:
                    piece = os.read(self.master, 65536)
                except OSError:
                    piece = b""
                if not piece:
                    assert text is None, self.seen
                    return self.seen
                self.seen += piece.decode("utf-8", "replace")
        return self.seen

    def ended_within(self, seconds):
        """True if the program has ended by then."""
        try:
            self.ran.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def type(self, text):
        """Press keys."""
        os.write(self.master, text.encode())

    def finish(self):
        """Everything that was shown, and the exit code."""
        self.read_until(None)
        os.close(self.master)
        return self.seen, self.ran.wait(timeout=20)


def bare(text):
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def test_a_table_has_colours_and_fits(process):
    text, code = Terminal(process, 60, "none", "ls").finish()
    assert code == 0
    assert "\x1b[1;34mRUNNING" in text and "\x1b[31mFAILED exit 3" in text
    lines = bare(text).splitlines()
    assert len(lines) == 3 and all(width(line) <= 60 for line in lines)
    assert "k3f9x2a1bc" in text and "m7d2qqe4rt" in text


def test_narrow_terminals_lose_the_least_important_first():
    columns = [Column("ID"), Column("NAME", shrinks=True), Column("CARDS", leaves=1), Column("AGE", leaves=2)]
    natural = [10, 20, 5, 10]
    assert fit(columns, natural, 80) == [10, 20, 5, 10]
    assert fit(columns, natural, 45) == [10, 14, 5, 10]
    assert fit(columns, natural, 38) == [10, 19, 5, None]
    assert fit(columns, natural, 20) == [10, 8, None, None]
    assert fit(columns, natural, 17) == [10, 5, None, None]
    assert fit(columns, natural, 5) == [10, 4, None, None]


def test_shortened_names_are_cut_between_characters():
    assert shorten("训练模型", 8) == "训练模型" and shorten("训练模型", 7) == "训练模…"
    assert shorten("训练模型", 6) == "训练…" and shorten("abc", 3) == "abc" and shorten("abcd", 3) == "ab…"


def test_a_wide_terminal_shows_everything(process):
    text, _ = Terminal(process, 200, "none", "show", "m7").finish()
    for part in ("训练", "exit record: code 3", "ckpt/epoch3.pt", "val_loss=0.25", 'args: ["--lr", "5e-5"]'):
        assert part in bare(text)


def test_a_followed_log_keeps_colours_and_loses_the_rest(process):
    terminal = Terminal(process, 80, "colours", "logs", "k3")
    text, code = terminal.finish()
    assert code == 0
    assert "\x1b[32mgreen" in text and "\x1b[0m" in text
    assert "\x1b[2J" not in text and "\x1b]" not in text


def test_ctrl_c_ends_only_the_looking(process):
    terminal = Terminal(process, 80, "endless", "logs", "-f", "k3")
    terminal.read_until("prompt> ")
    terminal.type("\x03")
    text, code = terminal.finish()
    assert code == 130 and "the job goes on" in text and "Traceback" not in text


@pytest.mark.parametrize(
    ("answer", "words", "exit_code"), [("y\n", "is trusted from now on", 0), ("n\n", "was not confirmed", 3)]
)
def test_a_new_key_is_asked_about(process, answer, words, exit_code):
    terminal = Terminal(process, 100, "newkey", "hosts", "add", "npu-a")
    terminal.read_until("[y/N]")
    assert "SHA256:abcDEF" in terminal.seen
    terminal.type(answer)
    text, code = terminal.finish()
    assert code == exit_code and words in text


def test_ctrl_c_at_the_question(process):
    terminal = Terminal(process, 100, "newkey", "hosts", "add", "npu-a")
    terminal.read_until("[y/N]: ")
    for _ in range(20):  # a first Ctrl-C may fall between the question and the reading, where Python misses it
        terminal.type("\x03")
        if terminal.ended_within(1.0):
            break
    text, code = terminal.finish()
    assert code == 130 and "Traceback" not in text


def test_watching_redraws_until_ctrl_c(process):
    terminal = Terminal(process, 120, "none", "ls", "--watch")
    terminal.read_until("Ctrl-C ends this")
    terminal.type("\x03")
    text, code = terminal.finish()
    assert code == 130 and "k3f9x2a1bc" in text and "Traceback" not in text


def test_bars_appear_on_a_terminal_and_go(process):
    text, code = Terminal(process, 100, "upload", "submit", "a.yaml").finish()
    assert code == 0
    assert "npu-a: sending" in text and "throttled, trying again" in text and "of 100 B" in text
    assert "k3f9x2a1bc" in text.rpartition("npu-a: sending")[2]


def test_no_bars_elsewhere_but_notes(process):
    ran = process("upload", "submit", "a.yaml")
    out, err = ran.communicate(timeout=20)
    assert b"npu-a: sending" not in err and b"throttled, trying again" in err and b"sending" not in out


def test_progress_from_several_threads():
    said = []
    progress = TerminalProgress(bars=False, say=said.append)

    def work(name):
        number = progress.start(name, 1000)
        for _ in range(1000):
            progress.advance(number, 1)
        progress.note(name)
        progress.finish(number)

    threads = [threading.Thread(target=work, args=(str(n),)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(said) == [str(n) for n in range(8)]


def test_watching_in_a_pipe_prints_what_changed(capsys, monkeypatch):
    looks = [
        results.Listing(rows=[ROW]),
        results.Listing(rows=[ROW]),
        results.Listing(rows=[replace(ROW, attempt=2)], errors=[ConnectError("mlu-b is silent")]),
    ]

    def look():
        if not looks:
            raise KeyboardInterrupt
        return looks.pop(0)

    slept = []
    out = output.Output("ls", json=True)
    with pytest.raises(KeyboardInterrupt):
        watch_jobs(out, look, every=2.0, sleep=slept.append)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 and slept == [2.0] * 3
    assert '"attempt": 2' in lines[1] and "mlu-b is silent" in lines[1]


def test_text_is_escaped_where_a_stream_cannot_hold_it():
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    output.write_text(stream, "→ 训 \udcff …\n", flush=True)
    assert raw.getvalue() == b"-> \\u8bad \\udcff ...\n"
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="gbk")
    output.write_text(stream, "→ 训 é 🙂\n", flush=True)
    assert raw.getvalue().decode("gbk") == "→ 训 é \\U0001f642\n"


def test_a_missing_stream_is_no_trouble(monkeypatch, fake):
    from jobrunner.cli.app import run

    monkeypatch.setattr(sys, "stdout", None)
    assert run(["ls"]) == 0
    assert run(["ls", "--json"]) == 0
    assert run(["logs", "k3", "--raw"]) == 0


def test_no_terminal_is_dumb_enough_for_escapes(monkeypatch):
    class Screen(io.StringIO):
        def isatty(self):
            return True

    assert output.is_terminal(Screen()) is (os.environ.get("TERM") != "dumb")
    monkeypatch.setenv("TERM", "dumb")
    assert not output.is_terminal(Screen()) and not output.is_terminal(None)


def test_every_state_has_a_colour():
    assert set(views.STATE_STYLES) == set(type(ROW.state))
    assert views.state_cell(DONE).style == "red"
