"""Roundabout ways: jump hosts, each with its own checks, and ProxyCommand."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from jobrunner.core.errors import AuthError, ConnectError, HostKeyError
from jobrunner.lab.sshd import LoopbackHost
from jobrunner.transport.connect import open_connection, scan_host_key
from jobrunner.transport.link import HostLink
from jobrunner.transport.settings import HostTarget, TransportSettings
from tests.support.hosts import link_threads, loopback, open_sockets, test_agent
from tests.support.waiting import eventually

pytestmark = pytest.mark.needs_sshd


@dataclass
class Site:
    """Three hosts: one, two, three."""

    hosts: dict[str, LoopbackHost]
    folder: Path

    def target(self, alias: str, **options: str) -> HostTarget:
        """The target `alias`, with further options by host: `three="ProxyJump two"`."""
        file = self.folder / f"config-{time.monotonic_ns()}"
        blocks = []
        for name, host in self.hosts.items():
            own = host.ssh_config.read_text("utf-8").splitlines()
            extra = [f"  {line}" for line in options.get(name, "").split("; ") if line]
            blocks += [own[0], *extra, *own[1:]]
        file.write_text("\n".join([*blocks, *options.get("every", "").split("; ")]) + "\n", encoding="utf-8")
        settings = TransportSettings(connect_s=2.0, retry_s=1.0)
        return HostTarget.of(alias, ssh_config=file, root="~/root", settings=settings)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("site")
    hosts = {name: loopback(folder / name, name) for name in ("one", "two", "three")}
    yield Site(hosts, folder)
    for host in hosts.values():
        host.stop()


def logins(host: LoopbackHost) -> int:
    return host.log.read_text("utf-8").count("Accepted publickey")


def reaches(target: HostTarget) -> None:
    with HostLink(target, image=test_agent()) as link:
        assert link.request("echo", value=5)["value"] == 5


def test_one_jump(site: Site) -> None:
    before = logins(site.hosts["one"])
    reaches(site.target("three", three="ProxyJump one"))
    assert logins(site.hosts["one"]) == before + 1


def test_a_chain_in_one_line_and_a_chain_of_blocks(site: Site) -> None:
    before = logins(site.hosts["one"]), logins(site.hosts["two"])
    reaches(site.target("three", three="ProxyJump one,two"))
    reaches(site.target("three", three="ProxyJump two", two="ProxyJump one"))
    assert (logins(site.hosts["one"]), logins(site.hosts["two"])) == (before[0] + 2, before[1] + 2)


def test_a_jump_with_user_and_port(site: Site) -> None:
    one = site.hosts["one"]
    target = site.target(
        "three",
        three=f"ProxyJump {one.user}@127.0.0.1:{one.port}",
        every=f"Host 127.0.0.1; IdentityFile {one.user_key}; UserKnownHostsFile {one.known_hosts}",
    )
    reaches(target)


def test_jump_none_is_a_direct_way(site: Site) -> None:
    before = logins(site.hosts["one"])
    reaches(site.target("three", three="ProxyJump none", every="Host *; ProxyJump one"))
    assert logins(site.hosts["one"]) == before


def test_every_hop_is_checked(site: Site) -> None:
    with pytest.raises(HostKeyError) as key:
        open_connection(site.target("three", three="ProxyJump one", one="UserKnownHostsFile none"))
    assert key.value.host == "one"
    with pytest.raises(AuthError) as login:
        open_connection(site.target("three", three="ProxyJump one", one="User nobody-here"))
    assert login.value.host == "one"
    with pytest.raises(HostKeyError) as last:
        open_connection(site.target("three", three="ProxyJump one; UserKnownHostsFile none"))
    assert last.value.host == "three"


def test_a_target_that_the_jump_host_cannot_reach(site: Site) -> None:
    with pytest.raises(ConnectError) as caught:
        open_connection(site.target("three", three="ProxyJump one; Port 1"))
    assert caught.value.code == "proxy"
    assert "one" in caught.value.message
    assert caught.value.host == "three"


def test_a_jump_host_that_is_down(site: Site) -> None:
    with pytest.raises(ConnectError) as caught:
        open_connection(site.target("three", three="ProxyJump one", one="Port 1"))
    assert (caught.value.code, caught.value.host) == ("refused", "one")


def test_a_jump_host_that_names_itself(site: Site) -> None:
    with pytest.raises(ConnectError, match="more than 8 jump hosts"):
        open_connection(site.target("three", every="Host *; ProxyJump one"))


def test_nothing_is_left_of_a_way_that_failed(site: Site) -> None:
    sockets = open_sockets()
    for options in ({"three": "ProxyJump one,two; UserKnownHostsFile none"}, {"three": "ProxyJump one,two; Port 1"}):
        with pytest.raises((HostKeyError, ConnectError)):
            open_connection(site.target("three", **options))
    eventually(lambda: not link_threads(), 3)
    eventually(lambda: open_sockets() <= sockets, 3)


def test_the_key_of_a_host_behind_a_jump_can_be_scanned(site: Site) -> None:
    target = site.target("three", three="ProxyJump one; UserKnownHostsFile none")
    assert scan_host_key(target).fingerprint == site.hosts["three"].fingerprint


@pytest.mark.skipif(shutil.which("ssh") is None, reason="NOT TESTED HERE: no ssh for a ProxyCommand")
def test_a_proxy_command(site: Site) -> None:
    sockets = open_sockets()
    one = site.hosts["one"]
    reaches(site.target("three", three=f"ProxyCommand ssh -F {one.ssh_config} -W [%h]:%p one"))
    eventually(lambda: open_sockets() <= sockets, 3)


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("echo sorry >&2; exit 3", "sorry"),
        ("no-such-program %h %p", "no-such-program"),
        ("true", "ProxyCommand was `true`"),
    ],
)
def test_a_proxy_command_that_fails_is_quoted(site: Site, command: str, words: str) -> None:
    sockets = open_sockets()
    began = time.monotonic()
    script = site.folder / "proxy.sh"
    script.write_text(command + "\n", encoding="ascii")
    line = f"sh {script}" if ";" in command else command
    with pytest.raises(ConnectError) as caught:
        open_connection(site.target("three", three=f"ProxyCommand {line}"))
    assert caught.value.code == "proxy"
    assert words in caught.value.message
    assert time.monotonic() - began < 4
    eventually(lambda: open_sockets() <= sockets, 3)


def test_a_proxy_command_that_hangs_is_ended(site: Site) -> None:
    began = time.monotonic()
    with pytest.raises(ConnectError) as caught:
        open_connection(site.target("three", three="ProxyCommand sleep 77"))
    assert caught.value.code == "proxy"
    assert time.monotonic() - began < 8


def test_no_name_reaches_the_proxys_shell(site: Site) -> None:
    from dataclasses import replace

    target = site.target("three", three="ProxyCommand echo %h")
    odd = replace(target, config=replace(target.config, hostname="$(touch /tmp/jobrunner-injected)"))
    with pytest.raises(ConnectError, match="will not be handed to the shell"):
        open_connection(odd)
    assert not Path("/tmp/jobrunner-injected").exists()
