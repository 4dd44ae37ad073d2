"""One process per user and instance while something is queued: starts the next job whenever its cards are free."""

import fcntl
import os
import signal
import time

from . import (
    ahead,
    cardlog,
    clock,
    files,
    fitting,
    handover,
    jobs,
    kernel,
    leases,
    limits,
    line,
    order,
    procs,
    queue,
    readings,
    settings,
    settle,
    share,
    situation,
    spare,
    starts,
    succession,
    ticket,
    trials,
    unstarted,
    yielding,
)
from .layout import Layout, lock_name

TROUBLE_S = 5.0
IDLE_S = 60.0  # the slow look beside the notifications
STARTS = 5  # so often is a start tried whose supervisor breaks
BACK_OFF_S = 30.0  # a job whose start failed on this host is tried again so much later
QUIET_S = 0.02  # a job that starts while nothing is left for the others is given so much time of its own
RACE_S = 0.5  # when somebody else acts on a waiting job, it is looked at again so soon
NO_CARD = -1  # stands for a card whose number is not known yet
YIELD_S = 1.0  # while cards are left to a colleague, it is looked at so often whether it still comes first
OURS_S = 2.0  # a card counts as ours so long after we saw it so: names and records are not read in one moment
_WATCH = fcntl.DN_CREATE | fcntl.DN_DELETE | fcntl.DN_MODIFY | fcntl.DN_RENAME | fcntl.DN_ATTRIB | fcntl.DN_MULTISHOT
_SIGNALS = {signal.SIGIO, signal.SIGCHLD}


def lock_of(layout):
    """The name that the dispatcher holds."""
    return lock_name("dispatcher", layout.instance)


def ensure_running(layout):
    """See that a dispatcher runs while something is queued. Cheap if one does.

    The lock is taken here and handed to the new process, so that two callers never start two.
    """
    if not queue.names(layout):
        no_more_after_reboot(layout)
        return False
    lock = leases.bind(lock_of(layout))
    if lock is None:
        return True
    try:
        words = [files.to_text(layout.root), layout.instance, lock]
        procs.spawn_detached(
            procs.agent_argv("dispatcher", words), keep=[lock], errors_to=os.path.join(layout.home, b"agent.log")
        )
    finally:
        leases.release([lock])
    return True


def main(argv):
    """`ROOT INSTANCE [LOCK [PIDS]]`: dispatch until the queue is empty. Detached by whoever starts it.

    PIDS are supervisors that a dispatcher started which handed over to this one: its children are ours now.
    """
    layout = Layout(argv[0], argv[1])
    if len(argv) > 2:
        lock = int(argv[2])
        os.set_inheritable(lock, False)
    else:
        lock = leases.bind(lock_of(layout))
        if lock is None:
            return 0
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    Dispatcher(layout, lock, [int(word) for word in argv[3].split(",") if word] if len(argv) > 3 else ()).run()
    no_more_after_reboot(layout)
    return 0


def no_more_after_reboot(layout):
    """The queue is empty: the crontab's line that would start it after a reboot goes, if there ever was one."""
    if os.path.exists(layout.reboot_file()):
        from . import reboot

        reboot.drop(layout)


class Dispatcher:
    """The loop. What it knows is only a memory: every step looks at files and kernel names again."""

    def __init__(self, layout, lock, inherited=()):
        self.layout = layout
        self.lock = lock
        self.inherited = frozenset(inherited)
        self.line = line.Line(layout)
        self.handover = handover.Handover()
        self.ahead = ahead.Ahead(layout)
        self.spare = spare.Spare()
        self.skipped = False
        self.readings = readings.Readings(layout)
        self.supervisors = {}
        self.later = {}
        self.tried = {}
        self.failures = {}
        self.watched = {}
        self.yielding = yielding.Yielding()
        self.ticket = ticket.Ticket(layout)
        self.fitting = fitting.Fitting(layout)
        self.checked = 0.0
        self.given = {}
        self.ours = {}

    def run(self):
        kernel.name_process(b"jr-dispatch")
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        signal.signal(signal.SIGCHLD, _nothing)
        self.handover.wake()
        kernel.trim()
        self.settle_unfinished()
        while True:
            try:
                patience = self.turn()
            except OSError as error:  # a full disk, a table of processes that is full: later it may do
                os.write(2, "{} dispatcher: {}\n".format(clock.stamp(), error).encode("utf-8", "replace"))
                patience = TROUBLE_S
            if patience is None:
                return
            if patience > 0:
                signal.sigtimedwait(_SIGNALS, patience)

    def turn(self):
        """Look at everything once and start what may start; the seconds that may be slept, None at the end."""
        self.handover.listen()
        self.reap()
        self.watch()
        self.line.refresh()
        succession.hand_over(self.layout, self.line.foreign, self.lock, self.supervisors)
        self.end_the_hopeless()
        if not self.line.entries and self.line.foreign:
            return IDLE_S  # jobs of a newer format, whose agent is not here
        if not self.line.entries:
            return None if self.leave() else 0
        return self.step()

    # around the decision

    def settle_unfinished(self):
        """At the start: whoever has neither verdict nor supervisor is settled. Jobs that only wait are left alone."""
        names, waiting = leases.held_names(), set(queue.names(self.layout))
        for job_id in jobs.all_ids(self.layout):
            if job_id in waiting:
                continue  # `end_the_hopeless` looks at those
            if not jobs.is_final(self.layout, job_id) and not jobs.locked(self.layout, job_id, names):
                settle.settle(self.layout, job_id, names)

    def reap(self):
        """Collect ended children. A supervisor that left its job unconcluded is replaced, or its job settled."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if self.ahead.ended(pid) or self.spare.ended(pid) or self.readings.ended(pid) is not None:
                continue
            job_id = self.supervisors.pop(pid, None)
            if job_id is None:
                if status != 0 and pid in self.inherited:
                    self.settle_unfinished()
                continue
            self.given.pop(job_id, None)
            self.handover.over(job_id)
            if status != 0:
                settle.settle(self.layout, job_id)
            if jobs.queue_entry(self.layout, job_id) is not None:
                self.start_failed(job_id, status)
            else:
                self.tried.pop(job_id, None)
                self.failures.pop(job_id, None)
            self.line.again(job_id)

    def start_failed(self, job_id, status):
        """A supervisor ended before its start was committed: try again later; if it cannot work here, give up."""
        entry = jobs.queue_entry(self.layout, job_id) or {}
        if (entry.get("attempt") or 1) != self.tried.get(job_id):
            return  # what waits now is the next attempt
        count = self.failures[job_id] = self.failures.get(job_id, 0) + 1
        self.later[job_id] = time.monotonic() + min(BACK_OFF_S, 0.1 * 2**count)
        broken = os.WIFEXITED(status) and os.WEXITSTATUS(status) != spare.NOT_NOW
        if broken and count >= STARTS:
            text = "its supervisor ended with exit code {} at each of {} starts: see agent.log in {}".format(
                os.WEXITSTATUS(status), count, files.to_text(self.layout.home)
            )
            unstarted.end(self.layout, job_id, "launch", text)

    def watch(self):
        """Ask the kernel for a signal on every change in the queue and in what users show each other."""
        files.make_dir(self.layout.queue)
        share.own_folder()
        wanted = [self.layout.queue] + [path for _, path in share.folders()]
        for path in [path for path in self.watched if path not in wanted]:
            os.close(self.watched.pop(path)[0])
        for path in wanted:
            mark = _mark(path)
            if path in self.watched and self.watched[path][1] == mark:
                continue
            if path in self.watched:
                os.close(self.watched.pop(path)[0])
            try:
                handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                fcntl.fcntl(handle, fcntl.F_NOTIFY, _WATCH)
            except OSError:
                continue  # a file system without it: the slow look remains
            self.watched[path] = (handle, mark)

    def end_the_hopeless(self):
        """End jobs that will never start, and drop left-overs of committed starts.

        What may lose its hope by the end of another job is looked at each time, all the rest (and all of a long queue)
        now and then: what is about to start is looked at before (starts.waits).
        """
        now = time.monotonic()
        due = now >= self.checked
        self.skipped = not due
        if self.line.long() and not due:
            return
        failed = {}
        for job_id, entry in list(self.line.entries.items()):
            tied = entry.get("after") or (entry.get("sweep") or {}).get("stop_after")
            if (due or tied) and unstarted.drop(self.layout, entry, failed):
                self.line.again(job_id)
        if due:
            self.checked = now + max(queue.SURE_S, line.SHARE * (time.monotonic() - now))

    def leave(self):
        """The queue is empty: give the lock back, and look once more so that no wake-up is lost. True to end."""
        self.ticket.withdraw()
        self.ahead.end()
        leases.release([self.lock])
        if not queue.waiting(self.layout):
            return True
        lock = leases.bind(lock_of(self.layout))
        if lock is None:
            return True
        self.lock = lock
        return False

    # the decision

    def step(self):
        """Start all that may start now; the seconds that may be slept then."""
        tried = set()
        values, _ = settings.read(self.layout)
        while True:
            names = leases.held_names()
            held = jobs.held_ids(self.layout, names)
            running = self.running(held, names)
            self.readings.observe(names, self.own_cards(running))
            free = self.nearest(held)
            facts = self.facts(free, names, running, values)
            decision = order.decide(facts, tried | self.backing_off())
            self.yielding.note(decision, time.monotonic())
            if decision.start is None:
                self.ticket.show(facts, running)  # when all is started: a free card must not wait for what others read
                self.fitting.warn(facts, decision)
                if facts.waiting:
                    starts.prepare(self.layout, facts.waiting[0], self.spare, self.own(), self.handover.inlet)
                patience = min(self.patience(facts.waiting, names), self.ahead.begin(facts.waiting))
                if decision.yields_to:
                    patience = min(patience, YIELD_S)
                busy = any(job_id in self.line.entries for job_id in held)
                return min(patience, RACE_S) if tried or busy else patience
            if self.try_start(decision.start, decision.cards, tried):
                then = facts.after(decision.start, decision.cards)
                if order.decide(then, tried | self.backing_off()).start is None:
                    self.handover.wait(QUIET_S)
                    return 0

    def nearest(self, held):
        """The entries that nobody is acting on and that are ready; of many, those that a decision can be about now."""
        now, steady, drained = clock.stamp(), clock.steady(), situation.drained(self.layout)

        def ready(entry):
            return (
                entry["id"] not in held
                and order.not_ready(entry, now, situation.states_for(self.layout, entry), drained, steady) is None
            )

        return self.line.pick(ready)

    def facts(self, entries, names, running, values):
        """The situation as it is now."""
        devices = {entry["device"] for entry in entries if entry["cards"]}
        free = {device: self.readings.usable(device, names) for device in devices}
        cards = {}
        for device in devices:
            log = cardlog.read(self.layout, device)
            cards[device] = self.readings.facts(device)
            indexes = [card["index"] for card in cards[device]]
            aside = cardlog.set_aside(log, indexes, time.time(), values["aside_deaths"], values["aside_for_s"])
            free[device] -= set(aside)
            cards[device] = [dict(card, broken=card["broken"] or card["index"] in aside) for card in cards[device]]
        passed = self.yielding.passed(time.monotonic(), values["wide_patience_s"])
        return situation.gather(self.layout, entries, free, running, passed, cards=cards, values=values)[0]

    def own_cards(self, running):
        """`{(device, index)}` that jobs of mine have now, or had a moment ago."""
        now = time.monotonic()
        for device, cards in list(self.given.values()) + [
            (start.get("device"), start["cards"]) for _, start in running
        ]:
            self.ours.update(((device, index), now) for index in cards)
        self.ours = {card: seen for card, seen in self.ours.items() if now - seen <= OURS_S}
        return set(self.ours)

    def running(self, held, names):
        """My running jobs, and those that are just being started (their lock is held, their entry not yet removed)."""
        acted_on = [self.line.entries[job_id] for job_id in held if job_id in self.line.entries]
        starting = {
            entry["id"]: {"cards": [NO_CARD] * entry["cards"], "device": entry["device"], "sweep": trials.id_of(entry)}
            for entry in acted_on
            if not jobs.stale(self.layout, entry["id"], entry)
        }
        # Looked at in this order, a start that is committed meanwhile is seen at least once.
        starting.update(jobs.running(self.layout, names))
        return sorted(starting.items())

    def backing_off(self):
        """Jobs whose start failed on this host a moment ago."""
        now = time.monotonic()
        self.later = {job_id: when for job_id, when in self.later.items() if when > now}
        return set(self.later)

    def try_start(self, entry, cards, skip):
        """Start one job; True. Or note in `skip` that it cannot be started in this situation."""
        taken = starts.take(self.layout, entry, cards, self.handover.clear(entry["device"], cards))
        if taken is None:
            skip.add(entry["id"])
            self.line.again(entry["id"])
            self.checked = 0.0
            return False
        self.ahead.stand_back(entry["id"])
        lock, held = taken
        pid = starts.start(self.layout, entry, cards, lock, held, self.own(), self.handover.inlet, self.spare)
        self.given[entry["id"]] = (entry["device"], cards)
        self.handover.given(entry["id"], entry["device"], cards)
        self.supervisors[pid] = entry["id"]
        self.tried[entry["id"]] = entry.get("attempt") or 1
        return True

    def own(self):
        """The descriptors that are no supervisor's."""
        watched = [handle for handle, _ in self.watched.values()]
        return [self.lock, *watched, *self.handover.descriptors(), *self.spare.descriptors()]

    def patience(self, waiting, names):
        """Begin a reading if one is due, and say how long nothing needs to be done."""
        waits = [IDLE_S] + [
            max(0.05, when - time.monotonic()) for when in self.later.values() if when > time.monotonic()
        ]
        for device, count in sorted(
            {(entry["device"], (entry.get("limits") or {}).get("cards") or 0) for entry in waiting if entry["cards"]}
        ):
            pause = self.readings.pause(device, names)
            if pause <= 0 and not self.readings.busy():
                self.readings.begin(device, count)
            elif not self.readings.busy():
                waits.append(pause)
        pause, steady, now = self.line.pause(), clock.steady(), time.monotonic()
        if pause is not None:
            waits.append(max(0.01, pause))
        if self.skipped:
            waits.append(max(0.05, self.checked - now))
        for entry in self.line.delayed:
            if self.line.entries.get(entry["id"]) is entry:
                left = limits.steady_left(entry, steady)
                left = clock.seconds(entry["not_before"]) - time.time() if left is None else left
                if left > -1:
                    waits.append(max(0.01, left))
        return min(waits)


def _mark(path):
    try:
        seen = os.stat(path)
    except OSError:
        return None
    return seen.st_dev, seen.st_ino


def _nothing(_number, _frame):
    pass
