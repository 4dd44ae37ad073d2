"""What we show the others while we wait for cards: our place in the line of all, as `situation.colleagues` reads it."""

from . import clock, order, share

NAME = "ticket.json"


def made(layout, waiting, used, held=0, wide_after_s=order.WIDE_AFTER_S, now=None):
    """What we show the others while we wait for cards: `waiting` in order, `used` card-seconds, `held` cards."""
    shown = [
        {
            "job": entry["id"],
            "name": entry.get("name"),
            "cards": entry["cards"],
            "device": entry["device"],
            "since": entry.get("since"),
            "priority": entry.get("priority") or 0,
            "only_cards": entry.get("card_ids") or (entry.get("limits") or {}).get("only_cards"),
            "wide_after_s": (entry.get("limits") or {}).get("wide_after_s") or wide_after_s,
        }
        for entry in waiting[:200]
        if entry["cards"]
    ]
    return {
        "v": 1,
        "user": share.user_name(),
        "lock": layout.instance,
        "usage": round(used, 3),
        "held": held,
        "at": clock.stamp(now),
        "waiting": shown,
    }


class Ticket:
    """Our ticket: written when it changes, and again when somebody cleaned it away."""

    def __init__(self, layout):
        self._layout = layout
        self._mark = None

    def show(self, facts, running):
        """Show what a situation and my running jobs say."""
        held = sum(len(start["cards"]) for _, start in running)
        value = made(self._layout, order.claimable(facts), facts.usage, held, facts.wide_after_s)
        mark = (value["waiting"], held, int(value["usage"] / 600))
        if mark == self._mark and (not value["waiting"] or share.shown(NAME)):
            return
        if value["waiting"]:
            share.publish(NAME, value)
        else:
            share.withdraw(NAME)
        self._mark = mark

    def withdraw(self):
        """Nothing of ours waits any more."""
        share.withdraw(NAME)
        self._mark = None
