"""Gather what an order is decided on: this user's queue and running jobs, the colleagues' tickets, the free cards."""

import os
import time

from . import clock, files, jobs, order, share, usage


def states_for(layout, entry):
    """`{job: final state}` of the jobs that an entry waits for: known here, or told by a client about other hosts."""
    wanted = entry.get("after") or []
    if not wanted:
        return {}
    told = files.read_json(os.path.join(layout.job(entry["id"]), b"after.json")) or {}
    states = dict(told.get("after") or {})
    for dependency in wanted:
        verdict = _local(layout, dependency.get("job"))
        if verdict:
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
    try:
        return max(0.0, now - clock.seconds(entry.get("since") or ""))
    except ValueError:
        return 0.0


def ready(layout, entries, now=None):
    """`(ready entries in order, {id: (code, text)} of the others)`. Entries whose start was cut off are passed over."""
    now = time.time() if now is None else now
    stamp, stopped = clock.stamp(now), drained(layout)
    found, why = [], {}
    for entry in order.own_order(entries):
        if jobs.stale(layout, entry["id"], entry):
            continue
        reason = order.not_ready(entry, stamp, states_for(layout, entry), stopped)
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
        found.append({"cards": list(start.get("cards") or []), "device": start.get("device"), "left_s": left})
    return found


def colleagues(now=None):
    """The other users who wait, from their tickets; what does not look as it should is left out."""
    now = time.time() if now is None else now
    found = []
    for uid, ticket in share.tickets():
        waiting = [_foreign(entry, now) for entry in _list(ticket.get("waiting"))[:200] if isinstance(entry, dict)]
        waiting = [entry for entry in waiting if entry]
        used = ticket.get("usage")
        if waiting and isinstance(used, (int, float)) and used >= 0:
            found.append({"uid": uid, "usage": float(used), "waiting": waiting})
    return found


def _list(value):
    return value if isinstance(value, list) else []


def _foreign(entry, now):
    cards, device = entry.get("cards"), entry.get("device")
    only = entry.get("only_cards")
    if (
        type(cards) is not int
        or not 0 < cards <= 1024
        or not isinstance(device, str)
        or not isinstance(entry.get("since"), str)
    ):
        return None
    only = [index for index in only if type(index) is int] if isinstance(only, list) else None
    return {"cards": cards, "device": device, "waited_s": age_of(entry, now), "limits": {"only_cards": only}}


def ticket(layout, waiting, used):
    """What we show the others while we wait for cards."""
    shown = [
        {
            "job": entry["id"],
            "name": entry.get("name"),
            "cards": entry["cards"],
            "device": entry["device"],
            "since": entry.get("since"),
            "priority": entry.get("priority") or 0,
            "only_cards": entry.get("card_ids") or (entry.get("limits") or {}).get("only_cards"),
        }
        for entry in waiting
        if entry["cards"]
    ]
    return {
        "v": 1,
        "user": share.user_name(),
        "lock": layout.instance,
        "usage": round(used, 1),
        "at": clock.stamp(),
        "waiting": shown,
    }


def gather(layout, entries, free, running, passed=(), now=None):
    """`(Situation, why of the unready)` for entries of the queue and free cards by device."""
    waiting, why = ready(layout, entries, now)
    situation = order.Situation(
        waiting,
        colleagues(now) if any(entry["cards"] for entry in waiting) else (),
        usage.current(layout, running, now),
        free,
        running_jobs(running, now),
        passed,
        os.cpu_count() or 1,
    )
    return situation, why
