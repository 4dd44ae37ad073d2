"""How the trials of a sweep are spread over hosts. Pure: facts about hosts in, how many go where out."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import replace

from jobrunner.core.placement import Demand, HostFacts, Placement, can_start_now, place
from jobrunner.core.points import shares
from jobrunner.core.values import dataclass


@dataclass(frozen=True)
class Spread:
    """`order` is the host of each trial, in turn; `shares` what each host may run at once (None: what its cards allow);
    `placement` tells why not on other hosts."""

    order: tuple[str, ...]
    shares: dict[str, int] | None
    placement: Placement


def spread(
    demand: Demand,
    hosts: Sequence[HostFacts],
    count: int,
    parallel: int | None = None,
    kept: Mapping[str, int] | None = None,
) -> Spread:
    """Spread `count` jobs: first to where one can start now, then to where its turn comes soonest.

    With `parallel` no more hosts than that are used, and each has a share of it; hosts in `kept` have theirs already.
    No host that fits: an empty order, and `placement` has the error.
    """
    placement = place(demand, hosts)
    if placement.host is None:
        return Spread((), None, placement)
    known = {host.name: host for host in hosts}
    fitting = [known[name] for name in placement.ranked]
    widths = {host.name: max(1, at_once(demand, host)) for host in fitting}
    if parallel is None:
        return Spread(_in_turn(demand, fitting, widths, count), None, placement)
    kept = dict(kept or {})
    left = parallel - sum(kept.values())
    fresh = [host.name for host in fitting if host.name not in kept][: max(0, left)]
    limits = {**kept, **shares(max(0, left), {name: widths[name] for name in fresh})}
    usable = [host for host in fitting if host.name in limits]
    if not usable:  # what was kept lies on hosts that take nothing now: one waits there, or here for its turn
        usable, limits = fitting[:1], {fitting[0].name: 1}
    narrow = {host.name: min(widths[host.name], limits[host.name]) for host in usable}
    order = _in_turn(demand, usable, narrow, count)
    new = {name: order.count(name) for name in dict.fromkeys(order) if name not in kept}
    return Spread(order, {**kept, **(shares(left, new) if left > 0 else dict.fromkeys(new, 1))}, placement)


def at_once(demand: Demand, host: HostFacts) -> int:
    """How many such jobs an idle host could run at the same time."""
    if not demand.cards:
        return host.cpu_jobs if host.cpu_jobs is not None else 1
    if demand.card_ids is not None:
        return 1
    cards = len(host.usable) if host.max_cards is None else min(len(host.usable), host.max_cards)
    return cards // demand.cards


def starting(demand: Demand, host: HostFacts) -> int:
    """How many such jobs could start there now."""
    count = 0
    while can_start_now(demand, host):
        count += 1
        if not demand.cards:
            if host.cpu_jobs is None:  # nobody said how many; the host knows
                break
            host = replace(host, cpu_running=host.cpu_running + 1)
            continue
        free = [card for card in host.free if card in host.usable]
        taken = demand.card_ids or free[: demand.cards]
        left = tuple(card for card in host.free if card not in taken)
        host = replace(host, free=left, in_use=host.in_use + demand.cards)
    return count


def _in_turn(demand: Demand, hosts: Sequence[HostFacts], widths: dict[str, int], count: int) -> tuple[str, ...]:
    """Each job in turn to the host that reaches it first: by how many wait before it for each that may run there."""
    heap: list[tuple[float, float, int]] = []
    now = [min(starting(demand, host), widths[host.name]) for host in hosts]
    given = [0] * len(hosts)

    def push(place_: int) -> None:
        host, width = hosts[place_], widths[hosts[place_].name]
        waits = host.queued + given[place_] - now[place_] + 1
        full = given[place_] / max(1, now[place_])
        heapq.heappush(heap, (max(0, waits) / width, full if waits <= 0 else 0.0, place_))

    for place_ in range(len(hosts)):
        push(place_)
    order: list[str] = []
    for _ in range(count):
        _, _, place_ = heapq.heappop(heap)
        order.append(hosts[place_].name)
        given[place_] += 1
        push(place_)
    return tuple(order)
