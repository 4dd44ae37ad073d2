"""Why a job waits: a sentence about its turn, one about its place, and one about each card that it could have."""

from . import cardview, dispatcher, jobs, leases, order, queue, settings, settle, share, situation, succession
from .files import AgentError

REMEDIES = {
    "drained": "`jobrunner hosts undrain` lets jobs start there again.",
    "hold": "`jobrunner release` lets it go on.",
    "backoff": "Nothing to do; `jobrunner retry` makes a new job that starts at once.",
    "after": "`jobrunner why` of that job says what it waits for.",
    "cpu_jobs": "Wait, or raise `cpu_jobs` of the host in the hosts file.",
    "max_cards": "Wait, or raise `max_cards` of the host in the hosts file.",
    "sweep": "Nothing to do: it starts when another trial of its sweep ends.",
    "wide": "Wait, or give this job a `timeout` that ends before the other could start.",
    "colleague": "Wait; the queue's order between users is by card-hours of the last days.",
    "cards": "Wait, ask for fewer cards, or submit to another host.",
    "interconnect": "Wait, or ask for another number of cards.",
    "never": "Cancel it, and ask for what the host has, or submit it to another host.",
    "broken": "Have the cards below mended; `jobrunner hosts undrain` takes back cards that were set aside.",
    "turn": "Nothing to do: it is about to start.",
    "aside": "Look at those jobs' logs; `jobrunner hosts undrain` gives the card out again.",
    "health": "Have the host's administrator look at the card.",
    "foreign": "Ask its owner; the job starts by itself once the card is free.",
    "unshown": "Ask its owner; a name is free again when that process ends.",
    "format": "Submit again with the version of jobrunner that made it, so that its agent comes to the host.",
}


def finding(code, summary, evidence=""):
    """One finding, with its remedy."""
    return {"code": code, "summary": summary, "evidence": evidence, "remedy": REMEDIES.get(code, "")}


def run(session, request):
    """Operation `why`: findings about one job."""
    layout = session.layout
    job_id = request.get("id") or ""
    view = settle.settle(layout, job_id)
    if view is None:
        raise AgentError("no_such_job", "{} is not on this host".format(job_id), "See `jobrunner ls --all`.")
    if view["state"] != "QUEUED":
        return {
            "findings": [
                finding("not_waiting", "it does not wait: it is {}".format(view["state"]), view.get("evidence") or "")
            ]
        }
    ran = lock_was_held(layout)
    dispatcher.ensure_running(layout)
    found = waiting(layout, job_id)
    if not ran:
        found.insert(
            0,
            finding(
                "queue_stopped",
                "the queue stood still: no dispatcher of mine ran on this host; it runs again now",
                "its lock was free although jobs are queued (a reboot, or it was killed)",
            ),
        )
    return {"findings": found}


def lock_was_held(layout):
    """True if a dispatcher ran before this visit."""
    return dispatcher.lock_of(layout) in leases.held_names()


def waiting(layout, job_id):
    """The findings about a job in the queue."""
    entries = queue.Cache(layout).entries()
    entry = next((entry for entry in entries if entry["id"] == job_id), None)
    if entry is None:
        return [finding("turn", "it is being started or ended right now")]
    if not succession.readable(entry):
        return [finding("format", "it was made by a newer version of jobrunner, whose agent is not on this host")]
    report = _report(layout, entry) if entry["cards"] else None
    free, cards = cardview.summary(report) if report else (set(), [])
    device, running = entry["device"], jobs.running(layout)
    facts, unready = situation.gather(
        layout, entries, {device: free}, running, cards={device: cards}, values=settings.read(layout)[0]
    )
    return findings(entry, facts, unready, report, share.user_name)


def _report(layout, entry):
    limits = entry.get("limits") or {}
    return cardview.card_report(layout, entry["device"], 30.0, limits.get("cards"))


def findings(entry, facts, unready, report, user_name=str):
    """All that is to say about a job that waits. Pure.

    `facts`: the situation. `unready`: why jobs are not considered at all. `report`: the cards, or None for a job that
    wants none. `user_name` makes a name of a uid.
    """
    if entry["id"] in unready:
        return [finding(*unready[entry["id"]])]
    first, gets = explained(facts, entry)
    found = [first]
    if entry["cards"]:
        found += queue_findings(facts, entry, user_name)
    if report:
        found += card_findings(entry, report, gets)
    return found


def explained(facts, entry):
    """`(finding, cards)`: what the order says about a job that is ready (its turn, or who or what comes before it), and
    the cards that jobs before it get now: `{index: id}`. Pure."""
    skip, gets = set(), {}
    while True:
        decision = order.decide(facts, skip)
        if entry["id"] in decision.why:
            code, text = decision.why[entry["id"]]
            return finding(code, text, _before(facts, entry)), gets
        if decision.start is None or decision.start["id"] == entry["id"]:
            return finding(
                "turn", "it is next: it starts as soon as the queue looks again", _before(facts, entry)
            ), gets
        device = decision.start["device"]
        gets.update((index, decision.start["id"]) for index in decision.cards if device == entry["device"])
        facts.free.get(device, set()).difference_update(decision.cards)
        skip.add(decision.start["id"])


def _before(facts, entry):
    mine = [other["id"] for other in facts.waiting]
    place = mine.index(entry["id"]) if entry["id"] in mine else 0
    if not place:
        return "no job of mine stands before it"
    return "{} of my jobs {} before it in the queue".format(place, "stands" if place == 1 else "stand")


SHOWN = 5


def queue_findings(facts, entry, user_name=str):
    """The place among all users' jobs that wait for cards of that device, and who is before it. Pure."""
    everybody = [(uid, other) for uid, other in order.line(facts) if other["device"] == entry["device"]]
    place = next((n for n, (uid, other) in enumerate(everybody) if uid is None and other["id"] == entry["id"]), None)
    if place is None:
        return []
    waits = "waits" if len(everybody) == 1 else "wait"
    text = "it is number {} of {} that {} for {} cards here".format(place + 1, len(everybody), waits, entry["device"])
    return [finding("place", text, "; ".join(_stands_before(everybody[:place], user_name)))]


def _stands_before(before, user_name):
    words = []
    for uid, other in before[:SHOWN]:
        job = other.get("id") or other.get("job")
        who = "my job {}".format(job) if uid is None else "{}'s job {}".format(user_name(uid), job)
        name = " ({})".format(other["name"]) if other.get("name") not in (None, job) else ""
        words.append("{}{}: {} since {}".format(who, name, order.counted(other["cards"], "card"), other.get("since")))
    return words + (["and {} more".format(len(before) - SHOWN)] if len(before) > SHOWN else [])


def card_findings(entry, report, gets=None):
    """A sentence for each card of the host, as far as it concerns the job, or for a tool that says nothing. Pure.

    `gets`: cards that jobs before it get now.
    """
    if report.get("error"):
        error = report["error"]
        message = error.get("message", error) if isinstance(error, dict) else error
        found = finding("tool", "the cards cannot be read: {}".format(message))
        found["remedy"] = error.get("remedy", "") if isinstance(error, dict) else ""
        return [found]
    only, wanted = (entry.get("limits") or {}).get("only_cards"), entry.get("card_ids")
    found = []
    for card in report["cards"]:
        index = card["index"]
        if wanted and index not in wanted:
            continue
        code, text = _about(card, only, (gets or {}).get(index))
        found.append(finding(code, "card {}: {}".format(index, text)))
    return found


def _about(card, only, taker):
    """`(code, text)` of one card that the job could have by its own words."""
    if only is not None and card["index"] not in only:
        return "card", "not one of `only_cards` of this host"
    if card["free"] and taker:
        return "card", "free, and job {} before it takes it".format(taker)
    if card["free"]:
        return "free", "free"
    lease = card.get("lease")
    if lease and not lease.get("job"):
        return "unshown", card["why_busy"]
    if not lease and card["processes"]:
        return "foreign", card["why_busy"]
    if not lease and card["why_busy"].startswith("set aside"):
        return "aside", card["why_busy"]
    if not lease and card.get("health") == "bad":
        return "health", card["why_busy"]
    return "card", card["why_busy"]
