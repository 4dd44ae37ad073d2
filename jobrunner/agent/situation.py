"""Gather what an order is decided on: this user's queue and running jobs, the colleagues' tickets, the free cards."""

import os
import time

from . import clock, files, jobs, order, settings, share, usage


def states_for(layout, entry):
    """`{job: final state}` of the jobs that an entry waits for: known here, or told by a client about other hosts."""
    wanted = entry.get("after") or []
    if not wanted:
        return {}
    told = files.read_json(os.path.join(layout.job(entry["id"]), b"after.json")) or {}
    states = dict(told.get("after") or {})
    for dependency in wanted:
        verdict = _local(layout, dependency.get("job"))
        if verdict and verdict["state"] in jobs.FINAL:  # not of one that was moved: its new host tells
            states[dependency.get("job")] = verdict["state"]
    return states


def _local(layout, job_id):
    from .layout import JOB_ID

    return jobs.final(layout, job_id) if isinstance(job_id, str) and JOB_ID.match(job_id) else None


def drained(layout):
    """True while none of my jobs may start here."""
    return os.path.exists(os.path.join(layout.home, b"drain"))


def age_of(entry, now):
    """Seconds that a job has waited."""
    if entry.get("since_s") is not None:
        return max(0.0, now - entry["since_s"])
    try:
        return max(0.0, now - clock.seconds(entry.get("since") or ""))
    except ValueError:
        return 0.0


def ready(layout, entries, now=None):
    """`(ready entries in order, {id: (code, text)} of the others)`. Entries whose start was cut off are passed over."""
    now = time.time() if now is None else now
    stamp, steady, stopped = clock.stamp(now), clock.steady(), drained(layout)
    found, why = [], {}
    for entry in order.own_order(entries):
        if jobs.stale(layout, entry["id"], entry):
            continue
        reason = order.not_ready(entry, stamp, states_for(layout, entry), stopped, steady)
        if reason is None:
            found.append(dict(entry, waited_s=age_of(entry, now)))
        else:
            why[entry["id"]] = reason
    return found, why


def running_jobs(running, now=None):
    """Running jobs as an order wants them; `running` as from `jobs.running`."""
    now = time.time() if now is None else now
    found = []
    for _, start in running:
        limit, began = start.get("timeout_s"), start.get("began")
        left = max(0.0, began + float(limit) - now) if limit and isinstance(began, (int, float)) else None
        cards, device, sweep = list(start.get("cards") or []), start.get("device"), start.get("sweep")
        found.append({"cards": cards, "device": device, "left_s": left, "sweep": sweep})
    return found


def ends_of_others(now=None):
    """When colleagues let go of the cards that they hold, at the latest, as far as they say so."""
    now = time.time() if now is None else now
    found = []
    for _, lease in share.lent():
        try:
            left = max(0.0, clock.seconds(lease["until"]) - now)
        except (TypeError, ValueError, KeyError, AttributeError, OverflowError):
            left = None
        found.append({"cards": [lease["index"]], "device": lease["device"], "left_s": left})
    return found


def colleagues(now=None):
    """The other users who wait, from their tickets; what does not look as it should is left out.

    A ticket says what was used when it was written and how many cards were held then: they count on.
    """
    now = time.time() if now is None else now
    found = []
    for uid, ticket in share.tickets():
        waiting = [_foreign(entry, now) for entry in share.entries(ticket.get("waiting"))[:200]]
        waiting = [entry for entry in waiting if entry]
        if waiting:
            found.append({"uid": uid, "usage": _usage_of(ticket, now), "waiting": waiting})
    return found


def _usage_of(ticket, now):
    since = age_of({"since": ticket.get("at") if isinstance(ticket.get("at"), str) else ""}, now)
    held = min(share.number(ticket.get("held")), float(share.MOST))
    return usage.decayed(share.number(ticket.get("usage")), since) + held * since


def _foreign(entry, now):
    cards, device, since = entry.get("cards"), entry.get("device"), entry.get("since")
    if type(cards) is not int or not 0 < cards <= share.MOST or not isinstance(device, str):
        return None
    only = entry.get("only_cards")
    only = [index for index in only if type(index) is int] if isinstance(only, list) else None
    after = entry.get("wide_after_s")
    return {
        "job": share.text(entry.get("job")),
        "name": share.text(entry.get("name")),
        "cards": cards,
        "device": device,
        "since": share.text(since),
        "waited_s": age_of({"since": since if isinstance(since, str) else ""}, now),
        "limits": {"only_cards": only, "wide_after_s": share.number(after, order.WIDE_AFTER_S)},
    }


def choose(device, free, count, cards):
    """`order.Situation.choose`: what links the cards of that device, as its kind knows."""
    from .accelerators import KINDS

    if device in KINDS and cards:
        return KINDS[device].choose(free, count, cards)
    return order.any_cards(device, free, count, cards)


def refuse(device, indexes, cards):
    """`order.Situation.refuse`: why cards that a spec names cannot work together, as their kind knows; else None."""
    from .accelerators import KINDS

    return KINDS[device].refusal(indexes, cards) if device in KINDS and cards else None


def gather(layout, entries, free, running, passed=(), now=None, cards=None, values=None, always=False):
    """`(Situation, why of the unready)` for entries of the queue, the free cards by device, and all cards by device.

    `values` are the host's settings. Colleagues are looked at where one's own jobs want cards, or `always`.
    """
    now = time.time() if now is None else now
    waiting, why = ready(layout, entries, now)
    compete = always or any(entry["cards"] for entry in waiting)
    situation = order.Situation(
        waiting,
        colleagues(now) if compete else (),
        usage.current(layout, running, now),
        free,
        running_jobs(running, now),
        passed,
        os.cpu_count() or 1,
        ends_of_others(now) if compete else (),
        cards,
        choose,
        (values or settings.DEFAULTS)["wide_after_s"],
        refuse,
    )
    return situation, why
