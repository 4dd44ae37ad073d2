"""The hosts file."""

import importlib.util
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobrunner.core.errors import SpecError, UsageError
from jobrunner.core.hosts import load_hosts
from jobrunner.core.inventory import Address, Inventory, parse_address

_spec = importlib.util.spec_from_file_location("core_samples", Path(__file__).with_name("core_samples.py"))
samples = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(samples)


@pytest.mark.parametrize("word", ["", "--wait", "a b", "a/b", "a,b", "\x1b", "a\nb", "-"])
def test_a_word_that_no_host_can_be_called_by(word):
    with pytest.raises(UsageError, match="cannot be a host's name") as caught:
        Inventory().get(word)
    assert repr(word) in caught.value.message


def test_a_file_with_every_key():
    hosts = load_hosts(samples.HOSTS, "hosts.yaml")
    host = hosts.get("npu-a")
    assert (host.name, host.where) == ("npu-a", Address("10.0.0.5", "ml", 2222))
    assert host.env == {"HCCL_IF_IP": "10.0.0.5", "DEBUG": "007"}
    assert host.limits() == {"only_cards": [0, 1, 2, 3], "max_cards": 4, "cpu_jobs": 8, "cards": 8, "on_reboot": "none"}
    assert (hosts.ssh_config, hosts.settings.connect_timeout.seconds) == ("~/.ssh/cluster", 5)
    assert (hosts.settings.request_timeout.seconds, hosts.settings.retry_for.seconds) == (60, 90)


def test_a_host_without_anything_and_one_that_only_ssh_knows():
    hosts = load_hosts(samples.HOSTS, "hosts.yaml")
    for name in ("plain", "elsewhere"):
        host = hosts.get(name)
        assert (host.name, str(host.where), host.root, host.python) == (name, name, "~/.jobrunner", "python3")
        assert (host.launcher, host.on_reboot, host.device, host.tags) == ("nohup", "none", None, ())


@pytest.mark.parametrize("text", ["", "# nothing\n", "hosts:\n", "hosts: {}\n"])
def test_a_file_without_hosts(text):
    hosts = load_hosts(text, "f")
    assert hosts == Inventory()
    assert (hosts.settings.connect_timeout.seconds, hosts.settings.request_timeout.seconds) == (10, 20)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("hosts: {a: {adress: x}}", [(13, "'adress' is not known in hosts.a", "address")]),
        ("hosts: {a: {name: b}}", [(13, "'name' is not known", "")]),
        ("hosts: {-b: {}}", [(9, "cannot be a host's name", "")]),
        ("hosts: {a b: {}}", [(9, "cannot be a host's name", "")]),
        ("hosts: [a]", [(8, "a mapping", "")]),
        ("hosts: {a: x}", [(12, "a mapping", "")]),
        ("host: {a: }", [(1, "'host' is not known", "hosts")]),
        ("hosts: {a: {cards: 8}}", [(13, "needs `device`", "")]),
        ("hosts: {a: {device: npu, cards: 2, only_cards: [1, 2]}}", [(52, "no card 2", "")]),
        ("hosts: {a: {only_cards: [1, 1]}}", [(29, "twice", "")]),
        ("hosts: {a: {only_cards: []}}", [(25, "names no card; remove the key", "")]),
        ("hosts: {a: {max_cards: 0, cpu_jobs: 0}}", [(24, "at least 1", ""), (37, "at least 1", "")]),
        ("hosts: {a: {address: 'u@h:99999'}}", [(22, "port", "")]),
        ("hosts: {a: {address: '-oProxyCommand=x'}}", [(22, "no address", "")]),
        ("hosts: {a: {root: x}}", [(19, "/ or ~/", "")]),
        ("hosts: {a: {transport: openssh}, b: {transport: fabrik}}", [(49, "fabric, openssh or auto", "fabric")]),
        ("hosts: {a: {env: {A: null, 1: x}}}", [(22, "null", ""), (28, "digit", "")]),
        ("hosts: {a: {on_reboot: cron}}", [(24, "none or crontab", "crontab")]),
        ("hosts: {a: {device: nvidia}}", [(21, "npu, mlu, gpu, musa or cpu", "gpu")]),
        ("settings: {connect_timeout: 10}", [(29, "length of time", "10s")]),
        ("[1]", [(1, "mapping", "")]),
        ("hosts: {a: , a: }", [(14, "second time", "")]),
    ],
)  # fmt: skip
def test_a_bad_file_is_refused_with_every_place(text, wanted):
    with pytest.raises(SpecError) as caught:
        load_hosts(text, "hosts.yaml")
    problems = caught.value.problems
    assert [(p.line, p.column, p.suggestion) for p in problems] == [(1, column, near) for column, _, near in wanted]
    assert all(piece in p.message for p, (_, piece, _) in zip(problems, wanted, strict=True)), problems


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("h", Address("h")),
        ("h:22", Address("h", None, 22)),
        ("ml@10.0.0.5:2222", Address("10.0.0.5", "ml", 2222)),
        ("[::1]:22", Address("::1", None, 22)),
        ("u@[fe80::1%eth0]:22", Address("fe80::1%eth0", "u", 22)),
        ("[::1]", Address("::1")),
        ("2001:db8::1", Address("2001:db8::1")),
        ("u@2001:db8::1", Address("2001:db8::1", "u")),
    ],
)
def test_addresses(text, address):
    assert parse_address(text) == address
    assert parse_address(str(address)) == address


@pytest.mark.parametrize(
    "text", ["", "@h", "h:", "h:x", "h:0", "h:65536", "[::1", "a b", "-h", "u@-h", "[x]:22", "h/x", "a@b@c", "h\n"]
)
def test_what_is_no_address(text):
    with pytest.raises(ValueError):
        parse_address(text)


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=20))
def test_any_text_is_an_address_or_refused(text):
    try:
        found = parse_address(text)
    except ValueError:
        return
    assert found.host and not found.host.startswith("-") and parse_address(str(found)) == found
