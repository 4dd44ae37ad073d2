"""What stands against a job before cards are looked at: its own conditions, and limits of the hosts file. Pure."""

from . import clock

SET_BACK_S = 60.0  # a clock that was set back by less makes a back-off so much longer at most


def counted(number, noun, many=None):
    """`1 card`, `2 cards`; `many` where the plural is not the noun and an s."""
    return "{} {}".format(number, noun if number == 1 else many or noun + "s")


def default_cpu_jobs(cores):
    """How many jobs without cards run at once where the hosts file does not say."""
    return max(1, (cores or 1) // 4)


def dependency(entry, states):
    """`(met, hopeless, text)` of a job's `after`. `states` gives the known final state of each job waited for."""
    for wanted in entry.get("after") or []:
        job, when = wanted.get("job"), wanted.get("when") or "ok"
        state = states.get(job)
        if state is None:
            verb = {"ok": "complete", "failed": "fail"}.get(when, "end")
            return False, False, "it waits for {} to {}".format(job, verb)
        fine = state in ("COMPLETED", "ok")
        if (when == "ok" and not fine) or (when == "failed" and fine):
            verb = "complete" if when == "ok" else "fail"
            return False, True, "{} ended as {}, and this job wants it to {}".format(job, state, verb)
    return True, False, ""


def not_ready(entry, now_stamp, states, drained, steady=None):
    """`(code, text)` why a queued job is not even considered, or None. Stamps compare as text.

    `steady` is `clock.steady()`; without it a back-off goes by the clock that may be set.
    """
    if drained:
        return "drained", "the host is drained: none of my jobs starts there"
    if entry.get("hold"):
        return "hold", "it is held"
    if backing_off(entry, now_stamp, steady):
        return "backoff", "it waits until {} before the next attempt".format(entry["not_before"])
    met, _, text = dependency(entry, states)
    return None if met else ("after", text)


def steady_left(entry, steady):
    """Seconds of a back-off that are left by the clock that nobody can set; None where only the other one is known."""
    try:
        boot, ready, delay = entry["steady"]
        left = ready - steady[1]
        return left if boot and boot == steady[0] and left <= delay else None
    except (KeyError, TypeError, ValueError):
        return None


def backing_off(entry, now_stamp, steady=None):
    """True while a queued job waits for its next attempt."""
    if not entry.get("not_before"):
        return False
    left = steady_left(entry, steady)
    if left is not None:
        return left > 0
    return entry["not_before"] > now_stamp and not _set_back(entry, now_stamp)


def _set_back(entry, now_stamp):
    """True if the host's clock was set back behind the moment at which a job was queued: it would wait too long."""
    try:
        return clock.seconds(now_stamp) < clock.seconds(entry["queued_at"]) - SET_BACK_S
    except (KeyError, TypeError, ValueError, AttributeError):
        return False


def allowed(entry, cards):
    """Of some cards those that a job may have at all: by its own `card_ids` and by the host's `only_cards`."""
    only = (entry.get("limits") or {}).get("only_cards")
    wanted = set(cards) if only is None else set(cards) & set(only)
    return wanted & set(entry["card_ids"]) if entry.get("card_ids") else wanted


def of_hosts_file(entry, situation):
    """`(code, text)` of a limit of the hosts file (`max_cards`, `cpu_jobs`) that stands against a job now, or None."""
    limits = entry.get("limits") or {}
    if not entry["cards"]:
        most = limits.get("cpu_jobs") or default_cpu_jobs(situation.cores)
        count = sum(1 for job in situation.running if not job["cards"])
        if count >= most:
            return "cpu_jobs", "{} without cards {} here, and at most {} at once {} allowed".format(
                counted(count, "job"), "runs" if count == 1 else "run", most, "is" if most == 1 else "are"
            )
        return None
    most = limits.get("max_cards")
    mine = sum(len(job["cards"]) for job in situation.running if job["cards"])
    if most is not None and entry["cards"] > most:
        return "max_cards", "this job wants {} and `max_cards` is {}: it can never start here".format(
            counted(entry["cards"], "card"), most
        )
    if most is not None and mine + entry["cards"] > most:
        return "max_cards", "I hold {}, this job wants {}, and `max_cards` is {}".format(
            counted(mine, "card"), entry["cards"], most
        )
    return None
