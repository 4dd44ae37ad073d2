"""The supervisor of a job whose own one died while the job lives on."""

import os
import time

from . import evidence, jobs, leases, procs, room, share, stopping
from .supervisor import Supervisor

WATCH_S = 2.0  # how often the job's processes are looked for


class Adopter(Supervisor):
    """Supervises a job whose supervisor died: its processes are no children of ours, so how it ends is not seen."""

    adopted = True

    def begin(self):
        self.note_oom_counts()
        self.started = jobs.start(self.layout, self.job_id, self.attempt) or {}
        self.cards = sorted(self.started.get("cards") or [])
        self.command = self.started.get("command")
        self.mono = float(self.started.get("mono") or time.monotonic())
        self.started["supervisor"] = procs.identity()
        self.save_start()
        room.reserve(os.path.join(self.folder, b"exit.json"))
        self.take_leases()
        stopping.follow_container(self)
        share.publish_leases(self.layout, jobs.running(self.layout))

    def take_leases(self):
        """Hold the cards' names beside the job's processes, which may have let them go."""
        from .layout import card_name

        for card in self.cards:
            lock = leases.bind(card_name(self.started.get("device"), card))
            if lock is not None:
                self.held.append(lock)

    def patience(self):
        return min(WATCH_S, Supervisor.patience(self))

    def turn(self, seconds):
        Supervisor.turn(self, seconds)
        if self.status is None and not self.command_lives():
            self.status = 0

    def command_lives(self):
        """True while the command itself runs, or its container: what it leaves behind does not keep a job alive."""
        known = (self.command or {}).get("ticks") is not None
        return bool((procs.alive(self.command) if known else self.members()) or stopping.containers_of(self))

    def outcome(self):
        found = stopping.container_outcome(self)
        if found is not None:
            return found
        killed = evidence.killed(self.oom_counted[0], (self.command or {}).get("pid"))
        if killed is not None:
            return None, "SIGKILL", "oom", killed
        return None, None, "unobserved", "it ended while no supervisor was its parent, so its exit code is not known"
