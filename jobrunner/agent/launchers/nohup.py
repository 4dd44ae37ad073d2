"""Started plainly: nothing to read, output straight into the log."""

import os


class Terminal:
    """Where a command's standard streams go, and what of it the supervisor has to serve. This one: nothing."""

    def __init__(self, log):
        self._log = log

    def enter(self):
        """In the command's process, already in its own session: put the streams in place."""
        null = os.open("/dev/null", os.O_RDONLY)
        os.dup2(null, 0)
        os.dup2(self._log, 1)
        os.dup2(self._log, 2)

    def started(self):
        """In the supervisor, once the command's process exists."""

    def descriptors(self):
        """What to poll for reading."""
        return ()

    def writers(self):
        """Those of them that something waits to be written to."""
        return ()

    def serve(self, descriptor):
        """Handle a descriptor of ours that is ready."""

    def drain(self):
        """Take what the command has written and nobody has read yet."""

    def close(self):
        """Nothing more comes."""


def open_terminal(layout, job_id, attempt, log):
    """A `Terminal`. `log` is the descriptor of the attempt's log, opened for appending."""
    return Terminal(log)
