"""Host keys: our verdict on a known_hosts file is the one that the real `ssh` gives."""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from jobrunner.core.errors import HostKeyError
from jobrunner.lab.sshd import LoopbackHost, write_key_pair
from jobrunner.transport.connect import open_connection, scan_host_key
from jobrunner.transport.hostkeys import HostKey, KnownHosts, parse_key, pin
from jobrunner.transport.settings import HostTarget
from tests.support.hosts import loopback, target_of

pytestmark = pytest.mark.needs_sshd

RSA = (
    "ssh-rsa AAAAB3NzaC1yc2EAAAADAQABAAAAgQC7mYHlqXxDKkKLMBPkYrNNjGAXMc4EJPcTyQRQTmcPuJ3P3sjyk1Yg0RBhVC4zkoX6kYGOYkfg"
    "9CSZlr5cT2oXwXZ6i1bNS0fR2xYk6cSLt1kXrQYFp0d0n7d3UwPpQ8x2g2Lq0m9yTt9u1Xz5T0C8q6m5s4VbnmJ7J0Jd2Pp0dQ=="
)


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The public line of an ed25519 key that no host of ours has."""
    return write_key_pair(tmp_path_factory.mktemp("other") / "key", "other")


def hashed(name: str) -> str:
    salt = os.urandom(20)
    digest = hmac.new(salt, name.encode(), hashlib.sha1).digest()
    return f"|1|{base64.b64encode(salt).decode()}|{base64.b64encode(digest).decode()}"


Lines = Callable[[str, str, str], str]
# Name: the lines of a file, made of the host's name `[127.0.0.1]:P`, its right key and a wrong one of the same type.
FILES: dict[str, Lines] = {
    "right": lambda n, k, w: f"{n} {k}",
    "empty": lambda n, k, w: "",
    "wrong": lambda n, k, w: f"{n} {w}",
    "other host": lambda n, k, w: f"example.org {k}",
    "wrong then right": lambda n, k, w: f"{n} {w}\n{n} {k}",
    "right then wrong": lambda n, k, w: f"{n} {k}\n{n} {w}",
    "rsa, then right": lambda n, k, w: f"{n} {RSA}\n{n} {k}",
    "only of another type": lambda n, k, w: f"{n} {RSA}",
    "hashed": lambda n, k, w: f"{hashed(n)} {k}",
    "hashed wrong": lambda n, k, w: f"{hashed(n)} {w}",
    "hashed and comma": lambda n, k, w: f"{hashed('x')},{n} {k}",
    "comma": lambda n, k, w: f"a,b,{n},c {k}",
    "wildcard": lambda n, k, w: f"{n.replace('127.0.0.1', '127.0.0.*')} {k}",
    "question mark": lambda n, k, w: f"{n.replace('127.0.0.1', '127.0.0.?')} {k}",
    "star": lambda n, k, w: f"* {k}",
    "star wrong": lambda n, k, w: f"* {w}",
    "negated first": lambda n, k, w: f"!{n},* {k}",
    "negated last": lambda n, k, w: f"*,!{n} {k}",
    "negated wildcard": lambda n, k, w: f"*,!{n.replace('127.0.0.1', '127.*')} {k}",
    "portless right": lambda n, k, w: f"127.0.0.1 {k}",
    "portless wrong": lambda n, k, w: f"127.0.0.1 {w}",
    "portless right, with port wrong": lambda n, k, w: f"127.0.0.1 {k}\n{n} {w}",
    "other port": lambda n, k, w: f"[127.0.0.1]:1 {k}",
    "case": lambda n, k, w: f"{n.upper()} {k}",
    "revoked": lambda n, k, w: f"@revoked {n} {k}\n{n} {k}",
    "revoked after": lambda n, k, w: f"{n} {k}\n@revoked * {k}",
    "revoked another": lambda n, k, w: f"@revoked * {w}\n{n} {k}",
    "authority before": lambda n, k, w: f"@cert-authority * {w}\n{n} {k}",
    "authority alone": lambda n, k, w: f"@cert-authority * {w}",
    "authority is the key": lambda n, k, w: f"@cert-authority * {k}",
    "unknown marker": lambda n, k, w: f"@nonsense {n} {w}\n{n} {k}",
    "unknown marker alone": lambda n, k, w: f"@nonsense {n} {k}",
    "garbage": lambda n, k, w: f"garbage\n{n}\n{n} ssh-ed25519\n{n} ssh-ed25519 ====\n\n# comment\n{n} {k}",
    "truncated": lambda n, k, w: f"{n} {w[:40]}\n{n} {k}",
    "type does not fit": lambda n, k, w: f"{n} ssh-rsa {k.split()[1]}",
    "bad bytes": lambda n, k, w: f"# \udcc4\udce3\n{n} {k} \udcff",
    "crlf": lambda n, k, w: f"{n} {w}x\r\n{n} {k}\r\n",
    "blanks and tabs": lambda n, k, w: f"  \t{n}\t {k.replace(' ', '  ')}   comment here",
    "no newline at the end": lambda n, k, w: f"{n} {k}",
    "ssh1": lambda n, k, w: f"{n} 1024 35 1234567890\n{n} {k}",
    "commented out": lambda n, k, w: f"#{n} {k}",
    "key options": lambda n, k, w: f"{n} {k} extra words",
}


def ask_ssh(host: LoopbackHost, file: Path, *more: str) -> str:
    options = [f"UserKnownHostsFile={file}", "StrictHostKeyChecking=yes", "BatchMode=yes", "LogLevel=ERROR", *more]
    argv = ["ssh", "-F", str(host.ssh_config), *(word for option in options for word in ("-o", option))]
    done = subprocess.run([*argv, host.alias, "true"], stdin=subprocess.DEVNULL, capture_output=True, check=False)
    if done.returncode == 0:
        return "ok"
    text = done.stderr.decode("utf-8", "replace")
    if "REVOKED" in text.upper():
        return "revoked"
    return "changed" if "IDENTIFICATION HAS CHANGED" in text else "unknown"


def ours(target: HostTarget) -> str:
    try:
        open_connection(target).close()
        return "ok"
    except HostKeyError as error:
        return error.code.removeprefix("hostkey_")


def knowing(host: LoopbackHost, *files: Path, **more: str) -> HostTarget:
    target = target_of(host)
    return replace(target, config=replace(target.config, known_hosts=tuple(map(str, files)), **more))


@pytest.mark.parametrize("name", list(FILES))
def test_the_verdict_is_that_of_openssh(host: LoopbackHost, other: str, tmp_path: Path, name: str) -> None:
    file = tmp_path / "known_hosts"
    text = FILES[name](f"[127.0.0.1]:{host.port}", host.host_public, other)
    file.write_bytes((text if name == "no newline at the end" else text + "\n").encode("utf-8", "surrogateescape"))
    assert ours(knowing(host, file)) == ask_ssh(host, file)


def test_a_changed_key_is_told_with_everything(host: LoopbackHost, other: str, tmp_path: Path) -> None:
    file = tmp_path / "known_hosts"
    file.write_text(f"# one\n\n[127.0.0.1]:{host.port} {other}\n", encoding="ascii")
    with pytest.raises(HostKeyError) as caught:
        open_connection(knowing(host, file))
    wrong = parse_key(*other.split())
    assert wrong is not None
    error = caught.value
    assert error.code == "hostkey_changed"
    assert f"{file}:3" in error.message
    assert host.fingerprint in error.message
    assert wrong.fingerprint in error.message
    assert str(file) in error.remedy
    shown = subprocess.run(
        ["ssh-keygen", "-lf", host.folder / "host_key.pub"], capture_output=True, check=True, text=True
    )
    assert shown.stdout.split()[1] == host.fingerprint


def test_nothing_is_sent_to_a_host_with_a_changed_key(tmp_path: Path, other: str) -> None:
    with loopback(tmp_path) as host:
        file = tmp_path / "known"
        file.write_text(f"[127.0.0.1]:{host.port} {other}\n", encoding="ascii")
        assert ours(knowing(host, file)) == "changed"
        assert "Accepted" not in host.log.read_text("utf-8")
        assert "userauth" not in host.log.read_text("utf-8")


def test_an_unknown_key_is_refused_with_the_way_to_pin_it(host: LoopbackHost) -> None:
    with pytest.raises(HostKeyError) as caught:
        open_connection(knowing(host))
    assert caught.value.code == "hostkey_unknown"
    assert host.fingerprint in caught.value.message
    assert "jobrunner hosts add lab" in caught.value.remedy


def test_the_type_that_is_known_is_asked_for(tmp_path: Path) -> None:
    """A host with several keys, of which an RSA one is known: it has to show that one."""
    subprocess.run(["ssh-keygen", "-q", "-t", "rsa", "-N", "", "-f", tmp_path / "rsa"], check=True, capture_output=True)
    with loopback(tmp_path / "host", lines=[f"HostKey {tmp_path / 'rsa'}"]) as host:
        public = " ".join((tmp_path / "rsa.pub").read_text("ascii").split()[:2])
        file = tmp_path / "known_hosts"
        file.write_text(f"[127.0.0.1]:{host.port} {public}\n", encoding="ascii")
        assert ours(knowing(host, file)) == ask_ssh(host, file) == "ok"


def test_a_host_with_a_certificate_is_known_by_its_plain_key(tmp_path: Path) -> None:
    def keygen(*words: str) -> None:
        subprocess.run(["ssh-keygen", "-q", *words], check=True, capture_output=True)

    keygen("-t", "ed25519", "-N", "", "-f", str(tmp_path / "ca"))
    with loopback(tmp_path / "host") as host:
        keygen("-s", str(tmp_path / "ca"), "-I", "h", "-h", "-n", "127.0.0.1", str(host.folder / "host_key.pub"))
    lines = [f"HostCertificate {tmp_path / 'host' / 'host_key-cert.pub'}"]
    with loopback(tmp_path / "host", lines=lines) as host:
        authority = f"@cert-authority * {' '.join((tmp_path / 'ca.pub').read_text('ascii').split()[:2])}\n"
        file = tmp_path / "known_hosts"
        file.write_text(authority + f"[127.0.0.1]:{host.port} {host.host_public}\n", encoding="ascii")
        assert ours(knowing(host, file)) == "ok"
        file.write_text(authority, encoding="ascii")
        with pytest.raises(HostKeyError, match="certificate authority") as caught:
            open_connection(knowing(host, file))
        assert caught.value.code == "hostkey_unknown"


def test_several_files_count_together(host: LoopbackHost, other: str, tmp_path: Path) -> None:
    name = f"[127.0.0.1]:{host.port}"
    first, second = tmp_path / "first", tmp_path / "second"
    first.write_text(f"{name} {other}\n", encoding="ascii")
    second.write_text(f"{name} {host.host_public}\n", encoding="ascii")
    assert ours(knowing(host, first, second, tmp_path / "missing")) == "ok"
    assert ours(knowing(host, first)) == "changed"
    target = knowing(host, first)
    assert ours(replace(target, config=replace(target.config, global_known_hosts=(str(second),)))) == "ok"


def test_an_alias_is_looked_up_without_a_port(host: LoopbackHost, tmp_path: Path) -> None:
    file = tmp_path / "known_hosts"
    file.write_text(f"my-alias {host.host_public}\n", encoding="ascii")
    assert ours(knowing(host, file, host_key_alias="My-Alias")) == "ok"
    assert ask_ssh(host, file, "HostKeyAlias=My-Alias") == "ok"
    assert ours(knowing(host, file)) == "unknown"


@pytest.mark.parametrize("kind", ["list", "missing", "binary"])
def test_revoked_host_keys_are_refused(host: LoopbackHost, tmp_path: Path, kind: str) -> None:
    file = tmp_path / "revoked"
    if kind == "list":
        file.write_text(f"{host.host_public}\n", encoding="ascii")
    elif kind == "binary":
        subprocess.run(["ssh-keygen", "-q", "-kf", file, host.folder / "host_key.pub"], check=True, capture_output=True)
    assert ours(knowing(host, host.known_hosts, revoked_host_keys=str(file))) == "revoked"


@pytest.mark.parametrize("strict", ["accept-new", "no"])
def test_who_asks_for_trust_at_first_sight_gets_it(host: LoopbackHost, other: str, tmp_path: Path, strict: str) -> None:
    file = tmp_path / "new" / "known_hosts"
    assert ours(knowing(host, file, strict=strict)) == "ok"
    assert ours(knowing(host, file)) == "ok", "the key was pinned"
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.parent.stat().st_mode & 0o777 == 0o700
    file.write_text(f"[127.0.0.1]:{host.port} {other}\n", encoding="ascii")
    assert ours(knowing(host, file, strict=strict)) == "changed"


def test_pinning_appends_one_line_that_openssh_reads(host: LoopbackHost, other: str, tmp_path: Path) -> None:
    file = tmp_path / "known_hosts"
    file.write_text(f"example.org {other}", encoding="ascii")  # without a newline at its end
    target = knowing(host, file)
    key = scan_host_key(target)
    pin(file, target.config, key)
    pin(file, target.config, key)
    assert file.read_text("ascii") == f"example.org {other}\n[127.0.0.1]:{host.port} {host.host_public}\n"
    assert ask_ssh(host, file) == ours(target) == "ok"


def test_keys_that_are_none() -> None:
    assert parse_key("ssh-ed25519", "AAAA") is None
    assert parse_key("ssh-ed25519", "not base64!") is None
    assert parse_key("ssh-ed25519", base64.b64encode(b"\0\0\0\x0bssh-ed25519").decode()) is None
    key = HostKey("ssh-ed25519", b"\0\0\0\x0bssh-ed25519" + bytes(36))
    assert parse_key(*key.text.split()) == key


def test_an_unreadable_file_is_passed_over(host: LoopbackHost, tmp_path: Path) -> None:
    assert KnownHosts(knowing(host, tmp_path).config).entries == []
