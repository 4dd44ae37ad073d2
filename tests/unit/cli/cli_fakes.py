"""A service layer made of canned answers, so that the command line is tested alone.

In a test: the `fake` fixture. In a subprocess: `python cli_fakes.py jobrunner-arguments…`.
"""

from __future__ import annotations

import sys
import types
from pathlib import Path

import jobrunner.service
from jobrunner.core.errors import HostKeyError
from jobrunner.core.jobs import JobRow
from jobrunner.core.states import JobState
from jobrunner.service import results
from jobrunner.service.timings import Timings

ROW = JobRow(
    id="k3f9x2a1bc",
    name="resnet18",
    state=JobState.RUNNING,
    phase="command",
    host="npu-a",
    device="npu",
    cards=[2, 3],
    attempt=1,
    submitted_at="2026-12-01T09:00:00.000000Z",
    started_at="2026-12-01T09:10:00.000000Z",
    last_seen="2026-12-01T09:29:58.000000Z",
)
DONE = JobRow(
    id="m7d2qqe4rt",
    name="训练",
    state=JobState.FAILED,
    reason="exit",
    exit_code=3,
    host="mlu-b",
    device="mlu",
    cards=[0],
    attempt=2,
    submitted_at="2026-11-30T09:30:00.000000Z",
    started_at="2026-11-30T09:40:00.000000Z",
    ended_at="2026-11-30T11:45:00.000000Z",
    last_seen="2026-12-01T09:29:58.000000Z",
)
GOOD = JobRow(id="c5d2qqe4rt", name="fine", state=JobState.COMPLETED, exit_code=0, host="npu-a", device="cpu")
CHECKPOINT = {
    "name": "ckpt/epoch3.pt",
    "path": "work/ckpt/epoch3.pt",
    "step": 3,
    "size": 3_670_016,
    "sha256": "ab" * 32,
    "modified_at": "2026-12-01T09:29:00.000000Z",
    "complete": True,
    "metrics": {"val_loss": 0.25},
    "pulled_to": None,
}
CARD = {
    "index": 2,
    "model": "910B3",
    "health": "ok",
    "memory_used_mb": 3051,
    "memory_total_mb": 65536,
    "utilization": 93,
    "temperature_c": 51,
    "power_w": 210.5,
    "free": False,
    "lease": {"user": "ml", "job": "k3f9x2a1bc"},
    "processes": [{"pid": 77, "user": "ml", "name": "python", "memory_mb": 2900}],
}
FREE_CARD = {
    **CARD,
    "index": 3,
    "health": "warning",
    "memory_used_mb": None,
    "free": True,
    "lease": None,
    "processes": [],
}
CARD_HOST = {
    "name": "npu-a",
    "reachable": True,
    "error": None,
    "device": "npu",
    "tool_version": "23.0",
    "cards": [CARD, FREE_CARD],
}
FINDING = {"code": "cards_busy", "summary": "2 cards are wanted, 1 is free", "evidence": "card 2: ml", "remedy": "wait"}


class FakeSession:
    """What the command line uses of a session."""

    def __init__(self, **options: object) -> None:
        self.options = options
        self.warnings: list[str] = []
        self.timings = Timings()
        self.timings.add("ledger", 0.003)
        self.timings.add("connect", 0.0125)
        self.home = Path("/nowhere")
        self.hosts_file = Path("/nowhere/hosts.yaml")

    def spent(self) -> dict[str, float]:
        """Seconds by phase."""
        return self.timings.as_dict()

    def __enter__(self) -> FakeSession:
        return self

    def __exit__(self, *_: object) -> None:
        pass


class Fake:
    """Fake service modules: `answers` by `module.function`, `calls` as they came. An answer may be an exception."""

    def __init__(self) -> None:
        self.answers: dict[str, object] = {}
        self.calls: list[tuple[str, tuple[object, ...], dict[str, object]]] = []
        self.session: FakeSession | None = None
        self._defaults()

    def _defaults(self) -> None:
        listing = results.Listing(rows=[ROW, DONE], notes={ROW.id: "held"})
        submitted = results.SubmitResult(rows=[ROW], report={"files": 5, "sent": 3, "sent_bytes": 2048})
        self.answers = {
            "submit.submit": submitted,
            "jobs.list_jobs": listing,
            "jobs.show": results.JobDetails(
                row=DONE,
                spec={"name": "训练", "args": ["--lr", "5e-5"], "env": {"A": "x y"}, "secrets": []},
                events=[{"at": "2026-11-30T09:40:00.000000Z", "kind": "started", "cards": [0]}],
                attempts=[{"number": 1, "started_at": DONE.started_at, "ended_at": DONE.ended_at, "exit_code": 3}],
                checkpoints=[CHECKPOINT],
                evidence="exit record: code 3",
            ),
            "jobs.wait": results.WaitResult(rows=[GOOD]),
            "control.cancel": results.CancelResult(rows=[DONE]),
            "control.hold": listing,
            "control.release": listing,
            "control.set_priority": listing,
            "retrying.retry": submitted,
            "control.attach": 0,
            "logs.follow": [
                results.LogPiece("attempt", attempt=1, offset=0, size=6),
                results.LogPiece("data", data=b"hello\n"),
                results.LogPiece("end", row=GOOD),
            ],
            "data.checkpoints": results.CheckpointList(row=DONE, checkpoints=[CHECKPOINT]),
            "data.pull_checkpoints": results.PullResult(
                row=DONE,
                to="/out",
                checkpoints=[{**CHECKPOINT, "pulled_to": "/out/epoch3.pt"}],
                files=[{"path": "epoch3.pt", "size": 3_670_016, "sha256": "ab" * 32, "fetched": 3_670_016}],
            ),
            "data.pull": results.PullResult(
                row=DONE, to="/out", files=[{"path": "m.json", "size": 5, "sha256": "cd" * 32}]
            ),
            "data.pull_as_asked": None,
            "explain.why": results.Findings(row=ROW, findings=[FINDING]),
            "explain.explain": results.Findings(row=DONE, findings=[FINDING]),
            "adopt.adopt": results.AdoptResult(rows=[ROW], added=[ROW.id], hosts_asked=1, hosts_answered=1),
            "gc.gc": results.GcResult(
                hosts=[{"name": "npu-a", "removed": [{"path": "jobs/x", "bytes": 2048, "why": "old"}], "bytes": 2048}]
            ),
            "init.init": [Path("job.yaml"), Path("hosts.yaml")],
            "demo.demo": 0,
        }
        self._host_defaults()

    def _host_defaults(self) -> None:
        host = {
            "name": "npu-a",
            "address": "ml@10.0.0.5",
            "device": "npu",
            "cards": 8,
            "tags": ["910b"],
            "in_file": True,
        }
        self.answers |= {
            "hosts.ls": results.HostsResult(hosts=[host]),
            "hosts.check": results.HostsResult(
                hosts=[
                    {
                        "name": "npu-a",
                        "reachable": True,
                        "error": None,
                        "python": "3.9.9",
                        "round_trip_ms": 12.3,
                        "cards": 8,
                        "clock_skew_s": 61.0,
                        "disk_free_bytes": 1 << 40,
                    }
                ]
            ),
            "hosts.drain": results.HostsResult(hosts=[{"name": "npu-a", "reachable": True, "drained": True}]),
            "hosts.undrain": results.HostsResult(hosts=[{"name": "npu-a", "reachable": True, "drained": False}]),
            "hosts.disconnect": results.HostsResult(hosts=[{"name": "npu-a", "ended": 1}]),
            "hosts.add": results.HostAddResult(host=host, pinned=False),
            "hosts.cards": results.CardsResult(hosts=[CARD_HOST]),
            "doctor.doctor": results.DoctorResult(
                hosts=[
                    {
                        "name": "npu-a",
                        "checks": [
                            {"name": "python", "ok": True, "found": "3.9.9", "remedy": ""},
                            {"name": "disk", "ok": False, "found": "full", "remedy": "free some"},
                            {"name": "driver", "ok": None, "found": None, "remedy": "ask"},
                        ],
                    }
                ]
            ),
        }

    def call(self, name: str, /, *args: object, **options: object) -> object:
        """What a fake service function does."""
        self.calls.append((name, args, options))
        answer = self.answers[name]
        if isinstance(answer, BaseException):
            raise answer
        if callable(answer):
            return answer(*args, **options)
        return iter(answer) if name == "logs.follow" else answer

    def open_session(self, **options: object) -> FakeSession:
        """The fake of `service.session.open_session`."""
        self.session = FakeSession(**options)
        return self.session

    def modules(self) -> dict[str, types.ModuleType]:
        """Fake modules by short name."""
        found: dict[str, types.ModuleType] = {}
        for key in self.answers:
            short, function = key.split(".")
            module = found.setdefault(short, types.ModuleType(f"jobrunner.service.{short}"))
            setattr(module, function, lambda *args, _key=key, **options: self.call(_key, *args, **options))
        return found


OFFER = results.HostKeyOffer("npu-a", "10.0.0.5", "ssh-ed25519", "SHA256:abcDEF")


def adds_unknown_host(session, name, *, address, confirm, fingerprint):
    """A fake `hosts add` of a host that nobody knows yet."""
    if not confirm(OFFER):
        raise HostKeyError("the key of npu-a was not confirmed", host=name, code="hostkey_unknown")
    return results.HostAddResult(host={"name": name, "address": address}, offer=OFFER, pinned=True, known_hosts="kh")


def _story(keep: bool, stop: bool, subject: str) -> int:
    """A fake demo, which has a child that writes to the same place."""
    import subprocess

    print("once upon a time", flush=True)
    return subprocess.run([sys.executable, "-c", "print('said a child')"], check=False).returncode


def _upload(fake: Fake) -> object:
    """A fake submit that takes long enough for a bar to be seen."""
    import time

    assert fake.session is not None
    progress = fake.session.options["progress"]
    number = progress.start("npu-a: sending", 100)
    for _ in range(20):
        progress.advance(number, 5)
        time.sleep(0.02)
    progress.note("npu-a: throttled, trying again")
    progress.finish(number)
    return results.SubmitResult(rows=[ROW])


def install_for_process(fake: Fake) -> None:
    """Put the fakes in the place of the real modules, for good."""
    for short, module in fake.modules().items():
        sys.modules[module.__name__] = module
        setattr(jobrunner.service, short, module)
    import jobrunner.service.session as session

    session.open_session = fake.open_session  # type: ignore[assignment]


def _scenario(fake: Fake, name: str) -> None:
    """Answers that only a process of its own can show."""

    def endless(*_: object, **__: object) -> object:
        import time

        yield results.LogPiece("attempt", attempt=1, offset=0, size=0)
        yield results.LogPiece("data", data=b"first line\nprompt> ")
        while True:
            time.sleep(0.05)
            yield results.LogPiece("data", data=b"")

    def flood(*_: object, **__: object) -> object:
        for number in range(200_000):
            yield results.LogPiece("data", data=b"line %d\n" % number)

    if name == "endless":
        fake.answers["logs.follow"] = endless
    elif name == "flood":
        fake.answers["logs.follow"] = flood
    elif name == "colours":
        pieces = (b"\x1b[3", b"2mgreen\n\x1b[2J\x1b]52;c;eA==\x07", b"end\n")
        fake.answers["logs.follow"] = [results.LogPiece("data", data=piece) for piece in pieces]
    elif name == "newkey":
        fake.answers["hosts.add"] = adds_unknown_host
    elif name == "upload":
        fake.answers["submit.submit"] = lambda *_, **__: _upload(fake)
    elif name == "story":
        fake.answers["demo.demo"] = _story
    elif name == "crash":
        fake.answers["jobs.list_jobs"] = ZeroDivisionError("deep inside")


if __name__ == "__main__":
    the_fake = Fake()
    install_for_process(the_fake)
    _scenario(the_fake, sys.argv.pop(1))
    from jobrunner.cli import main

    main()
