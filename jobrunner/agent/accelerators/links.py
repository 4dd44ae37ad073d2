"""Which cards belong together, and the best choice among free ones. Pure.

A `Links` says for some models how cards are grouped, from the widest group to the narrowest. A group is the cards with
the same `value // size`, where value is the card's board number or its index.
"""

from .base import bare_model


class Links:
    """Groups of the models whose bare name starts with one of `models` (`=910` means exactly that name).

    levels   `(by, size)`, widest first; by is "board" or "index"
    counts   the only numbers of cards that work; None: any
    strict   a job that fits into a group of the first level must lie inside one, a larger one takes the whole host
    prefer   `{count: (how many free cards the group should have, best first)}` for the first level
    """

    def __init__(self, models, levels=(), counts=None, strict=False, prefer=None):
        self.models = models
        self.levels = tuple(levels)
        self.counts = counts
        self.strict = strict
        self.prefer = prefer or {}

    def covers(self, model):
        model = bare_model(model)
        return any(model == name[1:] if name.startswith("=") else model.startswith(name) for name in self.models)


ANY = Links(("",))


def choose(links, free, count, all_cards):
    """See `Kind.choose`."""
    known = {card["index"]: card for card in all_cards}
    free = sorted({index for index in free if index in known})
    if count <= 0:
        return [], None
    if count > len(known):
        return None, "{} cards are asked for and the host has {}".format(count, len(known))
    if count > len(free):
        return None, "{} cards are asked for and {} are free".format(count, len(free))
    reasons = []
    for model in sorted({known[index]["model"] or "" for index in free}):
        same = [index for index in free if (known[index]["model"] or "") == model]
        rule = next((rule for rule in links if rule.covers(model)), ANY)
        found, reason = _of_one_model(rule, same, count, known, model)
        if found is not None:
            return found, None
        reasons.append(reason)
    if len(reasons) > 1:
        return None, "{} cards of one model are asked for and no model has so many free".format(count)
    return None, reasons[0]


def _of_one_model(rule, free, count, known, model):
    whole = count == len(known)
    if rule.counts is not None and count not in rule.counts:
        numbers = ", ".join(str(number) for number in sorted(rule.counts))
        return None, "a job on {} takes {} cards, not {}: others have no common link".format(model, numbers, count)
    if count > len(free):
        return None, "{} cards of model {} are asked for and {} are free".format(count, model or "unknown", len(free))
    if whole or not rule.levels:
        return free[:count], None
    if rule.strict:
        size = rule.levels[0][1]
        groups = _groups(rule.levels[0], free, known)
        if count > size:
            return None, "more than {} linked {} cards: only all {} of the host".format(size, model, len(known))
        if not any(len(group) >= count for group in groups):
            return None, "{} linked cards are asked for; no group of {} cards has so many free".format(count, size)
    return sorted(_pick(rule.levels, free, count, known, rule.prefer)), None


def _groups(level, free, known):
    by, size = level
    groups = {}
    for index in free:
        value = known[index].get("board") if by == "board" else index
        value = index if value is None else value
        groups.setdefault(value // size, []).append(index)
    return [groups[key] for key in sorted(groups)]


def _pick(levels, free, count, known, prefer):
    """Best fit: one group if one suffices (the one it fills best), else whole groups first, then the fullest rest."""
    if count <= 0:
        return []
    if not levels:
        return free[:count]
    groups = _groups(levels[0], free, known)
    order = prefer.get(count, ())

    def fit(group):
        return (order.index(len(group)) if len(group) in order else len(order), len(group), group[0])

    fitting = sorted((group for group in groups if len(group) >= count), key=fit)
    if fitting:
        return _pick(levels[1:], fitting[0], count, known, {})
    largest = sorted(groups, key=lambda group: (-len(group), group[0]))[0]
    rest = [index for index in free if index not in largest]
    return largest + _pick(levels, rest, count - len(largest), known, prefer)
