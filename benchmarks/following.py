"""Logs: how late a followed line comes, how fast a big log does, and how much of a huge one is sent for its end."""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import threading
import time
from pathlib import Path

from measure import OURS, Taken, alternate, timed, walls
from places import Bench, ByHand
from report import Aim

from tests.support.lab import Client, Lab
from tests.support.waiting import eventually

LINES, EVERY_S = 300, 0.02


def big(path: Path, mb: int) -> None:
    """A file of so many MB (10⁶ bytes) of text that does not repeat: lines of 99 characters."""
    block = os.urandom(10_000 * 49).hex().encode()
    body = b"\n".join(block[place * 98 : place * 98 + 98] for place in range(10_000)) + b"\n"
    with open(path, "wb") as file:
        for number in range(mb):
            piece = b"%08d" % number + body[8:] + b"." * (1_000_000 - len(body) - 1) + b"\n"
            file.write(piece)


class Listener:
    """A process that follows a log; notes when each line came."""

    def __init__(self, argv: list[str], client: Client) -> None:
        self.came: dict[int, float] = {}
        self.process = subprocess.Popen(
            argv, env=client.env, cwd=client.folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        self.sent: dict[int, float] = {}
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            now, words = time.time(), line.split()
            if len(words) == 3 and words[0] == b"line":
                self.came[int(words[1])], self.sent[int(words[1])] = now, float(words[2])

    def end(self) -> None:
        """Leave, if the log has not ended."""
        try:
            os.killpg(self.process.pid, signal.SIGTERM)
        except ProcessLookupError:
            pass
        self.process.wait(20)
        self._thread.join(10)
        assert self.process.stdout is not None
        self.process.stdout.close()

    def lags(self) -> list[float]:
        """Milliseconds from the writing of each line to its arrival, ascending; the first lines are left out."""
        return sorted((self.came[n] - self.sent[n]) * 1000 for n in self.came if n >= LINES // 10)


TALK = f"""import os, sys, time
while not os.path.exists(sys.argv[1]):
    time.sleep(0.01)
for n in range({LINES}):
    print("line", n, repr(time.time()), flush=True)
    time.sleep({EVERY_S})
"""


def lag(bench: Bench) -> None:
    """300 lines, 50 a second, followed at the same time by `logs -f` and by `ssh tail -f`."""
    with bench.labs() as [lab]:
        for trip in bench.trips:
            with bench.client([lab], trip) as (client, _):
                pairs = [_followed(lab, client, client.folder / f"go{number}") for number in range(bench.few(3))]
                ours95, theirs95 = ([_late(side.lags()) for side in column] for column in zip(*pairs, strict=True))
                bench.report.value(
                    f"`logs -f`: lag of a line, 95th percentile ({statistics.median(ours95):.1f} ms), over the peer's",
                    [mine - other for mine, other in zip(ours95, theirs95, strict=True)],
                    Aim(20, "ms"), unit="ms more", trip=trip, peer=f"ssh tail -f: {statistics.median(theirs95):.1f} ms",
                )  # fmt: skip


def _late(lags: list[float]) -> float:
    return lags[min(len(lags) - 1, int(len(lags) * 0.95))]


def _followed(lab: Lab, client: Client, flag: Path) -> tuple[Listener, Listener]:
    """A job that talks once `flag` is there, and both who listen to it."""
    id_ = client.submit(f"device: cpu\ncommand: [python3, talk.py, {str(flag)!r}]\n", "talks", talk__py=TALK)
    eventually(lambda: (lab.job_folder(id_) / "1" / "log").exists(), 60, "the log")
    hand = ByHand(lab, client)
    ours = Listener([*OURS, "logs", "-f", id_], client)
    theirs = Listener([*hand.ssh, lab.alias, "tail", "-n", "+1", "-F", str(lab.job_folder(id_) / "1" / "log")], client)
    try:
        time.sleep(3)  # both are there before the first line; on a busy machine the first tenth is left out besides
        flag.touch()
        eventually(lambda: all(len(side.came) >= LINES for side in (ours, theirs)), 120, "all lines at both")
    finally:
        ours.end(), theirs.end()
    return ours, theirs


def throughput(bench: Bench) -> None:
    """A big log, whole: its exact bytes, and as text for a terminal or a file; beside `ssh cat`."""
    with bench.labs() as [lab]:
        for trip in bench.trips:
            mb = bench.mb if not trip else bench.mb // 4
            with bench.client([lab], trip) as (client, _):
                id_ = client.submit("device: cpu\ncode: null\ncommand: ['true']\n", "talked")
                client.until(id_, "COMPLETED")
                log = lab.job_folder(id_) / "1" / "log"
                big(log, mb)
                hand = ByHand(lab, client)

                def ours(*words: str, client: Client = client, id_: str = id_) -> Taken:
                    return timed([*OURS, "logs", id_, *words], client.env, client.folder, out=subprocess.DEVNULL)

                turns = alternate(
                    bench.few(3 if not trip else 2),
                    lambda: ours("--raw"),
                    ours,
                    lambda: hand.run("cat", str(log)),  # noqa: B023
                )
                theirs = [mb / took for took in walls(turns, 2)]
                for which, how in enumerate(("--raw", "as text")):
                    speeds = [mb / took for took in walls(turns, which)]
                    what = f"`logs` of a log of {mb / 1000:g} GB, {how}"
                    bench.report.ratio(what, speeds, "ssh cat", theirs, Aim(0.8, least=True), trip=trip, unit="MB/s")
                log.unlink()


def ending(bench: Bench) -> None:
    """`logs -n 20` of a log of 2 GB: bytes on the wire, both directions, of the whole connection."""
    with bench.labs() as [lab], bench.client([lab], counted=True) as (client, proxy):
        assert proxy is not None
        id_ = client.submit("device: cpu\ncode: null\ncommand: ['true']\n", "long")
        client.until(id_, "COMPLETED")
        log = lab.job_folder(id_) / "1" / "log"
        big(log, 2)
        with open(log, "r+b") as file:  # what lies before the last MB is a hole, which is not kept on the disk
            tail = file.read()[-1_000_000:]
            file.truncate(0)
            file.seek(2_000_000_000 - len(tail))
            file.write(tail)
        counts = []
        for _ in range(bench.few(3)):
            before = sum(proxy.passed())
            done = client.run("logs", id_, "-n", "20", "--raw")
            assert len(done.stdout.splitlines()) == 20
            counts.append((sum(proxy.passed()) - before) / 1000)
        bench.report.value("`logs -n 20` of a log of 2 GB, bytes on the wire", counts, Aim(64, "kB"), unit="kB")
