"""What a seed stands for: a job, the faults that meet it and when, and what is done afterwards. Pure."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

# Faults by where they strike. `…@submit` begins before the submit or while it runs, `…@run` while the job runs.
LINK = ("cut_bytes", "cut_now", "stall", "delay", "refuse")
SLOW_LINK = ("hole",)
CLIENT = ("kill_client", "interrupt_client")
HOST = ("kill_dispatcher", "kill_supervisor", "kill_job", "kill_both", "kill_tmux", "sshd_down", "kill_everything")
NAMESPACE_HOST = ("reboot", "full_disk", "no_inodes", "read_only", "reused_pid")
CLOCK = ("clock",)
NARROW = ("none", "none", "none", "max_sessions", "max_startups", "slow_login", "noisy_login")
# By how much a host's clock is set, in seconds: a time zone taken for another, a dead battery, a correction.
STEPS = (3 * 3600, -3600, 40, -40, 2 * 86400, -8 * 3600, 5, 0)
AMPLE_S = 600.0
DISK_FAULTS = ("full_disk", "no_inodes", "read_only")


@dataclass(frozen=True)
class Fault:
    """One fault: it begins `at` seconds into its phase and is over after `span` (what strikes at once ignores that)."""

    kind: str
    phase: str
    at: float
    span: float
    number: int
    direction: str
    steps: tuple[int, int] = (0, 0)


@dataclass(frozen=True)
class Scenario:
    """All that a seed decides."""

    seed: int
    plan: dict[str, Any]
    launcher: str
    cards: int
    retry: dict[str, Any] | None
    timeout: float | None
    narrow: str
    faults: tuple[Fault, ...]
    cancel_at: float | None
    retry_after: bool
    follow: bool
    fresh_host: bool
    pull_fault: Fault | None
    ballast: int

    @property
    def kinds(self) -> set[str]:
        """The kinds of its faults."""
        return {fault.kind for fault in self.faults}

    @property
    def host_faults(self) -> set[str]:
        """Kinds of faults that may change how the job itself ends."""
        return self.kinds & {*HOST, *NAMESPACE_HOST} - {"sshd_down", "kill_dispatcher"}

    def text(self) -> str:
        """One line for a report."""
        faults = " ".join(f"{f.kind}@{f.phase}+{f.at:.2f}" for f in (*self.faults, self.pull_fault) if f)
        return (
            f"seed {self.seed}: ends {self.plan['ends']} {self.launcher} cards={self.cards} retry={bool(self.retry)} "
            f"narrow={self.narrow} cancel={self.cancel_at} again={self.retry_after} faults: {faults or 'none'}"
        )


def draw(seed: int, *, namespaces: bool = True, slow: bool = False) -> Scenario:
    """The scenario of a seed. `slow` allows what takes long to be noticed (a black hole)."""
    chance = random.Random(f"jobrunner {seed}")
    narrow = chance.choice(NARROW)
    count = chance.choice((1, 1, 1, 2, 2, 3))
    faults = tuple(sorted((_fault(chance, namespaces, slow) for _ in range(count)), key=lambda f: (f.phase, f.at)))
    retry = None
    if chance.random() < 0.4:
        retry = {"max": chance.choice((1, 2)), "on": ["exit", "signal", "lost"], "backoff": chance.choice(("0s", "1s"))}
    long = chance.random() < 0.2
    # Half of the jobs that end by themselves have a limit that no sound clock lets them reach.
    timeout = chance.choice((None, 1.0)) if long else chance.choice((None, AMPLE_S))
    cancel_at = chance.uniform(0.0, 1.5) if long and timeout is None else None
    last = chance.choice((0, 0, 0, 3, "SIGSEGV", "SIGKILL"))
    ends = ["hang"] if long else [chance.choice((1, "SIGSEGV")), last] if retry and chance.random() < 0.5 else [last]
    pull = None
    if chance.random() < 0.35:
        kind = chance.choice(("cut_bytes", "cut_now", "kill_client", "sshd_down"))
        size = chance.choice((3000, 9000, 40_000, 150_000))
        pull = Fault(kind, "pull", chance.uniform(0, 0.5), chance.uniform(0.3, 1.0), size, "down")
    return Scenario(
        seed=seed,
        plan={
            "seed": seed, "ends": ends, "lines": chance.choice((3, 20, 40)), "pace": chance.choice((0.002, 0.02, 0.04)),
            "every": chance.choice((3, 10)), "checkpoint_blocks": chance.choice((10, 400, 2000)),
            "stray": chance.random() < 0.4, "stubborn": chance.random() < 0.15,
        },
        launcher=chance.choice(("nohup", "nohup", "tmux")),
        cards=chance.choice((0, 1, 2)),
        retry=retry,
        timeout=timeout,
        narrow=narrow,
        faults=faults,
        cancel_at=cancel_at,
        retry_after=chance.random() < 0.25,
        follow=chance.random() < 0.75,
        fresh_host=chance.random() < 0.25,
        pull_fault=pull,
        ballast=chance.choice((0, 60_000, 400_000)),
    )  # fmt: skip


def _fault(chance: random.Random, namespaces: bool, slow: bool) -> Fault:
    phase = chance.choice(("submit", "run", "run"))
    kinds = [*LINK, *HOST, *CLIENT, *CLOCK, *CLOCK, *CLOCK]
    if slow:
        kinds += SLOW_LINK
    if namespaces:
        kinds += [
            "reboot",
            "reboot",
            *NAMESPACE_HOST,
        ]
    kind = chance.choice(kinds)
    if kind in CLIENT and phase == "run":
        kind = "kill_client"
    return Fault(
        kind, phase, chance.uniform(0.0, 1.0), chance.uniform(0.2, 1.2),
        chance.choice((500, 1500, 4000, 6000, 20_000, 200_000)), chance.choice(("up", "down")),
        (chance.choice(STEPS[:-1]), chance.choice(STEPS)),
    )  # fmt: skip
