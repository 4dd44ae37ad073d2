"""From what a person typed to a job's id: an id, a name, or a unique prefix of an id."""

from __future__ import annotations

import sqlite3

from jobrunner.core.errors import NotFoundError, UsageError

SHORT_PREFIX = 4
"""A name wins over an id that merely begins with the same few letters; from this length on that is ambiguous."""


def resolve(connection: sqlite3.Connection, word: str) -> str:
    """The id that a word means. UsageError if it may mean several jobs, NotFoundError if none."""
    known = word.encode("utf-8", "replace").decode("utf-8")
    if connection.execute("SELECT 1 FROM jobs WHERE id = ?", (known,)).fetchone():
        return known
    named = connection.execute(
        "SELECT id FROM jobs WHERE name = ? ORDER BY submitted_at DESC, seq DESC LIMIT 1", (known,)
    ).fetchone()
    begun = with_prefix(connection, known, 11)
    if named is not None:
        others = [id_ for id_ in begun if id_ != named[0]]
        if len(others) != 1 or len(begun) != 1 or len(known) < SHORT_PREFIX:
            return str(named[0])
        raise _ambiguous(connection, word, [named[0], *others])
    if len(begun) == 1:
        return begun[0]
    if begun:
        raise _ambiguous(connection, word, begun)
    raise _unknown(connection, word)


def with_prefix(connection: sqlite3.Connection, prefix: str, limit: int) -> list[str]:
    """Ids that begin with a text, newest first."""
    if not prefix:
        return []
    rows = connection.execute(
        "SELECT id FROM jobs WHERE id >= ? AND id < ? ORDER BY submitted_at DESC, seq DESC LIMIT ?",
        (prefix, prefix + "\U0010ffff", limit),
    )
    return [row[0] for row in rows]


def _ambiguous(connection: sqlite3.Connection, word: str, ids: list[str]) -> UsageError:
    lines = []
    for id_ in ids[:10]:
        name, state, host = connection.execute("SELECT name, state, host FROM jobs WHERE id = ?", (id_,)).fetchone()
        lines.append(f"  {id_}  {name}  {state}" + (f"  on {host}" if host else ""))
    more = "\n  …" if len(ids) > 10 else ""
    return UsageError(
        f"{word!r} may mean several jobs:\n" + "\n".join(lines) + more,
        code="ambiguous",
        remedy="Give more letters of the id, or the whole of it.",
    )


def _unknown(connection: sqlite3.Connection, word: str) -> NotFoundError:
    import difflib

    names = [row[0] for row in connection.execute("SELECT DISTINCT name FROM jobs ORDER BY seq DESC LIMIT 2000")]
    near = difflib.get_close_matches(word, names, n=3, cutoff=0.6)
    hint = f" Did you mean {' or '.join(repr(name) for name in near)}?" if near else ""
    return NotFoundError(
        f"no job has the id or name {word!r}.{hint}",
        code="no_such_job",
        remedy="See `jobrunner ls --all`; jobs submitted from another machine appear after `jobrunner adopt`.",
    )
