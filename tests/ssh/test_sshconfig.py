"""SSH configuration: our own reader gives what `ssh -G` gives, and refuses what it cannot know."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from jobrunner.core.errors import HostError, UsageError
from jobrunner.transport.sshconfig import HostConfig, home_folder, parse_address, resolve
from jobrunner.transport.sshconfig_reader import matches_list, words_of

SNIPPETS: dict[str, str] = {
    "nothing": "",
    "plain": "Host foo\n HostName 10.0.0.5\n User ml\n Port 2222\n",
    "first wins": "Host foo\n Port 1\n Port 2\nHost *\n Port 3\n User u\n",
    "other host": "Host bar\n User nobody\nHost *\n User u\n",
    "patterns": "Host f?o b*\n Port 5\nHost *o\n User u\n",
    "negation": "Host * !foo\n Port 5\nHost *\n User u\n",
    "negation that misses": "Host * !bar\n Port 5\n",
    "negation alone": "Host !bar\n Port 5\n",
    "case of the host": "Host FOO\n Port 5\n",
    "case of keywords": "hOsT foo\n PORT 5\n usER u\n",
    "equals": "Host=foo\nPort=5\nUser = u\nHostName =h\n",
    "quotes": 'Host "foo"\n User "a b"\n IdentityFile "/tmp/a b"\n',
    "single quotes": "Host foo\n IdentityFile '/tmp/it is'\n",
    "comments": "# one\nHost foo # two\n  # three\n Port 5 # four\n",
    "crlf": "Host foo\r\n Port 5\r\n User u\r\n",
    "tabs": "Host\tfoo\n\tPort\t5\n",
    "bad bytes in a comment": "# \udcc4\udce3\udcba\udcc3\nHost foo\n Port 5\n",
    "before any host": "Port 5\nHost foo\n Port 6\n",
    "identity files": "Host foo\n IdentityFile ~/.ssh/a\n IdentityFile ~/.ssh/b\nHost *\n IdentityFile ~/.ssh/c\n",
    "identity files twice": "IdentityFile ~/.ssh/a\nIdentityFile ~/.ssh/a\n",
    "identity none": "IdentityFile none\n",
    "identity tokens": "IdentityFile ~/.ssh/%h_%r_%p_%n_%u_%%\nHost foo\n User u\n",
    "identities only": "IdentitiesOnly yes\nIdentityAgent none\n",
    "agent path": "IdentityAgent ~/agent.sock\n",
    "agent variable": "IdentityAgent SSH_AUTH_SOCK\n",
    "certificate": "CertificateFile ~/.ssh/c\nCertificateFile /tmp/d\n",
    "jump": "Host foo\n ProxyJump a@b:22,c\n",
    "jump none": "Host foo\n ProxyJump none\nHost *\n ProxyJump jump\n",
    "jump then command": "ProxyJump a\nProxyCommand nc %h %p\n",
    "command then jump": "ProxyCommand nc %h %p\nProxyJump a\n",
    "command none": "ProxyCommand none\nProxyJump a\n",
    "command with quotes": "ProxyCommand sh -c 'nc \"%h\" %p' # not a comment\n",
    "known hosts": "UserKnownHostsFile ~/kh /tmp/kh2\nGlobalKnownHostsFile /dev/null\n",
    "known hosts none": "UserKnownHostsFile none\n",
    "key alias": "HostKeyAlias other\nStrictHostKeyChecking accept-new\n",
    "strict off": "StrictHostKeyChecking off\n",
    "strict no": "StrictHostKeyChecking no\n",
    "strict yes": "StrictHostKeyChecking yes\n",
    "timeouts": "ConnectTimeout 1m30\n",
    "timeout plain": "ConnectTimeout 7\n",
    "host name tokens": "Host foo\n HostName %h.example.com\n",
    "host name in capitals": "HostName Example.COM\n",
    "family": "AddressFamily inet\n",
    "match all": "Match all\n Port 5\n",
    "match host": "Match host foo,bar\n Port 5\nMatch host bar\n User u\n",
    "match host sees the name": "Host foo\n HostName h.example\nMatch host *.example\n Port 5\n",
    "match originalhost": "Host foo\n HostName h.example\nMatch originalhost foo\n Port 5\n",
    "match user": "User u\nMatch user u\n Port 5\nMatch user v\n Port 6\n",
    "match user too early": "Match user u\n Port 5\nHost *\n User u\n",
    "match not": "Match !host foo\n Port 5\nMatch host foo !user nobody\n User u\n",
    "match with equals": "Match host=foo\n Port 5\n",
    "match localuser": "Match localuser nobody-here\n Port 5\n",
    "match two": "User u\nMatch host foo user v\n Port 5\nMatch host foo user u\n Port 6\n",
    "match negated list": "Match host *,!foo\n Port 5\n",
    "include": "Include {dir}/one.conf\nPort 9\n",
    "include pattern": "Include {dir}/*.conf\n",
    "include several": "Include {dir}/two.conf {dir}/one.conf\n",
    "include missing": "Include {dir}/none.conf\nPort 9\n",
    "include in a block": "Host bar\n Include {dir}/one.conf\nHost foo\n Include {dir}/two.conf\n",
    "include in a block, with blocks": "Host foo\n Include {dir}/blocks.conf\n User late\n",
    "include in another's block, with blocks": "Host bar\n Include {dir}/blocks.conf\nHost *\n User late\n",
    "include, then go on": "Host foo\n Include {dir}/blocks.conf\n Port 77\n",
    "unrelated options": "Host foo\n ForwardAgent yes\n SendEnv LANG LC_*\n LocalForward 1 b:2\n Port 5\n",
}
CONFS = {
    "one.conf": "User one\nPort 1\n",
    "two.conf": "User two\nPort 2\n",
    "blocks.conf": "Host bar\n User bar\nHost foo\n User foo\n",
}
needs_ssh = pytest.mark.skipif(shutil.which("ssh") is None, reason="NOT TESTED HERE: there is no ssh to compare with")


def both(tmp_path: Path, text: str, alias: str = "foo", address: str | None = None) -> tuple[HostConfig, HostConfig]:
    for name, lines in CONFS.items():
        (tmp_path / name).write_text(lines, encoding="ascii")
    file = tmp_path / "config"
    file.write_bytes(text.replace("{dir}", str(tmp_path)).encode("utf-8", "surrogateescape"))
    theirs = resolve(alias, ssh_config=file, address=address)
    return theirs, resolve(alias, ssh_config=file, address=address, ssh="")


@needs_ssh
@pytest.mark.parametrize("name", list(SNIPPETS))
def test_the_own_reader_agrees_with_openssh(tmp_path: Path, name: str) -> None:
    theirs, own = both(tmp_path, SNIPPETS[name])
    assert own == theirs


@needs_ssh
@pytest.mark.parametrize("address", ["ml@foo:2200", "foo:2200", "ml@foo", "10.0.0.5", "ml@[::1]:22", "fe80::1"])
def test_an_address_overrides(tmp_path: Path, address: str) -> None:
    text = "Host foo 10.0.0.*\n User u\n Port 5\n IdentityFile /tmp/k\n ProxyJump j\nHost alias\n User wrong\n"
    theirs, own = both(tmp_path, text, "alias", address)
    wanted = parse_address(address)
    assert own == theirs
    assert theirs.alias == "alias"
    assert theirs.hostname == wanted.host
    if wanted.user:
        assert theirs.user == wanted.user
    if wanted.port:
        assert theirs.port == wanted.port
    if "::" not in address:
        assert theirs.identity_files == ("/tmp/k",)
        assert theirs.proxy_jump == "j"


REFUSED: Mapping[str, str] = {
    "Match exec true\n User x\n": "Match exec",
    "Match localnetwork 10.0.0.0/8\n User x\n": "Match localnetwork",
    "Match tagged x\n User x\n": "Match tagged",
    "Match final\n User x\n": "Match final",
    "Match canonical all\n User x\n": "Match canonical",
    "Host foo\n\nMatch host foo exec true\n": "Match exec",
    "CanonicalizeHostname yes\n": "CanonicalizeHostname",
    "Port none\n": "not a port",
    "User\n": "has no value",
}


@pytest.mark.parametrize("text", list(REFUSED))
def test_what_the_own_reader_cannot_know_is_refused_by_line(tmp_path: Path, text: str) -> None:
    file = tmp_path / "config"
    file.write_text(text, encoding="ascii")
    with pytest.raises(HostError) as caught:
        resolve("foo", ssh_config=file, ssh="")
    assert caught.value.code == "ssh_config"
    assert REFUSED[text] in caught.value.message
    line = next(
        number
        for number, row in enumerate(text.splitlines(), 1)
        if REFUSED[text].split()[0][:5] in row or len(text.splitlines()) == 1
    )
    assert f"{file}:{line}:" in caught.value.message


@pytest.mark.parametrize(
    "text",
    [
        "Match host bar exec true\n User x\n",
        "Match host bar tagged x\n User x\n",
        "Host bar\n CanonicalizeHostname yes\nHost *\n Port 5\n",
        "CanonicalizeHostname no\n",
        "Host bar\n Port none\n",
    ],
)
def test_what_has_no_bearing_on_the_host_is_passed_over(tmp_path: Path, text: str) -> None:
    file = tmp_path / "config"
    file.write_text(text, encoding="ascii")
    assert resolve("foo", ssh_config=file, ssh="").user != "x"


@needs_ssh
def test_what_ssh_cannot_read_is_told_in_its_words(tmp_path: Path) -> None:
    file = tmp_path / "config"
    file.write_text("Host foo\n Bogus yes\n", encoding="ascii")
    with pytest.raises(HostError) as caught:
        resolve("foo", ssh_config=file)
    assert caught.value.code == "ssh_config"
    assert "line 2" in caught.value.message
    assert "bogus" in caught.value.message.lower()


def test_a_missing_file_and_a_hanging_ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(HostError, match="does not exist"):
        resolve("foo", ssh_config=tmp_path / "none")
    slow = tmp_path / "ssh"
    slow.write_text("#!/bin/sh\nexec sleep 30\n", encoding="ascii")
    slow.chmod(0o755)
    monkeypatch.setattr("jobrunner.transport.sshconfig.ASK_LIMIT", 0.2)
    with pytest.raises(HostError, match="did not answer"):
        resolve("foo", ssh=str(slow))


def test_an_include_that_includes_itself_ends(tmp_path: Path) -> None:
    file = tmp_path / "config"
    file.write_text(f"Include {file}\n", encoding="ascii")
    with pytest.raises(HostError, match="levels of Include"):
        resolve("foo", ssh_config=file, ssh="")


@pytest.mark.parametrize(
    "text", ["-oProxyCommand=x", "a b", "host;id", "$(id)", "a@b@c", "h:0", "h:99999", "h:x", "", "u@", "a\nb"]
)
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(UsageError):
        parse_address(text)


def test_tokens_and_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEYS", "/keys")
    monkeypatch.setenv("SSH_AUTH_SOCK", "/run/agent")
    file = tmp_path / "config"
    file.write_text(
        "Host foo\n HostName h.example\n User ml\n Port 2200\n IdentityFile ~/.ssh/%h-%r-%p-%n\n"
        " IdentityFile ${KEYS}/%u\n IdentityFile %d/x%%y\n ProxyCommand nc -x p %h %p %r\n",
        encoding="ascii",
    )
    for ssh in (None, ""):
        config = resolve("foo", ssh_config=file, ssh=ssh)
        home = home_folder()
        assert config.identity_files[0] == f"{home}/.ssh/h.example-ml-2200-foo"
        assert config.identity_files[1].startswith("/keys/")
        assert config.identity_files[2] == f"{home}/x%y"
        assert config.proxy_command == "nc -x p h.example 2200 ml"
        assert config.identity_agent == "/run/agent"
        assert config.identities_explicit
        assert config.lookup_name == "[h.example]:2200"
        assert replace(config, port=22).lookup_name == "h.example"


def test_defaults_are_not_taken_for_named_keys(tmp_path: Path) -> None:
    file = tmp_path / "config"
    file.write_text("", encoding="ascii")
    for ssh in (None, ""):
        config = resolve("foo", ssh_config=file, ssh=ssh)
        assert not config.identities_explicit
        assert os.path.join(home_folder(), ".ssh", "id_ed25519") in config.identity_files


def test_words_and_patterns() -> None:
    assert words_of(' Host "a b" c\\ d # e') == ["Host", "a b", "c d"]
    assert words_of("Port=5") == words_of("Port = 5") == ["Port", "5"]
    assert words_of("   ") == words_of("# x") == []
    assert matches_list("abc", ["a*", "!abd"])
    assert not matches_list("abc", ["a*", "!a?c"])
    assert not matches_list("a.c", ["abc"])
