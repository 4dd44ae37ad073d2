"""Why a job waits: one sentence about its turn, and one about each card that it cannot have."""

from . import dispatcher, jobs, leases, look, order, queue, settle, situation
from .files import AgentError

REMEDIES = {
    "drained": "`jobrunner hosts undrain` lets jobs start there again.",
    "hold": "`jobrunner release` lets it go on.",
    "backoff": "Nothing to do; `jobrunner retry` makes a new job that starts at once.",
    "after": "`jobrunner why` of that job says what it waits for.",
    "cpu_jobs": "Wait, or raise `cpu_jobs` of the host in the hosts file.",
    "max_cards": "Wait, or raise `max_cards` of the host in the hosts file.",
    "wide": "Wait, or give this job a `timeout` that ends before the other could start.",
    "colleague": "Wait; the queue's order between users is by card-hours of the last days.",
    "cards": "Wait, ask for fewer cards, or submit to another host.",
    "turn": "Nothing to do: it is about to start.",
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
    report = _report(layout, entry) if entry["cards"] else None
    free = {entry["device"]: {card["index"] for card in report["cards"] if card["free"]}} if report else {}
    facts, unready = situation.gather(layout, entries, free, jobs.running(layout))
    if job_id in unready:
        return [finding(*unready[job_id])]
    found = [explained(facts, entry)]
    if report:
        found += card_findings(entry, report)
    return found


def _report(layout, entry):
    limits = entry.get("limits") or {}
    return look.card_report(layout, entry["device"], 30.0, limits.get("cards"))


def explained(facts, entry):
    """What the order says about a job that is ready: its turn, or who or what comes before it. Pure."""
    skip = set()
    while True:
        decision = order.decide(facts, skip)
        if entry["id"] in decision.why:
            code, text = decision.why[entry["id"]]
            return finding(code, text, _before(facts, entry))
        if decision.start is None or decision.start["id"] == entry["id"]:
            return finding("turn", "it is next: it starts as soon as the queue looks again", _before(facts, entry))
        facts.free.get(decision.start["device"], set()).difference_update(
            decision.candidates[: decision.start["cards"]]
        )
        skip.add(decision.start["id"])


def _before(facts, entry):
    mine = [other["id"] for other in facts.waiting]
    place = mine.index(entry["id"]) if entry["id"] in mine else 0
    return "{} of my jobs stand before it in the queue".format(place) if place else "no job of mine stands before it"


def card_findings(entry, report):
    """A sentence for each card that the job may have and cannot have now, or for a tool that says nothing. Pure."""
    if report.get("error"):
        error = report["error"]
        found = finding(
            "tool",
            "the cards cannot be read: {}".format(error.get("message", error) if isinstance(error, dict) else error),
        )
        found["remedy"] = error.get("remedy", "") if isinstance(error, dict) else ""
        return [found]
    only, wanted = (entry.get("limits") or {}).get("only_cards"), entry.get("card_ids")
    found = []
    for card in report["cards"]:
        index = card["index"]
        if wanted and index not in wanted:
            continue
        if only is not None and index not in only:
            found.append(finding("card", "card {}: not one of `only_cards` of this host".format(index)))
        elif not card["free"]:
            found.append(finding("card", "card {}: {}".format(index, card["why_busy"])))
    if wanted and not set(wanted) <= {card["index"] for card in report["cards"]}:
        found.append(
            finding(
                "no_such_card",
                "it wants cards {} and this host has {}".format(
                    ", ".join(str(index) for index in wanted),
                    ", ".join(str(card["index"]) for card in report["cards"]) or "none",
                ),
            )
        )
    elif entry["cards"] > len(report["cards"]):
        found.append(
            finding(
                "too_wide",
                "it wants {} cards and this host has {}: it can never start here".format(
                    entry["cards"], len(report["cards"])
                ),
            )
        )
    return found
