"""Facts for `doctor`: many questions at once, each in a thread of its own, all within one limit.

A question that is not answered in time is told as `{"late": true}`, one that fails as `{"error": text}`: a disk that
hangs or a vendor's tool that never ends costs its own answer and no other.
"""

import importlib
import os
import threading
import time

from .accelerators import KINDS, ask

LIMIT_S = 40.0
MOST_S = 120.0

# part of the answer: module of this package, and the function there; it gets the `Context`
PARTS = {
    "limits": "probe_system.limits", "memory": "probe_system.memory", "proc": "probe_system.proc",
    "init": "probe_system.init", "users": "probe_system.users", "ports": "probe_system.ports",
    "network": "probe_system.network",
    "storage": "probe_storage.storage", "quota": "probe_storage.quota", "home": "probe_storage.home",
    "tmp": "probe_storage.tmp", "shm": "probe_storage.shm", "root_access": "probe_storage.root_access",
    "own": "probe_own.own", "modules": "probe_own.modules", "leases": "probe_own.locks",
    "crontab": "probe_own.crontab", "programs": "probe_own.programs",
    "nodes": "probe_cards.nodes", "groups": "probe_cards.groups", "drivers": "probe_cards.drivers",
    "vendor": "probe_cards.vendor", "runtimes": "probe_cards.runtimes",
    "software": "probe_python.software",
}  # fmt: skip


class Context:
    """What a question may look at: the host's files, what the client said of the host, and until when."""

    def __init__(self, session, request, deadline):
        self.layout = session.layout
        self.agent = session.agent
        self.request = request
        self.deadline = deadline
        self.device = request.get("device") or device_here()

    @property
    def left_s(self):
        """Seconds that are left, at least a tenth."""
        return max(0.1, self.deadline - time.monotonic())


def device_here():
    """The kind of card that this host seems to have, by its tools and by what is on its bus; else `cpu`."""
    for seen in (ask.find, ask.present):
        for kind in KINDS.values():
            if seen(kind):
                return kind.name
    return "cpu"


class Gathering:
    """Questions under way. `result` waits for them, and never longer than the limit."""

    def __init__(self, session, request):
        limit = min(float(request.get("limit_s") or LIMIT_S), MOST_S)
        self.context = Context(session, request, time.monotonic() + limit)
        self._answers = {}
        self._changed = threading.Condition()
        for part, target in PARTS.items():
            threading.Thread(target=self._ask, args=(part, target), name="probe-" + part, daemon=True).start()

    def _ask(self, part, target):
        module, function = target.split(".")
        try:
            answer = getattr(importlib.import_module("." + module, __package__), function)(self.context)
        except Exception as error:  # whatever it is, the other answers are worth having
            answer = {"error": "{}: {}".format(type(error).__name__, str(error)[:200])}
        with self._changed:
            self._answers[part] = answer
            self._changed.notify()

    def result(self):
        """`{part: answer}`; a part that did not come in time is `{"late": true}`."""
        ends = self.context.deadline + 1.0
        with self._changed:
            while len(self._answers) < len(PARTS):
                left = ends - time.monotonic()
                if left <= 0:
                    break
                self._changed.wait(left)
            found = {part: self._answers.get(part, {"late": True}) for part in PARTS}
        found["seen_device"] = self.context.device
        return found


def asked(words, context, limit_s=5.0):
    """The `Answer` of a program: English, own group, ended at the limit."""
    environ = dict(os.environb)
    environ[b"LC_ALL"] = environ[b"LANG"] = b"C"
    deadline = min(time.monotonic() + limit_s, context.deadline)
    return ask.run([word if isinstance(word, bytes) else word.encode() for word in words], environ, b"/", deadline)
