"""A real container engine for tests: `dockerd` on a private socket, in mounts of its own with device files by mknod.

Nothing of the machine's own set-up is used or changed: its data lie in the folder given, no network is made, and the
device files and vendors' folders exist only in the engine's mounts. A host's agent runs in the same mounts by `entry`.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tarfile
from collections.abc import Sequence
from pathlib import Path

from .waiting import eventually

PROGRAMS = (
    "bash", "sh", "cat", "ls", "sleep", "env", "id", "stat", "mkdir", "touch", "grep", "sort", "df", "head",
)  # fmt: skip
# Real devices that every container may have anyway (null, zero, full, random, urandom) under the names of cards.
_MAJOR_MINOR = ((1, 5), (1, 7), (1, 8), (1, 9), (1, 3))
NPU = ["davinci0", "davinci1", "davinci4", "davinci5", "davinci6", "davinci7", "davinci_manager", "devmm_svm"]
MLU = ["cambricon_dev0", "cambricon_dev1", "cambricon_dev2", "cambricon_dev3", "cambricon_ctl", "cambricon_ipcm2"]

_MOUNTS = r"""set -e
dev=$1; local=$2; shift 2
for name in null zero full random urandom tty; do cp -a "/dev/$name" "$dev/$name"; done
mkdir -p "$dev/pts" "$dev/shm" "$dev/mqueue"
mount --bind /dev/pts "$dev/pts"
ln -s pts/ptmx "$dev/ptmx"; ln -s /proc/self/fd "$dev/fd"
mount --rbind "$dev" /dev
mount -t overlay overlay -o "lowerdir=/usr/local,upperdir=$local/upper,workdir=$local/work" /usr/local
exec "$@"
"""


def missing() -> str | None:
    """Why no engine can be started here, or None."""
    if not hasattr(os, "getuid") or os.getuid():
        return "the tests do not run as root"
    absent = [name for name in ("dockerd", "docker", "containerd", "unshare", "nsenter") if _which(name) is None]
    return f"not installed: {', '.join(absent)} (Debian: docker.io)" if absent else None


def _which(name: str) -> str | None:
    return shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin:/usr/local/sbin")


class Engine:
    """A running `dockerd`. `folder` must be short: sockets lie in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.socket = folder / "d.sock"
        self.host = f"unix://{self.socket}"
        self.process: subprocess.Popen[bytes] | None = None
        self.log = folder / "dockerd.log"

    def __enter__(self) -> Engine:
        dev, local = self.folder / "dev", self.folder / "local"
        for path in (dev, local / "upper", local / "work"):
            path.mkdir(parents=True)
        subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=755,dev", "tmpfs", dev], check=True)
        for at, name in enumerate(NPU + MLU):
            major, minor = _MAJOR_MINOR[at % len(_MAJOR_MINOR)]
            os.mknod(dev / name, 0o020666, os.makedev(major, minor))
            os.chmod(dev / name, 0o666)
        for name in ("dcmi", "Ascend/driver/lib64"):
            (local / "upper" / name).mkdir(parents=True)
        (local / "upper/Ascend/driver/version.info").write_text("Version=25.0.rc1\n")
        self._start(dev, local)
        return self

    def _start(self, dev: Path, local: Path) -> None:
        options = ["--iptables=false", "--ip6tables=false", "--bridge=none", "--host", self.host]
        for option, name in (("--data-root", "data"), ("--exec-root", "exec"), ("--pidfile", "pid")):
            options += [option, str(self.folder / name)]
        words = ["unshare", "--mount", "--propagation", "private", "sh", "-c", _MOUNTS, "engine", str(dev), str(local)]
        path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [*words, _which("dockerd") or "dockerd", *options],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, env={"PATH": path},
            )  # fmt: skip
        try:
            eventually(self._answers, 60, f"dockerd answers ({self.log})")
        except AssertionError:
            raise AssertionError(f"dockerd does not answer:\n{self.log.read_text()[-3000:]}") from None
        os.chmod(self.socket, 0o666)

    def _answers(self) -> bool:
        assert self.process is not None and self.process.poll() is None, self.log.read_text()[-3000:]
        return self.docker("version", check=False).returncode == 0

    def docker(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """A command of the client, on this engine."""
        done = subprocess.run(
            [_which("docker") or "docker", *words],
            env={**os.environ, "DOCKER_HOST": self.host, "HOME": str(self.folder)},
            capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=60,
        )  # fmt: skip
        assert not check or done.returncode == 0, done.stderr
        return done

    def image(self, name: str, more: dict[str, str] | None = None) -> None:
        """Import an image made of this machine's own programs; `more`: further files by path, all executable."""
        top = self.folder / "image"
        for folder in ("bin", "tmp", "etc", "usr/local", "proc", "sys", "dev"):
            (top / folder).mkdir(parents=True, exist_ok=True)
        (top / "tmp").chmod(0o1777)
        for program in PROGRAMS:
            found = shutil.which(program)
            if found:
                _copy_program(Path(found).resolve(), top, f"bin/{program}")
        for path, text in (more or {}).items():
            target = top / path.lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text)
            target.chmod(0o755)
        archive = self.folder / "image.tar"
        with tarfile.open(archive, "w") as tar:
            tar.add(top, arcname=".")
        self.docker("import", str(archive), name)
        archive.unlink()
        shutil.rmtree(top)

    def entry(self, path: Path, python: str, *before: str) -> str:
        """A program that runs `python` in the engine's mounts, behind the words `before`; its path."""
        assert self.process is not None
        words = " ".join(f"'{word}'" for word in (*before, python))
        path.write_text(f'#!/bin/sh\nexec {_which("nsenter")} --mount --target {self.process.pid} -- {words} "$@"\n')
        path.chmod(0o755)
        return str(path)

    def containers(self, *filters: str) -> list[str]:
        """Names of containers, ended ones as well."""
        words = [word for item in filters for word in ("--filter", item)]
        return self.docker("ps", "--all", "--format", "{{.Names}}", *words).stdout.split()

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(AssertionError, subprocess.TimeoutExpired):
            names = self.containers()
            if names:
                self.docker("rm", "--force", *names, check=False)
        if self.process is not None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait(10)
        subprocess.run(["umount", self.folder / "dev"], check=False)
        shutil.rmtree(self.folder, ignore_errors=True)


def _copy_program(source: Path, top: Path, target: str) -> None:
    shutil.copy2(source, top / target)
    told = subprocess.run(["ldd", source], capture_output=True, text=True).stdout
    for word in told.split():
        if word.startswith("/"):
            copy = top / word.lstrip("/")
            copy.parent.mkdir(parents=True, exist_ok=True)
            if not copy.exists():
                shutil.copy2(Path(word).resolve(), copy)


def as_user(uid: int) -> Sequence[str]:
    """The words that make what follows an ordinary user."""
    return ("setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups")
