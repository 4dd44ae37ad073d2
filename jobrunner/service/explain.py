"""Why a job waits, and why it failed: findings, the likeliest first."""

from __future__ import annotations

from typing import Any

from jobrunner.core.errors import HostError, JobrunnerError
from jobrunner.core.jobs import JobRow
from jobrunner.core.states import JobState
from jobrunner.service import logs
from jobrunner.service.clock import now
from jobrunner.service.jobs import evidence_text
from jobrunner.service.reconcile import Reconciled, reconcile
from jobrunner.service.results import Findings
from jobrunner.service.session import Session

LAST_LINES = 10

_CAUSES: dict[tuple[str, str | None], tuple[str, str]] = {
    ("FAILED", "exit"): ("its command ended with exit code {exit_code}", "read the end of its log below"),
    ("FAILED", "signal"): (
        "its command was ended by signal {signal}, which jobrunner did not send",
        "look for whoever ended it: a colleague, a limit of the host, the kernel's log",
    ),
    ("FAILED", "oom"): (
        "the host ran out of memory and the kernel ended it",
        "use less host memory (fewer data-loader workers, smaller batches), or another host",
    ),
    ("FAILED", "setup"): (
        "its environment could not be set up, so its command never started",
        "run the failing set-up line by hand on the host; see runtime and setup in the spec and the hosts file",
    ),
    ("FAILED", "disk_full"): (
        "a disk on the host is full",
        "free some space (`jobrunner gc --dry-run` shows what jobs have left there), then `jobrunner retry ID`",
    ),
    ("FAILED", "launch"): ("it could not be started", "see the evidence; `jobrunner hosts check` looks at the host"),
    ("FAILED", "dependency"): (
        "a job that it waits for did not end as asked (`after`)",
        "retry that job, then this one",
    ),
    ("FAILED", "interrupted"): ("its sending was broken off and not taken up", "submit it again"),
    ("TIMEOUT", None): (
        "its timeout passed and it was stopped",
        "raise `timeout`, or let `retry` go on from a checkpoint",
    ),
    ("CANCELLED", None): ("somebody cancelled it", "`jobrunner retry ID` runs it again"),
    ("LOST", "host_reboot"): (
        "its host was restarted while it ran",
        "`jobrunner retry ID` goes on from the newest checkpoint; `retry: {{on: [lost]}}` does it by itself",
    ),
    ("LOST", "killed"): (
        "it and what watched over it were killed",
        "find out who or what did (administrator, session limits: `loginctl enable-linger`), then `jobrunner retry ID`",
    ),
    ("LOST", "unobserved"): (
        "it ended while nothing was there to see how",
        "look at its log and its files; `jobrunner retry ID` runs it again",
    ),
}


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
        cards = f" on cards {', '.join(map(str, row.cards))}" if row.cards else ""
        return _finding("running", f"it does not wait: it runs{cards} since {row.started_at}", "", "")
    text = f"it does not wait: it is {row.state.value}"
    return _finding("final", text, "", f"`jobrunner explain {row.id}` says why it ended so")


def explain(session: Session, word: str, lang: str = "en") -> Findings:
    """Why a job ended as it did, and what to do: the verdict with its evidence, and the end of the log."""
    id_ = session.ledger.resolve(word)
    found = reconcile(session, only=[id_])
    detail = session.ledger.detail(id_)
    row = detail.row
    if not row.state.final:
        return _result(session, row, [_elsewhere(row, found)], found)
    findings = [_verdict(row, evidence_text(detail.evidence))]
    if row.state is not JobState.COMPLETED and row.host is not None and row.started_at:
        findings += _log_end(session, row, found)
    return _result(session, row, findings, found)


def _verdict(row: JobRow, evidence: str) -> dict[str, Any]:
    if row.state is JobState.COMPLETED:
        return _finding("completed", "it completed: its command ended with exit code 0", evidence, "")
    cause = _CAUSES.get((row.state.value, row.reason)) or _CAUSES.get((row.state.value, None))
    if cause is None:
        return _finding(row.state.value.lower(), f"it is {row.state.value} ({row.reason})", evidence, "")
    summary, remedy = (text.format(exit_code=row.exit_code, signal=row.signal) for text in cause)
    return _finding(row.reason or row.state.value.lower(), summary, evidence, remedy.replace("ID", row.id))


def _log_end(session: Session, row: JobRow, found: Reconciled) -> list[dict[str, Any]]:
    """The last lines of the log, as a finding of its own."""
    try:
        pieces = logs.follow(session, row.id, follow=False, lines=LAST_LINES)
        data = b"".join(piece.data for piece in pieces)
    except JobrunnerError as error:
        found.errors.setdefault(row.host or "", error)
        return []
    text = data.decode("utf-8", "replace").rstrip("\n")
    if not text.strip():
        return [_finding("silent", "it printed nothing", "", "a script may buffer its output; see its own log files")]
    return [_finding("log", "the end of its log", text, f"`jobrunner logs {row.id}` shows all of it")]


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
        hosts_answered=len(found.answers),
    )
