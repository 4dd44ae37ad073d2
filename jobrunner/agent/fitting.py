"""Said at submit: a job for which no set of this host's cards will ever do, as far as its cards have been looked at."""

from . import files, jobs, order, readings, situation


def known_cards(layout, device):
    """Facts of a device's cards from the last report, however old; empty if there is none."""
    kept = files.read_json(readings.report_path(layout, device), {})
    report = kept.get("report") if isinstance(kept, dict) else None
    found = report.get("cards") if isinstance(report, dict) else None
    return [dict(card, broken=False) for card in found or () if isinstance(card, dict) and "index" in card]


def warn_of_never(layout, entries):
    """Note in the timelines of new jobs (their queue entries) that they can never start here."""
    entries = [entry for entry in entries if entry["cards"]]
    known = {device: known_cards(layout, device) for device in {entry["device"] for entry in entries}}
    facts = order.Situation(entries, cards=known, choose=situation.choose, refuse=situation.refuse)
    for entry in entries:
        code, text = order.impossible(facts, entry) or (None, None)
        if code == "never":
            jobs.journal(layout, entry["id"], "warning", text=text)


class Fitting:
    """Tells waiting jobs, once each, that they can never start here."""

    def __init__(self, layout):
        self._layout = layout
        self._told = set()

    def warn(self, facts, decision):
        """Look for such jobs in a decision."""
        for entry in facts.waiting:
            code, text = decision.why.get(entry["id"], ("", ""))
            if code == "never" and entry["id"] not in self._told:
                self._told.add(entry["id"])
                if text not in jobs.warnings(self._layout, entry["id"]):
                    jobs.journal(self._layout, entry["id"], "warning", text=text)
