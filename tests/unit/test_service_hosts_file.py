"""A host is added to the hosts file without a change to anything else in it, or not at all."""

from __future__ import annotations

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
