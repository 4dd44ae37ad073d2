"""Why a job waits, and why it failed: findings, the likeliest first."""

from __future__ import annotations

from dataclasses import field
from typing import Any

from jobrunner.core.catalogue import Catalogue
from jobrunner.core.catalogue_match import clean
from jobrunner.core.catalogue_text import disk_lines, finding
from jobrunner.core.errors import HostError, JobrunnerError
from jobrunner.core.jobs import JobRow
from jobrunner.core.ranks import Line
from jobrunner.core.states import JobState
from jobrunner.core.values import dataclass
from jobrunner.service import catalogue
from jobrunner.service.clock import now
from jobrunner.service.jobs import evidence_text
from jobrunner.service.reconcile import Reconciled, reconcile
from jobrunner.service.results import Findings
from jobrunner.service.session import Session

LAST_LINES = 10


def why(session: Session, word: str) -> Findings:
    """Why a job is not running yet, card by card as its host sees it."""
    id_ = session.ledger.resolve(word)
    found = reconcile(session, only=[id_])
    row = session.ledger.get(id_)
    if row.host is None or row.host in found.errors or row.state is not JobState.QUEUED:
        return _result(session, row, [_elsewhere(row, found)], found)
    try:
        answer = session.link(row.host).request("why", id=id_)
    except HostError as error:
        found.errors[row.host] = error
        return _result(session, row, [_elsewhere(row, found)], found)
    return _result(session, row, list(answer["findings"]), found)


def _elsewhere(row: JobRow, found: Reconciled) -> dict[str, Any]:
    """What can be said without asking the host why."""
    if row.host in found.errors:
        seen = f"; last seen {row.last_seen}" if row.last_seen else ""
        error = found.errors[row.host or ""]
        text = f"{row.host} does not answer, so nothing new is known{seen}"
        return _finding("unreachable", text, error.message, error.remedy)
    if row.state is JobState.STAGING:
        return _finding("staging", "it is still being sent", "", "wait a moment, or submit it again if that was cut")
    if row.state is JobState.RUNNING:
        word = "card" if len(row.cards) == 1 else "cards"
        cards = f" on {word} {', '.join(map(str, row.cards))}" if row.cards else ""
        return _finding("running", f"it does not wait: it runs{cards} since {row.started_at}", "", "")
    text = f"it does not wait: it is {row.state.value}"
    return _finding("final", text, "", f"`jobrunner explain {row.id}` says why it ended so")


def explain(session: Session, word: str, lang: str = "en") -> Findings:
    """Why a job ended as it did and what to do, the likeliest first: what its log shows by the catalogue, the verdict
    with its evidence, and the end of the log. `lang`: en or zh."""
    id_ = session.ledger.resolve(word)
    found = reconcile(session, only=[id_])
    detail = session.ledger.detail(id_)
    row = detail.row
    if not row.state.final:
        return _result(session, row, [_elsewhere(row, found)], found)
    known, own = _catalogue(session)
    seen = _seen(session, row, own, found) if _has_log(row) else None
    view = _View(row, evidence_text(detail.evidence), known, lang)
    return _result(session, row, view.findings(seen), found)


def _has_log(row: JobRow) -> bool:
    return row.state is not JobState.COMPLETED and row.host is not None and bool(row.started_at)


def _catalogue(session: Session) -> tuple[Catalogue, list[str]]:
    """What is in force, and the literals of the user's own entries, which the host would not look for by itself."""
    own = catalogue.user(session.hosts_file.parent, session.warn)
    return catalogue.shipped().joined(own), own.words


def _seen(session: Session, row: JobRow, words: list[str], found: Reconciled) -> Seen | None:
    """What the host finds worth reading in the job's logs; None if it does not answer."""
    assert row.host is not None
    try:
        return Seen.of(session.link(row.host).request("diagnose", id=row.id, words=words))
    except JobrunnerError as error:
        found.errors.setdefault(row.host, error)
        return None


@dataclass(frozen=True)
class Seen:
    """Lines of a job's log (and of CANN's) that are worth matching, the last ones, and the host's disks."""

    lines: list[Line] = field(default_factory=list)
    tail: list[str] = field(default_factory=list)
    disks: list[dict[str, Any]] = field(default_factory=list)

    @classmethod
    def of(cls, answer: dict[str, Any]) -> Seen:
        """From the host's answer."""
        tail = answer.get("tail") or []
        lines = [Line(number, text) for number, text in [*(answer.get("picked") or []), *tail]]
        for file in answer.get("plog") or []:
            name = str(file.get("path", "")).rpartition("/")[2]
            lines += [Line(number, text, name) for number, text in file.get("picked") or []]
        return cls(lines, [str(text) for _, text in tail], list(answer.get("disks") or []))


@dataclass(frozen=True)
class _View:
    """One job's end in one language."""

    row: JobRow
    evidence: str
    catalogue: Catalogue
    lang: str

    def findings(self, seen: Seen | None) -> list[dict[str, Any]]:
        """The likeliest first."""
        verdict = self.verdict(seen)
        if seen is None:
            return [verdict]
        told = catalogue.matched(self.row, self.catalogue, seen.lines, self.lang, skip=[verdict["code"]])
        if self.row.state is JobState.CANCELLED:
            told = []
        ends = self._log_end(seen, known=bool(told))
        if told and self.row.state is JobState.FAILED and self.row.reason in ("exit", "signal", "setup"):
            return [*told, verdict, *ends]
        return [verdict, *told, *ends]

    def verdict(self, seen: Seen | None) -> dict[str, Any]:
        """How it ended, as its host says."""
        state = self.row.state.value
        words = {f"{state} {self.row.reason}", state}
        entry = next((e for e in self.catalogue.entries.values() if e.kind == "verdict" and words & {*e.ends}), None)
        code = self.row.reason or state.lower()
        evidence = self.evidence
        if code == "disk_full" and seen is not None:
            evidence = "\n".join([evidence, *disk_lines(seen.disks, self.lang)])
        if entry is None:
            return _finding(code, f"it is {state} ({self.row.reason})", evidence, "")
        return finding(entry, self.lang, self.row.id, evidence, self._values(), code)

    def _values(self) -> dict[str, str]:
        known = {"exit_code": self.row.exit_code, "signal": self.row.signal}
        return {key: str(value) for key, value in known.items() if value is not None}

    def _log_end(self, seen: Seen, known: bool) -> list[dict[str, Any]]:
        """The last lines; and where nothing in the log is known, that it is so and where to look."""
        last = [clean(text).rstrip() for text in seen.tail]
        while last and not last[-1]:
            last.pop()
        if not any(last):
            return [self._own("silent", "")]
        # What failed in the set-up is told by the verdict, with what to do.
        unknown = not known and self.row.state is JobState.FAILED and self.row.reason in ("exit", "signal")
        return [self._own("unknown" if unknown else "log", "\n".join(last[-LAST_LINES:]))]

    def _own(self, name: str, evidence: str) -> dict[str, Any]:
        return finding(self.catalogue.entries[name], self.lang, self.row.id, evidence, {}, name)


def _finding(code: str, summary: str, evidence: str, remedy: str) -> dict[str, Any]:
    return {"code": code, "summary": summary, "evidence": evidence, "remedy": remedy}


def _result(session: Session, row: JobRow, findings: list[dict[str, Any]], found: Reconciled) -> Findings:
    for alias, error in found.errors.items():
        if isinstance(error, HostError):
            session.ledger.mark_unreachable(alias, error.message, now(), [row.id])
    return Findings(
        row=row,
        findings=findings,
        errors=list(found.errors.values()),
        warnings=session.warnings,
        hosts_asked=found.asked,
        hosts_answered=found.answered,
    )
