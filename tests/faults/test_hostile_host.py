"""What a host answers is not believed: huge, slow, malformed or lying answers are an error of that host, no more."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sqlite3
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.faults.commands import Command, Laptop
from tests.faults.host import BreakableHost

pytestmark = pytest.mark.needs_sshd
HOST = {
    "instance": "i0123456789abcd",
    "hostname": "evil",
    "machine_id": "m",
    "boot_id": "b",
    "now": "x",
    "python": "3.9",
}
OK = {"v": 1, "ok": True, "host": HOST}
ESCAPES = "\x1b[2J\x1b]0;title\x07\x9b31m\r\n\u202eFAKE ROW\x00\ud800"
RAW = {
    "huge_frame": ["raw", "4affffffff"],
    "no_frame": ["raw", "00" * 64],
    "cut_frame": [["raw", "4a000000ff7b"], ["end"]],
    "no_json": ["text", "{nope"],
    "deep": ["text", "[" * 200_000],
    "deep_object": ["text", '{"a":' * 200_000],
    "long_number": ["text", '{"v": 1, "ok": true, "data": ' + "9" * 10_000 + "}"],
    "array": ["text", "[]"],
    "nan": ["text", '{"v": 1, "ok": true, "data": NaN}'],
    "no_ok": ["J", {"v": 1}],
    "no_data": ["J", OK],
    "data_list": ["J", {**OK, "data": []}],
    "data_text": ["J", {**OK, "data": "x"}],
    "jobs_list": ["J", {**OK, "data": {"jobs": [1, 2]}}],
    "jobs_odd": ["J", {**OK, "data": {"jobs": {"x": 1, "ID": 2}, "events": {"ID": 3}, "cards": 4, "disk": 5}}],
    "view_odd": ["J", {**OK, "data": {"jobs": {"ID": {"state": {}, "attempts": 7, "cards": "x", "exit_code": "NaN"}}}}],
    "view_list": ["J", {**OK, "data": {"jobs": {"ID": {"state": "FAILED", "attempts": [1, None], "warnings": {}}},
                                       "events": {"ID": {"next": "x", "items": [1, {"at": 3}]}}}}],
    "host_text": ["J", {"v": 1, "ok": True, "host": "x", "data": {}}],
    "host_empty": ["J", {"v": 1, "ok": True, "host": {}, "data": {"jobs": {}}}],
    "host_odd": ["J", {"v": 1, "ok": True, "host": {"instance": [], "hostname": 3}, "data": {"jobs": {}}}],
    "error_text": ["J", {"v": 1, "ok": False, "error": "no"}],
    "error_odd": ["J", {"v": 1, "ok": False, "error": {"code": [], "message": {}, "remedy": 3}}],
    "error_escapes": ["J", {"v": 1, "ok": False, "error": {"code": "x", "message": ESCAPES, "remedy": ESCAPES}}],
    "view_escapes": ["J", {**OK, "data": {"jobs": {"ID": {
        "id": "ID", "name": ESCAPES, "state": "FAILED", "reason": ESCAPES, "signal": ESCAPES, "evidence": ESCAPES,
        "warnings": [ESCAPES], "launcher": ESCAPES, "submitted_at": ESCAPES, "started_at": ESCAPES}}}}],
    "big": ["text", "{" + " " * 60_000_000 + "}"],
    "flood_bytes": ["flood", "B"],
    "flood_json": ["flood", "J"],
    "flood_ends": ["flood", "E"],
    "drip": ["drip", "4a00000100" + "20" * 200],
    "hang": ["hang"],
    "end": ["end"],
}  # fmt: skip
ENDLESS = ["ls", "submit"]
SLOW = {"drip": ["ls", "submit"], "hang": ["cancel", "adopt", "gc"], "big": ["ls"], "no_ok": ["ls", "hold", "submit"]}
SLOW.update(flood_bytes=ENDLESS, flood_json=["ls", "hold"], flood_ends=ENDLESS)
COMMANDS: dict[str, tuple[str, ...]] = {
    "ls": ("ls", "--all"),
    "show": ("show", "ID"),
    "logs": ("logs", "ID"),
    "follow": ("logs", "ID", "-f"),
    "wait": ("wait", "ID", "--timeout", "1s"),
    "hold": ("hold", "ID"),
    "cancel": ("cancel", "ID", "--grace", "1s"),
    "checkpoints": ("checkpoints", "ID", "--pull", "all", "--to", "pulled"),
    "pull": ("pull", "ID", "--to", "pulled"),
    "why": ("why", "ID"),
    "explain": ("explain", "ID"),
    "cards": ("cards",),
    "check": ("hosts", "check"),
    "drain": ("hosts", "drain", "lab"),
    "doctor": ("doctor", "lab"),
    "adopt": ("adopt",),
    "gc": ("gc", "--dry-run"),
    "retry": ("retry", "ID"),
    "submit": ("submit", "spec2.yaml"),
}


EVERYTHING = os.environ.get("JOBRUNNER_FAULTS") == "all"


class Evil:
    """A laptop that knows a job on a host which has become hostile since."""

    def __init__(self, folder: Path, host: BreakableHost) -> None:
        self.laptop = Laptop(folder / "laptop", host)
        spec = (
            "device: cpu\ncheckpoints: {paths: ['*.bin']}\nretry: {max: 1, on: [exit]}\ncommand: sleep 600\ngrace: 1s\n"
        )
        self.id = self.laptop.submit(spec, "victim")
        (self.laptop.folder / "spec2.yaml").write_text("name: other\ndevice: cpu\ncommand: 'true'\n")
        [self.instance] = {path.parts[-3] for path in host.root.glob(f"hosts/*/jobs/{self.id}")}
        self.good = (self.laptop.folder / "state" / "ledger.db").read_bytes()
        hosts = json.loads((self.laptop.folder / "hosts.yaml").read_text())
        self.place = host.folder / "evil"
        self.place.mkdir(exist_ok=True)
        shutil.copy(Path(__file__).with_name("evil.py"), self.place / "python3")
        (self.place / "python3").chmod(0o755)
        hosts["hosts"]["lab"]["python"] = str(self.place / "python3")
        hosts["settings"].update(request_timeout="2s")
        (self.laptop.folder / "hosts.yaml").write_text(json.dumps(hosts))

    def answer(self, **answers: Any) -> None:
        """What the host answers from now on, by operation; `rest` to all others. The ledger is as it was."""
        steps = {"*" if word == "rest" else word: value for word, value in answers.items()}
        (self.place / "answers.json").write_text(json.dumps(steps).replace('"ID"', json.dumps(self.id)))
        state = self.laptop.folder / "state"
        for name in ("ledger.db-wal", "ledger.db-shm"):
            (state / name).unlink(missing_ok=True)
        (state / "ledger.db").write_bytes(self.good)
        shutil.rmtree(state / "logs", ignore_errors=True)

    def run(self, *words: str) -> tuple[int, str, str]:
        """Run a command: exit code and both outputs; it must not break, nor move the cursor."""
        [told] = self.run_all([words])
        return told

    def run_all(self, several: list[tuple[str, ...]], limit: float = 45.0) -> list[tuple[int, str, str]]:
        """Several at once."""
        begun = [self.laptop.begin(*(self.id if word == "ID" else word for word in words)) for words in several]
        return [self._told(command, limit) for command in begun]

    def state(self) -> str:
        """What the ledger says of the job."""
        with sqlite3.connect(self.laptop.folder / "state" / "ledger.db") as base:
            [(state,)] = base.execute("SELECT state FROM jobs WHERE id = ?", (self.id,))
        base.close()
        return str(state)

    def _told(self, command: Command, limit: float) -> tuple[int, str, str]:
        words, code = command.words, command.wait(limit)
        out, err = command.out.read_bytes().decode(), command.err.read_bytes().decode()
        crashes = list((self.laptop.folder / "state" / "logs").glob("crash-*"))
        assert not crashes, f"{words}: {crashes[0].read_text()[-3000:]}"
        assert "Traceback" not in err, err
        assert not set("\x1b\x07\x9b\x00\u202e") & set(out + err), (words, out, err)
        return code, out, err


@pytest.fixture(scope="module")
def evil(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Evil]:
    folder = tmp_path_factory.mktemp("evil")
    with BreakableHost(folder / "host") as host:
        yield Evil(folder, host)


@pytest.mark.parametrize("word", RAW)
def test_an_answer_that_is_none_is_an_error_of_that_host(evil: Evil, word: str) -> None:
    """Commands survive it, say so, and the job's row keeps its state. (JOBRUNNER_FAULTS=all: each of them.)"""
    steps = RAW[word] if isinstance(RAW[word][0], list) else [RAW[word]]
    at = list(RAW).index(word)
    some = ["ls", *(list(COMMANDS) * 2)[at * 2 % len(COMMANDS) :][:2]]  # all of them, on every answer, take minutes
    # What never is an answer changes nothing, so these may wait for it together.
    for names in [SLOW[word]] if word in SLOW else [[name] for name in (COMMANDS if EVERYTHING else some)]:
        evil.answer(rest=steps)
        for code, out, err in evil.run_all([COMMANDS[name] for name in names]):
            assert code in (0, 2, 3, 5, 124), (names, code, out, err)
            assert code == 0 or err, (names, code)
        assert evil.state() in ("QUEUED", "RUNNING") or word.startswith("view_"), names


@pytest.mark.parametrize(
    "path", ["../../evil", "/tmp/evil", "a/../../evil", "..", "", "a/\x00b", "C:\\evil", "a//b", "."]
)
def test_a_pulled_file_stays_in_its_folder(evil: Evil, path: str) -> None:
    at = "2026-12-01T00:00:00.000000Z"
    file = {"path": path, "type": "f", "mode": 0o4755, "size": 4, "sha256": None, "mtime": None}
    entry = {"name": path, "path": path, "step": None, "size": 4, "sha256": None, "modified_at": at, "complete": True}
    view = {"id": evil.id, "name": "victim", "state": "RUNNING"}
    known = {**OK, "host": {**HOST, "instance": evil.instance}}  # of another one nothing would be pulled
    evil.answer(
        checkpoints=[["J", {**known, "data": {"checkpoints": [{**entry, "metrics": {}, "attempt": 1}]}}]],
        collect=[["J", {"files": [file], "skipped": [], "host": HOST}]],
        get=[["B", "65766c21"], ["E"], ["J", {"sha256": "0" * 64}]],
        done=[["J", {**known, "data": {}}]],
        rest=[["J", {**known, "data": {"jobs": {evil.id: view}, "events": {}}}]],
    )
    before = {found for found in evil.laptop.folder.rglob("*") if "outputs" not in found.parts}
    for words in (("checkpoints", "ID", "--pull", "all", "--to", "into/here"), ("pull", "ID", "--to", "into/here")):
        code, _, err = evil.run(*words)
        assert code == 5 and "not fetched" in err, (code, err)
    made = {found for found in evil.laptop.folder.rglob("*") if "outputs" not in found.parts} - before
    outside = [found for found in made if "into" not in found.parts and "state" not in found.parts]
    assert not outside and not Path("/tmp/evil").exists()
    assert not [found for found in made if stat.S_ISREG(found.lstat().st_mode) and found.lstat().st_mode & 0o6000]


GOOD = [["B", "65766c21"], ["E"], ["J", {"sha256": hashlib.sha256(b"evl!").hexdigest()}]]
PULLED: dict[str, dict[str, list[list[Any]]]] = {
    "list_never": {"collect": [["flood", "J"]]},
    "bytes_without_end": {"get": [["flood", "B"]]},
    "nothing_without_end": {"get": [["flood", "0"]]},
    "messages_without_end": {"get": [["flood", "J"]]},
    "ends_without_end": {"get": [["flood", "E"]]},
    "no_verdict": {"get": [["B", "65766c21"], ["E"], ["flood", "J"]]},
    "done_without_end": {"done": [["flood", "J"]]},
    "done_with_more": {"done": [["flood", "B"]]},
    "less": {"get": [["B", "65"], ["E"], ["J", {"sha256": hashlib.sha256(b"e").hexdigest()}]]},
    "more": {"get": [["B", "65766c212121"], ["E"], ["J", {"sha256": hashlib.sha256(b"evl!!!").hexdigest()}]]},
    "other": {"get": [["B", "00000000"], ["E"], GOOD[-1]]},
    "odd_hash": {"get": [*GOOD[:2], ["J", {"sha256": "\x1b[2J" * 9}]]},
    "no_hash": {"get": [*GOOD[:2], ["J", {"sha256": 7}]]},
    "null_hash": {"get": [*GOOD[:2], ["J", {"sha256": None}]]},
    "early": {"get": [["J", {"ok": True, "host": HOST, "data": {}}]]},
    "ends": {"get": [["B", "65"], ["end"]]},
}


@pytest.mark.parametrize("word", PULLED)
@pytest.mark.parametrize("coming", [0, 1, 10**9])
def test_a_pull_ends_and_names_nothing_that_is_not_whole(evil: Evil, word: str, coming: int) -> None:
    """Two files of four bytes, asked for or unasked; the host sends something else instead of them."""
    files = [{"path": name, "type": "f", "mode": 0o644, "size": 4, "sha256": None, "mtime": None} for name in "ab"]
    known = {**OK, "host": {**HOST, "instance": evil.instance}}
    steps = {"get": GOOD, "done": [["J", {**known, "data": {}}]], **PULLED[word]}
    came = steps["get"] * min(coming, len(files))
    steps.setdefault("collect", [["J", {"files": files, "skipped": [], "coming": coming, "host": HOST}], *came])
    view = {"id": evil.id, "name": "victim", "state": "RUNNING"}
    evil.answer(**steps, rest=[["J", {**known, "data": {"jobs": {evil.id: view}, "events": {}}}]])
    to = evil.laptop.folder / f"{word}-{coming}"
    [(code, _, err)] = evil.run_all([("pull", "ID", "--to", str(to))], 20.0)
    assert code in (3, 5) and err, (code, err)
    left = {path.name: path.read_bytes() for path in to.iterdir()} if to.exists() else {}
    assert all(data == b"evl!" for name, data in left.items() if not name.endswith(".part")), left


def test_a_log_cannot_move_the_cursor(evil: Evil) -> None:
    data = (ESCAPES.encode("utf-8", "surrogatepass") + b"\xff\xfe honest\n").hex()
    evil.answer(
        tail=[["J", {"attempt": 1, "offset": 0, "size": 10, "host": HOST}], ["B", data],
              ["J", {**OK, "data": {"attempt": 1, "offset": 10, "state": "RUNNING", "final": False}}]],
        rest=[["J", {**OK, "data": {"jobs": {}}}]],
    )  # fmt: skip
    code, out, _ = evil.run("logs", "ID")
    assert code == 0 and "honest" in out


def test_memory_stays_bounded(evil: Evil) -> None:
    """No command holds an endless answer."""
    evil.answer(rest=[RAW["flood_json"]])
    command = evil.laptop.begin("ls")
    command.wait(45)
    assert 10_000 < command.rss_kb < 400_000
