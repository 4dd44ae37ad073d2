"""`schedule install` shows what it writes and writes just that; `uninstall` takes exactly that away."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from jobrunner.core.errors import UsageError
from jobrunner.service import crontab
from jobrunner.service.session import Session, open_session

pytestmark = pytest.mark.skipif(os.name != "posix", reason="there is no cron")
CRONTAB = """#!/bin/sh
case "$1" in
    -l) [ -f "$CRONTAB_FILE" ] && exec cat "$CRONTAB_FILE"; echo "no crontab for you" >&2; exit 1 ;;
    -r) rm "$CRONTAB_FILE" ;;
    -) cat > "$CRONTAB_FILE" ;;
esac
"""
SYSTEMCTL = """#!/bin/sh
echo "$*" >> "$SYSTEMCTL_LOG"
"""
OTHERS = b"# mine\nMAILTO=me\n0 5 * * * /bin/backup # jobrunner-tick-00000000\n@reboot echo 100\\% # h\xe9"


class Place:
    """A state folder with an odd name, and programs of our own in PATH."""

    def __init__(self, folder: Path, *programs: str) -> None:
        self.folder = folder
        (folder / "bin").mkdir()
        for name, text in (("crontab", CRONTAB), ("systemctl", SYSTEMCTL)):
            if name in programs:
                (folder / "bin" / name).write_text(text)
                (folder / "bin" / name).chmod(0o755)
        self.tab, self.log = folder / "tab", folder / "systemctl.log"
        self.environ = {
            "PATH": f"{folder / 'bin'}:/usr/bin:/bin" if programs else str(folder / "bin"),
            "HOME": str(folder),
            "CRONTAB_FILE": str(self.tab),
            "SYSTEMCTL_LOG": str(self.log),
            "XDG_RUNTIME_DIR": str(folder),
            "SECRET": "hush-hush",
        }

    def session(self, name: str = "it's 100% mine") -> Session:
        return open_session(home=self.folder / name, hosts_file=self.folder / "hosts.yaml", environ=self.environ)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path, "crontab", "systemctl")


@pytest.mark.parametrize("before", [None, OTHERS, b"", OTHERS + b"\n"])
def test_the_crontab_is_as_before_afterwards(place: Place, before: bytes | None) -> None:
    if before is not None:
        place.tab.write_bytes(before)
    with place.session() as session, place.session("other") as other:
        planned = crontab.plan(session, "crontab")
        assert not place.tab.exists() or place.tab.read_bytes() == before, "nothing is written yet"
        assert crontab.install(session, planned).changed and not crontab.install(session, planned).changed
        crontab.install(other, crontab.plan(other, "crontab"))
        assert planned.line is not None
        lines = place.tab.read_bytes().splitlines()
        assert lines[: len((before or b"").splitlines())] == (before or b"").splitlines()
        assert lines.count(planned.line.encode()) == 1 and len(lines) == len((before or b"").splitlines()) + 2
        assert crontab.uninstall(session).line == planned.line and not crontab.uninstall(session).changed
        assert not (session.home / "tick.sh").exists() and (other.home / "tick.sh").exists()
        crontab.uninstall(other)
    left = place.tab.read_bytes() if place.tab.exists() else None
    assert (left or b"").rstrip(b"\n") == (before or b"").rstrip(b"\n")


def test_the_line_really_runs_a_tick(place: Place) -> None:
    place.environ["PYTHONPATH"] = str(Path(crontab.__file__).parents[2])
    with place.session() as session:
        planned = crontab.install(session, crontab.plan(session, "crontab"))
    assert planned.line is not None
    command = planned.line.removeprefix("* * * * * ").replace("\\%", "%")  # as cron reads it
    bare = {"HOME": str(place.folder), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(["/bin/sh", "-c", command], env=bare, capture_output=True, timeout=60, check=False)
    home = place.folder / "it's 100% mine"
    assert done.returncode == 0 and (home / "ledger.db").exists(), (done, (home / "logs/tick.log").read_text())
    assert (home / "logs/tick.log").read_text() == "", "a tick with nothing to do says nothing"
    assert sys.executable in (home / "tick.sh").read_text() and "hush" not in (home / "tick.sh").read_text()


def test_systemds_timer(place: Place) -> None:
    with place.session() as session:
        planned = crontab.plan(session, "systemd")
        crontab.install(session, planned)
        crontab.install(session, planned)
        units = sorted((place.folder / ".config/systemd/user").iterdir())
        assert [path.suffix for path in units] == [".service", ".timer"]
        assert "it's 100%% mine/tick.sh" in units[0].read_text() and "OnCalendar=minutely" in units[1].read_text()
        assert place.log.read_text().splitlines() == [
            "--user daemon-reload",
            f"--user enable --now {units[1].name}",
        ], "installed once"
        assert crontab.uninstall(session).kind == "systemd"
        assert not any(path.exists() for path in units) and f"disable --now {units[1].name}" in place.log.read_text()


def test_without_cron_and_systemd_it_says_what_to_do(tmp_path: Path) -> None:
    with Place(tmp_path).session() as session, pytest.raises(UsageError) as refused:
        crontab.plan(session)
    assert "jobrunner serve" in refused.value.remedy


def test_a_crontab_that_cannot_be_read_is_left_alone(place: Place) -> None:
    (place.folder / "bin" / "crontab").write_text("#!/bin/sh\necho 'you are not allowed' >&2\nexit 1\n")
    with place.session() as session, pytest.raises(Exception, match="not allowed"):
        crontab.install(session, crontab.plan(session, "crontab"))
    assert not place.tab.exists()


def test_nobody_is_asked_where_nobody_is(
    place: Place, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from jobrunner.cli.app import run

    for name, value in place.environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("JOBRUNNER_HOME", str(place.folder / "state"))
    with open(os.devnull) as nothing:
        monkeypatch.setattr(sys, "stdin", nothing)
        assert run(["schedule", "install"]) == 2
    said = capsys.readouterr().err
    assert "* * * * *" in said and "--yes" in said and not place.tab.exists()
    assert run(["schedule", "install", "--yes", "--json"]) == 0 and place.tab.exists()
    assert run(["schedule", "uninstall", "--yes"]) == 0 and not place.tab.exists()
