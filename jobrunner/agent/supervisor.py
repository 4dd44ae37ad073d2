"""One per running job: starts its command, watches it, stops it, and writes how it ended."""

import json
import os
import select
import signal
import time

from . import (
    ahead,
    clock,
    conclude,
    ending,
    evidence,
    files,
    first,
    jobs,
    kernel,
    logguard,
    procs,
    queue,
    room,
    settings,
    share,
    spare,
    starts,
    stopping,
    stray,
    trials,
)
from .files import AgentError


class Supervisor:
    """Supervises one attempt. `lock`: the job's; `held`: what the command inherits (leases of cards and ports);
    `first`: the process that is to become the command, if it was forked ahead."""

    adopted = False

    def __init__(self, layout, job_id, attempt, lock, held=(), cards=(), entry=None, inlet=None, first=None):
        self.layout, self.job_id, self.attempt = layout, job_id, attempt
        self.lock, self.held, self.cards = lock, list(held), sorted(cards)
        self.entry = entry or {}
        self.first = first
        self.inlet = inlet  # where the dispatcher that started us hears of our end
        self.request = jobs.request(layout, job_id) or {"id": job_id}
        self.run_spec = jobs.run_of(self.request)
        self.folder = layout.attempt(job_id, attempt)
        values = settings.read(layout)[0]
        self.check_s = max(0.1, values["check_s"])
        self.log_guard = logguard.Guard(layout, job_id, os.path.join(self.folder, b"log"), values["log_warn_mb"])
        self.terminal = None
        self.child = self.status = self.command = None
        self.told = {}
        self.stopped_by = None
        self.forced = None  # the grace, once something outlived it and was killed
        self.started = {}
        self.spent = {"user_s": 0.0, "system_s": 0.0, "max_rss_kb": 0}
        self.helpers = set()
        self._unread = b""
        self._poller = select.poll()
        self._polled = {}

    # the steps

    def run(self):
        """The whole life of an attempt. Returns the exit code of the supervisor itself."""
        kernel.name_process(b"jr-supervise")
        self.catch_signals()
        try:
            self.begin()
        except (OSError, AgentError) as error:
            return self.not_begun(error)
        kernel.trim()
        while self.status is None and self.stopped_by is None:
            self.turn(self.patience())
            self.look_for_reasons_to_stop()
        if self._told_by is not None:
            self.listen()  # its last words may have come with its end
        stopping.leftovers(self)
        ending.end(self)
        return 0

    def catch_signals(self):
        """Signals wake the loop through a pipe; what would end us does not."""
        wake, waker = os.pipe()
        for end in (wake, waker):
            os.set_blocking(end, False)
        self._wake = wake
        signal.set_wakeup_fd(waker)
        for number in (signal.SIGCHLD, signal.SIGUSR1):
            signal.signal(number, _nothing)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE, signal.SIGUSR2):
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        self.poll_for(wake)

    def begin(self):
        """Commit the start: start.json, then the queue's entry is removed; the command's process waits until then."""
        for folder in (self.folder, os.path.join(self.layout.job(self.job_id), b"out")):
            files.make_dir(folder)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        if ahead.undo_lost_start(self.folder):
            flags |= os.O_TRUNC
        self.log = os.open(os.path.join(self.folder, b"log"), flags, 0o600)
        self.take_ports()
        if (self.run_spec.get("runtime") or {}).get("docker"):
            starts.expect_containers(self.layout)
        from . import launchers

        self.terminal = launchers.get(self.run_spec.get("launcher")).open_terminal(
            self.layout, self.job_id, self.attempt, self.log
        )
        kernel.become_subreaper()
        go = self.start_process()
        records = room.records(self.layout, self.job_id, self.attempt)
        for path in records:
            room.reserve(path, sync=False)
        self.note_oom_counts()
        self.mono = time.monotonic()
        self.guard = stray.guard(self.run_spec, self.mono)
        late = files.promises_room(self.folder)
        self.record_start(sync=not late)
        queue.remove(self.layout, self.job_id)
        os.write(go, b"g")
        os.close(go)
        if late:  # beside the command, as the rest that is to be on the disk
            self.secure_start()
        jobs.journal(self.layout, self.job_id, "started", attempt=self.attempt, cards=self.cards)
        share.publish_leases(self.layout, jobs.running(self.layout))
        for path in records:  # beside the command, which need not wait for the disk
            room.secure(path)
        self.poll_for(*self.terminal.descriptors())

    def secure_start(self):
        """The start is committed and the command runs: a disk that fails now is told, and ends nothing."""
        try:
            files.secure(os.path.join(self.folder, b"start.json"))
        except OSError as error:
            text = "its start record may not outlast a crash of the host: {}".format(error)
            jobs.journal(self.layout, self.job_id, "warning", text=text)

    def take_ports(self):
        """Port ranges for the command, kept as long as it lives. A host without free ones starts it without."""
        from . import ports

        self.ports = []
        try:
            taken = ports.take(2 if self.run_spec.get("device") == "npu" else 1)
        except OSError as error:
            jobs.journal(self.layout, self.job_id, "warning", text="no port range was free: {}".format(error.strerror))
            return
        self.ports = [first for first, _ in taken]
        self.held += [lock for _, lock in taken]

    def start_process(self):
        """Give the command's process its plan; it waits for a byte then. Returns the descriptor to write that to."""
        status_read, status_write = os.pipe()
        wait, go = os.pipe()
        ports = [*self.ports, None, None]
        plan = [self.job_id, self.attempt, self.cards, ports[0], ports[1]]
        inherited = [wait, status_write, self.terminal.output(), *self.held]
        child = first.start(self.layout, self.first, plan, inherited)
        os.close(wait)
        os.close(status_write)
        os.set_blocking(status_read, False)
        self.child, self._told_by = child, status_read
        self.command = dict(procs.identity(child) or {"pid": child}, pgid=child)
        self.terminal.started()
        self.poll_for(status_read)
        return go

    def record_start(self, sync=True):
        """Write start.json: who supervises, what it started, with which cards."""
        entry = self.entry
        self.started = {
            "v": jobs.FORMAT,
            "supervisor": procs.identity(),
            "command": self.command,
            "cards": self.cards,
            "device": self.run_spec.get("device") or "cpu",
            "name": self.request.get("name"),
            "phase": "setup",
            "at": clock.stamp(),
            "began": time.time(),
            "mono": self.mono,
            "timeout_s": self.run_spec.get("timeout_s"),
            "attempt": self.attempt,
            "queued_since": entry.get("since"),
            "ports": self.ports,
            "log": "log",
            "carry": {key: entry[key] for key in ("priority", "failed_before") if key in entry},
            "sweep": (trials.of_request(self.request) or {}).get("id"),
            "agent": procs.agent_place()[2],
        }
        self.save_start(sync)

    def save_start(self, sync=True):
        files.write_json(os.path.join(self.folder, b"start.json"), self.started, sync=sync)

    def not_begun(self, error):
        """The start could not be committed: the job stays queued, or fails if it never can start here."""
        text = getattr(error, "message", None) or str(error)
        if self.child:
            os.kill(self.child, signal.SIGKILL)
        if self.terminal is not None:
            self.terminal.close()
        if isinstance(error, AgentError) and not os.path.exists(os.path.join(self.folder, b"start.json")):
            conclude.finish(
                self.layout,
                self.job_id,
                {
                    "state": "FAILED",
                    "reason": "launch",
                    "exit_code": None,
                    "signal": None,
                    "attempt": self.attempt,
                    "at": clock.stamp(),
                    "evidence": text + (". " + error.remedy if error.remedy else ""),
                },
            )
            return 0
        jobs.journal(self.layout, self.job_id, "warning", text="it could not be started: {}".format(text))
        return spare.NOT_NOW

    # the loop

    guard = None

    def poll_for(self, *descriptors, mask=select.POLLIN):
        for descriptor in descriptors:
            self._poller.register(descriptor, mask)
            self._polled[descriptor] = mask

    def patience(self):
        """Seconds that may be slept."""
        waits = [self.check_s]
        if self.deadline() is not None:
            waits.append(self.deadline() - time.monotonic())
        if self.guard is not None:
            waits.append(self.guard.due_s(time.monotonic()))
        return max(0.0, min(waits))

    def deadline(self):
        """When the time limit ends, by the clock that cannot be set; None without one."""
        limit = self.run_spec.get("timeout_s")
        return self.mono + float(limit) if limit else None

    def turn(self, seconds):
        """Sleep until something happens or so many seconds passed, and handle it."""
        for descriptor, _ in self._poller.poll(int(seconds * 1000) + 1 if seconds > 0 else 0):
            if descriptor == self._wake:
                procs.empty(descriptor)
            elif descriptor == self._told_by:
                self.listen()
            else:
                self.terminal.serve(descriptor)
        self.watch_terminal()
        self.reap()
        self.now_and_then()

    def watch_terminal(self):
        """Poll what the terminal has now: panes come and go, and some have not read everything yet."""
        if self.terminal is None:
            return
        wanted = dict.fromkeys(self.terminal.descriptors(), select.POLLIN)
        wanted.update(dict.fromkeys(self.terminal.writers(), select.POLLIN | select.POLLOUT))
        for descriptor in set(self._polled) - set(wanted) - {self._wake, self._told_by}:
            del self._polled[descriptor]
            self._poller.unregister(descriptor)
        for descriptor, mask in wanted.items():
            if self._polled.get(descriptor) != mask:
                self.poll_for(descriptor, mask=mask)

    _told_by = None
    _checked = 0.0

    def listen(self):
        """Hear from the command's process which phase it is in, and why it cannot go on."""
        try:
            data = os.read(self._told_by, 65536)
        except BlockingIOError:
            return
        if not data:
            self._poller.unregister(self._told_by)
            self._polled.pop(self._told_by, None)
            os.close(self._told_by)
            self._told_by = None
            return
        *lines, self._unread = (self._unread + data).split(b"\n")
        for line in lines:
            self.told.update(json.loads(line.decode("ascii")))
        if self.told.get("phase") and self.started.get("phase") != self.told["phase"]:
            self.started["phase"] = self.told["phase"]
            if self.told["phase"] == "command":
                self.started["command_at"] = time.time()
            self.show_phase()

    unshown = False

    def show_phase(self):
        """Tell others of the phase. On a full disk it is shown once there is room, nothing else."""
        try:
            self.save_start(sync=False)
            self.unshown = False
        except OSError:
            self.unshown = True

    def reap(self):
        """Collect ended children: the command, orphans that became ours, helpers."""
        while True:
            try:
                pid, status, spent = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid in self.helpers:
                self.helpers.discard(pid)
                continue
            self.spent["user_s"] += spent.ru_utime
            self.spent["system_s"] += spent.ru_stime
            self.spent["max_rss_kb"] = max(self.spent["max_rss_kb"], spent.ru_maxrss)
            if pid == self.child:
                self.status = status
                self.ended = time.time()

    def now_and_then(self):
        """Once a minute: note checkpoints, take the memory counters to which a sudden end is compared, see the log."""
        now = time.monotonic()
        if self.guard is not None and self.status is None and self.guard.take(now):
            self.help_with(lambda: stray.check(self.layout, self.run_spec.get("device")))
        if now - self._checked < self.check_s or self.status is not None:
            return
        if self._checked:
            if self.unshown:
                self.show_phase()
            self.note_oom_counts()
            self.take_notes()
            self.log_guard.look(now)
        self._checked = now

    oom_counted = ()

    def note_oom_counts(self):
        """Keep the last two marks of OOM kills: an end is compared to the older one, a minute old at least."""
        for old in self.oom_counted[:-1]:
            old.close()
        self.oom_counted = (*self.oom_counted[-1:], evidence.Mark())

    def take_notes(self):
        """Collect metrics and note checkpoints in a helper that nobody waits for."""
        if not self.helpers and conclude.to_note(self.run_spec):
            self.help_with(lambda: conclude.take_notes(self.layout, self.job_id, ended=False))

    def help_with(self, work):
        """Do something in a short-lived process that nobody waits for; not this time, if there can be none."""
        try:
            pid = os.fork()
        except OSError:
            return  # the job may have filled the table of processes itself
        if not pid:
            try:
                procs.close_all_but([2])
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                work()
            finally:
                os._exit(0)
        self.helpers.add(pid)

    def look_for_reasons_to_stop(self):
        """A wish to cancel or the end of the time limit stops the job."""
        if self.status is not None:
            return
        if jobs.cancel(self.layout, self.job_id) is not None:
            stopping.stop(self, "cancel")
        elif self.deadline() is not None and time.monotonic() >= self.deadline():
            stopping.stop(self, "timeout")

    def members(self):
        """The job's live processes. As orphans become our children, one that has none has no descendants either."""
        if not self.adopted and self.status is not None and procs.childless():
            return procs.carrying(self.job_id)
        return procs.of_job(self.job_id, self.command, os.getpid(), spare=self.helpers)

    # the end

    def outcome(self):
        """`(exit_code, signal, reason, evidence)` of the ended command."""
        told = self.told
        found = stopping.container_outcome(self) if not (told.get("setup") or told.get("launch")) else None
        if found is not None:
            return found
        return conclude.classify(
            self.status, told.get("setup"), told.get("launch"), **evidence.of_end(self, bool(told.get("full")))
        )


def _nothing(_number, _frame):
    pass


def main(argv):
    """`adopt ROOT INSTANCE ID ATTEMPT LOCK`, or `start … LOCK LEASES CARDS`: supervise a job in this process."""
    from .layout import Layout

    layout = Layout(argv[1], argv[2])
    job_id, attempt, lock = argv[3], int(argv[4]), int(argv[5])
    os.set_inheritable(lock, False)
    if argv[0] == "adopt":
        from .adoption import Adopter

        return Adopter(layout, job_id, attempt, lock).run()
    held = [int(word) for word in argv[6].split(",") if word]
    for descriptor in held:
        os.set_inheritable(descriptor, False)
    cards = [int(word) for word in argv[7].split(",") if word]
    return Supervisor(layout, job_id, attempt, lock, held, cards, jobs.queue_entry(layout, job_id)).run()
