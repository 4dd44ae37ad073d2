"""Logging in: which keys are offered, and what is said when none is taken."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import paramiko
import pytest
from paramiko.auth_handler import AuthHandler

from jobrunner.core.errors import AuthError
from jobrunner.lab.sshd import LoopbackHost, write_key_pair
from jobrunner.transport.connect import open_connection
from jobrunner.transport.link import HostLink
from jobrunner.transport.settings import HostTarget
from jobrunner.transport.wire_ssh import LinkTransport
from tests.support.hosts import loopback, target_of, test_agent

pytestmark = pytest.mark.needs_sshd


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoopbackHost]:
    """A host that takes two tries, and knows an RSA, an ECDSA and an ed25519 key."""
    folder = tmp_path_factory.mktemp("strict")
    with loopback(folder, lines=["MaxAuthTries 2"]) as host:
        for kind in ("rsa", "ecdsa"):
            keygen("-t", kind, "-f", str(folder / kind))
            with (folder / "authorized_keys").open("a", encoding="ascii") as known:
                known.write((folder / f"{kind}.pub").read_text("ascii"))
        yield host


def keygen(*words: str) -> None:
    subprocess.run(["ssh-keygen", "-q", "-N", "", *words], check=True, stdin=subprocess.DEVNULL, capture_output=True)


class Agent:
    """An ssh-agent of the test's own."""

    def __init__(self, folder: Path) -> None:
        self.socket = folder / "agent.sock"
        self.process = subprocess.Popen(
            ["ssh-agent", "-D", "-a", str(self.socket)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        from tests.support.waiting import eventually

        eventually(self.socket.exists)

    def add(self, key: Path, passphrase: str = "") -> None:
        env = {**os.environ, "SSH_AUTH_SOCK": str(self.socket)}
        if passphrase:
            ask = key.parent / "ask.sh"
            ask.write_text(f"#!/bin/sh\necho '{passphrase}'\n", encoding="ascii")
            ask.chmod(0o700)
            env |= {"SSH_ASKPASS": str(ask), "SSH_ASKPASS_REQUIRE": "force"}
        subprocess.run(["ssh-add", "-q", str(key)], env=env, check=True, stdin=subprocess.DEVNULL, capture_output=True)


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    running = Agent(tmp_path)
    yield running
    running.process.terminate()
    running.process.wait()


def using(
    host: LoopbackHost, *keys: Path, agent: Agent | None = None, only: bool = False, **limits: object
) -> HostTarget:
    target = target_of(host, **limits)
    config = replace(
        target.config,
        identity_files=tuple(str(key) for key in keys),
        identities_explicit=bool(keys),
        identities_only=only,
        identity_agent=str(agent.socket) if agent else None,
    )
    return replace(target, config=config)


def fails(target: HostTarget) -> AuthError:
    with pytest.raises(AuthError) as caught:
        open_connection(target)
    return caught.value


@pytest.mark.parametrize("kind", ["user_key", "rsa", "ecdsa"])
def test_each_kind_of_key(strict: LoopbackHost, kind: str) -> None:
    open_connection(using(strict, strict.folder / kind)).close()


@pytest.mark.parametrize("form", ["PEM", "RFC4716"])
def test_each_form_of_file(strict: LoopbackHost, tmp_path: Path, form: str) -> None:
    key = tmp_path / "key"
    key.write_bytes((strict.folder / "rsa").read_bytes())
    key.chmod(0o600)
    keygen("-p", "-P", "", "-m", form, "-f", str(key))
    open_connection(using(strict, key)).close()


def test_a_crowded_agent_does_not_hide_the_named_key(strict: LoopbackHost, agent: Agent, tmp_path: Path) -> None:
    for number in range(8):
        write_key_pair(tmp_path / f"wrong{number}", "wrong")
        agent.add(tmp_path / f"wrong{number}")
    open_connection(using(strict, strict.user_key, agent=agent)).close()
    error = fails(using(strict, agent=agent))
    assert error.code == "too_many_keys"
    assert "refused" in error.message
    assert "after 2 keys" in error.message
    assert "IdentityFile" in error.remedy


def test_the_agent_serves_a_locked_key_file(strict: LoopbackHost, agent: Agent, tmp_path: Path) -> None:
    key = locked(strict, tmp_path)
    agent.add(key, "secret words")
    open_connection(using(strict, key, agent=agent, only=True)).close()


def test_the_agent_serves_a_public_key_file(strict: LoopbackHost, agent: Agent, tmp_path: Path) -> None:
    agent.add(strict.user_key)
    write_key_pair(tmp_path / "wrong", "wrong")
    agent.add(tmp_path / "wrong")
    public = tmp_path / "only.pub"
    public.write_text((strict.folder / "user_key.pub").read_text("ascii"), encoding="ascii")
    open_connection(using(strict, public, agent=agent, only=True)).close()


def test_the_agents_key_is_used_where_no_file_is_named(strict: LoopbackHost, agent: Agent) -> None:
    agent.add(strict.user_key)
    open_connection(using(strict, agent=agent)).close()


def test_identities_only_keeps_the_agent_out(strict: LoopbackHost, agent: Agent, tmp_path: Path) -> None:
    agent.add(strict.user_key)
    write_key_pair(tmp_path / "wrong", "wrong")
    open_connection(using(strict, tmp_path / "wrong", agent=agent)).close()
    error = fails(using(strict, tmp_path / "wrong", agent=agent, only=True))
    assert error.code == "auth"
    assert str(tmp_path / "wrong") in error.message


def test_an_agent_that_is_gone_is_passed_over(strict: LoopbackHost, tmp_path: Path) -> None:
    target = using(strict, strict.user_key)
    gone = replace(target, config=replace(target.config, identity_agent=str(tmp_path / "nothing")))
    open_connection(gone).close()


def locked(strict: LoopbackHost, folder: Path) -> Path:
    key = folder / "locked"
    key.write_bytes(strict.user_key.read_bytes())
    key.chmod(0o600)
    subprocess.run(
        ["ssh-keygen", "-q", "-p", "-P", "", "-N", "secret words", "-f", str(key)], check=True, capture_output=True
    )
    return key


def test_a_locked_key_and_nobody_to_ask(strict: LoopbackHost, tmp_path: Path) -> None:
    key = locked(strict, tmp_path)
    error = fails(using(strict, key))
    assert error.code == "passphrase"
    assert str(key) in error.message
    assert "needs a passphrase" in error.message
    assert "ssh-add" in error.remedy


def test_a_locked_key_and_a_passphrase(strict: LoopbackHost, tmp_path: Path) -> None:
    key = locked(strict, tmp_path)
    asked: list[str] = []

    def right(path: str) -> str:
        asked.append(path)
        return "secret words"

    open_connection(using(strict, key, passphrase=right)).close()
    assert asked == [str(key)]
    error = fails(using(strict, key, passphrase=lambda path: asked.append(path) or "guess"))
    assert error.code == "passphrase"
    assert "wrong passphrase" in error.message
    assert len(asked) == 2, "it is asked for once, and not again"
    assert "secret" not in error.message + error.remedy
    assert "guess" not in error.message + error.remedy


def test_a_key_that_cannot_sign_is_passed_over(
    strict: LoopbackHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the server's answer to it is not taken for one to the next key, which waits for one."""
    tried: list[AuthHandler] = []
    plainly = AuthHandler._parse_service_accept

    def counted(self: AuthHandler, message: object) -> None:
        tried.append(self)
        plainly(self, message)

    def refuse(*_: object) -> bytes:
        raise paramiko.SSHException("nobody touched it")

    monkeypatch.setattr(AuthHandler, "_parse_service_accept", counted)
    monkeypatch.setattr(paramiko.Ed25519Key, "sign_ssh_data", refuse)
    silent = property(lambda self: {}, lambda self, value: None)
    monkeypatch.setattr(LinkTransport, "server_extensions", silent, raising=False)
    open_connection(using(strict, strict.user_key, strict.folder / "rsa")).close()
    assert [handler.private_key.get_name() for handler in tried] == ["ssh-ed25519", "ssh-rsa"]
    for handler in list(tried):  # an answer that is late
        handler._parse_service_accept(paramiko.Message())
    assert len(tried) == 2


def test_who_connects_ahead_asks_nobody_and_the_command_then_does(strict: LoopbackHost, tmp_path: Path) -> None:
    key = locked(strict, tmp_path)
    asked: list[str] = []

    def right(path: str) -> str:
        asked.append(path)
        return "secret words"

    with HostLink(using(strict, key, sessions=1), image=test_agent()) as link:
        link.expect()
        link.prepare("look")
        link.adopt(using(strict, key, sessions=1, passphrase=right))
        assert link.request("echo", n=1)
    assert asked == [str(key)]


def test_no_key_at_all(strict: LoopbackHost, tmp_path: Path) -> None:
    error = fails(using(strict, tmp_path / "missing"))
    assert error.code == "no_keys"
    assert "ssh-copy-id" in error.remedy


def test_a_broken_key_file_is_named(strict: LoopbackHost, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.write_text(
        "-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA\n-----END OPENSSH PRIVATE KEY-----\n", encoding="ascii"
    )
    error = fails(using(strict, broken))
    assert str(broken) in error.message


def test_a_server_that_wants_a_password(tmp_path: Path) -> None:
    with loopback(tmp_path, lines=["PubkeyAuthentication no"]) as host:
        error = fails(target_of(host))
    assert error.code == "auth"
    assert "takes no keys" in error.message or "turned down" in error.message


def test_a_server_that_wants_two_proofs(tmp_path: Path) -> None:
    lines = ["AuthenticationMethods publickey,password", "PasswordAuthentication yes", "PermitRootLogin yes"]
    with loopback(tmp_path, lines=lines) as host:
        error = fails(target_of(host))
    assert error.code == "second_factor"
    assert "second proof" in error.message and "--transport openssh" in error.remedy


def test_a_certificate_is_used(tmp_path: Path) -> None:
    keygen("-t", "ed25519", "-f", str(tmp_path / "ca"))
    write_key_pair(tmp_path / "mine", "mine")
    user = __import__("getpass").getuser()
    keygen("-s", str(tmp_path / "ca"), "-I", "test", "-n", user, str(tmp_path / "mine.pub"))
    with loopback(tmp_path / "host", lines=[f"TrustedUserCAKeys {tmp_path / 'ca.pub'}"]) as host:
        open_connection(using(host, tmp_path / "mine")).close()
        (tmp_path / "mine-cert.pub").unlink()
        assert fails(using(host, tmp_path / "mine")).code == "auth"
