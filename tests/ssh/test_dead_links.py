"""Links that die without a word, and key exchanges in the middle of everything."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest

from jobrunner.core.errors import AgentError, LinkLostError
from jobrunner.lab.sshd import LoopbackHost
from jobrunner.transport.link import HostLink
from jobrunner.transport.settings import TransportSettings
from tests.support.hosts import loopback, target_of, test_agent
from tests.support.waiting import eventually

pytestmark = pytest.mark.needs_sshd
QUICK = {"probe_s": 0.5, "dead_after_s": 1.0}
FULL = os.environ.get("FULL") == "1"


def freeze(host: LoopbackHost, on: bool) -> None:
    for pid in host.session_pids():
        os.kill(pid, signal.SIGSTOP if on else signal.SIGCONT)


@pytest.mark.parametrize("op", ["ticks", "sleep"])
def test_a_frozen_server_is_noticed(tmp_path: Path, op: str) -> None:
    with (
        loopback(tmp_path) as host,
        HostLink(target_of(host, **QUICK), image=test_agent()) as link,
        link.stream(op, timeout=60, seconds=60) as stream,
    ):
        if op == "ticks":
            stream.frame()
        began = time.monotonic()
        freeze(host, True)
        try:
            with pytest.raises(LinkLostError, match="nothing was heard"):
                for _ in stream:
                    pass
        finally:
            freeze(host, False)
    assert time.monotonic() - began < 7


def test_a_frozen_server_is_noticed_while_sending(tmp_path: Path) -> None:
    with loopback(tmp_path) as host, HostLink(target_of(host, **QUICK), image=test_agent()) as link:
        stream = link.stream("upload", pause=0.0)
        stream.send_bytes(b"x" * 1_000_000)
        freeze(host, True)
        began = time.monotonic()
        try:
            with pytest.raises(LinkLostError), stream:
                for _ in range(200):
                    stream.send_bytes(b"x" * 1_000_000)
        finally:
            freeze(host, False)
        assert time.monotonic() - began < 8


@pytest.mark.root
@pytest.mark.slow
@pytest.mark.parametrize("part", [1.0] if FULL else [0.1])
def test_a_cut_network_is_noticed_within_20_s_by_default(tmp_path: Path, part: float) -> None:
    """The default limits, or a tenth of each of them, which is noticed in as much less."""
    with loopback(tmp_path) as host, HostLink(target_of(host, **usual(part)), image=test_agent()) as link:
        rules = [
            ["INPUT", "-i", "lo", "-p", "tcp", side, str(host.port), "-j", "DROP"] for side in ("--dport", "--sport")
        ]
        with link.stream("sleep", timeout=60, seconds=60) as stream:
            began = time.monotonic()
            try:
                for rule in rules:
                    subprocess.run(["iptables", "-I", *rule], check=True)
                with pytest.raises(LinkLostError):
                    stream.result()
                took = time.monotonic() - began
            finally:
                for rule in rules:
                    subprocess.run(["iptables", "-D", *rule], check=False)
    assert took < max(20 * part, 4), "what is shortened leaves room for a busy machine"


def usual(part: float) -> dict[str, float]:
    """That part of the usual limits for silence."""
    usual = TransportSettings()
    assert usual.probe_s + usual.dead_after_s < 20
    return {"probe_s": usual.probe_s * part, "dead_after_s": usual.dead_after_s * part}


def test_an_idle_link_stays_alive(tmp_path: Path) -> None:
    with (
        loopback(tmp_path) as host,
        HostLink(target_of(host, probe_s=0.3, dead_after_s=0.9), image=test_agent()) as link,
    ):
        pid = link.request("echo")["pid"]
        time.sleep(2.2)  # more than both limits together: what is tested is that time alone does nothing
        assert link.request("echo")["pid"] == pid


def test_key_exchanges_amid_channels_that_close(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """We exchange keys every 256 KiB (and the server too) while other channels come and go: nothing stalls."""
    from jobrunner.transport.wire_ssh import LinkPacketizer, LinkTransport

    monkeypatch.setattr(LinkPacketizer, "REKEY_BYTES", 1 << 18)

    exchanges: list[int] = []
    plain = LinkTransport._parse_newkeys

    def count(self: LinkTransport, message: object) -> None:
        exchanges.append(len(self._put_off))
        plain(self, message)

    monkeypatch.setattr(LinkTransport, "_parse_newkeys", count)
    with loopback(tmp_path, lines=["RekeyLimit 4M"]) as host, HostLink(target_of(host), image=test_agent()) as link:
        link.request("echo")
        ended = threading.Event()
        rounds: list[float] = []

        def come_and_go() -> None:
            while not ended.is_set():
                began = time.monotonic()
                with link.stream("die") as stream, pytest.raises(AgentError, match="last words"):
                    stream.frame()
                rounds.append(time.monotonic() - began)

        threads = [threading.Thread(target=come_and_go) for _ in range(2)]
        for thread in threads:
            thread.start()
        try:
            with link.stream("download", bytes=60_000_000) as stream:
                got = sum(len(payload) for kind, payload in stream if kind == b"B")
        finally:
            ended.set()
            for thread in threads:
                thread.join(30)
        assert got == 60_000_000
        assert len(exchanges) > 20
        assert any(exchanges), "some message had to wait for the end of an exchange"
        assert len(rounds) > 5
        assert max(rounds) < 10
        assert link._connection is not None
        assert link._connection.transport.is_active()


@pytest.mark.slow
@pytest.mark.parametrize("size", [1 << 30 if FULL else 1 << 28])
def test_much_comes_down_without_a_pause(tmp_path: Path, size: int) -> None:
    with loopback(tmp_path) as host, HostLink(target_of(host), image=test_agent()) as link:
        longest, last, got = 0.0, time.monotonic(), 0
        with link.bulk().stream("download", bytes=size) as stream:
            for kind, payload in stream:
                now = time.monotonic()
                longest, last = max(longest, now - last), now
                got += len(payload) if kind == b"B" else 0
        assert got == size
        assert longest < 5


def test_sessions_that_were_cut_do_not_stop_others(tmp_path: Path) -> None:
    with loopback(tmp_path) as host, HostLink(target_of(host), image=test_agent()) as link:
        link.request("echo")
        link.bulk().request("echo")
        host.drop_sessions()
        eventually(lambda: not link._connection.is_connected)
        assert link.request("echo", value=1)["value"] == 1
        assert link.bulk().request("echo", value=2)["value"] == 2
