"""Submits through OpenSSH's client: over a connection that commands share, and cold; beside the same by hand."""

from __future__ import annotations

import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from measure import HEADER, Taken, compare, timed

from tests.support.lab import Client, Lab


class ByHand:
    """The peer: rsync, then ssh with nohup, both through the control socket of a master that is up."""

    def __init__(self, lab: Lab, client: Client, socket: Path) -> None:
        self.client, self.target = client, str(lab.folder / "by-hand-shared")
        self.ssh = ["ssh", "-F", str(lab.sshd.ssh_config), "-o", f"ControlPath={socket}", "-o", "ControlPersist=900"]

    def connect(self) -> None:
        argv = [*self.ssh, "-M", "-N", "-f", "lab"]
        subprocess.run(argv, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def disconnect(self) -> None:
        subprocess.run([*self.ssh, "-O", "exit", "lab"], check=False, capture_output=True)

    def __call__(self, code: Path) -> Taken:
        ssh, command = shlex.join(self.ssh), f"cd {self.target} && setsid nohup bash -c true </dev/null >log 2>&1 &"
        script = f"rsync -a -e {shlex.quote(ssh)} {code}/ lab:{self.target}/ && {ssh} lab {shlex.quote(command)}"
        return timed(["bash", "-c", script], self.client.env, self.client.folder)


def openssh(
    lab: Lab, client: Client, rounds: int, *, code: Path, rest: Callable[[], None], cold_hand: Callable[[Path], Taken]
) -> None:
    """`submit` of a folder with `--transport openssh`. `rest` waits for what its jobs leave; untimed."""
    jobrunner = [sys.executable, "-m", "jobrunner"]

    def submit() -> Taken:
        words = ["submit", str(code / "spec.yaml"), "--transport", "openssh"]
        took = timed([*jobrunner, *words], client.env, client.folder)
        rest()
        return took

    def disconnect() -> None:
        timed([*jobrunner, "hosts", "disconnect"], client.env, client.folder)

    def cold() -> Taken:
        disconnect()
        return submit()

    print(HEADER, flush=True)
    with tempfile.TemporaryDirectory(prefix="jr-") as place:
        hand = ByHand(lab, client, Path(place) / "s")
        hand.connect()
        try:
            submit(), submit(), hand(code), cold_hand(code)
            compare("submit again, shared connection", 5, 2 * rounds, submit, lambda: hand(code))
            compare("submit, OpenSSH's client, cold", 0.8, 2 * rounds, cold, lambda: cold_hand(code))
        finally:
            hand.disconnect()
            disconnect()
