"""The forty seeds that `make test` plays: together they meet everything that a seed may decide, and none of them waits long."""

from __future__ import annotations

# Of seventy, the cheapest in CPU time that have each kind of fault, end, launcher and way of the server at least twice
# (where seventy have it twice at all).
FIXED = (
    402, 404, 405, 406, 407, 410, 411, 412, 414, 415, 417, 424, 426, 427, 428, 431, 432, 434, 435, 436, 437,
    438, 439, 440, 441, 442, 445, 447, 448, 449, 456, 459, 460, 462, 463, 464, 465, 466, 468, 470,
)  # fmt: skip
HALVES = (FIXED[::2], FIXED[1::2])  # a file each, so that two workers share them
