"""Signs of life for a client that waits for something long."""

import time

TICK_S = 5.0


class Working:
    """To be called at every step of real progress: it says so to the client, at most once a tick."""

    def __init__(self, session):
        self._session = session
        self._ticked = time.monotonic()

    def __call__(self):
        if time.monotonic() - self._ticked >= TICK_S:
            self._ticked = time.monotonic()
            self._session.send_json({"tick": True})


def nobody_waits():
    """Stands for a `Working` where there is no client."""
