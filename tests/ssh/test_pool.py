"""Many hosts at once: none holds up the others, none is forgotten, and leaving is quick."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobrunner.core.errors import ConnectError, HostError, JobrunnerError, NotFoundError
from jobrunner.core.hosts import load_hosts
from jobrunner.lab.sshd import LoopbackHost
from jobrunner.transport.link import HostLink
from jobrunner.transport.pool import LinkPool, open_pool
from jobrunner.transport.settings import HostTarget, TransportSettings
from tests.support.hosts import ServerOf, link_threads, loopback
from tests.support.waiting import eventually

pytestmark = pytest.mark.needs_sshd


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LoopbackHost, LoopbackHost]]:
    folder = tmp_path_factory.mktemp("pair")
    hosts = loopback(folder / "one", "one"), loopback(folder / "two", "two")
    yield hosts
    for host in hosts:
        host.stop()


def config_of(folder: Path, *hosts: LoopbackHost, **ports: int) -> Path:
    """One SSH configuration for hosts, and for names that lead to some port of this machine."""
    file = folder / "config"
    text = "".join(host.ssh_config.read_text("utf-8") for host in hosts)
    text += "".join(f"Host {name}\n HostName 127.0.0.1\n Port {port}\n" for name, port in ports.items())
    file.write_text(text, encoding="utf-8")
    return file


def pool_of(file: Path, **limits: float) -> LinkPool:
    settings = TransportSettings(**limits)
    return LinkPool(lambda alias: HostTarget.of(alias, ssh_config=file, settings=settings))


def instance(link: HostLink) -> str:
    link.request("look", jobs=[], cards=False)
    return str(link.host_facts["instance"])


def test_each_host_gives_its_own_outcome(pair: tuple[LoopbackHost, LoopbackHost], tmp_path: Path) -> None:
    with pool_of(config_of(tmp_path, *pair, gone=1)) as pool:
        outcomes = pool.map(instance, ["one", "gone", "two", "one"])
        assert list(outcomes) == ["one", "gone", "two"]
        assert outcomes["one"].value != outcomes["two"].value
        assert outcomes["gone"].value is None
        assert isinstance(outcomes["gone"].error, ConnectError)
        assert outcomes["gone"].error.code == "refused"
        assert pool.link("one") is pool.link("one")
        assert pool.map(instance, []) == {}


def test_a_silent_host_delays_by_its_connect_limit_only(
    pair: tuple[LoopbackHost, LoopbackHost], tmp_path: Path
) -> None:
    with ServerOf(lambda sock: None) as server:
        file = config_of(tmp_path, *pair, mute=server.port)
        began = time.monotonic()
        with pool_of(file, connect_s=1.0) as pool:
            outcomes = pool.map(instance, ["one", "mute", "two"])
            took = time.monotonic() - began
    assert outcomes["one"].error is None
    assert outcomes["two"].error is None
    assert outcomes["mute"].error is not None
    assert outcomes["mute"].error.code == "silent"
    assert took < 3


def test_a_deadline_for_all(pair: tuple[LoopbackHost, LoopbackHost], tmp_path: Path) -> None:
    def slow(link: HostLink) -> str:
        if link.alias == "two":
            time.sleep(1.5)
        return link.alias

    with pool_of(config_of(tmp_path, *pair)) as pool:
        began = time.monotonic()
        outcomes = pool.map(slow, ["one", "two"], deadline=0.7)
        assert time.monotonic() - began < 1.3
        assert outcomes["one"].value == "one"
        assert outcomes["two"].error is not None
        assert outcomes["two"].error.code == "timeout"
        eventually(lambda: not [t for t in threading.enumerate() if t.name == "host-two"], 3)


def test_faults_of_ours_are_outcomes_too(pair: tuple[LoopbackHost, LoopbackHost], tmp_path: Path) -> None:
    def broken(link: HostLink) -> int:
        return 1 // 0

    with pool_of(config_of(tmp_path, *pair)) as pool:
        for outcome in pool.map(broken, ["one", "two"]).values():
            assert type(outcome.error) is JobrunnerError
            assert outcome.error.code == "internal"
            assert "ZeroDivisionError" in outcome.error.message


def test_a_forgotten_link_is_opened_anew(pair: tuple[LoopbackHost, LoopbackHost], tmp_path: Path) -> None:
    with pool_of(config_of(tmp_path, *pair)) as pool:
        first = pool.link("one")
        pool.forget("one")
        assert pool.link("one") is not first
        pool.forget("never seen")
    with pytest.raises(HostError):
        pool.link("two")


def test_a_pool_from_a_hosts_file(pair: tuple[LoopbackHost, LoopbackHost], tmp_path: Path) -> None:
    file = config_of(tmp_path, *pair)
    one = pair[0]
    text = f"""
        ssh_config: {file}
        settings: {{connect_timeout: 3s, request_timeout: 7s, retry_for: 4s}}
        hosts:
          npu-a: {{address: "{one.user}@one", root: ~/elsewhere}}
    """
    hosts = load_hosts(textwrap.dedent(text), "hosts.yaml")
    with open_pool(hosts, environ={}, state_folder=tmp_path / "state") as pool:
        target = pool.target("npu-a")
        assert (target.alias, target.root, target.config.port) == ("npu-a", "~/elsewhere", one.port)
        assert (target.settings.connect_s, target.settings.request_s, target.settings.retry_s) == (3.0, 7.0, 4.0)
        assert instance(pool.link("npu-a"))
        assert instance(pool.link("two")), "a host that only the SSH configuration knows"
        assert (tmp_path / "state" / "cache" / "agent.pyz").exists()
        with pytest.raises(NotFoundError):
            pool.link("")
    with open_pool(load_hosts("", "hosts.yaml"), environ={"JOBRUNNER_SSH_CONFIG": str(file)}) as pool:
        assert pool.target("two").config.port == pair[1].port


SCRIPT = """
import sys, time
from jobrunner.transport.pool import LinkPool
from jobrunner.transport.settings import HostTarget
pool = LinkPool(lambda alias: HostTarget.of(alias, ssh_config=sys.argv[1]))
def ask(link):
    link.request("look", jobs=[], cards=False)
    print("asked", link.alias, flush=True)
    if sys.argv[2] == "wait":
        link.request("wait", ids=[], known={}, timeout_s=60, timeout=60)
        with link.stream("look", jobs=[], cards=False) as stream:
            time.sleep(60)
try:
    pool.map(ask, ["one", "two"])
    if sys.argv[2] == "leave":
        sys.exit(0)          # without closing anything
except KeyboardInterrupt:
    print("interrupted", flush=True)
    sys.exit(130)
"""


@pytest.mark.parametrize("how", ["leave", "wait"])
def test_leaving_is_quick(pair: tuple[LoopbackHost, LoopbackHost], tmp_path: Path, how: str) -> None:
    file = config_of(tmp_path, *pair)
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(file), how], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env
    )
    assert process.stdout is not None
    lines = {process.stdout.readline(), process.stdout.readline()}
    assert lines == {b"asked one\n", b"asked two\n"}
    began = time.monotonic()
    if how == "wait":
        process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert time.monotonic() - began < 1.5
    assert process.returncode == (130 if how == "wait" else 0)
    assert err == b""
    eventually(lambda: not any(host.session_pids() for host in pair), 5, "the end of the sessions there")


def test_nothing_runs_after_closing(pair: tuple[LoopbackHost, LoopbackHost], tmp_path: Path) -> None:
    pool = pool_of(config_of(tmp_path, *pair))
    pool.map(instance, ["one", "two"])
    began = time.monotonic()
    pool.close()
    assert time.monotonic() - began < 1
    eventually(lambda: not link_threads(), 1)
