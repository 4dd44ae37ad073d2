"""Which host a job goes to: facts about the candidates, gathered only where there is a choice to make."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from jobrunner.core.errors import JobrunnerError, UsageError
from jobrunner.core.states import JobState
from jobrunner.service.reconcile import reconcile
from jobrunner.service.session import Session

if TYPE_CHECKING:
    from jobrunner.core.jobs import JobRow
    from jobrunner.core.placement import HostFacts, Placement
    from jobrunner.core.spec import JobSpec
    from jobrunner.ledger import HostRow


def place_all(session: Session, specs: Sequence[JobSpec], only: str | None) -> list[Placement]:
    """A placement for each spec, in order; jobs placed before count as waiting for those after.

    Hosts are looked at (cards and all, in parallel) unless each spec has one candidate whose cards are known already.
    """
    from jobrunner.core.placement import Demand, place

    demands = [Demand.of(spec, only) for spec in specs]
    names = [_candidates(session, spec, only) for spec in specs]
    aliases = list(dict.fromkeys(name for group in names for name in group))
    if all(_obvious(session, spec, group) for spec, group in zip(specs, names, strict=True)):
        facts = {alias: _remembered(session, alias) for alias in aliases}
    else:
        facts = _look(session, aliases)
    placed: list[Placement] = []
    taken: dict[str, int] = {}
    for demand, group in zip(demands, names, strict=True):
        placement = place(demand, [_with_more(facts[alias], taken.get(alias, 0)) for alias in group])
        if placement.host is not None:
            taken[placement.host] = taken.get(placement.host, 0) + max(1, demand.cards)
        placed.append(placement)
    return placed


def facts_of(session: Session, spec: JobSpec, only: str | None, among: Sequence[str] | None = None) -> list[HostFacts]:
    """What is known now of the hosts that a spec may go to (of `among`, if given); looked at where that may matter."""
    names = [name for name in _candidates(session, spec, only) if among is None or name in among]
    if _obvious(session, spec, names):
        return [_remembered(session, names[0])]
    facts = _look(session, names) if names else {}
    return [facts[name] for name in names]


def _candidates(session: Session, spec: JobSpec, only: str | None) -> list[str]:
    """Hosts that a spec may go to by its own words; all known ones where it names none."""
    named = _named(session, spec)
    holders = {row.host: row.id for row in named if row.host is not None}
    names = [only] if only is not None else list(spec.hosts) or session.known_aliases()
    if holders:
        near = [name for name in holders if name in names or (only is None and not spec.hosts)]
        if near and len(holders) == 1:
            names = near
        elif not {row.id for row in named} <= {session.ledger.resolve(item.job) for item in spec.after}:
            raise _checkpoint_elsewhere(holders)  # it would not wait until `tick` has brought it
    if not names:
        raise UsageError(
            "no hosts are known, so there is nowhere to send a job",
            code="no_hosts",
            remedy=f"name one with --host ALIAS (from your SSH configuration), or list it in {session.hosts_file}",
        )
    return names


def _named(session: Session, spec: JobSpec) -> list[JobRow]:
    """The jobs whose checkpoints a spec's words name (`{checkpoint:JOB}`): paths on their hosts."""
    from jobrunner.core.placeholders import OPEN, find

    command = spec.command if not isinstance(spec.command, str) else ()
    words = [word for word in (*(command or ()), *spec.args, *spec.resume_args) if f"{OPEN}:" in word]
    named = [job for word in words for job in find(word)[1] if job is not None]
    return [session.ledger.get(session.ledger.resolve(job)) for job in named]


def _checkpoint_elsewhere(holders: Mapping[str, str]) -> UsageError:
    where = ", ".join(f"{id_} on {host}" for host, id_ in holders.items())
    return UsageError(
        f"the spec names a checkpoint that lies on a host where this job may not go ({where})",
        code="checkpoint_elsewhere",
        remedy="let it go to that host, or name the job in `after` as well: then `jobrunner tick` (or `serve`) brings "
        "its checkpoint along once it has ended",
    )


def _obvious(session: Session, spec: JobSpec, names: list[str]) -> bool:
    """True if there is one candidate and its cards have been seen before, so that a look would change nothing.

    A name that never answered is looked for again, however often it was tried: it may be a typing mistake.
    """
    if len(names) != 1:
        return False
    known = session.ledger.host(names[0])
    if known is None or not known.instance or known.drained:
        return False
    device = session.hosts.get(names[0]).device or known.device
    return spec.card_count == 0 or (device == spec.device and bool(known.facts.get("cards")))


def _remembered(session: Session, alias: str) -> HostFacts:
    known = session.ledger.host(alias)
    assert known is not None
    cards = tuple(int(card) for card in known.facts.get("cards", ()))
    return _facts(session, alias, known, device=known.device, cards=cards, free=cards, queued=0)


def _look(session: Session, aliases: list[str]) -> dict[str, HostFacts]:
    from jobrunner.core.placement import HostFacts

    found = reconcile(session, also=aliases, cards=True, unsent=False)
    facts: dict[str, HostFacts] = {}
    for alias in aliases:
        error: JobrunnerError | None = found.errors.get(alias)
        if error is not None and alias not in found.answers:
            if len(aliases) == 1:
                raise error
            session.warn(f"{alias} was left out: {error.message}")
            facts[alias] = HostFacts(alias, reachable=False, error=error.message, tags=session.hosts.get(alias).tags)
            continue
        facts[alias] = facts_from(session, alias, found.answers[alias])
    return facts


def facts_from(session: Session, alias: str, answer: Mapping[str, Any]) -> HostFacts:
    """A host's facts from its answer to a look with cards."""
    report = answer.get("cards") or {}
    cards = report.get("cards") or []
    known = session.ledger.host(alias)
    declared = session.hosts.get(alias)
    indices = tuple(card["index"] for card in cards)
    free = tuple(card["index"] for card in cards if card.get("free"))
    device = report.get("device") or declared.device
    if not indices and declared.cards:
        indices = free = tuple(range(declared.cards))
    error = report.get("error") or {}
    untold = "" if indices or error.get("code") == "no_card" else str(error.get("message") or "")
    mine = session.ledger.list(states=[JobState.QUEUED], host=alias)
    models = tuple({key: card.get(key) for key in ("index", "model", "board", "near")} for card in cards)
    return _facts(
        session, alias, known, device=device, cards=indices, free=free, queued=len(mine), models=models, untold=untold
    )


def _facts(
    session: Session,
    alias: str,
    known: HostRow | None,
    *,
    device: str | None,
    cards: tuple[int, ...],
    free: tuple[int, ...],
    queued: int,
    models: tuple[dict[str, Any], ...] = (),
    untold: str = "",
) -> HostFacts:
    from jobrunner.core.placement import HostFacts

    declared = session.hosts.get(alias)
    running = session.ledger.list(states=[JobState.RUNNING], host=alias)
    return HostFacts(
        alias,
        device=declared.device or device,
        cards=cards,
        free=free,
        models=models,
        only_cards=declared.only_cards,
        max_cards=declared.max_cards,
        in_use=sum(len(row.cards) for row in running),
        cpu_jobs=declared.cpu_jobs,
        cpu_running=sum(1 for row in running if not row.cards),
        tags=declared.tags,
        queued=queued,
        drained=known.drained if known else False,
        untold=untold,
    )


def _with_more(facts: HostFacts, taken: int) -> HostFacts:
    """The facts after other jobs of this very submit have been sent there: they will take free cards, or wait."""
    if not taken:
        return facts
    from dataclasses import replace

    if len(facts.free) > taken:
        return replace(facts, free=facts.free[taken:])
    return replace(facts, free=(), queued=facts.queued + 1)
