"""Since when cards are left to colleagues, and who had its time: nobody holds cards up by a claim alone."""

PATIENCE_S = 15.0  # a colleague for whom free cards are left and who does not take them is passed over after so long
AGAIN = 8  # and gets a new chance after so many times that


class Yielding:
    """Remembers per uid when we began to leave it cards. Times are seconds of a clock that only goes on."""

    def __init__(self):
        self._ready = {}
        self._wide = {}
        self._wide_s = 6 * 3600.0

    def passed(self, now, wide_s):
        """The uids that had their time: to take what was free for them, or to gather cards for a wide job."""
        self._wide_s = wide_s
        return {uid for uid, since in self._ready.items() if _over(now - since, PATIENCE_S)} | {
            uid for uid, since in self._wide.items() if _over(now - since, wide_s)
        }

    def note(self, decision, now):
        """Take over whom a decision leaves cards to. Who is passed over stays so until its new chance."""
        self._ready = _followed(self._ready, decision.yields_to, now, PATIENCE_S)
        self._wide = _followed(self._wide, decision.keeps_for, now, self._wide_s)


def _over(age, limit):
    return limit < age < AGAIN * limit


def _followed(known, uids, now, limit):
    found = {uid: known[uid] for uid in known if _over(now - known[uid], limit)}
    for uid in uids:
        since = known.get(uid, now)
        found[uid] = since if now - since < AGAIN * limit else now
    return found
