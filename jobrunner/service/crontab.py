"""`schedule install`: a line in the user's crontab, or a systemd user timer, that runs `tick` every minute.

What is written is shown first; `uninstall` removes exactly that. Both run a small script in the state folder, which
sets what a shell of the person who installed it has and cron has not. A tag, made of the state folder's path, marks
what is ours: other lines, and those of other state folders, are never touched.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import field
from pathlib import Path
from typing import Literal

from jobrunner.core.errors import JobrunnerError, UsageError
from jobrunner.core.values import dataclass
from jobrunner.service.session import Session
from jobrunner.service.submitresult import Result

Kind = Literal["crontab", "systemd"]
LOG_BYTES = 1_000_000
LIMIT_S = 20


@dataclass(frozen=True)
class InstallResult(Result):
    """What was (or would be) written: `files` of path and content, `line` of the crontab; `changed` if anything was."""

    kind: str
    line: str | None = None
    files: dict[str, str] = field(default_factory=dict)
    changed: bool = False


def plan(session: Session, kind: Kind | None = None) -> InstallResult:
    """What `install` is going to write. UsageError where neither cron nor systemd can be had."""
    chosen = kind or _there(session)
    script = session.home.absolute() / "tick.sh"
    if "\n" in f"{script}{session.hosts_file}":
        raise UsageError(f"a path with a line break cannot stand in a crontab: {script}", code="bad_path")
    files = {str(script): _script(session)}
    if chosen == "crontab":
        command = f"/bin/sh {shlex.quote(str(script))}".replace("%", "\\%")
        return InstallResult(kind=chosen, line=f"* * * * * {command} {_mark(session)}", files=files)
    service, timer = _units(session)
    files[str(service)] = (
        f"{_mark(session)}\n[Unit]\nDescription=jobrunner: what is due\n\n"
        f"[Service]\nType=oneshot\nExecStart=/bin/sh {_systemd_word(str(script))}\n"
    )
    files[str(timer)] = (
        f"{_mark(session)}\n[Unit]\nDescription=jobrunner: what is due, every minute\n\n"
        "[Timer]\nOnCalendar=minutely\nAccuracySec=1s\nPersistent=true\n\n[Install]\nWantedBy=timers.target\n"
    )
    return InstallResult(kind=chosen, files=files)


def install(session: Session, planned: InstallResult) -> InstallResult:
    """Write what was planned. The same again changes nothing."""
    changed = False
    for name, content in planned.files.items():
        changed = _write(Path(name), content) or changed
    if planned.line is not None:
        old = _read_crontab(session)
        kept = [line for line in old if not _is_ours(session, line)]
        new = [*kept, (planned.line + "\n").encode()]
        if kept and not kept[-1].endswith(b"\n"):
            new[-2] += b"\n"
        if [line for line in old if _is_ours(session, line)] != [new[-1]]:
            _write_crontab(session, new)
            changed = True
    elif changed:
        timer = _units(session)[1].name
        _systemctl(session, "daemon-reload")
        _systemctl(session, "enable", "--now", timer)
    return InstallResult(kind=planned.kind, line=planned.line, files=planned.files, changed=changed)


def uninstall(session: Session) -> InstallResult:
    """Remove what `install` wrote for this state folder, wherever it is; all else stays as it is."""
    line, files, kinds = None, {}, []
    if shutil.which("crontab", path=session.environ.get("PATH")):
        old = _read_crontab(session)
        ours = [item for item in old if _is_ours(session, item)]
        if ours:
            _write_crontab(session, [item for item in old if not _is_ours(session, item)])
            line = ours[0].decode("utf-8", "replace").rstrip("\n")
            kinds.append("crontab")
    units = [path for path in _units(session) if path.exists()]
    if units:
        _systemctl(session, "disable", "--now", _units(session)[1].name)
        kinds.append("systemd")
    for path in [*units, session.home.absolute() / "tick.sh"]:
        if path.exists():
            files[str(path)] = path.read_text(encoding="utf-8", errors="replace")
            path.unlink()
    if units:
        _systemctl(session, "daemon-reload")
    return InstallResult(kind="+".join(kinds), line=line, files=files, changed=bool(kinds or files))


def _there(session: Session) -> Kind:
    path = session.environ.get("PATH")
    if sys.platform != "win32" and shutil.which("crontab", path=path):
        return "crontab"
    if shutil.which("systemctl", path=path) and session.environ.get("XDG_RUNTIME_DIR"):
        return "systemd"
    raise UsageError(
        "neither cron (`crontab`) nor systemd for users (`systemctl --user`) can be had here",
        code="no_cron",
        remedy="keep `jobrunner serve` running, or have `jobrunner tick` run every minute by other means",
    )


def _tag(session: Session) -> str:
    return hashlib.sha256(str(session.home.absolute()).encode()).hexdigest()[:8]


def _mark(session: Session) -> str:
    """The comment that shows what is ours."""
    return f"# jobrunner-tick-{_tag(session)}"


def _is_ours(session: Session, line: bytes) -> bool:
    return line.rstrip().endswith(_mark(session).encode()) and not line.lstrip().startswith(b"#")


def _script(session: Session) -> str:
    """The script: the environment of whoever installs it as far as it matters, a bounded log, and `tick`."""
    home = str(session.home.absolute())
    values = {"JOBRUNNER_HOME": home}
    names = ("PATH", "JOBRUNNER_SSH_CONFIG", "PYTHONPATH")
    values.update({name: session.environ[name] for name in names if session.environ.get(name)})
    exports = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in values.items())
    words = [sys.executable, "-m", "jobrunner", "--hosts", str(session.hosts_file.absolute()), "tick"]
    return (
        "#!/bin/sh\n"
        f"{_mark(session)}: `jobrunner schedule install` wrote this file, `jobrunner schedule uninstall` removes it\n"
        f"{exports}"
        'cd "$JOBRUNNER_HOME" && mkdir -p logs || exit 1\n'
        "log=logs/tick.log\n"
        f'[ -f $log ] && [ "$(wc -c < $log)" -gt {LOG_BYTES} ] && mv -f $log $log.1\n'
        f"exec {shlex.join(words)} >> $log 2>&1\n"
    )


def _write(path: Path, content: str) -> bool:
    """Write a file, 0700; False if it is there just so."""
    try:
        if path.read_text(encoding="utf-8") == content:
            return False
    except (OSError, UnicodeDecodeError):
        pass
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    handle = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o700)
    with os.fdopen(handle, "w", encoding="utf-8") as out:
        out.write(content)
    os.replace(aside, path)
    return True


def _units(session: Session) -> tuple[Path, Path]:
    """The paths of the service and of the timer."""
    environ = session.environ
    config = environ.get("XDG_CONFIG_HOME") or os.path.join(environ.get("HOME") or str(Path.home()), ".config")
    folder = Path(config) / "systemd" / "user"
    name = f"jobrunner-tick-{_tag(session)}"
    return folder / f"{name}.service", folder / f"{name}.timer"


def _systemd_word(word: str) -> str:
    """A word as systemd reads it."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{escaped}"'


def _read_crontab(session: Session) -> list[bytes]:
    """The lines of the user's crontab with their ends; none if there is no crontab."""
    done = _run(session, ["crontab", "-l"])
    if done.returncode == 0:
        return done.stdout.splitlines(keepends=True)
    if b"no crontab" in done.stderr.lower():
        return []
    raise _failed("reading the crontab (`crontab -l`)", done)


def _write_crontab(session: Session, lines: Sequence[bytes]) -> None:
    """Replace the crontab; one that is empty now is removed."""
    data = b"".join(lines)
    done = _run(session, ["crontab", "-" if data else "-r"], data)
    if done.returncode != 0:
        raise _failed("writing the crontab", done)


def _systemctl(session: Session, *words: str) -> None:
    done = _run(session, ["systemctl", "--user", *words])
    if done.returncode != 0:
        raise _failed(f"`systemctl --user {' '.join(words)}`", done)


def _run(session: Session, words: Sequence[str], data: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
    program = shutil.which(words[0], path=session.environ.get("PATH"))
    if program is None:
        raise JobrunnerError(f"there is no {words[0]} here", code="no_cron", remedy="keep `jobrunner serve` running")
    given: dict[str, object] = {"stdin": subprocess.DEVNULL} if data is None else {"input": data}
    try:
        return subprocess.run(  # type: ignore[call-overload,no-any-return]
            [program, *words[1:]],
            capture_output=True,
            env={**session.environ, "LC_ALL": "C"},
            timeout=LIMIT_S,
            check=False,
            **given,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise JobrunnerError(f"running {words[0]}: {error}", code="no_cron") from error


def _failed(what: str, done: subprocess.CompletedProcess[bytes]) -> JobrunnerError:
    said = done.stderr.decode("utf-8", "replace").strip() or f"exit code {done.returncode}"
    return JobrunnerError(f"{what} failed: {said}", code="crontab", remedy="keep `jobrunner serve` running instead")
