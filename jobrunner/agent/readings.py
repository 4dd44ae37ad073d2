"""What the vendor's tool says about the cards, read in a short-lived process and only as often as it pays.

A reading is used for `FRESH_S`. A card that our own jobs had when it was read, and nobody else, goes on to the next of
our jobs without a new reading. So does one that a job of ours let go a moment ago, although the tool may still show
what it used. A card that a colleague lets go is read at once.
"""

import json
import os
import time

from . import cardlog, files, jobs, procs, settings
from .layout import card_name

FRESH_S = 30.0
LEAST_S = 5.0
CALM_S = 25.0
SOON_S = 0.3  # between readings because a colleague's card came free
TOOL_LIMIT_S = 30.0


def compact(report, leased, owners, judged, healthy):
    """Per card what a start needs to know: `{index: {idle, handed, why, strangers, model, board, near, broken}}`. Pure.

    `leased` are the indexes that our jobs hold or held a moment ago, `owners` pids of our jobs, `judged` the report
    judged without leases, `healthy` the same as if the cards were unused.
    """
    found = {}
    for card, seen, fine in zip(report["cards"], judged["cards"], healthy["cards"]):
        strangers = [process["pid"] for process in card["processes"] if process["pid"] not in owners]
        ours = card["index"] in leased or (bool(card["processes"]) and not strangers)
        found[card["index"]] = {
            "idle": seen["free"],
            "handed": bool(ours and not strangers and fine["free"]),
            "why": seen["why_busy"],
            "strangers": strangers[:20],
            "model": card["model"],
            "board": card.get("board"),
            "near": card.get("near"),
            "broken": not fine["free"],
        }
    return found


def unused(report):
    """The report as it were if nothing ran on the cards: what is not free then is not fit to be given. Pure."""
    nothing = {"processes": [], "memory_used_mb": 0, "utilization": 0}
    cards = [dict(card, memory_total_mb=card["memory_total_mb"] or 1, **nothing) for card in report["cards"]]
    return dict(report, cards=cards)


def read(layout, device, timeout_s=TOOL_LIMIT_S):
    """Ask the tool now (slow, big in memory): the full report, kept for `look`."""
    from . import cards

    began = time.time()
    report = cards.read_cards(device, timeout_s)
    if report.get("cards"):
        files.make_dir(layout.home)
        files.write_json(report_path(layout, report["device"]), {"at": began, "report": report}, sync=False)
    return report


def take(layout, device, count):
    """Read the cards in this process: the compact reading, as JSON. Warns jobs of what is seen on their cards."""
    from . import cards, stray

    began = time.time()
    values, _ = settings.read(layout)
    report = cards.fallback_report(device, count) if count else read(layout, device)
    running = jobs.running(layout)
    owned = stray.owners(layout, running, report)
    leased = {index for _, start in running if start.get("device") == device for index in start.get("cards") or ()}
    lately = cardlog.freed_lately(cardlog.read(layout, device), time.time(), values["linger_s"])
    report = stray.without(report, stray.gone(report), lately)
    leased |= lately
    judged, healthy = cards.judge(report, [], {}, values), cards.judge(unused(report), [], {}, values)
    table = compact(report, leased, owned, judged, healthy)
    stray.inspect(layout, report, running, owned)
    error = report.get("error")
    return {
        "at": began,
        "tool_s": report.get("tool_s") or 0.0,
        "assumed": bool(count),
        "error": error.get("message") if isinstance(error, dict) else error,
        "cards": [[index, table[index]] for index in table],
    }


def report_path(layout, device):
    """Where the last full report of a device's cards is kept."""
    return os.path.join(layout.home, b"cards-" + files.to_bytes(device or "any") + b".json")


class Readings:
    """The dispatcher's memory of readings, and the process that is at one now."""

    def __init__(self, layout):
        self._layout = layout
        self._last = {}
        self._reader = None

    def busy(self):
        """True while a reading is being taken."""
        return self._reader is not None

    def age(self, device):
        """Seconds since the last reading of a device began; None if there was none."""
        last = self._last.get(device)
        return None if last is None else time.monotonic() - last["mono"]

    def cards(self, device):
        """`{index: facts}` of the last reading; empty if there was none."""
        return self._last.get(device, {}).get("cards", {})

    def error(self, device):
        """Why the tool could not be asked, or None."""
        return self._last.get(device, {}).get("error")

    def facts(self, device):
        """What `order.Situation.cards` wants of a device; empty if there was no reading."""
        return [dict(card, index=index) for index, card in sorted(self.cards(device).items())]

    def observe(self, held_names, own):
        """Remember which cards others hold now (`own`: `{(device, index)}` of our jobs): what the last reading said of
        them says nothing about what is left there when they let go."""
        for device, last in self._last.items():
            for index in last["cards"]:
                if (device, index) not in own and card_name(device, index) in held_names:
                    last["others"].add(index)

    def usable(self, device, held_names):
        """The indexes that may be taken now: nobody holds them, and a fresh reading shows them idle or only ours."""
        last = self._last.get(device)
        if last is None or not (last["assumed"] or self.age(device) <= FRESH_S):
            return set()
        return {index for index in self._good(last) if card_name(device, index) not in held_names}

    def _good(self, last):
        """What a reading shows as idle or ours, and nobody else has had since. With no tool, leases decide."""
        return {
            index
            for index, card in last["cards"].items()
            if (card["idle"] or card["handed"]) and (last["assumed"] or index not in last["others"])
        }

    def pause(self, device, held_names):
        """Seconds until the next reading may be taken: seldom while only our own jobs hold the cards, at once when a
        card that somebody else has had since the last one has come free."""
        last = self._last.get(device)
        if last is None:
            return 0.0
        loose = {index for index in last["cards"] if card_name(device, index) not in held_names}
        if loose & last["others"] and not last["assumed"]:
            return max(0.0, max(SOON_S, 2 * last["tool_s"]) - self.age(device))
        strange = loose - self._good(last)
        unread = bool(loose) and self.age(device) > FRESH_S
        least = LEAST_S if strange or unread or not last["cards"] else CALM_S
        return max(0.0, max(least, 20 * last["tool_s"]) - self.age(device))

    def begin(self, device, count):
        """Start a reading, unless one is being taken."""
        if self._reader is not None:
            return
        outlet, inlet = os.pipe()
        try:
            pid = os.fork()
        except OSError:
            for end in (outlet, inlet):
                os.close(end)
            raise
        if not pid:
            try:
                procs.close_all_but([2, inlet])
                os.write(inlet, json.dumps(take(self._layout, device, count)).encode("ascii"))
            except BaseException:
                import traceback

                traceback.print_exc()
            finally:
                os._exit(0)
        os.close(inlet)
        self._reader = (pid, outlet, device, time.monotonic())

    def ended(self, pid):
        """A child ended: if it was the reader, take its answer. Returns the device that was read, or None."""
        if self._reader is None or self._reader[0] != pid:
            return None
        _, outlet, device, began = self._reader
        self._reader = None
        try:
            data = os.read(outlet, 1 << 20)
        finally:
            os.close(outlet)
        try:
            answer = json.loads(data.decode("ascii"))
        except ValueError:
            answer = {"tool_s": 1.0, "assumed": False, "cards": [], "error": "the reading was cut short"}
        took = time.monotonic() - began
        self._last[device] = {
            "mono": began,
            "tool_s": max(answer["tool_s"], 0.0),
            "took": took,
            "assumed": answer["assumed"],
            "error": answer["error"],
            "cards": dict(answer["cards"]),
            "others": set(),
        }
        return device
