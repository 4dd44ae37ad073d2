"""Plays a scenario: submit, queue, run, log, checkpoint, pull, cancel or retry, with faults on the way."""

from __future__ import annotations

import json
import signal
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.faults.commands import Command, Laptop
from tests.faults.host import BreakableHost
from tests.faults.invariants import check
from tests.faults.scenario import DISK_FAULTS, Fault, Scenario
from tests.support.relay import Relay
from tests.support.waiting import eventually

FINAL = ("COMPLETED", "FAILED", "TIMEOUT", "CANCELLED", "LOST")
JOB = Path(__file__).with_name("job.py")


@dataclass
class Story:
    """What was done and seen; the invariants are judged from it."""

    scenario: Scenario
    ids: list[str] = field(default_factory=list)
    id: str = ""
    again: str = ""
    fired: list[str] = field(default_factory=list)
    cancelled: bool = False
    followed: list[Command] = field(default_factory=list)
    rows: dict[str, dict[str, Any]] = field(default_factory=dict)
    submits: int = 0
    pulled: dict[str, Path] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)

    def note(self, text: str) -> None:
        """Remember what happened when."""
        self.notes.append(f"{time.monotonic() - self.began:7.2f} {text}")


class Play:
    """One run of a scenario in a folder of its own."""

    def __init__(self, scenario: Scenario, folder: Path, agents: Path) -> None:
        self.scenario, self.folder, self.agents = scenario, folder, agents
        self.story = Story(scenario)

    def run(self) -> Story:
        """Play it and check; AssertionError with the story if an invariant does not hold."""
        options: dict[str, Any] = {}
        if self.scenario.narrow == "max_sessions":
            options["max_sessions"] = 1
        if self.scenario.narrow == "max_startups":
            options["max_startups"] = "2:50:4"
        small = bool(self.scenario.kinds & set(DISK_FAULTS))
        agents = None if self.scenario.fresh_host else self.agents
        try:
            clock = "clock" in self.scenario.kinds
            with BreakableHost(
                self.folder / "host", small_disk=small, own_clock=clock, agents=agents, **options
            ) as self.host:
                self._login_files()
                self.relay = Relay(self.host.sshd.port)
                try:
                    self._acts()
                finally:
                    self.relay.close()
        except Exception as error:
            story = "\n".join(self.story.notes)
            raise AssertionError(f"{self.scenario.text()}\n{story}\n{type(error).__name__}: {error}") from error
        return self.story

    def _login_files(self) -> None:
        lines = {"slow_login": "sleep 1\n", "noisy_login": "echo welcome; echo noise >&2; cd /; printf '\\033[31m'\n"}
        text = lines.get(self.scenario.narrow)
        if text:
            for name in (".bashrc", ".profile", ".bash_profile"):
                (self.host.folder / "home" / name).write_text(text)

    def _acts(self) -> None:
        self.laptop = Laptop(self.folder / "laptop", self.host)
        through_relay(self.laptop, self.host, self.relay)
        self._submit()
        self._live()
        self._end()
        self._pull()
        if self.scenario.retry_after and self.story.rows[self.story.id]["state"] != "COMPLETED":
            self._retry()
        check(self.story, self.host, self.laptop)

    # the acts

    def _spec(self) -> Path:
        s = self.scenario
        spec: dict[str, Any] = {
            "device": "npu" if s.cards else "cpu", "cards": s.cards, "launcher": s.launcher, "grace": "1s",
            "command": ["python3", "-ISE", "job.py"],
            "env": {"PLAN": json.dumps(s.plan), "MARKS": str(self.host.marks)},
            "checkpoints": {"paths": ["ckpt/*.bin"]},
        }  # fmt: skip
        if s.retry:
            spec["retry"] = s.retry
        if s.timeout:
            spec["timeout"] = f"{s.timeout:.0f}s"
        code = self.laptop.folder / "code"
        code.mkdir()
        (code / "job.py").write_bytes(JOB.read_bytes())
        for part in range(3 if s.ballast else 0):
            (code / f"data{part}").write_bytes(bytes([65 + part + s.seed % 20]) * s.ballast)
        path = self.laptop.folder / "spec.yaml"
        path.write_text(json.dumps({"name": f"seed{s.seed}", "code": "code", **spec}))
        return path

    def _submit(self) -> None:
        spec = str(self._spec())
        early = threading.Thread(target=self._strike, args=("submit",))
        command = self.laptop.begin("submit", spec, "--json")
        self.submitting = command
        early.start()
        code = command.wait(100)
        early.join()
        self.story.note(f"submit exited {code}")
        self.story.submits = 1
        if code != 0:
            assert code in (3, -9, 130), f"submit exited {code}\n{command.told()}"
            assert "Traceback" not in command.told(), command.told()
            done, document = self.laptop.ask("submit", spec)
            assert done == 0, f"the submit did not recover: {document['errors']}"
            self.story.submits = 2
        else:
            document = json.loads(command.out.read_bytes())
        self.story.id = document["data"]["jobs"][0]["id"]
        self.story.note(f"job {self.story.id} is {document['data']['jobs'][0]['state']}")

    def _live(self) -> None:
        """The job runs: somebody follows its log, faults strike, somebody cancels."""
        if self.scenario.follow:
            self.story.followed.append(self.laptop.begin("logs", self.story.id, "-f", "--raw"))
        cancelling = threading.Thread(target=self._cancel)
        cancelling.start()
        try:
            self._strike("run")
        finally:
            cancelling.join()

    def _cancel(self) -> None:
        if self.scenario.cancel_at is None:
            return
        time.sleep(self.scenario.cancel_at)
        code, document = self.laptop.ask("cancel", self.story.id)
        self.story.note(f"cancel exited {code}: {[row['state'] for row in document['data'].get('jobs', [])]}")
        assert code in (0, 3), document
        self.story.cancelled = True

    def _end(self) -> None:
        """All faults are over: an ordinary wait has to see the end of every job."""
        hung = self.scenario.plan["ends"] == ["hang"] and self.scenario.cancel_at is None and not self.scenario.timeout
        assert not hung
        _, document = self.laptop.ask("ls", "--all")
        self.story.ids = [row["id"] for row in document["data"]["jobs"]]
        assert self.story.id in self.story.ids, document
        if self.scenario.cancel_at is not None:  # a job beside it, of a submit whose answer was lost, hangs as well
            for id_ in self.story.ids:
                if id_ != self.story.id:
                    self.laptop.ask("cancel", id_)
        code, document = self.laptop.ask("wait", *self.story.ids, "--timeout", "60s", limit=90)
        self.story.note(f"wait exited {code}: {[(r['id'], r['state'], r['reason']) for r in document['data']['jobs']]}")
        assert code in (0, 1), document
        self.story.rows = {row["id"]: row for row in document["data"]["jobs"]}

    def _pull(self) -> None:
        fault, into = self.scenario.pull_fault, self.laptop.folder / "pulled"
        words = ("checkpoints", self.story.id, "--pull", "all", "--to", str(into), "--json")
        if fault is not None:
            cut = fault.kind == "cut_bytes"
            if cut:
                self.relay.limit, self.relay.direction = fault.number, fault.direction
            command = self.laptop.begin(*words)
            if not cut:
                time.sleep(fault.at)
            self._do(fault, command)
            code = command.wait(60)
            self.story.note(f"pull under {fault.kind} exited {code}")
            assert code in (0, 3, 5, -9), command.told()
        code, document = self.laptop.ask(*words[:-1])
        listed = document["data"].get("checkpoints", [])
        assert code == 0 or (code == 5 and not listed), document
        self.story.pulled = {item["name"]: Path(item["pulled_to"]) for item in listed if item.get("pulled_to")}

    def _retry(self) -> None:
        code, document = self.laptop.ask("retry", self.story.id)
        assert code == 0, document
        self.story.again = document["data"]["jobs"][0]["id"]
        if self.scenario.plan["ends"] == ["hang"] and not self.scenario.timeout:
            code, document = self.laptop.ask("cancel", self.story.again)
            assert code == 0, document
        code, document = self.laptop.ask("wait", self.story.again, "--timeout", "60s", limit=90)
        assert code in (0, 1), document
        self.story.rows[self.story.again] = document["data"]["jobs"][0]
        self.story.note(f"retried as {self.story.again}: {document['data']['jobs'][0]['state']}")

    # faults

    def _strike(self, phase: str) -> None:
        began = time.monotonic()
        for fault in self.scenario.faults:
            if fault.phase == phase:
                time.sleep(max(0.0, began + fault.at - time.monotonic()))
                self._do(fault, self.submitting if phase == "submit" else None)

    def _do(self, fault: Fault, command: Command | None) -> None:
        self.story.note(f"{fault.kind} ({fault.phase})")
        self.story.fired.append(fault.kind)
        getattr(self, f"_{fault.kind}")(fault, command)
        self.story.note(f"{fault.kind} is over")

    def _cut_bytes(self, fault: Fault, _: Command | None) -> None:
        self.relay.limit, self.relay.direction = fault.number, fault.direction
        time.sleep(fault.span)
        self.relay.heal()

    def _cut_now(self, _: Fault, __: Command | None) -> None:
        self.relay.cut()

    def _stall(self, fault: Fault, _: Command | None) -> None:
        self.relay.stalled = True
        time.sleep(fault.span)
        self.relay.heal()

    def _delay(self, fault: Fault, _: Command | None) -> None:
        self.relay.delay = 0.03
        time.sleep(fault.span)
        self.relay.heal()

    def _refuse(self, fault: Fault, _: Command | None) -> None:
        self.relay.refusing = True
        self.relay.cut()
        time.sleep(fault.span)
        self.relay.heal()

    def _hole(self, fault: Fault, _: Command | None) -> None:
        self.relay.hole = True
        time.sleep(20 * fault.span)
        self.relay.heal()

    def _kill_client(self, _: Fault, command: Command | None) -> None:
        for each in [command] if command else self.story.followed:
            each.signal(signal.SIGKILL)

    def _interrupt_client(self, _: Fault, command: Command | None) -> None:
        if command:
            command.signal(signal.SIGINT)

    def _kill_dispatcher(self, _: Fault, __: Command | None) -> None:
        self.story.note(f"{self.host.kill('jr-dispatch')} dispatchers")

    def _kill_supervisor(self, _: Fault, __: Command | None) -> None:
        self.story.note(f"{self.host.kill('jr-supervise')} supervisors")

    def _job_ids(self) -> list[str]:
        return [path.name for path in self.host.root.glob("hosts/*/jobs/*") if not path.name.startswith(".")]

    def _kill_job(self, _: Fault, __: Command | None) -> None:
        for id_ in self._job_ids():
            self.story.note(f"{self.host.kill_job(id_)} processes of {id_}")

    def _kill_both(self, fault: Fault, command: Command | None) -> None:
        self._kill_supervisor(fault, command)
        self._kill_job(fault, command)

    def _reused_pid(self, fault: Fault, command: Command | None) -> None:
        self._kill_both(fault, command)
        self.story.note(f"strangers have the pids {self.host.reuse_pids()}")

    def _clock(self, fault: Fault, _: Command | None) -> None:
        assert self.host.clock
        for step, span in zip(fault.steps, (fault.span, 0), strict=True):
            self.host.clock.set(step)
            self.story.note(f"the host's clock is wrong by {step} s")
            time.sleep(span)

    def _kill_tmux(self, _: Fault, __: Command | None) -> None:
        self.story.note(f"{self.host.kill_tmux()} tmux servers")

    def _kill_everything(self, _: Fault, __: Command | None) -> None:
        self.story.note(f"{self.host.kill_everything()} processes")

    def _sshd_down(self, fault: Fault, _: Command | None) -> None:
        self.host.sshd_down()
        time.sleep(fault.span)
        self.host.sshd_up()

    def _reboot(self, fault: Fault, _: Command | None) -> None:
        self.host.reboot()

    def _full_disk(self, fault: Fault, _: Command | None) -> None:
        self.host.fill(leave=fault.number if fault.number >= 20_000 else 0)
        time.sleep(fault.span)
        self.host.free()

    def _no_inodes(self, fault: Fault, _: Command | None) -> None:
        self.host.crowd()
        time.sleep(fault.span)
        self.host.free()

    def _read_only(self, fault: Fault, _: Command | None) -> None:
        if self.host.read_only(True):
            time.sleep(fault.span)
        else:
            self.story.note("somebody writes there: it stays writable")
        eventually(lambda: self.host.read_only(False), 5, "the disk is writable again")


def through_relay(laptop: Laptop, host: BreakableHost, relay: Relay) -> None:
    """The laptop's way to the host leads through a relay."""
    config = laptop.folder / "ssh_config"
    text = config.read_text().replace(f"Port {host.sshd.port}", f"Port {relay.port}")
    config.write_text(
        text.replace("  IdentitiesOnly", f"  HostKeyAlias [127.0.0.1]:{host.sshd.port}\n  IdentitiesOnly")
    )
    with suppress(KeyError):
        del laptop.env["JOBRUNNER_DEBUG"]
