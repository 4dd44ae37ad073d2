"""The cards of this host: ask the vendor's tool, see who holds leases, and judge which cards are free.

`read_cards` and `read_leases` look, `judge` decides (pure). Reports are the *card report* of docs/host.md.
Run it as a short-lived child (`main_cards`): a hanging tool then costs nobody else anything.
"""

import json
import os
import time

from . import clock
from .accelerators import KINDS, ask
from .accelerators.base import doubt, new_card
from .accelerators.seen import name_processes, read_leases
from .files import to_text

RAW_LIMIT = 4000
MARGIN_MB = 256
CRASHED = (134, 135, 136, 137, 139)  # what a shell makes of ABRT, BUS, FPE, KILL, SEGV


def _report(device, **facts):
    report = {
        "device": device, "tool_version": None, "driver_version": None, "error": None, "raw": None,
        "at": clock.stamp(), "tool_s": 0.0, "assumed": False, "warnings": [], "cards": [],
    }  # fmt: skip
    report.update(facts)
    return report


def _error(code, message, remedy):
    return {"code": code, "message": message, "remedy": remedy}


def read_cards(device=None, timeout_s=10):
    """The card report of this host, without leases and judgement. Never raises for what a tool does.

    device: the name of a kind, or None: found out by looking. The tool is ended after `timeout_s` seconds in all."""
    deadline = time.monotonic() + timeout_s
    if device == "cpu":
        return _report("cpu")
    if device is not None and device not in KINDS:
        message = "no such device: {!r}".format(device)
        return _report(device, error=_error("no_such_device", message, "use one of " + ", ".join([*KINDS, "cpu"])))
    kinds = [KINDS[device]] if device else [kind for kind in KINDS.values() if ask.find(kind)]
    first = None
    for number, kind in enumerate(kinds):
        # A tool that hangs must leave time for the next kind's.
        share = (deadline - time.monotonic()) / (len(kinds) - number)
        report = _ask(kind, time.monotonic() + share, round(share, 1))
        if report["cards"]:
            return report
        # A tool that is there without its cards says less than one that cannot tell about them.
        if first is None or (_is_elsewhere(first) and not _is_elsewhere(report)):
            first = report
    if first:
        return first
    for kind in KINDS.values():
        if ask.present(kind):
            return _report(kind.name, error=_missing(kind))
    return _report(None)


def _is_elsewhere(report):
    return (report["error"] or {}).get("code") in ("no_card", "tool_failed")


def _missing(kind):
    return _error(
        "tool_missing",
        "{} is not on this host's PATH nor in {}".format(kind.tool, ", ".join(kind.places)),
        "install the driver's tools, or put the folder of {0} on the PATH that commands over SSH get; "
        "where {0} cannot be had, write `cards: N` in the hosts file".format(kind.tool),
    )


def _ask(kind, deadline, timeout_s):
    """One kind's report: its commands one after the other, then the parser."""
    tool = ask.find(kind)
    if tool is None:
        return _report(kind.name, error=_missing(kind))
    started = time.monotonic()
    folder = ask.private_folder()
    environ = ask.environment(kind)
    answers, texts, failures = {}, {}, []
    try:
        for further in (lambda: kind.commands, lambda: kind.more(texts)):
            for command in further():
                answer = ask.run([tool] + [word.encode() for word in command.args], environ, folder or b"/", deadline)
                answers[command.key] = answer
                texts[command.key] = "" if answer.hung else answer.out
                if command.needed and (answer.hung or answer.failure):
                    failures.append(answer)
                    break
            if failures:
                break
    finally:
        if folder:
            ask.remove_folder(folder)
    return _concluded(kind, tool, answers, texts, timeout_s, time.monotonic() - started)


def _concluded(kind, tool, answers, texts, timeout_s, took):
    reading = kind.parse(texts)
    report = _report(kind.name, tool_version=reading.version, driver_version=reading.driver, tool_s=round(took, 3))
    report.update(cards=reading.cards, warnings=reading.warnings)
    for command in kind.commands:
        answer = answers.get(command.key)
        if answer is not None and not command.needed and (answer.hung or answer.failure or answer.code):
            asked = " ".join([kind.tool, *command.args])
            report["warnings"].append("`{}` gave no answer: {}".format(asked, _why(answer, timeout_s)))
    first = answers.get(kind.commands[0].key)
    if reading.cards and first.code:
        report["warnings"].append("`{}` gave cards and then failed: {}".format(kind.tool, _why(first, timeout_s)))
    if first.code is not None and (first.code < 0 or first.code in CRASHED):
        for card in reading.cards:
            doubt(card, "the tool crashed: what it had still to say is missing")
    if not reading.cards:
        answer = answers[kind.commands[0].key]
        report["error"] = explain(kind, to_text(tool), answer, timeout_s)
        report["raw"] = (answer.out + answer.err)[:RAW_LIMIT]
    else:
        name_processes(report["cards"])
    return report


def _why(answer, timeout_s):
    if answer.failure:
        return answer.failure
    if answer.hung:
        return "it was ended after {:g} s".format(timeout_s)
    said = [line.strip() for line in (answer.err + "\n" + answer.out).splitlines() if line.strip()]
    return "exit code {}{}".format(answer.code, ": " + said[0][:200] if said else "")


def explain(kind, tool, answer, timeout_s):
    """Why the tool gave no cards, as an error `{code, message, remedy}`. Pure."""
    said = answer.out + "\n" + answer.err
    by_hand = "run `{}` on the host by hand".format(tool)
    if answer.failure:
        return _error("tool_failed", "{} cannot be started: {}".format(tool, answer.failure), by_hand)
    for text, code, message, remedy in kind.errors:
        if text in said:
            return _error(code, message, remedy)
    if answer.hung:
        message = "{} gave no answer within {:g} s and was ended".format(tool, timeout_s)
        return _error("tool_hangs", message, "a card or the driver may hang: {} and look at `dmesg`".format(by_hand))
    if "error while loading shared libraries" in said:
        message = "{} does not find its libraries: {}".format(tool, _why(answer, timeout_s))
        remedy = "they are looked for in {}: install the driver, or have the administrator make them known (ldconfig)"
        return _error("library_missing", message, remedy.format(":".join(kind.library_path)))
    if answer.code == 127 and "not found" in said:
        return _missing(kind)
    if answer.code:
        return _error("tool_failed", "{} failed with {}".format(tool, _why(answer, timeout_s)), by_hand)
    message = "{} answered in a form that is not known here".format(tool)
    return _error("not_understood", message, "report the answer (`raw`); until then write `cards: N` in the hosts file")


def fallback_report(device, count):
    """The report of a host whose tool cannot be asked: `count` cards of which only leases are known (`cards: N`)."""
    return _report(device, assumed=True, cards=[new_card(index) for index in range(count)])


def judge(report, leases, own_pids_by_job, settings=None):
    """The report with `free`, `why_busy` and `lease` of each card filled in. Pure; judging twice changes nothing.

    leases: as `read_leases` gives them; add those that living processes of one's jobs keep. own_pids_by_job:
    `{job id: [pid]}`. settings: `idle_mb` `{model: MB}` in use on an idle card, `idle_margin_mb` above that (256)."""
    settings = settings or {}
    held = {lease["index"]: {key: lease.get(key) for key in ("user", "job", "name", "since")} for lease in leases}
    owners = {pid: job for job, pids in own_pids_by_job.items() for pid in pids}
    cards = []
    for card in report["cards"]:
        card = dict(card, lease=held.get(card["index"]))
        card["why_busy"] = _why_busy(card, report, owners, settings)
        card["free"] = card["why_busy"] is None
        cards.append(card)
    return dict(report, cards=cards)


def _why_busy(card, report, owners, settings):
    """The first reason for which a card is not free, or None."""
    lease = card["lease"]
    if lease is not None:
        job = " for job {}".format(lease["job"]) if lease["job"] else ""
        return "leased by {}{}".format(lease["user"] or "somebody", job)
    if card["processes"]:
        return "in use: " + ", ".join(_process_text(process, owners) for process in card["processes"][:3])
    if report.get("assumed"):
        return None
    if card["health"] == "bad":
        return "not healthy: {}".format(card["health_text"] or "bad")
    if card["doubts"]:
        return "not known well enough: {}".format(card["doubts"][0])
    if card["health"] not in ("ok", "warning"):
        return "its health is unknown{}".format(" ({})".format(card["health_text"]) if card["health_text"] else "")
    if card["memory_used_mb"] is None or card["memory_total_mb"] is None:
        return "its memory in use is unknown"
    if card["utilization"] is None:
        return "its utilization is unknown"
    limit = idle_limit_mb(report["device"], card, settings)
    if card["memory_used_mb"] > limit:
        return "{} MB are in use and no process is shown (idle: up to {} MB)".format(card["memory_used_mb"], limit)
    most = KINDS[report["device"]].busy_percent if report["device"] in KINDS else None
    if most is not None and card["utilization"] >= most:
        return "it is busy ({} %) and no process is shown".format(card["utilization"])
    return None


def idle_limit_mb(device, card, settings):
    """Up to how many MB in use a card of this model counts as idle."""
    given = settings.get("idle_mb") or {}
    known = given.get(card["model"])
    if known is None:
        known = KINDS[device].idle_mb(card["model"], card["memory_total_mb"]) if device in KINDS else 0
    margin = settings.get("idle_margin_mb")
    return known + (MARGIN_MB if margin is None else margin)


def _process_text(process, owners):
    job = owners.get(process["pid"])
    memory = " {} MB".format(process["memory_mb"]) if process["memory_mb"] is not None else ""
    who = "my job {}".format(job) if job else process["user"] or "somebody"
    return "{} runs {} (pid {}{})".format(who, process["name"] or "a process", process["pid"], memory)


def main_cards(argv):
    """`cards [--device D] [--timeout S] [--count N]`: print the judged report as one JSON line. The exit code.

    --count: for a host whose tool cannot be asked."""
    options = {"--device": None, "--timeout": "10", "--count": None}
    words = list(argv)
    while words:
        name = words.pop(0)
        if name not in options or not words:
            usage = "usage: cards [--device {}] [--timeout SECONDS] [--count CARDS]\n"
            os.write(2, usage.format("|".join(KINDS)).encode("ascii"))
            return 2
        options[name] = words.pop(0)
    if options["--count"] is not None:
        report = fallback_report(options["--device"], int(options["--count"]))
    else:
        report = read_cards(options["--device"], float(options["--timeout"]))
    leases = read_leases(report["device"]) if report["device"] in KINDS else []
    data = json.dumps(judge(report, leases, {}), separators=(",", ":")).encode("ascii") + b"\n"
    while data:
        data = data[os.write(1, data) :]
    return 0
