"""An attempt's first process, `jr-setup`, which becomes its command: forked before its job is known, where there is
time for that (`starts.prepare`), or when it is needed."""

import errno
import os

from . import spare


def ahead(layout, entry=None):
    """Fork one that waits for its job: a `Spare`. It ends with this process. `entry` is of the job that may be next."""
    one = spare.Spare(b"jr-setup")
    one.make(lambda: _ready(layout, entry))
    return one


def start(layout, one, plan, descriptors):
    """Have `one`, or if there is none (any more) a new one, become the command of a plan; its pid. OSError if there can
    be none. `plan` and `descriptors` are what `command.begin` takes."""
    pid = one.give(plan, descriptors) if one is not None else None
    if pid is None:
        if one is not None:
            one.close()
        pid = ahead(layout).give(plan, descriptors)
    if pid is None:
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
    return pid


def _ready(layout, entry):
    from . import command

    os.setsid()
    command.reset_signals()
    if entry is not None:
        from . import rehearsal

        rehearsal.quietly(rehearsal.of_command, layout, entry)
    return lambda plan, descriptors: command.begin(layout, plan, descriptors)
