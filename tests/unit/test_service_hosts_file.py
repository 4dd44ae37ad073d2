"""A host is added to the hosts file without a change to anything else in it, or not at all."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from jobrunner.core.hosts import load_hosts
from jobrunner.service.hosts import write_down
from jobrunner.service.session import open_session


@pytest.mark.parametrize(
    "text",
    [
        "",
        "# nothing yet\n",
        "hosts:\n",
        "hosts:\n  a: {device: npu}\n",
        "hosts:\n    # deep\n    a:\n        device: npu\n    b:\nssh_config: x\n",
        "ssh_config: x\n",
        "settings: {retry_for: 5s}\nhosts:\n  a:\n    tags: [x]\n",
    ],
)
def test_one_line_more(tmp_path: Path, text: str) -> None:
    file = tmp_path / "hosts.yaml"
    file.write_text(text)
    with open_session(home=tmp_path / "home", hosts_file=file) as session:
        assert write_down(session, "new", "me@10.0.0.5:2222") == str(file)
    before, after = load_hosts(text, "before"), load_hosts(file.read_text(), "after")
    assert after.get("new").address == "me@10.0.0.5:2222"
    assert {name: host for name, host in after.hosts.items() if name != "new"} == before.hosts
    assert (after.ssh_config, after.settings) == (before.ssh_config, before.settings)
    kept = [line for line in text.splitlines() if line != "hosts:"]
    assert [line for line in file.read_text().splitlines() if line in kept] == kept


@pytest.mark.parametrize("text", ['{"hosts": {"a": {}}}\n', "hosts: {a: {device: npu}}\n", "hosts:   # mine\n  a:\n"])
def test_what_is_written_otherwise_is_left_alone(tmp_path: Path, text: str) -> None:
    file = tmp_path / "hosts.yaml"
    file.write_text(text)
    with open_session(home=tmp_path / "home", hosts_file=file) as session:
        assert write_down(session, "new", None) is None
        assert "new:" in session.warnings[0]
    assert file.read_text() == text


def test_a_file_that_only_its_owner_reads_stays_so_and_a_link_stays_a_link(tmp_path: Path) -> None:
    real, file = tmp_path / "real.yaml", tmp_path / "hosts.yaml"
    real.write_text("hosts:\n  a: {env: {TOKEN: x}}\n")
    real.chmod(0o600)
    file.symlink_to(real.name)
    with open_session(home=tmp_path / "home", hosts_file=file) as session:
        assert write_down(session, "new", None) == str(file)
    assert file.is_symlink() and "new:" in real.read_text()
    assert real.stat().st_mode & 0o777 == 0o600
    assert {path.name for path in tmp_path.iterdir()} <= {"real.yaml", "hosts.yaml", "home"}


def test_hosts_that_are_added_at_once_are_all_there(tmp_path: Path) -> None:
    file, names = tmp_path / "hosts.yaml", [f"host-{number}" for number in range(8)]
    ready = threading.Barrier(len(names))

    def add(name: str) -> None:
        with open_session(home=tmp_path / "home", hosts_file=file) as session:
            assert name not in session.written_hosts  # all have read the file before one writes to it
            ready.wait()
            write_down(session, name, None)

    threads = [threading.Thread(target=add, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(load_hosts(file.read_text(), "after").hosts) == names


def test_a_file_that_cannot_be_written_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "hosts.yaml"
    file.write_text("hosts:\n")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "open", full)
    with open_session(home=tmp_path / "home", hosts_file=file) as session:
        assert write_down(session, "new", None) is None
    assert "add `new:`" in session.warnings[0] and "No space left" in session.warnings[0]
    assert file.read_text() == "hosts:\n"
