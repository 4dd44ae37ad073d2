"""Which waiting trials go to another host, because they could start there now. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace

from jobrunner.core.placement import Demand, HostFacts, can_start_now, place
from jobrunner.core.values import dataclass


@dataclass(frozen=True)
class Waiting:
    """A queued job of mine. `share`: how many trials of its sweep may run at once on its host (None: any number).

    Jobs that are not `movable` only take their place in their host's queue.
    """

    id: str
    host: str
    demand: Demand
    sweep: str | None = None
    share: int | None = None
    movable: bool = False


@dataclass(frozen=True)
class Load:
    """A sweep as it is: `parallel` over all hosts, by host how many of its trials are `live` and `running`, and the
    `shares` of `parallel` that hosts with live trials have."""

    parallel: int | None = None
    live: Mapping[str, int] = field(default_factory=dict)
    running: Mapping[str, int] = field(default_factory=dict)
    shares: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Step:
    """One move, and the `share` of its sweep's `parallel` that the target then has."""

    id: str
    source: str
    target: str
    share: int | None = None


def plan(waiting: Sequence[Waiting], hosts: Mapping[str, HostFacts], loads: Mapping[str, Load]) -> list[Step]:
    """The moves, oldest job first. `waiting` is in the order in which the jobs start on their hosts.

    A job is moved only if it would start at once: the target takes what waits there already first, and where
    something waits for cards nothing is added. The shares of a sweep never add up to more than its `parallel`.
    """
    rooms = {name: _Room(facts) for name, facts in hosts.items() if facts.reachable and not facts.drained}
    sweeps = {id_: _Shares(load) for id_, load in loads.items()}
    late = [job for job in waiting if not _starts_where_it_is(job, rooms, sweeps)]
    steps: list[Step] = []
    for job in late:
        step = _step(job, rooms, sweeps.get(job.sweep or "")) if job.movable else None
        if step is not None:
            steps.append(step)
    return steps


class _Room:
    """What is left on a host while jobs take their places in thought."""

    def __init__(self, facts: HostFacts) -> None:
        self.facts = replace(facts, queued=0)
        self.closed = False

    def take(self, demand: Demand) -> bool:
        """Give a job its cards, if it could start now."""
        facts = self.facts
        if place(demand, [facts]).host is None or not can_start_now(demand, facts):
            return False
        if not demand.cards:
            self.facts = replace(facts, cpu_running=facts.cpu_running + 1)
            return True
        fitting = [card for card in facts.usable if card in facts.free]
        given = set(demand.card_ids or fitting[: demand.cards])
        free = tuple(card for card in facts.free if card not in given)
        self.facts = replace(facts, free=free, in_use=facts.in_use + demand.cards)
        return True


class _Shares:
    """A sweep's trials by host, as moves are planned."""

    def __init__(self, load: Load) -> None:
        self.parallel = load.parallel
        self.live, self.running, self.shares = dict(load.live), dict(load.running), dict(load.shares)

    def grown(self, host: str) -> int | None:
        """The host's share with one more trial there; 0 if there is none to be had. None: no limit."""
        if self.parallel is None:
            return None
        wanted = max(self.shares.get(host, 0), self.live.get(host, 0) + 1)
        others = sum(share for name, share in self.shares.items() if name != host and self.live.get(name))
        return wanted if others + wanted <= self.parallel else 0

    def move(self, source: str, target: str, share: int | None) -> None:
        self.live[source] = self.live.get(source, 0) - 1
        self.live[target] = self.live.get(target, 0) + 1
        if share is not None:
            self.shares[target] = share


def _starts_where_it_is(job: Waiting, rooms: Mapping[str, _Room], sweeps: Mapping[str, _Shares]) -> bool:
    room, sweep = rooms.get(job.host), sweeps.get(job.sweep or "")
    if job.share is not None and sweep is not None and sweep.running.get(job.host, 0) >= job.share:
        return False
    if room is None:
        return False
    if not room.take(job.demand):
        room.closed = True
        return False
    if sweep is not None:
        sweep.running[job.host] = sweep.running.get(job.host, 0) + 1
    return True


def _step(job: Waiting, rooms: Mapping[str, _Room], sweep: _Shares | None) -> Step | None:
    targets = [name for name, room in rooms.items() if name != job.host and not room.closed]
    for name in sorted(targets, key=lambda name: -len(rooms[name].facts.free)):
        share = sweep.grown(name) if sweep is not None else None
        if share == 0 or not rooms[name].take(job.demand):
            continue
        if sweep is not None:
            sweep.move(job.host, name, share)
        return Step(job.id, job.host, name, share)
    return None
