"""What names and addresses look like, in the dialect that Python and ECMAScript share: for checks and schemas."""

from __future__ import annotations

# `$` alone also matches before a last newline in Python; the look-ahead closes that door in both dialects.
END = r"$(?!\n)"
UNSAFE = r"\u0000-\u001f\u007f-\u009f\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff\ud800-\udfff"
ALIAS_PATTERN = rf"^(?!-)[^\s/,{UNSAFE}]{{1,200}}{END}"
ALIAS_FAULT = "{0!r} cannot be a host's name: no blanks, slashes or commas, and no '-' at its beginning"
ADDRESS_PATTERN = (
    r"^(?!-)(?:[^\s@:/\[\]]+@)?(?!-)(?:\[[0-9A-Fa-f:.]+(?:%[^\s\]]+)?\](?::[0-9]{1,5})?|[0-9A-Fa-f]*:[0-9A-Fa-f:.]*:"
    r"[0-9A-Fa-f:.]*(?:%[^\s]+)?|[^\s@:/\[\]]+(?::[0-9]{1,5})?)$(?!\n)"
)
