"""Login shells: each of them starts the agent, noisy or not; those that cannot are named within the limit."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobrunner.core.errors import HostSetupError
from jobrunner.lab.sshd import LoopbackHost
from jobrunner.transport.link import HostLink
from jobrunner.transport.sshconfig import resolve
from tests.support.hosts import loopback, private_etc, target_of, test_agent

pytestmark = pytest.mark.needs_sshd

SHELLS = {name: path for name in ("bash", "dash", "zsh", "tcsh", "fish") if (path := shutil.which(name))}
HOSTILE = "a 'b' \"c\" $(touch /tmp/jobrunner-injected) `id` !! \\ \n %s {x} ~ 中文"


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoopbackHost]:
    """One host with an account for each shell, whose home is named for it."""
    folder = tmp_path_factory.mktemp("shells")
    accounts = [(f"u{name}", path, folder / f"home {name}") for name, path in SHELLS.items()]
    accounts.append(("unologin", "/usr/sbin/nologin", folder / "home nologin"))
    for _, _, home in accounts:
        home.mkdir()
    with LoopbackHost(folder, "many", wrapper=private_etc(folder, accounts)) as running:
        yield running


def link_as(host: LoopbackHost, user: str) -> HostLink:
    from dataclasses import replace

    target = target_of(host)
    config = resolve(host.alias, ssh_config=host.ssh_config, address=f"{user}@{host.alias}")
    return HostLink(replace(target, config=config), image=test_agent())


@pytest.mark.root
@pytest.mark.parametrize("shell", ["bash", "dash", "zsh", "tcsh", "fish"])
def test_every_login_shell_starts_the_agent(many: LoopbackHost, shell: str) -> None:
    assert shell in SHELLS, f"{shell} is not installed"
    with link_as(many, f"u{shell}") as link:
        assert link.request("echo", value=HOSTILE)["value"] == HOSTILE
        assert link.notes == []
    with link_as(many, f"u{shell}") as link, link.stream("both", pieces=2) as stream:
        assert [kind for kind, _ in stream] == [b"B", b"B", b"J"]
    assert not Path("/tmp/jobrunner-injected").exists()


@pytest.mark.root
def test_an_account_without_a_shell_is_named(many: LoopbackHost) -> None:
    with link_as(many, "unologin") as link, pytest.raises(HostSetupError, match="no usable shell") as caught:
        link.request("echo")
    assert caught.value.code == "nologin"


NOISE = {
    "bash": (".bashrc", "echo Welcome\nprintf '\\033[31mred'\necho oops >&2\ncd /\nset -e\n"),
    "zsh": (".zshenv", "echo Welcome\ncd /\n"),
    "tcsh": (".cshrc", "echo Welcome\ncd /\n"),
    "fish": (".config/fish/config.fish", "echo Welcome\ncd /\n"),
}


@pytest.mark.root
@pytest.mark.parametrize("shell", list(NOISE))
def test_a_noisy_start_up_file_changes_no_answer(many: LoopbackHost, shell: str) -> None:
    name, text = NOISE[shell]
    file = many.folder / f"home {shell}" / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    try:
        with link_as(many, f"u{shell}") as link:
            assert link.request("echo", value=HOSTILE)["value"] == HOSTILE
            with link.stream("both", pieces=1) as stream:
                assert [kind for kind, _ in stream] == [b"B", b"J"]
            assert len(link.notes) == 1, "one warning, however many channels"
            assert "Welcome" in link.notes[0]
            assert Path(name).name.split(".")[-1][:6] in link.notes[0]
            assert "\033" not in link.notes[0]
    finally:
        file.unlink()


def test_much_noise_is_passed_over(tmp_path: Path) -> None:
    with loopback(tmp_path) as host:
        (tmp_path / "home" / ".bashrc").write_text("seq 1 400000\n", encoding="utf-8")
        with HostLink(target_of(host), image=test_agent()) as link:
            assert link.request("echo", value=1)["value"] == 1
            assert len(link.notes[0]) < 400


@pytest.mark.slow
def test_a_slow_start_up_file_is_waited_for(tmp_path: Path) -> None:
    with loopback(tmp_path) as host:
        (tmp_path / "home" / ".bashrc").write_text("sleep 5\n", encoding="utf-8")
        with HostLink(target_of(host), image=test_agent()) as link:
            assert link.request("echo", value=1)["value"] == 1


@pytest.mark.parametrize(
    ("line", "code", "words"),
    [
        ("exit 0", "shell_exits", "calls `exit`"),
        ("exit 3", "shell_exits", "exit code 3"),
        ("echo bye; exit 1", "nologin", "bye"),
        ("exec zsh", "shell_exits", "replaces the shell"),
        ("exec bash --norc", "shell_exits", "replaces the shell"),
        ("read answer", "shell_exits", "interactive shells"),
    ],
)
def test_a_start_up_file_that_takes_the_shell_away(tmp_path: Path, line: str, code: str, words: str) -> None:
    with loopback(tmp_path) as host:
        (tmp_path / "home" / ".bashrc").write_text(line + "\n", encoding="utf-8")
        began = time.monotonic()
        with (
            HostLink(target_of(host, request_s=2.0), image=test_agent()) as link,
            pytest.raises(HostSetupError) as caught,
        ):
            link.request("echo", value="$(touch /tmp/jobrunner-injected)")
    assert caught.value.code == code
    assert words in caught.value.message + caught.value.remedy
    assert time.monotonic() - began < 10
    assert not Path("/tmp/jobrunner-injected").exists()


def test_no_python_and_old_python_are_named(host: LoopbackHost) -> None:
    with HostLink(target_of(host, python="python9"), image=test_agent()) as link, pytest.raises(HostSetupError) as none:
        link.request("echo")
    assert none.value.code == "no_python"
    assert "python9" in none.value.message
    fake = host.folder / "home" / "python2"
    fake.write_text("#!/bin/sh\nfor fence; do :; done\nprintf '\\n%s\\nV 2.7\\n' \"$fence\"\n", encoding="utf-8")
    fake.chmod(0o755)
    with (
        HostLink(target_of(host, python="~/python2"), image=test_agent()) as link,
        pytest.raises(HostSetupError) as old,
    ):
        link.request("echo")
    assert old.value.code == "old_python"
    assert "Python 2.7" in old.value.message


def test_a_root_that_cannot_be_used_is_named(host: LoopbackHost) -> None:
    (host.folder / "home" / "file").write_text("", encoding="utf-8")
    with (
        HostLink(target_of(host, root="~/file/root"), image=test_agent()) as link,
        pytest.raises(HostSetupError) as caught,
    ):
        link.request("echo")
    assert caught.value.code == "root_not_writable"
    assert "~/file/root" in caught.value.message


@pytest.mark.root
def test_a_full_file_system_is_named(tmp_path: Path) -> None:
    wrapper = tmp_path / "full.sh"
    full = tmp_path / "home" / "full"
    full.mkdir(parents=True)
    wrapper.write_text(f'mount -t tmpfs -o size=16k none "{full}" && exec "$@"\n', encoding="utf-8")
    with (
        loopback(tmp_path, wrapper=["unshare", "-m", "sh", str(wrapper)]) as host,
        HostLink(target_of(host, root=str(full / "root")), image=test_agent("x" * 30000)) as link,
        pytest.raises(HostSetupError) as caught,
    ):
        link.request("echo")
    assert caught.value.code == "no_space"
    assert str(full) in caught.value.message


@pytest.mark.parametrize("root", ["~/a b/ü'\"$x", "~/plain", "~"])
def test_any_root_arrives(host: LoopbackHost, root: str) -> None:
    with HostLink(target_of(host, root=root), image=test_agent()) as link:
        assert link.request("echo")["root"] == (root.rpartition("/")[2] if root != "~" else "home")
