"""How near cards are to each other, where the tool tells it as a matrix (`nvidia-smi topo -m`), and the best set by it.

A matrix has a title line `GPU0 GPU1 … CPU Affinity` and a line `GPU0 X NV2 SYS …` a card; columns of network cards and
later ones are passed over. What the words mean stands in the legend that the tool prints below; nearer is better:
NV# (# bonded NVLinks) > PIX > PXB > PHB > NODE > SYS. Pure.
"""

import re

_WORDS = {"PIX": 50, "PXB": 40, "PHB": 30, "NODE": 20, "SYS": 10}
_CARD = re.compile(r"GPU(\d{1,3})\Z")
_UNDERLINED = re.compile(r"\x1b\[[0-9;]*m")


def parse(text):
    """`{index: {other index: how near}}` of a matrix; empty if it has none, or one that contradicts itself."""
    titles, found = [], {}
    for line in text.replace("\r", "").split("\n"):
        words = _UNDERLINED.sub("", line).split()
        cards = [int(match.group(1)) for match in map(_CARD.match, words) if match]
        if not titles and len(cards) > 1:
            titles = cards
        elif titles and cards and _CARD.match(words[0]):
            row = words[1 : 1 + len(titles)]
            if len(row) < len(titles) or cards[0] not in titles or cards[0] in found:
                return {}
            found[cards[0]] = {other: _value(word) for other, word in zip(titles, row) if other != cards[0]}
    whole = set(found) == set(titles) and all(None not in row.values() for row in found.values())
    if not whole or any(found[other][index] != row[other] for index, row in found.items() for other in row):
        return {}
    return found


def _value(word):
    bonded = re.match(r"NV(\d{1,2})\Z", word)
    return 100 + int(bonded.group(1)) if bonded else _WORDS.get(word)


def rows(matrix, indexes):
    """`{index: [how near each number is]}` of a host's cards, 0 for itself; empty unless all are in the matrix."""
    if not matrix or not set(indexes) <= set(matrix):
        return {}
    return {index: [matrix[index].get(other, 0) for other in range(max(matrix) + 1)] for index in indexes}


def best(free, count, near):
    """The `count` cards of `free` that are nearest to each other and, of equal ones, leave the others the most."""
    ties = {card: sum(near[card][other] for other in free) for card in free}
    chosen = None
    for first in free:
        found = _grown(first, count, free, near, ties)
        if chosen is None or found > chosen:
            chosen = found
    return [-card for card in chosen[-1]]


def _grown(first, count, free, near, ties):
    """`(nearness of its farthest two, of all its pairs, what it takes from the others, cards)` of the set that grows
    from a card by always taking the nearest; all so that greater is better."""
    least, inside, outside, group = 0, 0, ties[first], [first]
    # How near each other card is to the group: its farthest member, and all of them.
    reach = {card: (near[first][card], near[first][card]) for card in free if card != first}
    while len(group) < count:
        card = -max((low, links, 2 * links - ties[card], -card) for card, (low, links) in reach.items())[3]
        low, links = reach.pop(card)
        least, inside = low if len(group) == 1 else min(least, low), inside + links
        outside += ties[card] - 2 * links
        group.append(card)
        for other, (far, sum_of) in reach.items():
            reach[other] = min(far, near[card][other]), sum_of + near[card][other]
    return least, inside, -outside, [-card for card in sorted(group)]
