"""A secret is where it must be, and nowhere else; and nobody else can read a job's files or environment."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.faults.commands import Laptop
from tests.faults.host import BreakableHost
from tests.support.waiting import eventually

pytestmark = pytest.mark.needs_sshd
CANARY = "canary-5f1d9b7e-$(id)-'\"\\n"
SPEC = """\
device: npu
launcher: LAUNCHER
secrets: [TOKEN]
grace: 1s
checkpoints: {paths: ["*.bin"]}
command: |
  echo ready
  test "$TOKEN" = "$WANTED" && echo the secret is right
  echo x > $JOBRUNNER_OUTPUT_DIR/a.bin
  while [ ! -e $JOBRUNNER_OUTPUT_DIR/go ]; do sleep 0.05; done
  exit 3
"""


@pytest.fixture
def host(tmp_path: Path) -> Iterator[BreakableHost]:
    with BreakableHost(tmp_path / "host") as host:
        yield host


class Watcher:
    """Looks at every process of the machine, over and over: command lines of all, environments of all but jobs."""

    def __init__(self) -> None:
        self.found: set[str] = set()
        self.looks = 0
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> Watcher:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def _watch(self) -> None:
        mark = CANARY.encode()
        while not self._end.wait(0.005):  # whoever is watched has to get on as well
            self.looks += 1
            for entry in Path("/proc").iterdir():
                if not entry.name.isdigit() or int(entry.name) == os.getpid():
                    continue
                with suppress(OSError):
                    words, environ = (entry / "cmdline").read_bytes(), (entry / "environ").read_bytes()
                    name = (entry / "comm").read_text().strip()
                    if mark in words:
                        self.found.add(f"command line of {name}: {words[:200]!r}")
                    # What the laptop starts has the laptop's environment, from which the secret comes.
                    if mark in environ and b"JOBRUNNER_JOB_ID=" not in environ and name != "ssh":
                        self.found.add(f"environment of {name}: {words[:200]!r}")


def files_with(mark: bytes, *tops: Path) -> list[Path]:
    """Files below some folders that have it in their content or name."""
    found = []
    for top in tops:
        for path in top.rglob("*"):
            with suppress(OSError):
                plain = path.is_file() and not path.is_symlink()
                if mark in os.fsencode(path) or (plain and mark in path.read_bytes()):
                    found.append(path)
    return found


def test_a_secret_is_nowhere_else(host: BreakableHost, tmp_path: Path) -> None:
    laptop = Laptop(tmp_path / "laptop", host)
    laptop.env["TOKEN"] = CANARY
    laptop.env["JOBRUNNER_DEBUG"] = "1"
    spec = SPEC.replace("$WANTED", "$(cat ~/wanted)")
    (host.folder / "home" / "wanted").write_text(CANARY + "\n")
    shown: list[str] = []

    def run(*words: str, code: int | None = 0) -> None:
        done = laptop.run(*words, code=code)
        shown.extend((done.stdout, done.stderr))

    with Watcher() as watcher:
        ids = [laptop.submit(spec.replace("LAUNCHER", way), way) for way in ("nohup", "tmux")]
        logs = [host.job_folder(id_) / "1" / "log" for id_ in ids]
        for log in logs:
            eventually(lambda log=log: log.is_file() and "the secret is right" in log.read_text(), 20, "the secret")
        run("ls", "--json")
        for id_ in ids:
            run("show", id_, "--json")
        run("show", ids[0])
        run("checkpoints", ids[1], "--json")
        looks = watcher.looks
        eventually(lambda: watcher.looks > looks + 2, 20)
    assert not watcher.found
    found = files_with(CANARY[:20].encode(), host.root)
    assert sorted(kept.parent.name for kept in found) == sorted(ids)
    for kept in found:
        assert kept.name == "secrets.json" and kept.stat().st_mode & 0o777 == 0o600
        assert kept.parent.stat().st_mode & 0o777 == 0o700

    for id_ in ids:
        (host.job_folder(id_) / "out" / "go").touch()
    run("wait", *ids, code=1)
    for id_ in ids:
        run("logs", id_)
    run("explain", ids[0], "--json")
    for id_ in ids:
        run("retry", id_)
    run("cancel", *(row["id"] for row in laptop.json("ls")["jobs"]))
    run("adopt", "--json")
    shared = Path(f"/tmp/.jobrunner-1-{os.getuid()}-{host.scope}")
    assert not files_with(CANARY[:20].encode(), host.root, laptop.folder / "state", shared)
    assert not [text for text in shown if CANARY[:20] in text]


def test_errors_and_tracebacks_tell_no_secret(host: BreakableHost, tmp_path: Path) -> None:
    """Nothing that goes wrong on the way of a submit shows what it carries, not even the traceback of a debug run."""
    laptop = Laptop(tmp_path / "laptop", host)
    laptop.env["TOKEN"] = CANARY
    laptop.env["JOBRUNNER_DEBUG"] = "1"
    spec = str(laptop.spec(SPEC.replace("LAUNCHER", "nohup"), "secretive"))
    told = []
    host.root.rmdir() if not any(host.root.iterdir()) else None
    host.root.write_text("a file in the way of the root folder")
    told.append(laptop.run("submit", spec, code=3))
    told.append(laptop.run("submit", spec, "--json", code=3))
    host.root.unlink()
    told.append(laptop.run("submit", spec, "--set", "secrets=[OTHER]", code=2))
    told.append(laptop.run("submit", spec, "--set", "env.TOKEN=x", code=2))
    told.append(laptop.run("submit", spec, "--set", "cards=-1", "--json", code=2))
    (laptop.folder / "state" / "ledger.db").write_bytes(b"no ledger" * 1000)
    told.append(laptop.run("submit", spec, code=4))
    for done in told:
        assert done.stderr or done.stdout
        assert CANARY[:20] not in done.stdout + done.stderr
    assert not files_with(CANARY[:20].encode(), laptop.folder / "state")


@pytest.mark.root
def test_other_users_read_nothing(host: BreakableHost, tmp_path: Path) -> None:
    """Another account of the host sees neither folders nor the environment of a job."""
    laptop = Laptop(tmp_path / "laptop", host)
    laptop.env["TOKEN"] = CANARY
    id_ = laptop.submit(SPEC.replace("LAUNCHER", "nohup").replace("$WANTED", "x"), "private")
    pid = eventually(lambda: host.users(id_))[0]
    for path in [tmp_path, *tmp_path.parents, host.folder, host.folder / "home"]:
        if path != Path("/") and tmp_path.parts[2:3] == path.parts[2:3]:
            path.chmod(path.stat().st_mode | 0o005)  # the way there is open: what is looked at is what we made
    script = f"ls -la {host.root}; cat {host.root}/hosts/*/jobs/*/environ.json; cat /proc/{pid}/environ; id -u"
    done = subprocess.run(
        ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "sh", "-c", script],
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.stdout.strip() == "65534", done
    assert done.stderr.count("ermission denied") >= 2
    shown = Path(f"/tmp/.jobrunner-1-{os.getuid()}-{host.scope}")
    for path in [shown, *shown.rglob("*")]:
        assert not path.stat().st_mode & 0o022, f"{path} can be written by others"
        assert path.is_dir() or "PATH" not in path.read_text()
    laptop.run("cancel", id_)
