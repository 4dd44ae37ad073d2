"""Connections that OpenSSH's client holds and commands share: made once, found again, replaced when dead."""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from jobrunner.core.errors import ConnectError, HostError
from jobrunner.lab.sshd import LoopbackHost, write_key_pair
from jobrunner.transport import mux, needs, openssh, sockets
from jobrunner.transport.link import HostLink
from jobrunner.transport.settings import HostTarget, TransportSettings
from tests.support.hosts import end_shared, loopback, target_of, test_agent
from tests.support.waiting import eventually

pytestmark = pytest.mark.needs_sshd
Reach = Callable[..., HostTarget]


@pytest.fixture
def transport() -> str:
    return "openssh"


@pytest.fixture
def own(tmp_path: Path) -> Iterator[LoopbackHost]:
    """A host of the test's own."""
    with loopback(tmp_path / "own") as running:
        yield running


def logins(host: LoopbackHost) -> int:
    return host.log.read_text().count("Accepted publickey")


def echo(target: HostTarget) -> str:
    """One request over a link of its own; what carried it."""
    with HostLink(target, image=test_agent()) as link:
        assert link.request("echo", value=7)["value"] == 7
        assert link._connection is not None
        return link._connection.kind


def shared_of(target: HostTarget) -> sockets.Shared:
    assert target.settings.sockets is not None
    [found] = [item for item in sockets.existing(target.settings.sockets) if item.pid]
    return found


def test_the_next_command_does_not_log_in(own: LoopbackHost, reach: Reach) -> None:
    target = reach(own)
    for _ in range(3):
        assert echo(target) == "openssh"
    assert logins(own) == 1
    found = shared_of(target)
    assert found.alias == own.alias
    assert found.path.parent.stat().st_mode & 0o777 == 0o700
    assert sockets.disconnect(found)
    assert mux.master_pid(found.path) is None and not list(found.path.parent.glob("*.0*"))
    eventually(lambda: not own.session_pids() or True)
    assert echo(target) == "openssh" and logins(own) == 2


def test_auto_takes_what_is_up_and_makes_nothing(own: LoopbackHost, reach: Reach) -> None:
    target = reach(own)
    auto = replace(target, transport="auto")
    assert echo(auto) == "fabric"
    assert auto.settings.sockets is not None and sockets.folder(auto.settings.sockets) is not None
    assert not list(sockets.existing(auto.settings.sockets)) and not auto.settings.sockets.exists()
    echo(target)
    assert echo(auto) == "openssh"


def test_the_users_own_shared_connection_is_taken(own: LoopbackHost, reach: Reach, tmp_path: Path) -> None:
    socket_ = tmp_path / "mine"
    with own.ssh_config.open("a", encoding="utf-8") as config:
        config.write(f"  ControlPath {socket_}\n")
    subprocess.run(
        ["ssh", "-F", own.ssh_config, "-M", "-N", "-f", "-o", "ControlPersist=60", own.alias],
        check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        for way in ("auto", "openssh"):
            assert echo(replace(reach(own), transport=way)) == "openssh"
        assert logins(own) == 1
        assert not list(sockets.existing(reach(own).settings.sockets or Path()))
    finally:
        mux.terminate(socket_)


def test_a_master_that_was_killed_is_replaced(own: LoopbackHost, reach: Reach) -> None:
    target = reach(own)
    echo(target)
    found = shared_of(target)
    assert found.pid is not None
    os.kill(found.pid, signal.SIGKILL)
    eventually(lambda: mux.master_pid(found.path) is None)
    assert found.path.exists(), "its socket is left over"
    assert echo(target) == "openssh"
    assert shared_of(target).path == found.path and logins(own) == 2


def test_a_connection_over_which_nothing_comes_is_replaced(
    own: LoopbackHost, reach: Reach, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(openssh, "INHERITED_S", 0.5)
    target = reach(own)
    echo(target)
    first, frozen = shared_of(target), own.session_pids()
    listener = own.process.pid if own.process else 0
    for pid in frozen:
        if pid != listener:
            os.kill(pid, signal.SIGSTOP)
    try:
        began = time.monotonic()
        assert echo(target) == "openssh"
        assert time.monotonic() - began < 8
        assert shared_of(target).pid != first.pid
    finally:
        for pid in frozen:
            if pid != listener:
                os.kill(pid, signal.SIGCONT)


def test_a_dead_link_ends_its_master_in_seconds(own: LoopbackHost, reach: Reach) -> None:
    target = reach(own, probe_s=1.0, dead_after_s=2.0)
    with HostLink(target, image=test_agent()) as link:
        stream = link.stream("ticks", timeout=60)
        stream.frame()
        listener = own.process.pid if own.process else 0
        frozen = [pid for pid in own.session_pids() if pid != listener]
        for pid in frozen:
            os.kill(pid, signal.SIGSTOP)
        began = time.monotonic()
        try:
            with pytest.raises(HostError, match="was lost"):
                for _ in stream:
                    pass
        finally:
            for pid in frozen:
                os.kill(pid, signal.SIGCONT)
        assert time.monotonic() - began < 8
        stream.close()


def test_many_at_once_log_in_once(own: LoopbackHost, reach: Reach) -> None:
    target = reach(own)
    kinds: list[str] = []
    threads = [threading.Thread(target=lambda: kinds.append(echo(target))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert kinds == ["openssh"] * 4
    assert logins(own) == 1


def test_a_connection_that_others_have_filled_gets_a_second_one(tmp_path: Path, reach: Reach) -> None:
    with loopback(tmp_path / "small", max_sessions=1) as small:
        target = reach(small)
        with HostLink(target, image=test_agent()) as holder, holder.stream("ticks") as stream:
            stream.frame()
            assert echo(target) == "openssh"
            stream.frame()
        assert logins(small) == 2


def test_a_socket_that_was_left_behind_and_one_of_something_else(own: LoopbackHost, reach: Reach) -> None:
    target = reach(own)
    place = sockets.folder(target.settings.sockets or Path(), make=True)
    assert place is not None
    path = sockets.socket_path(place, target.config.digest, 0)
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    assert echo(target) == "openssh" and logins(own) == 1


def test_a_long_state_folder_has_its_sockets_elsewhere(own: LoopbackHost, tmp_path: Path) -> None:
    long = tmp_path / ("x" * 90)
    place = sockets.folder(long)
    assert place is not None and place != long and not place.exists(), "who only looks makes nothing"
    target = replace(target_of(own, sockets=long), transport="openssh")
    try:
        assert echo(target) == "openssh"
        assert shared_of(target).path.parent == place
        assert place.stat().st_mode & 0o777 == 0o700
    finally:
        end_shared(long)
    assert not place.exists()
    place.symlink_to(tmp_path)
    try:
        assert sockets.folder(long) is None, "a link that somebody put there is not followed"
        assert echo(target) == "fabric"
    finally:
        place.unlink()


def test_without_an_ssh_program_fabric_is_taken(
    own: LoopbackHost, reach: Reach, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = reach(own)
    monkeypatch.setattr("jobrunner.transport.sockets.ssh_program", lambda: "")
    with HostLink(target, image=test_agent()) as link:
        assert link.request("echo", value=1)["value"] == 1
        assert link.notes == ["lab is reached by Fabric, not by OpenSSH's client: there is no `ssh` program"]
    with HostLink(replace(target, transport="auto"), image=test_agent()) as link:
        link.open()
        assert link.notes == []


def test_a_changed_configuration_is_another_connection(own: LoopbackHost, reach: Reach) -> None:
    echo(reach(own))
    text = own.ssh_config.read_text("utf-8")
    own.ssh_config.write_text(text.replace("HostName 127.0.0.1", "HostName 127.0.0.2"), encoding="utf-8")
    with HostLink(reach(own), image=test_agent()) as link, pytest.raises(ConnectError, match=r"127\.0\.0\.2"):
        link.request("echo")


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        ("", ""),
        ("KnownHostsCommand /bin/true %H", "knownhostscommand"),
        ("PKCS11Provider /usr/lib/card.so", "pkcs11provider"),
        ("PreferredAuthentications keyboard-interactive,publickey", "preferredauthentications"),
        ("PreferredAuthentications publickey", ""),
        ("CanonicalizeHostname yes\n CanonicalDomains example.org", "canonicalizehostname"),
        ("BindAddress 127.0.0.1", "bindaddress"),
        ("IdentityFile {folder}/token", "lives in hardware"),
        ("IdentityFile {folder}/plain", ""),
        ("CertificateFile {folder}/cert\n IdentityFile {folder}/plain.pub", "certificate"),
        ("UserKnownHostsFile {folder}/authority", "certificate authority"),
        ("RevokedHostKeys {folder}/krl", "binary list"),
        ("GSSAPIAuthentication yes", ""),
        ("ProxyJump other\nHost other\n KnownHostsCommand /bin/true", "for the jump host other"),
        ('\nMatch originalhost box exec "true"\n Port 2222', "Match exec"),
        ('\nMatch originalhost elsewhere exec "true"\n Port 2222', ""),
    ],
)
def test_what_only_openssh_can_do(tmp_path: Path, lines: str, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KRB5CCNAME", str(tmp_path / "no-ticket"))
    write_key_pair(tmp_path / "plain", "plain")
    public = (tmp_path / "plain.pub").read_text("ascii")
    (tmp_path / "cert").write_text(public, "ascii")
    (tmp_path / "token").write_text("-----BEGIN OPENSSH PRIVATE KEY-----\n", "ascii")
    (tmp_path / "token.pub").write_text("sk-ssh-ed25519@openssh.com AAAA token\n", "ascii")
    (tmp_path / "authority").write_text(f"@cert-authority * {public}", "ascii")
    (tmp_path / "krl").write_bytes(b"SSHKRL\n\0more")
    file = tmp_path / "config"
    file.write_text(f"Host box\n HostName 127.0.0.1\n {lines.format(folder=tmp_path)}\n", "utf-8")
    found = needs.why_openssh(HostTarget.of("box", ssh_config=file))
    assert reason in found and bool(found) == bool(reason)


def test_a_ticket_makes_gssapi_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "config"
    file.write_text("Host box\n HostName 127.0.0.1\n GSSAPIAuthentication yes\n", "utf-8")
    (tmp_path / "ticket").touch()
    monkeypatch.setenv("KRB5CCNAME", f"FILE:{tmp_path / 'ticket'}")
    assert needs.why_openssh(HostTarget.of("box", ssh_config=file)) == "gssapiauthentication is set"


ASKED = """
import sys
from pathlib import Path
from jobrunner.transport.link import HostLink
from jobrunner.transport.settings import HostTarget, TransportSettings
settings = TransportSettings(sockets=Path(sys.argv[2]), attended=True)
target = HostTarget.of("lab", ssh_config=sys.argv[1], settings=settings, transport=sys.argv[3])
with HostLink(target) as link:
    link.open()
    print("came by", link._connection.kind, flush=True)
"""


def test_a_person_at_the_terminal_is_asked_by_ssh_once(own: LoopbackHost, reach: Reach, tmp_path: Path) -> None:
    import pty

    locked = own.folder / "locked"
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", "secret", "-f", locked], check=True, stdin=subprocess.DEVNULL
    )
    with (own.folder / "authorized_keys").open("a", encoding="ascii") as known:
        known.write(locked.with_suffix(".pub").read_text("ascii"))
    text = own.ssh_config.read_text("utf-8").replace(str(own.user_key), str(locked))
    own.ssh_config.write_text(text + "  IdentityAgent none\n", "utf-8")
    target = reach(own)
    with HostLink(target, image=test_agent()) as link, pytest.raises(HostError, match="needs a passphrase"):
        link.open()
    argv = [sys.executable, "-c", ASKED, str(own.ssh_config), str(target.settings.sockets), "openssh"]
    pid, ours = pty.fork()
    if not pid:
        os.chdir(Path(__file__).parents[2])
        os.execv(argv[0], argv)
    said = b""
    ends, answered = time.monotonic() + 20, False
    while b"came by openssh" not in said and time.monotonic() < ends:
        try:
            said += os.read(ours, 4096)
        except OSError:
            break
        if b"passphrase" in said and not answered:
            answered = True
            os.write(ours, b"secret\n")
    os.close(ours)
    os.waitpid(pid, 0)
    assert b"came by openssh" in said and answered, said
    assert echo(target) == "openssh", "nobody has to answer again while it is shared"
    assert logins(own) == 1


def test_settings_share_nothing_by_default(own: LoopbackHost) -> None:
    assert TransportSettings().sockets is None
    assert echo(replace(target_of(own), transport="openssh")) == "fabric"


def test_bytes_of_a_file_also_from_where_the_kernel_does_not_move_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_bytes(b"0123456789")
    handle = os.open(tmp_path / "file", os.O_RDONLY)
    outlet, inlet = os.pipe()
    channel = object.__new__(mux.MuxChannel)
    monkeypatch.setattr(channel, "_give", lambda write: write(inlet), raising=False)
    try:
        taken = [channel.send_file(handle, 2, 3)]
        monkeypatch.setattr(os, "sendfile", lambda *_: (_ for _ in ()).throw(OSError(errno.EINVAL, "not from there")))
        taken += [channel.send_file(handle, 5, 3), channel.send_file(handle, 8, 9)]
        assert taken == [3, 3, 2] and os.read(outlet, 99) == b"23456789"
    finally:
        for number in (handle, outlet, inlet):
            os.close(number)
