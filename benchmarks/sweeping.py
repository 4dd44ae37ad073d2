"""Sweeps: a large one sent to four hosts and shown, and how well many short trials fill the cards of two hosts."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime
from pathlib import Path

from measure import tell, timed

from tests.support.lab import Client, Lab
from tests.support.waiting import eventually

POINTS, HOSTS = 1000, 4
TRIALS, SECONDS, CARDS = 200, 1.0, 4  # cards of each of two hosts


@contextmanager
def hosts(folder: Path, count: int, cards: int) -> Iterator[Client]:
    """A client with so many hosts, each of which has our agent already."""
    with ExitStack() as stack:
        labs = [
            stack.enter_context(Lab(folder / f"h{place}", alias=f"h{place}", cards=cards)) for place in range(count)
        ]
        client = Client(folder / "client", *labs)
        client.env.pop("PYTHONDONTWRITEBYTECODE", None)
        for lab in labs:
            client.run(
                "submit", str(client.spec("device: npu\ncommand: 'true'\n", "first")), "--host", lab.alias, "--wait"
            )
        yield client


def grid(lab: Lab, client: Client, rounds: int) -> None:
    """A grid of 1,000 points on four hosts, `sweep show` of it while it waits and once it is over."""
    values = ", ".join(f"{number}e-4" for number in range(1, POINTS // 10 + 1))
    text = (
        "device: npu\ncommand: [sleep, '600']\nenv: {LR: '{lr}', BATCH: '{batch}'}\nmetrics: {loss: 'loss=(.+)'}\n"
        f"sweep: {{objective: loss min, parameters: {{lr: [{values}], batch: [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]}}}}\n"
    )
    with hosts(client.folder / "grid", HOSTS, 2) as own:
        spec = str(own.spec(text, "grid"))

        def run(*words: str) -> float:
            return timed([sys.executable, "-m", "jobrunner", *words], own.env, own.folder).wall

        sent = run("submit", spec)
        tell(f"a grid of {POINTS} points on {HOSTS} hosts", f"{sent:.2f} s ({POINTS / sent:.0f} jobs a second)", "10 s")
        assert len(own.json("sweep", "show", "grid", "--offline")["trials"]) == POINTS
        for words in (("--offline",), ()):
            taken = sorted(run("sweep", "show", "grid", *words) for _ in range(rounds))
            asked = "from the ledger" if words else "all hosts asked, none of it over"
            tell(f"`sweep show` of {POINTS} trials, {asked}", f"{taken[rounds // 2]:.2f} s", "1 s")
        tell(f"`sweep stop` of {POINTS} trials", f"{run('sweep', 'stop', 'grid'):.2f} s", "")
        taken = sorted(run("sweep", "show", "grid") for _ in range(rounds))
        tell(f"`sweep show` of {POINTS} trials that are over", f"{taken[rounds // 2]:.2f} s", "1 s")


def short_trials(lab: Lab, client: Client, rounds: int) -> None:
    """200 trials of one second on eight cards of two hosts, from the first one's start to the last one's end."""
    text = (
        f"device: npu\ncode: null\ncommand: [sleep, '{SECONDS}']\nenv: {{N: '{{n}}'}}\n"
        f"sweep: {{parameters: {{n: {{min: 1, max: {TRIALS}, step: 1}}}}}}\n"
    )
    with hosts(client.folder / "short", 2, CARDS) as own:
        own.run("submit", str(own.spec(text, "short").rename(own.folder / "short.yaml")))

        def over() -> bool:
            """Looked at from outside and seldom, so that nobody pays for asking."""
            time.sleep(0.5)
            return sum(1 for _ in own.folder.parent.glob("*/home/.jobrunner/hosts/*/jobs/*/final.json")) >= TRIALS + 2

        eventually(over, 300, "the end of the sweep")
        shown = own.json("sweep", "show", "short")
        assert shown["sweep"]["completed"] == TRIALS
        moments = [
            datetime.fromisoformat(item[key][:-1]) for item in shown["trials"] for key in ("started_at", "ended_at")
        ]
        took, ideal = (max(moments) - min(moments)).total_seconds(), TRIALS * SECONDS / (2 * CARDS)
        value = f"{took:.1f} s, {took / ideal:.2f} of the ideal {ideal:.0f} s"
        tell(f"{TRIALS} trials of {SECONDS:.0f} s on {2 * CARDS} cards of two hosts", value, "1.15")
