"""When the queue holds an entry of a newer format, the dispatcher becomes the newer agent that this entry names."""

import os

from . import jobs, procs, starts


def successor(entries, own=jobs.FORMAT):
    """The hash of the agent that has to take over: what the entry of the newest format names. None for none. Pure.

    Formats are whole numbers that only grow; an agent reads its own and all older ones.
    """
    newest = max((entry for entry in entries if _format(entry) > own and entry.get("agent")), key=_format, default=None)
    return newest["agent"] if newest else None


def readable(entry, own=jobs.FORMAT):
    """True for an entry that this agent understands."""
    return _format(entry) <= own


def _format(entry):
    version = entry.get("v", 1)
    return version if type(version) is int else 1


def hand_over(layout, entries, lock, children=()):
    """Exec the newer agent's dispatcher, which keeps our lock and children. Returns if none is needed, or is here."""
    named = successor(entries)
    if named == procs.agent_place()[2]:
        return
    place = starts.agent_named(layout, named) if named else None
    if place is None:
        return
    words = [layout.root.decode("utf-8", "surrogateescape"), layout.instance, lock]
    argv = procs.to_argv(procs.agent_argv("dispatcher", [*words, ",".join(str(pid) for pid in children)], place=place))
    os.set_inheritable(lock, True)
    try:
        os.execve(argv[0], argv, procs.own_environment())
    finally:
        os.set_inheritable(lock, False)
