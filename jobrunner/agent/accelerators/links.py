"""Which cards belong together, and the best choice among free ones. Pure.

A `Links` says for some models how cards are grouped, from the widest group to the narrowest. A group is the cards with
the same `value // size`, where value is the card's board number or its index.
"""

from .base import bare_model
from .near import best as nearest


class Links:
    """Groups of the models whose bare name starts with one of `models` (`=910` means exactly that name).

    levels   `(by, size)`, widest first; by is "board" or "index"
    counts   the only numbers of cards that work; None: any
    strict   a job that fits into a group of the first level must lie inside one, a larger one takes the whole host;
             that holds for cards that a spec names, too (`refusal`)
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
        return None, "{} asked for and the host has {}".format(_are(count), len(known))
    if count > len(free):
        return None, "{} asked for and {} free".format(_are(count), _are(len(free), ""))
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


def refusal(links, indexes, all_cards):
    """Why just these cards cannot work together in one job; None if nothing is known against it.

    indexes: cards that somebody names. A rule that is only a preference (boards, neighbours) forbids nothing.
    """
    known = {card["index"]: card for card in all_cards}
    wanted = sorted({index for index in indexes if index in known})
    models = sorted({known[index]["model"] or "" for index in wanted})
    rules = [next((rule for rule in links if rule.covers(model)), ANY) for model in models]
    if len(wanted) < 2 or not any(rule.strict for rule in rules):
        return None
    if len(models) > 1:
        return "cards {} are of different models ({}), which have no common link".format(
            _listed(wanted), ", ".join(model or "unknown" for model in models)
        )
    found, reason = _of_one_model(rules[0], wanted, len(wanted), known, models[0])
    if found is not None:
        return None
    return (
        reason
        if _wrong_number(rules[0], len(wanted), models[0])
        else (
            "cards {} are not in one linked group of {} {} cards".format(
                _listed(wanted), rules[0].levels[0][1], models[0]
            )
        )
    )


def _listed(indexes):
    return ", ".join(str(index) for index in indexes)


def _wrong_number(rule, count, model):
    """Why no set of so many cards works on any host of that model, or None."""
    if rule.counts is None or count in rule.counts:
        return None
    listed = _listed(sorted(rule.counts))
    return "a job on {} takes {} cards, not {}: others have no common link".format(model, listed, count)


def _of_one_model(rule, free, count, known, model):
    whole = count == len(known)
    wrong = _wrong_number(rule, count, model)
    if wrong:
        return None, wrong
    if count > len(free):
        return None, "{} of model {} asked for and {} free".format(_are(count), model or "unknown", _are(len(free), ""))
    if not rule.levels:
        rows = {index: known[index].get("near") for index in free}
        return nearest(free, count, rows) if all(rows.values()) and count < len(free) else free[:count], None
    if rule.strict:
        size = rule.levels[0][1]
        groups = _groups(rule.levels[0], free, known)
        if count > size and not whole:
            return None, "more than {} linked {} cards: only all {} of the host".format(size, model, len(known))
        # Also where these are all that a container shows: they may be of two rings.
        if count <= size and not any(len(group) >= count for group in groups):
            return None, "{} linked {} asked for; no group of {} cards has so many free".format(
                count, "card is" if count == 1 else "cards are", size
            )
    if whole:
        return free[:count], None
    return sorted(_pick(rule.levels, free, count, known, rule.prefer)), None


def _are(count, noun=" card"):
    """`1 card is`, `2 cards are`; with an empty noun `1 is`, `2 are`."""
    return "{}{} {}".format(count, noun + "s" if noun and count != 1 else noun, "is" if count == 1 else "are")


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
