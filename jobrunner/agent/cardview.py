"""The cards as people see them: the tool's report, who holds each card, what speaks against it, and who waits."""

import time

from . import cardlog, cards, clock, files, jobs, procs, queue, readings, settings, share, situation, stray
from .accelerators import KINDS
from .accelerators.seen import read_leases

FRESH_S = 5.0
TOOL_LIMIT_S = 10.0


def card_report(layout, device=None, max_age_s=None, count=None):
    """The judged card report of docs/host.md: the last one if it is not older than `max_age_s`, else a new one.

    `count` is the number of cards of a host whose tool cannot be asked.
    """
    report = None if count else _kept(layout, device, FRESH_S if max_age_s is None else float(max_age_s))
    if count:
        report = cards.fallback_report(device, int(count))
    elif report is None:
        report = readings.read(layout, device, TOOL_LIMIT_S)
    kind, running = report.get("device"), jobs.running(layout)
    if running and not share.shown("leases.json"):
        share.publish_leases(layout, running)  # somebody cleaned /tmp
    families = procs.carriers()
    owned = stray.owners(layout, running, report)
    held = read_leases(kind, with_holder=True) if kind in KINDS else []
    held += kept_by_processes(layout, kind, held, families)
    values, complaints = settings.read(layout)
    log, now = cardlog.read(layout, kind), time.time()
    lingering = cardlog.freed_lately(log, now, values["linger_s"])
    report = stray.without(report, stray.gone(report), lingering)
    by_job = {job_id: [process.pid for process in members] for job_id, members in families.items()}
    for pid, job_id in owned.items():
        by_job.setdefault(job_id, []).append(pid)
    judged = cards.judge(report, held, by_job, values)
    fit = cards.judge(readings.unused(report), [], {}, values)
    indexes = [card["index"] for card in report["cards"]]
    aside = cardlog.set_aside(log, indexes, now, values["aside_deaths"], values["aside_for_s"])
    found = [
        finished(card, unused["free"], card["index"] in lingering, aside.get(card["index"]), _holder(held, card), now)
        for card, unused in zip(judged["cards"], fit["cards"])
    ]
    if not count:
        stray.inspect(layout, report, running, owned)
    return dict(judged, cards=found, warnings=list(report["warnings"]) + complaints, waiting=everybody_waiting(layout))


def finished(card, fit, lingers, aside, holder, now):
    """A judged card with what else is known of it. Pure.

    fit      it would be free if nothing ran on it
    lingers  a job of mine let it go a moment ago: what the tool still shows is no stranger's
    aside    it is set aside: see `cardlog.set_aside`
    holder   who holds its name while no job is shown for it
    """
    why, lease = card["why_busy"], card["lease"]
    if lease is not None and lease["job"]:
        why = "leased by {} for job {}{}{}".format(
            lease["user"] or "somebody",
            lease["job"],
            " ({})".format(lease["name"]) if lease["name"] and lease["name"] != lease["job"] else "",
            " since {}".format(lease["since"]) if lease["since"] else "",
        )
    elif lease is not None and holder:
        why = "leased by somebody who shows no job for it: {}".format(holder)
    elif why and lingers and fit and not card["processes"]:
        why = None
    if why is None and aside is not None:
        why = cardlog.text(aside, clock.stamp)
    return dict(card, why_busy=why, free=why is None, broken=not fit or aside is not None)


def _holder(held, card):
    return next((lease.get("holder") for lease in held if lease["index"] == card["index"]), None)


def _kept(layout, device, age_s):
    """The last full report that is fresh enough; with no device named, of any."""
    newest = None
    for kind in [device] if device else sorted(KINDS):
        kept = files.read_json(readings.report_path(layout, kind))
        at = kept.get("at") if isinstance(kept, dict) else None
        if isinstance(at, (int, float)) and 0 <= time.time() - at <= age_s and (newest is None or at > newest["at"]):
            newest = kept
    return newest["report"] if newest and newest["report"].get("cards") else None


def kept_by_processes(layout, device, held, families):
    """Leases in all but name: cards of my jobs whose processes live while the kernel's name is free."""
    named = {lease["index"] for lease in held}
    found = []
    for job_id in families:
        start = jobs.running_start(layout, job_id) or {}
        for index in start.get("cards") or () if start.get("device") == device else ():
            if index not in named:
                lease = {"user": share.user_name(), "job": job_id, "name": start.get("name"), "since": start.get("at")}
                found.append(dict(lease, index=index))
    return found


def everybody_waiting(layout):
    """`[{user, job, name, cards, device, since, mine}]`: who waits for cards here, in the order in which they come."""
    entries = queue.Cache(layout).entries()
    facts, _ = situation.gather(layout, entries, {}, jobs.running(layout), always=True)
    return [_waiting(uid, entry) for uid, entry in situation.order.line(facts)]


def _waiting(uid, entry):
    return {
        "user": share.user_name(uid),
        "job": entry.get("id") or entry.get("job"),
        "name": entry.get("name"),
        "cards": entry["cards"],
        "device": entry["device"],
        "since": entry.get("since"),
        "mine": uid is None,
    }


def summary(report):
    """The report as `order.Situation` wants it: `(free indexes, facts of all cards)`. Pure."""
    facts = [{key: card.get(key) for key in ("index", "model", "board", "near", "broken")} for card in report["cards"]]
    return {card["index"] for card in report["cards"] if card["free"]}, facts
