"""Started plainly: nothing to read, output straight into the log."""


class Terminal:
    """Where a command's standard streams go, and what of it the supervisor has to serve. This one: nothing."""

    def __init__(self, log):
        self._log = log

    def output(self):
        """What the command writes to; a terminal is what it reads from, too."""
        return self._log

    def started(self):
        """The command's process has that now."""

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
