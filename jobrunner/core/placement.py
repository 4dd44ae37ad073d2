"""Which host a job goes to. Pure: facts about hosts in, a choice and a sentence about every other host out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field
from typing import TYPE_CHECKING

from jobrunner.core.devices import Card, unlinked
from jobrunner.core.errors import HostError, JobrunnerError, UsageError
from jobrunner.core.values import dataclass

if TYPE_CHECKING:
    from jobrunner.core.spec import JobSpec


@dataclass(frozen=True)
class Demand:
    """What a job needs of a host. `only` is a host asked for on the command line; it goes before `hosts` and `tags`."""

    device: str
    cards: int
    card_ids: tuple[int, ...] | None = None
    hosts: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    only: str | None = None

    @classmethod
    def of(cls, spec: JobSpec, only: str | None = None) -> Demand:
        """The demand of a spec."""
        return cls(spec.device, spec.card_count, spec.card_ids, spec.hosts, spec.tags, only)


@dataclass(frozen=True)
class HostFacts:
    """What is known about a host now.

    `cards` are the numbers of all its cards, `free` of those that nothing uses; `models` their `index`, `model` and
    `board` where they were looked at: they tell which cards work together. `in_use` is how many cards my running jobs
    hold, `queued` how many of my jobs wait there. None among the limits means none. `untold` is why the vendor's tool
    told nothing of the cards just now: what the host has is not known then.
    """

    name: str
    reachable: bool = True
    error: str = ""
    device: str | None = None
    cards: tuple[int, ...] = ()
    free: tuple[int, ...] = ()
    models: tuple[Card, ...] = ()
    only_cards: tuple[int, ...] | None = None
    max_cards: int | None = None
    in_use: int = 0
    cpu_jobs: int | None = None
    cpu_running: int = 0
    tags: tuple[str, ...] = ()
    queued: int = 0
    drained: bool = False
    untold: str = ""

    @property
    def usable(self) -> tuple[int, ...]:
        """The cards that my jobs may use at all."""
        return tuple(c for c in self.cards if self.only_cards is None or c in self.only_cards)


@dataclass(frozen=True)
class Placement:
    """The host that was chosen, if any; `ranked` all that could take the job, best first; `reasons` why not the others.

    `unreachable`, `drained` and `untold` name the hosts that were left out only because they do not answer, are
    drained, or cannot tell about their cards just now.
    """

    host: str | None
    ranked: tuple[str, ...] = ()
    reasons: dict[str, str] = field(default_factory=dict)
    unreachable: tuple[str, ...] = ()
    drained: tuple[str, ...] = ()
    untold: tuple[str, ...] = ()

    def error(self) -> JobrunnerError:
        """The error of a placement without a host: HostError if a host of which nothing is known now might take it."""
        why = "; ".join(f"{name}: {reason}" for name, reason in self.reasons.items()) or "no host is known"
        if self.unreachable:
            return HostError(
                f"no host that answers can take this job ({why})",
                host=self.unreachable[0],
                code="unreachable",
                remedy="`jobrunner doctor` says what is wrong with a host that does not answer",
            )
        if self.untold:
            name = self.untold[0]
            return HostError(
                f"no host is known to have the cards for this job ({why})",
                host=name,
                code="cards_unknown",
                remedy=f"submit again once the tool answers; `jobrunner doctor {name}` looks closer. "
                f"With `cards: N` for {name} in the hosts file the tool is not needed",
            )
        if self.drained:
            remedy = f"`jobrunner hosts undrain {self.drained[0]}` lets jobs start there again"
            return UsageError(f"every host that can take this job is drained ({why})", remedy=remedy, code="no_host")
        remedy = "change `device`, `cards`, `hosts` or `tags`; `jobrunner cards` shows what there is"
        return UsageError(f"no host can ever take this job ({why})", remedy=remedy, code="no_host")


def place(demand: Demand, hosts: Iterable[HostFacts]) -> Placement:
    """Choose a host: where the job can start now, then the shortest queue, then the most free cards, then order."""
    reasons: dict[str, str] = {}
    fitting: list[HostFacts] = []
    unreachable: list[str] = []
    drained: list[str] = []
    untold: list[str] = []
    known = list(hosts)
    for host in known:
        reason = _unwanted(demand, host)
        if not reason and not host.reachable:
            unreachable.append(host.name)
            reason = "does not answer" + (f" ({host.error})" if host.error else "")
        if not reason and host.untold and demand.cards and demand.device == host.device:
            untold.append(host.name)
            reason = f"cannot tell about its cards now: {host.untold}"
        reason = reason or _never(demand, host)
        if not reason and host.drained and demand.only != host.name:
            drained.append(host.name)
            reason = "is drained"
        if reason:
            reasons[host.name] = reason
        else:
            fitting.append(host)
    fitting.sort(key=lambda host: _rank(demand, host))
    for host in fitting[1:]:
        reasons[host.name] = _later(demand, fitting[0], host)
    missing = [
        name for name in ((demand.only,) if demand.only else demand.hosts) if name not in {h.name for h in known}
    ]
    reasons.update(dict.fromkeys(missing, "is not known"))
    ranked = tuple(host.name for host in fitting)
    return Placement(ranked[0] if ranked else None, ranked, reasons, tuple(unreachable), tuple(drained), tuple(untold))


def _unwanted(demand: Demand, host: HostFacts) -> str:
    """Why the job may not go there by the user's own word."""
    if demand.only is not None:
        return "" if host.name == demand.only else f"--host asks for {demand.only}"
    if demand.hosts and host.name not in demand.hosts:
        return "is not among the spec's `hosts`"
    lacking = [tag for tag in demand.tags if tag not in host.tags]
    return f"lacks the tag {', '.join(lacking)}" if lacking else ""


def _never(demand: Demand, host: HostFacts) -> str:
    """Why the host could not run the job even if it were idle."""
    if demand.device != "cpu" and host.device != demand.device:
        has = f"has {host.device} cards" if host.device not in (None, "cpu") else "has no cards that we know of"
        return f"{has}, not {demand.device}"
    if not demand.cards:
        return ""
    absent = [str(card) for card in demand.card_ids or () if card not in host.usable]
    if absent:
        return f"has no card {', '.join(absent)} that may be used"
    if demand.cards > len(host.usable):
        return f"has {_count(len(host.usable))} that may be used, {demand.cards} are needed"
    if host.max_cards is not None and demand.cards > host.max_cards:
        return f"allows {_count(host.max_cards)} at once (max_cards), {demand.cards} are needed"
    return ""


def never_linked(demand: Demand, host: HostFacts) -> str:
    """Why no set of the host's cards works together for the job, as far as that is known; else "".

    Such a host is the last choice and no wrong one: its user may have named it on purpose. There the job waits.
    """
    return unlinked(demand.device, host.usable, demand.cards, demand.card_ids, host.models)


def can_start_now(demand: Demand, host: HostFacts) -> bool:
    """True if the job need not wait there: cards are free within the limits, and no job of mine stands before it."""
    if host.queued or host.drained:
        return False
    if not demand.cards:
        return host.cpu_jobs is None or host.cpu_running < host.cpu_jobs
    free = [card for card in host.usable if card in host.free]
    if host.max_cards is not None and host.in_use + demand.cards > host.max_cards:
        return False
    if demand.card_ids is not None:
        return all(card in free for card in demand.card_ids) and not never_linked(demand, host)
    return len(free) >= demand.cards and not unlinked(demand.device, free, demand.cards, None, host.models)


def _rank(demand: Demand, host: HostFacts) -> tuple[bool, bool, int, int]:
    starts = can_start_now(demand, host)
    return bool(never_linked(demand, host)), not starts, host.queued, -len(set(host.free).intersection(host.usable))


def _later(demand: Demand, best: HostFacts, host: HostFacts) -> str:
    """Why a host that could take the job is not the first choice."""
    never = never_linked(demand, host)
    if never and not never_linked(demand, best):
        return never
    if can_start_now(demand, best) and not can_start_now(demand, host):
        return f"the job would wait there ({host.queued} queued), and can start at once on {best.name}"
    if host.queued != best.queued:
        return f"more jobs wait there ({host.queued}) than on {best.name} ({best.queued})"
    if _rank(demand, host) != _rank(demand, best):
        return f"fewer cards are free there than on {best.name}"
    return f"as good as {best.name}, which is named first"


def _count(number: int) -> str:
    return "1 card" if number == 1 else f"{number} cards"
