"""What a supervisor tells the dispatcher that started it, so that its cards go on at once.

Before a card is given, all processes are looked through for one of a job that had it (`starts.keepers`). A job that
was started after such a look, and of which its supervisor has found nothing left at its end, leaves its cards as clear
as they were: what carries a job's mark comes from what carried it before. So that look is not taken a second time. It
is wherever one of these is not so: another dispatcher's job, a supervisor that was killed, jobs in containers.
"""

import fcntl
import os
import select


class Handover:
    """The dispatcher's end: a pipe whose other end its supervisors have. Also the memory of whose cards are clear."""

    def __init__(self):
        self._outlet, self.inlet = os.pipe()
        os.set_blocking(self._outlet, False)
        os.set_blocking(self.inlet, False)
        self._given = {}
        self._unread = b""
        self._clear = set()

    def wake(self):
        """From now on this process gets SIGIO when something is told."""
        fcntl.fcntl(self._outlet, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(self._outlet, fcntl.F_SETFL, fcntl.fcntl(self._outlet, fcntl.F_GETFL) | os.O_ASYNC)

    def wait(self, seconds):
        """Sleep so long, or until something is told."""
        poller = select.poll()
        poller.register(self._outlet, select.POLLIN)
        poller.poll(int(seconds * 1000))

    def descriptors(self):
        """What a supervisor must not keep of it."""
        return [self._outlet]

    def given(self, job_id, device, cards):
        """A job of ours was given cards: they are clear again only when its supervisor says so."""
        cards = {(device, card) for card in cards}
        self._given[job_id] = cards
        self._clear -= cards

    def listen(self):
        """Take what supervisors have told since."""
        try:
            while True:
                data = os.read(self._outlet, 4096)
                if not data:
                    return
                *lines, self._unread = (self._unread + data).split(b"\n")
                for line in lines:
                    self._clear |= self._given.pop(line.decode("ascii", "replace"), set())
        except BlockingIOError:
            return

    def over(self, job_id):
        """A job's supervisor has ended: what it did not tell, it tells no more."""
        self.listen()
        self._given.pop(job_id, None)

    def clear(self, device, cards):
        """True if nothing can be left on these cards of any job of ours."""
        return bool(cards) and all((device, card) in self._clear for card in cards)


def tell(inlet, job_id):
    """In a supervisor: nothing of the job is left, and its cards' names are free. False if nobody hears it: that
    dispatcher is gone, or does not listen."""
    if inlet is None:
        return False
    try:
        os.write(inlet, job_id.encode("ascii") + b"\n")
        return True
    except OSError:
        return False


def is_heard(inlet):
    """In a supervisor: True while the dispatcher that it comes of is there, and so hears of its end as of a child's."""
    if inlet is None:
        return False
    poller = select.poll()
    poller.register(inlet, 0)
    return not poller.poll(0)  # it tells of an error once nobody can read any more
