"""Which job starts next, and on which cards. Pure: a situation goes in, a decision comes out.

Between users: fewest card-seconds lately, then age. Among one's own: priority, then age. A wide job that has waited
`WIDE_AFTER_S` keeps the cards that come free; a smaller one passes it only if its time limit ends before the wide one
could start. docs/sharing.md says it in words.
"""

import copy

from . import trials
from .limits import allowed, counted, default_cpu_jobs, dependency, not_ready, of_hosts_file  # noqa: F401 - part of this page

WIDE_AFTER_S = 600.0
NEVER = float("inf")


def own_order(entries):
    """One's own waiting jobs in the order in which they should start."""
    return sorted(entries, key=own_key)


def own_key(entry):
    """The place of a waiting job among one's own."""
    return -(entry.get("priority") or 0), entry.get("since") or "", entry.get("id") or ""


def any_cards(_device, free, count, _cards):
    """Where nothing is known about links: the lowest numbers. `(indexes, None)` or `(None, reason)`."""
    if len(free) < count:
        return None, "{} {} asked for and {} {} free".format(
            counted(count, "card"), "is" if count == 1 else "are", len(free), "is" if len(free) == 1 else "are"
        )
    return sorted(free)[:count], None


class Situation:
    """What a decision is made of.

    waiting   one's own jobs that are ready, in own order; each with `waited_s`
    others    `[{uid, usage, waiting: […]}]` of the other users, each waiting job with `waited_s`
    usage     one's own card-seconds
    free      `{device: set of free card indexes}`
    running   one's own running jobs: `{cards, device, left_s, sweep}` (seconds until its time limit, or None)
    passed    uids whose claims are passed over, as they did not take what was free for them
    cores     of the host
    ends      running jobs of the others, as `running`
    cards     `{device: [{index, model, board, broken}]}`: all that the host has; a device that is missing is unknown
    wide_after_s  so long a job has waited when it begins to keep cards, where its `limits` say nothing else
    choose    `(device, free, count, cards) -> (indexes, None) or (None, reason)`: which cards belong together
    refuse    `(device, indexes, cards) -> reason or None`: why cards that a spec names can never work together
    """

    def __init__(
        self,
        waiting,
        others=(),
        usage=0.0,
        free=None,
        running=(),
        passed=(),
        cores=1,
        ends=(),
        cards=None,
        choose=None,
        wide_after_s=WIDE_AFTER_S,
        refuse=None,
    ):
        self.waiting = waiting
        self.others = list(others)
        self.usage = usage
        self.free = free or {}
        self.running = list(running)
        self.passed = frozenset(passed)
        self.cores = cores
        self.ends = list(ends)
        self.cards = cards or {}
        self.choose = choose or any_cards
        self.refuse = refuse or (lambda device, indexes, cards: None)
        self.wide_after_s = wide_after_s
        self.misfits = {}  # what `impossible` found, as many jobs ask for the same

    def after(self, entry, cards):
        """The situation once that job has been started on these cards."""
        then = copy.copy(self)
        then.waiting = [other for other in self.waiting if other["id"] != entry["id"]]
        then.free = dict(self.free, **{entry["device"]: self.free.get(entry["device"], set()) - set(cards)})
        cards, limit = sorted(cards), entry.get("timeout_s")
        job = {"cards": cards, "device": entry["device"], "left_s": limit, "sweep": trials.id_of(entry)}
        then.running = [*self.running, job]
        return then

    def pick(self, entry, cards):
        """`(cards that a job would get of these, None)`, or `(None, why it gets none)`."""
        if not entry["cards"]:
            return [], None
        if entry.get("card_ids"):
            missing = sorted(set(entry["card_ids"]) - set(cards))
            if not missing:
                against = self.refuse(entry["device"], entry["card_ids"], self.cards.get(entry["device"]) or [])
                return (None, against) if against else (sorted(entry["card_ids"]), None)
            return None, "it wants just the cards {}, and not free {} {}".format(
                numbers(entry["card_ids"]), "is" if len(missing) == 1 else "are", numbers(missing)
            )
        if len(cards) < entry["cards"]:
            return None, None
        return self.choose(entry["device"], sorted(cards), entry["cards"], self.cards.get(entry["device"]) or [])


class Decision:
    """`start` (an entry, or None) and its `cards`, why the others wait (`{id: (code, text)}`), the uids to whom cards
    that I could use are left (`yields_to`), and those for whose wide jobs they are kept (`keeps_for`)."""

    def __init__(self):
        self.start = None
        self.cards = None
        self.why = {}
        self.yields_to = set()
        self.keeps_for = set()


def decide(situation, skip=()):
    """The next start. `skip` are ids that were tried in vain with this very situation."""
    decision = Decision()
    free = {device: set(cards) for device, cards in situation.free.items()}
    kept = []  # cards that wide jobs keep: (device, set, seconds until it could start)
    for uid, entries in _users(situation):
        for entry in entries:
            if uid is not None:
                _claim_of_other(situation, entry, uid, free, kept, decision)
                continue
            if entry["id"] in skip:
                continue
            reason = _stands_against(entry, situation)
            cards, text = (None, None) if reason else situation.pick(entry, _usable(entry, free, kept))
            if reason is None and cards is not None:
                decision.start, decision.cards = entry, cards
                return decision
            decision.why[entry["id"]] = reason or _too_few(situation, entry, kept, decision, text)
            if reason is None and _wide(situation, entry):
                _keep(situation, entry, free, kept)
    return decision


def line(situation):
    """`[(uid or None for me, entry)]`: everybody's waiting jobs in the order in which they come now."""
    return [(uid, entry) for uid, entries in _users(situation, ()) for entry in entries if entry.get("cards")]


def claimable(situation):
    """My waiting jobs that want cards and that nothing but cards holds up: what the others are to know about."""
    found, claimed = [], {}
    for entry in situation.waiting:
        if not entry["cards"] or _stands_against(entry, situation) is not None:
            continue
        sweep = trials.id_of(entry)
        if trials.full(entry, situation.running, claimed.get(sweep, 0)) is None:
            claimed[sweep] = claimed.get(sweep, 0) + 1
            found.append(entry)
    return found


def _users(situation, passed=None):
    """`[(uid or None for me, entries)]`, the one with the fewest card-seconds first, then the one who waits longest."""
    users = [(situation.usage, -_oldest(situation.waiting), 0, None, situation.waiting)]
    for other in situation.others:
        if other["uid"] not in (situation.passed if passed is None else passed):
            users.append((other["usage"], -_oldest(other["waiting"]), other["uid"], other["uid"], other["waiting"]))
    users.sort(key=lambda user: user[:3])
    return [(uid, entries) for _, _, _, uid, entries in users]


def _oldest(entries):
    return max([entry.get("waited_s") or 0.0 for entry in entries] or [0.0])


def _claim_of_other(situation, entry, uid, free, kept, decision):
    """A colleague who comes before me takes, in thought, what its job needs; a wide job of it keeps cards."""
    cards = free.get(entry.get("device"), set())
    wanted = allowed(entry, cards)
    if not wanted or not entry.get("cards"):
        return
    taken, _ = situation.pick(entry, wanted)
    if taken is not None:
        cards -= set(taken)
        decision.yields_to.add(uid)
    elif _wide(situation, entry) and impossible(situation, entry) is None:
        _keep(situation, entry, free, kept)
        decision.keeps_for.add(uid)


def _usable(entry, free, kept):
    """The free cards that a job may take now: also kept ones, if it is surely over before the wide job could start."""
    cards = set(free.get(entry["device"], ()))
    limit = entry.get("timeout_s")
    for device, held, in_s in kept:
        if device == entry["device"] and limit and float(limit) + float(entry.get("grace_s") or 0) <= in_s != NEVER:
            cards |= held
    return allowed(entry, cards)


def _stands_against(entry, situation):
    """`(code, text)` of what no free card would change, or None."""
    return impossible(situation, entry) or of_hosts_file(entry, situation) or trials.full(entry, situation.running)


def impossible(situation, entry):
    """`(code, text)` why no set of this host's cards fits a job, though all were free; None if one does, or if the
    cards are not known.

    `never`: it can never start here. `broken`: only cards that cannot be given now are missing (an alarm, set aside);
    it waits for them, but keeps nothing meanwhile.
    """
    cards = situation.cards.get(entry["device"])
    if not entry["cards"] or not cards:
        return None
    asked = (
        entry["device"],
        entry["cards"],
        str(entry.get("card_ids")),
        str((entry.get("limits") or {}).get("only_cards")),
    )
    if asked not in situation.misfits:
        situation.misfits[asked] = _impossible(situation, entry, cards)
    return situation.misfits[asked]


def _impossible(situation, entry, cards):
    whole = {card["index"] for card in cards}
    text = _misfit(situation, entry, whole)
    if text:
        return "never", text + ": it can never start here"
    sound = {card["index"] for card in cards if not card.get("broken")}
    text = _misfit(situation, entry, sound)
    return ("broken", text + ", while card {} cannot be given out".format(numbers(whole - sound))) if text else None


def _misfit(situation, entry, cards):
    usable = allowed(entry, cards)
    if situation.pick(entry, usable)[0] is not None:
        return None
    if entry.get("card_ids"):
        missing = sorted(set(entry["card_ids"]) - usable)
        if not missing:
            return situation.pick(entry, usable)[1]
        return "it wants just the cards {}, and may not have {}".format(numbers(entry["card_ids"]), numbers(missing))
    if len(usable) < entry["cards"]:
        limited = " that it may have" if len(usable) < len(cards) else ""
        return "it wants {} and this host has {}{}".format(counted(entry["cards"], "card"), len(usable), limited)
    return situation.pick(entry, usable)[1]


def _wide(situation, entry):
    after = (entry.get("limits") or {}).get("wide_after_s")
    return (entry.get("waited_s") or 0.0) >= (situation.wide_after_s if after is None else float(after))


def _keep(situation, entry, free, kept):
    """A job that has waited long keeps what is free for it, until enough is."""
    cards = allowed(entry, free.get(entry["device"], ()))
    free.get(entry["device"], set()).difference_update(cards)
    kept.append((entry["device"], cards, could_start(situation, entry, cards)))


def could_start(situation, entry, have):
    """Seconds until running jobs' time limits have surely freed enough cards; NEVER where that is not known."""
    have = set(have)
    ends = [
        (job["left_s"], sorted(allowed(entry, job["cards"])))
        for job in situation.running + situation.ends
        if job["device"] == entry["device"] and job["left_s"] is not None
    ]
    for left_s, cards in sorted(ends):
        have.update(cards)
        if situation.pick(entry, have)[0] is not None:
            return left_s
    return NEVER


def _too_few(situation, entry, kept, decision, text):
    """`(code, text)` for a job that only cards are missing to."""
    held = sum(len(allowed(entry, taken)) for device, taken, _ in kept if device == entry["device"])
    free = allowed(entry, situation.free.get(entry["device"], ()))
    would, linked = situation.pick(entry, free)
    if would is not None and held:
        whose = (
            "a colleague's job (uid {})".format(numbers(decision.keeps_for)) if decision.keeps_for else "a job of mine"
        )
        return "wide", "{} {} kept for {} that has waited longer and needs more".format(
            counted(held, "free card"), "is" if held == 1 else "are", whose
        )
    if would is not None:
        return "colleague", "a colleague (uid {}) who used fewer card-hours lately comes first".format(
            numbers(decision.yields_to)
        )
    if len(free) >= entry["cards"] and linked:
        return "interconnect", "{} of the cards that it may have are free, but no set that works together: {}".format(
            len(free), linked
        )
    return "cards", "it wants {}{}, and of those that it may have {} {} free{}".format(
        counted(entry["cards"], "card"),
        " ({})".format(numbers(entry["card_ids"])) if entry.get("card_ids") else "",
        len(free),
        "is" if len(free) == 1 else "are",
        ": it waits until enough have come free at once" if _wide(situation, entry) and len(free) else "",
    )


def numbers(values):
    """Numbers as a person lists them."""
    return ", ".join(str(value) for value in sorted(values))
