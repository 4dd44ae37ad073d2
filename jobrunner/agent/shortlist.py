"""Out of a long queue, the entries that one decision can be about. Pure.

Of jobs that want the same (device, cards, limits), only the first few in one's own order can be the next to start; the
rest would make every decision as slow as the queue is long.
"""

EACH = 32  # so many of each kind are looked at


def kind(entry):
    """What a place for this job depends on."""
    return (
        entry["device"],
        entry["cards"],
        str(entry.get("card_ids")),
        entry.get("timeout_s"),
        str(entry.get("limits")),
        str(entry.get("sweep")),
    )


def pick(ordered, ready):
    """The first entries of each kind that are `ready(entry)`; `ordered` is in one's own order."""
    counts, found = {}, []
    for entry in ordered:
        which = kind(entry)
        if counts.get(which, 0) < EACH and ready(entry):
            counts[which] = counts.get(which, 0) + 1
            found.append(entry)
    return found
