"""Sleep until something in some folders changes, or the client says something, or time is up.

The kernel's folder notices come as signals; they are blocked while we work, so that a log that grows fast costs us
nothing but the wake-ups that we ask for.
"""

import fcntl
import os
import select
import signal


class Watch:
    """Wakes by `F_NOTIFY`. Where the kernel has none (or the file system is not the kernel's), `polls` is short."""

    FALLBACK_S = 0.015

    def __init__(self):
        self._handles = {}
        self.notified = True
        self._outlet, self._inlet = os.pipe()
        os.set_blocking(self._outlet, False)
        os.set_blocking(self._inlet, False)
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGIO])
        signal.signal(signal.SIGIO, lambda number, frame: None)
        signal.set_wakeup_fd(self._inlet)

    def folders(self, paths):
        """Watch exactly these folders from now on; those that do not exist are left out."""
        for path in [path for path in self._handles if path not in paths]:
            os.close(self._handles.pop(path))
        for path in paths:
            if path in self._handles:
                continue
            try:
                handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            except OSError:
                continue
            self._handles[path] = handle
            events = fcntl.DN_MODIFY | fcntl.DN_CREATE | fcntl.DN_DELETE | fcntl.DN_RENAME | fcntl.DN_MULTISHOT
            try:
                fcntl.fcntl(handle, fcntl.F_NOTIFY, events)
            except OSError:
                self.notified = False

    def sleep(self, client, longest_s):
        """Wait at most so long; True if the descriptor `client` can be read."""
        longest_s = longest_s if self.notified else min(longest_s, self.FALLBACK_S)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGIO])
        try:
            ready, _, _ = select.select([client, self._outlet], [], [], longest_s)
        finally:
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGIO])
        if self._outlet in ready:
            try:
                os.read(self._outlet, 65536)
            except BlockingIOError:
                pass
        return client in ready

    def close(self):
        """Stop watching."""
        self.folders(())
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGIO, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGIO])
        os.close(self._outlet)
        os.close(self._inlet)
