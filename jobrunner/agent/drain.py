"""Drain this host for this user: what runs goes on, nothing further starts."""

import os

from . import cardlog, dispatcher, files, queue, situation


def run(session, request):
    """Operation `drain`: on or off; `drained` says how it is now. Off also takes back cards that were set aside."""
    layout = session.layout
    path = os.path.join(layout.home, b"drain")
    if request.get("on"):
        files.make_dir(layout.home)
        files.write_file(path, b"")
    else:
        try:
            os.unlink(path)
        except FileNotFoundError:
            pass
        cardlog.forget(layout)
    queue.wake(layout)
    dispatcher.ensure_running(layout)
    return {"drained": situation.drained(layout)}
