"""Which job starts next. Pure: a situation goes in, a decision comes out.

Between users: fewest card-seconds lately, then age. Among one's own: priority, then age. A wide job at the head that
has waited `WIDE_AFTER_S` keeps the cards that come free; a smaller one passes it only if its time limit ends before
the wide one could start.
"""

WIDE_AFTER_S = 600.0
NEVER = float("inf")


def own_order(entries):
    """One's own waiting jobs in the order in which they should start."""
    return sorted(
        entries, key=lambda entry: (-(entry.get("priority") or 0), entry.get("since") or "", entry.get("id") or "")
    )


def default_cpu_jobs(cores):
    """How many jobs without cards run at once where the hosts file does not say."""
    return max(1, (cores or 1) // 4)


def dependency(entry, states):
    """`(met, hopeless, text)` of a job's `after`. `states` gives the known final state of each job waited for."""
    for wanted in entry.get("after") or []:
        job, when = wanted.get("job"), wanted.get("when") or "ok"
        state = states.get(job)
        if state is None:
            return (
                False,
                False,
                "it waits for {} to {}".format(job, {"ok": "complete", "failed": "fail"}.get(when, "end")),
            )
        fine = state in ("COMPLETED", "ok")
        if (when == "ok" and not fine) or (when == "failed" and fine):
            return (
                False,
                True,
                "{} ended as {}, and this job wants it to {}".format(
                    job, state, "complete" if when == "ok" else "fail"
                ),
            )
    return True, False, ""


def not_ready(entry, now_stamp, states, drained):
    """`(code, text)` why a queued job is not even considered, or None. Stamps compare as text."""
    if drained:
        return "drained", "the host is drained: none of my jobs starts there"
    if entry.get("hold"):
        return "hold", "it is held"
    if entry.get("not_before") and entry["not_before"] > now_stamp:
        return "backoff", "it waits until {} before the next attempt".format(entry["not_before"])
    met, _, text = dependency(entry, states)
    return None if met else ("after", text)


class Situation:
    """What a decision is made of.

    waiting   one's own jobs that are ready, in own order; each with `waited_s`
    others    `[{uid, usage, waiting: […]}]` of the other users, each waiting job with `waited_s`
    usage     one's own card-seconds
    free      `{device: set of free card indexes}`
    running   one's own running jobs: `{cards, device, left_s}` (seconds until its time limit, or None)
    passed    uids whose claims are passed over, as they did not take what was free for them
    cores     of the host
    """

    def __init__(self, waiting, others=(), usage=0.0, free=None, running=(), passed=(), cores=1):
        self.waiting = waiting
        self.others = list(others)
        self.usage = usage
        self.free = free or {}
        self.running = list(running)
        self.passed = frozenset(passed)
        self.cores = cores


class Decision:
    """`start` (an entry, or None), the `candidates` among which its cards are chosen, why the others wait
    (`{id: (code, text)}`), and the uids to whom cards that I could use are left."""

    def __init__(self):
        self.start = None
        self.candidates = []
        self.why = {}
        self.yields_to = set()


def decide(situation, skip=()):
    """The next start. `skip` are ids that were tried in vain with this very situation."""
    decision = Decision()
    free = {device: set(cards) for device, cards in situation.free.items()}
    kept = []  # cards that a wide job keeps: (set, seconds until it could start)
    for uid, entries in _users(situation):
        for entry in entries:
            if uid is not None:
                _claim_of_other(entry, uid, free, decision)
                continue
            if entry["id"] in skip:
                continue
            reason = _limits(entry, situation)
            cards = _usable(entry, free, kept)
            if reason is None and len(cards) >= entry["cards"]:
                decision.start, decision.candidates = entry, sorted(cards)
                return decision
            decision.why[entry["id"]] = reason or _too_few(entry, cards, free, kept, decision, situation)
            if reason is None and _wide(entry):
                _keep(entry, free, kept, situation)
    return decision


def _users(situation):
    """`[(uid or None for me, entries)]`, the one with the fewest card-seconds first, then the one who waits longest."""
    users = [(situation.usage, -_oldest(situation.waiting), 0, None, situation.waiting)]
    for other in situation.others:
        if other["uid"] not in situation.passed:
            users.append((other["usage"], -_oldest(other["waiting"]), other["uid"], other["uid"], other["waiting"]))
    users.sort(key=lambda user: user[:3])
    return [(uid, entries) for _, _, _, uid, entries in users]


def _oldest(entries):
    return max([entry.get("waited_s") or 0.0 for entry in entries] or [0.0])


def _claim_of_other(entry, uid, free, decision):
    """A colleague who comes before me takes, in thought, what its job needs."""
    cards = free.get(entry.get("device"), set())
    wanted = _allowed(entry, cards)
    if not wanted or not entry.get("cards"):
        return
    if len(wanted) >= entry["cards"]:
        cards -= set(sorted(wanted)[: entry["cards"]])
        decision.yields_to.add(uid)
    elif _wide(entry):
        cards -= wanted
        decision.yields_to.add(uid)


def _allowed(entry, cards):
    """Of some cards those that a job may have at all."""
    only = (entry.get("limits") or {}).get("only_cards")
    wanted = set(cards) if only is None else set(cards) & set(only)
    return wanted & set(entry["card_ids"]) if entry.get("card_ids") else wanted


def _usable(entry, free, kept):
    """The free cards that a job may take now: also kept ones, if it is surely over before the wide job could start."""
    cards = set(free.get(entry["device"], ()))
    for device, held, in_s in kept:
        limit = entry.get("timeout_s")
        if device == entry["device"] and limit and float(limit) + float(entry.get("grace_s") or 0) <= in_s != NEVER:
            cards |= held
    return _allowed(entry, cards)


def _limits(entry, situation):
    """`(code, text)` of a limit of the hosts file that stands against the job now, or None."""
    limits = entry.get("limits") or {}
    if not entry["cards"]:
        allowed = limits.get("cpu_jobs") or default_cpu_jobs(situation.cores)
        count = sum(1 for job in situation.running if not job["cards"])
        if count >= allowed:
            return "cpu_jobs", "{} jobs without cards run here, and {} at once are allowed".format(count, allowed)
        return None
    most = limits.get("max_cards")
    mine = sum(len(job["cards"]) for job in situation.running if job["cards"])
    if most is not None and mine + entry["cards"] > most:
        return "max_cards", "I hold {} cards, this job wants {}, and `max_cards` is {}".format(
            mine, entry["cards"], most
        )
    return None


def _wide(entry):
    after = (entry.get("limits") or {}).get("wide_after_s")
    return (entry.get("waited_s") or 0.0) >= (WIDE_AFTER_S if after is None else float(after))


def _keep(entry, free, kept, situation):
    """A job that has waited long keeps what is free for it, until enough is."""
    cards = _allowed(entry, free.get(entry["device"], ()))
    free.get(entry["device"], set()).difference_update(cards)
    kept.append((entry["device"], cards, could_start(entry, len(cards), situation.running)))


def could_start(entry, have, running):
    """Seconds until running jobs' time limits have surely freed enough cards; NEVER where that is not known."""
    ends = sorted(
        (job["left_s"], len(_allowed(entry, job["cards"])))
        for job in running
        if job["device"] == entry["device"] and job["left_s"] is not None
    )
    for left_s, count in ends:
        have += count
        if have >= entry["cards"]:
            return left_s
    return NEVER


def _too_few(entry, cards, free, kept, decision, situation):
    """`(code, text)` for a job that only cards are missing to."""
    held = sum(len(_allowed(entry, taken)) for device, taken, _ in kept if device == entry["device"])
    all_free = len(_allowed(entry, situation.free.get(entry["device"], ())))
    if all_free >= entry["cards"] and held:
        return "wide", "{} free cards are kept for a job of mine that has waited longer and needs more".format(held)
    if all_free >= entry["cards"]:
        names = ", ".join(str(uid) for uid in sorted(decision.yields_to))
        return "colleague", "a colleague (uid {}) who used fewer card-hours lately comes first".format(names)
    return "cards", "it wants {} of the cards{}, and {} that it may have {} free".format(
        entry["cards"],
        " " + ",".join(str(i) for i in entry["card_ids"]) if entry.get("card_ids") else "",
        all_free,
        "is" if all_free == 1 else "are",
    )
