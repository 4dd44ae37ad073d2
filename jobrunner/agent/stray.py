"""Who uses cards that are not theirs, as the vendor's tool shows it: a job of mine on a card that it was not given, and
strangers on a card that a job of mine holds; and who does not use the cards that are theirs, as a script does that has
fallen back to the CPU. Each is said once, as a warning in the job's timeline.
"""

import os
import time

from . import clock, files, jobs, leases, limits, procs, settings
from .layout import lock_name

CHECKS_S = (5.0, 30.0, 120.0, 310.0)  # so long after its start a job's cards are looked at
EVERY_S = 600.0  # and then every so often
FRESH_S = 3.0  # a reading of the tool that is not older serves


def gone(report, proc=b"/proc"):
    """The pids of a report that are surely of no living process here: a tool that lags shows them for a while."""
    from .accelerators.seen import own_pid_space

    if not own_pid_space(proc):
        return set()  # in a container, the tool's pids are the host's
    return {process["pid"] for card in report["cards"] for process in card["processes"] if not _lives(process["pid"])}


def _lives(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        pass
    return True


def without(report, pids, indexes):
    """The report without the processes of those pids on some cards (those that we had a moment ago). Pure."""
    cards = [
        dict(card, processes=[p for p in card["processes"] if p["pid"] not in pids or card["index"] not in indexes])
        for card in report["cards"]
    ]
    return dict(report, cards=cards)


def owners(layout, running, report):
    """`{pid: job id}` of the processes in a report that belong to a job of mine (`running`: `jobs.running`)."""
    processes = procs.scan()
    found = {process.pid: process.job for process in processes if process.job}
    for job_id, start in running:
        supervisor = (start.get("supervisor") or {}).get("pid")
        for process in procs.of_job(job_id, start.get("command"), supervisor, processes):
            found.setdefault(process.pid, job_id)
    unknown = {process["pid"] for card in report["cards"] for process in card["processes"]} - set(found)
    if unknown and os.path.exists(os.path.join(layout.home, b"containers")):
        from . import containers

        found.update(containers.owners(unknown))
    return found


def strays(report, owned, running):
    """`[(job id, code, card, text)]` of what is worth a warning. Pure.

    Only processes that are known on this host count (those with a user): in a container the tool shows numbers that
    mean other processes.
    """
    found = []
    cards_of = {
        job_id: start.get("cards") or [] for job_id, start in running if start.get("device") == report["device"]
    }
    idle = {job_id: [] for job_id, start in running if start.get("device") != report["device"]}
    for card in report["cards"]:
        index = card["index"]
        holder = next((job_id for job_id in cards_of if index in cards_of[job_id]), None)
        for process in card["processes"]:
            job_id = owned.get(process["pid"])
            if process["user"] is None or (job_id is not None and job_id == holder):
                continue
            what = "{} (pid {})".format(process["name"] or "a process", process["pid"])
            if job_id in cards_of or job_id in idle:
                own = cards_of.get(job_id)
                has = "it was given {}".format(",".join(str(i) for i in own)) if own else "it was given none"
                text = "it uses card {}, which is not its own ({}): {}".format(index, has, what)
                found.append((job_id, "stray", index, text))
            if holder is not None:
                who = "my job {}'s".format(job_id) if job_id else "{}'s".format(process["user"])
                text = "on its card {} runs a process that is not of this job: {} {}".format(index, who, what)
                found.append((holder, "stranger", index, text))
    return found


def unused(report, running, values, now):
    """`[(job id, "unused", None, text)]` of jobs on whose cards nothing is to be seen long after their command began.

    Pure. Only cards of which the tool tells all count: no process, and no more memory than an idle card shows.
    """

    found, after_s = [], values["unused_after_s"]
    cards = {card["index"]: card for card in report["cards"]}
    for job_id, start in running if after_s else ():
        began, own = start.get("command_at"), start.get("cards") or []
        if start.get("device") != report["device"] or not isinstance(began, (int, float)) or now - began < after_s:
            continue
        idle = [index for index in own if index in cards and _empty(report["device"], cards[index], values)]
        if not idle:
            continue
        some = len(idle) < len(own)
        which = (
            "{} of its {} cards ({})".format(len(idle), len(own), _listed(idle))
            if some
            else ("its card{} {}".format("" if len(own) == 1 else "s", _listed(idle)))
        )
        text = "nothing uses {}, {} after its command began: {}".format(
            which,
            limits.counted(max(1, int((now - began) / 60)), "minute"),
            "it may run fewer processes than it has cards" if some else "it may compute on the CPU",
        )
        found.append((job_id, "unused", None, text))
    return found


def _empty(device, card, values):
    """True if the tool tells all about a card and shows nothing on it."""
    from .cards import idle_limit_mb

    used = card["memory_used_mb"]
    known = used is not None and not card["processes"] and not card["doubts"]
    return known and used <= idle_limit_mb(device, card, values) and not card["utilization"]


def _listed(indexes):
    return ", ".join(str(index) for index in indexes)


def warn(layout, found):
    """Journal each of `strays` once for a job, its kind and card."""
    if not found:
        return
    lock = leases.bind_patiently(lock_name("stray", layout.instance), 1.0)
    if lock is None:
        return
    try:
        for job_id, code, index, text in found:
            known, _ = files.read_lines(os.path.join(layout.job(job_id), b"warnings.jsonl"))
            if not any(
                isinstance(line, dict) and (line.get("code"), line.get("card")) == (code, index) for line in known
            ):
                jobs.journal(layout, job_id, "warning", text=text, code=code, card=index)
    finally:
        leases.release([lock])


def inspect(layout, report, running=None, owned=None, values=None):
    """Warn the jobs that a report of the cards has something to say about; processes that are gone say nothing."""
    running = jobs.running(layout) if running is None else running
    if running and report.get("cards"):
        values = settings.read(layout)[0] if values is None else values
        report = without(report, gone(report), {card["index"] for card in report["cards"]})
        warn(layout, strays(report, owners(layout, running, report) if owned is None else owned, running))
        warn(layout, unused(report, running, values, _seconds(report)))


def _seconds(report):
    """When a report was taken."""
    try:
        return clock.seconds(report["at"])
    except (KeyError, TypeError, ValueError, AttributeError):
        return time.time()


def check(layout, device):
    """Look at the cards for the sake of running jobs only; in a short-lived process. A fresh reading is used again."""
    from . import readings

    lock = leases.bind(lock_name("straylook", layout.instance, device))
    if lock is None:
        return  # somebody is at it, and looks at all jobs
    try:
        kept = files.read_json(readings.report_path(layout, device), {})
        fresh = isinstance(kept, dict) and 0 <= time.time() - (kept.get("at") or 0) <= FRESH_S
        report = kept["report"] if fresh else readings.read(layout, device)
        inspect(layout, report)
    finally:
        leases.release([lock])


class Guard:
    """When a running job's cards are to be looked at: some times soon after its start, then now and then."""

    def __init__(self, began):
        self._began = began
        self._looks = 0

    def due_s(self, now):
        """Seconds until the next look."""
        if self._looks < len(CHECKS_S):
            due = CHECKS_S[self._looks]
        else:
            due = CHECKS_S[-1] + EVERY_S * (self._looks - len(CHECKS_S) + 1)
        return max(0.0, self._began + due - now)

    def take(self, now):
        """True once for every look that is due; looks that were slept through are made up for by one."""
        if self.due_s(now) > 0:
            return False
        while self.due_s(now) <= 0:
            self._looks += 1
        return True


def guard(run, began):
    """The `Guard` of a running job; None where it uses no cards of a tool that could be asked. `run`: its request's."""
    asked = run.get("device") not in (None, "cpu") and not (run.get("limits") or {}).get("cards")
    return Guard(began) if asked else None
