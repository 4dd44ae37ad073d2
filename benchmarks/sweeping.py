"""Sweeps: a large one sent to four hosts and shown, and how well many short trials fill the cards of two hosts."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime

from measure import OURS, timed
from places import Bench
from report import Aim

from tests.support.lab import Client
from tests.support.waiting import eventually

POINTS, HOSTS = 1000, 4
TRIALS, SECONDS, CARDS = 200, 1.0, 4  # cards of each of two hosts


@contextmanager
def hosts(bench: Bench, count: int, cards: int) -> Iterator[Client]:
    """A client with so many hosts, each of which has our agent already."""
    with bench.labs(count, cards=cards) as labs, bench.client(labs) as (client, _):
        for lab in labs:
            spec = str(client.spec("device: npu\ncommand: 'true'\n", "first"))
            client.run("submit", spec, "--host", lab.alias, "--wait")
        yield client


def grid(bench: Bench) -> None:
    """A grid of 1,000 points on four hosts, `sweep show` of it while it waits and once it is over."""
    values = ", ".join(f"{number}e-4" for number in range(1, POINTS // 10 + 1))
    text = (
        "device: npu\ncommand: [sleep, '600']\nenv: {LR: '{lr}', BATCH: '{batch}'}\nmetrics: {loss: 'loss=(.+)'}\n"
        f"sweep: {{objective: loss min, parameters: {{lr: [{values}], batch: [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]}}}}\n"
    )
    report, turns = bench.report, bench.few(5)
    with hosts(bench, HOSTS, 2) as own:
        spec = str(own.spec(text, "grid"))

        def run(*words: str) -> float:
            return timed([*OURS, *words], own.env, own.folder).wall

        sent = run("submit", spec)
        told = f"a grid of {POINTS:,} points on {HOSTS} hosts, one `submit` ({POINTS / sent:.0f} jobs a second)"
        report.value(told, [sent], Aim(10, "s"), unit="s")
        assert len(own.json("sweep", "show", "grid", "--offline")["trials"]) == POINTS
        for words in (("--offline",), ()):
            asked = "from the ledger" if words else "all hosts asked, none of it over"
            taken = [run("sweep", "show", "grid", *words) for _ in range(turns)]
            report.value(f"`sweep show` of {POINTS:,} trials, {asked}", taken, Aim(1, "s"), unit="s")
        report.value(f"`sweep stop` of {POINTS:,} trials", [run("sweep", "stop", "grid")], None, unit="s")
        taken = [run("sweep", "show", "grid") for _ in range(turns)]
        report.value(f"`sweep show` of {POINTS:,} trials that are over", taken, Aim(1, "s"), unit="s")


def short_trials(bench: Bench) -> None:
    """200 trials of one second on eight cards of two hosts, from the first one's start to the last one's end."""
    text = (
        f"device: npu\ncode: null\ncommand: [sleep, '{SECONDS}']\nenv: {{N: '{{n}}'}}\n"
        f"sweep: {{parameters: {{n: {{min: 1, max: {TRIALS}, step: 1}}}}}}\n"
    )
    with bench.labs(2, cards=CARDS) as labs, bench.client(labs) as (own, _):
        own.run("submit", str(own.spec(text, "short").rename(own.folder / "short.yaml")))

        def over() -> bool:
            """Looked at from outside and seldom, so that nobody pays for asking."""
            time.sleep(0.5)
            return sum(1 for lab in labs for _ in lab.root.glob("hosts/*/jobs/*/final.json")) >= TRIALS

        eventually(over, 300, "the end of the sweep")
        shown = own.json("sweep", "show", "short")
        assert shown["sweep"]["completed"] == TRIALS
        moments = [
            datetime.fromisoformat(item[key][:-1]) for item in shown["trials"] for key in ("started_at", "ended_at")
        ]
        took, ideal = (max(moments) - min(moments)).total_seconds(), TRIALS * SECONDS / (2 * CARDS)
        what = f"{TRIALS} trials of {SECONDS:.0f} s on {2 * CARDS} cards of two hosts"
        bench.report.ratio(what, [took], "nothing but the trials", [ideal], Aim(1.15))
