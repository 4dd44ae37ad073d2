"""`jobrunner doctor` over a real sshd: a healthy host with simulated cards, and one fault after the other."""

from __future__ import annotations

import shutil
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.hosts import ServerOf
from tests.support.lab import Client, Lab
from tests.support.quick import QuickClient

pytestmark = pytest.mark.needs_sshd


def look_at(client: Client, *names: str, code: int | None = None) -> dict[str, dict[str, dict[str, Any]]]:
    """The doctor's checks: host name to check name to check. `code` is the exit code it has to have."""
    data = client.json("doctor", *names, code=code)
    found = {}
    for host in data["hosts"]:
        assert all(list(check) == ["name", "ok", "found", "remedy"] for check in host["checks"])
        found[host["name"]] = {check["name"]: check for check in host["checks"]}
        assert len(found[host["name"]]) == len(host["checks"])
    found["errors"] = {error["code"]: error for error in data["errors"]}
    return found


@pytest.fixture
def spoiled(tmp_path: Path) -> Iterator[Lab]:
    """A host of one test, to be spoiled."""
    with Lab(tmp_path / "lab") as host:
        yield host


def test_a_host_that_is_fine_has_nothing_that_stops_a_job(client: Client) -> None:
    found = look_at(client, code=0)
    checks = found["lab"]
    assert len(checks) >= 50
    assert not found["errors"], found["errors"]
    for name in ("address", "port", "ssh", "host key", "login", "channels", "shell", "bash", "python", "python modules",
                 "agent", "tmux" if shutil.which("tmux") else "bash", "clock", "root", "root access", "noexec",
                 "inodes", "leases", "ports", "queue", "drained", "vendor tool", "cards",
                 "card health", "declared cards", "setup", "job python"):  # fmt: skip
        assert checks[name]["ok"] is True, checks[name]
    # Whether these are quick enough depends on what else this machine does.
    assert "a megabyte is safe" in checks["storage"]["found"] and "answers" in checks["tool answers"]["found"]
    assert checks["cards"]["found"].startswith("4 npu, 4 free")
    assert checks["agent"]["found"].split(";")[0].strip()
    assert found["this machine"]["hosts file"]["ok"] is True and found["this machine"]["ledger"]["ok"] is True
    text = client.run("doctor", "lab").stdout
    assert "✓ leases: the kernel keeps cards apart" in text and "\nlab\n" in text


def test_a_start_up_file_that_prints_is_named(spoiled: Lab, tmp_path: Path) -> None:
    (spoiled.folder / "home" / ".bashrc").write_text("echo Welcome to this machine\n")
    checks = look_at(QuickClient(tmp_path / "client", spoiled), code=0)["lab"]
    assert checks["shell"]["ok"] is False and "Welcome" in checks["shell"]["found"]
    assert "case $- in" in checks["shell"]["remedy"] and checks["login"]["ok"] is True


def test_a_start_up_file_that_ends_the_shell_is_told_from_a_missing_python(spoiled: Lab, tmp_path: Path) -> None:
    (spoiled.folder / "home" / ".bashrc").write_text("exit 0\n")
    checks = look_at(QuickClient(tmp_path / "client", spoiled), code=3)["lab"]
    assert checks["shell"]["ok"] is False and checks["login"]["ok"] is True and checks["python"]["ok"] is None


@pytest.mark.parametrize("launcher", ["nohup", "tmux"])
def test_a_host_without_tmux_stops_only_those_who_want_it(tmp_path: Path, launcher: str) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in ("sh", "bash", "sleep", "env", "cat", "ls"):
        path = shutil.which(name)
        assert path
        (programs / name).symlink_to(path)
    with Lab(tmp_path / "lab", env={"PATH": f"{tmp_path / 'lab' / 'bin'}:{programs}"}) as lab:
        client = QuickClient(tmp_path / "client", lab, lab={"launcher": launcher, "device": "cpu"})
        found = look_at(client, code=3 if launcher == "tmux" else 0)
    check = found["lab"]["tmux"]
    assert check["ok"] is (False if launcher == "tmux" else None) and "install tmux" in check["remedy"]
    assert ("doctor" in found["errors"]) is (launcher == "tmux")


def test_a_vendor_s_tool_that_hangs_stops_and_costs_no_more_than_its_limit(spoiled: Lab, tmp_path: Path) -> None:
    spoiled.cards(hang_s=300)
    began = time.monotonic()
    found = look_at(QuickClient(tmp_path / "client", spoiled), code=3)
    assert time.monotonic() - began < 40
    check = found["lab"]["tool answers"]
    assert check["ok"] is False and "no answer within" in check["found"] and "dmesg" in check["remedy"]
    assert found["lab"]["storage"]["ok"] is True and found["errors"]["doctor"]["remedy"]


def test_a_vendor_s_tool_without_its_libraries_is_told_from_a_hanging_one(spoiled: Lab, tmp_path: Path) -> None:
    spoiled.cards(fail="npu-smi: error while loading shared libraries: libc_sec.so: cannot open shared object file",
                  fail_code=127)  # fmt: skip
    checks = look_at(QuickClient(tmp_path / "client", spoiled), code=3)["lab"]
    assert checks["tool libraries"]["ok"] is False and "libc_sec" in checks["tool libraries"]["found"]
    assert checks["tool answers"]["ok"] is None and checks["vendor tool"]["ok"] is True


def test_a_host_without_python_ends_on_that_rung(lab: Lab, tmp_path: Path) -> None:
    client = QuickClient(tmp_path / "client", lab, lab={"python": "python-of-nobody"})
    found = look_at(client, code=3)
    checks = found["lab"]
    assert checks["python"]["ok"] is False and "hosts file" in checks["python"]["remedy"]
    assert checks["login"]["ok"] is True and checks["root"]["ok"] is None and "no_python" in found["errors"]


def test_a_root_folder_that_cannot_be_made_ends_on_that_rung(lab: Lab, tmp_path: Path) -> None:
    client = QuickClient(tmp_path / "client", lab, lab={"root": "/proc/nowhere/root"})
    checks = look_at(client, code=3)["lab"]
    assert checks["root"]["ok"] is False and checks["python"]["ok"] is True and checks["agent"]["ok"] is None


@pytest.mark.root
@pytest.mark.parametrize("options", ["noexec", "size=64k"])
def test_mounts_that_execute_nothing_or_are_full(tmp_path: Path, options: str) -> None:
    folder = tmp_path / "mount"
    folder.mkdir()
    script = tmp_path / "mount.sh"
    script.write_text(f'mount -t tmpfs -o {options} tmpfs "{folder}" && exec "$@"\n')
    with Lab(tmp_path / "lab", wrapper=["unshare", "-m", "sh", str(script)]) as lab:
        client = QuickClient(tmp_path / "client", lab, lab={"root": str(folder / "root")})
        if options == "noexec":
            check = look_at(client, code=None)["lab"]["noexec"]
            assert check["ok"] is False and "mounted noexec" in check["found"]
        else:
            check = look_at(client, code=3)["lab"]["root"]
            assert check["ok"] is False and "space" in f"{check['found']} {check['remedy']}".lower()


def test_a_changed_host_key_ends_on_that_rung(lab: Lab, tmp_path: Path) -> None:
    client = QuickClient(tmp_path / "client", lab)
    other = tmp_path / "known_hosts"
    key = "AAAAC3NzaC1lZDI1NTE5AAAAIPXMXqy+Rn0T8bjQEmwRvX2+tK5VQb5x0fWmsTGgPh5b"
    other.write_text(f"[127.0.0.1]:{lab.sshd.port} ssh-ed25519 {key}\n")
    config = client.folder / "ssh_config"
    config.write_text(config.read_text().replace(str(lab.sshd.known_hosts), str(other)))
    found = look_at(client, code=3)
    assert found["lab"]["host key"]["ok"] is False and found["lab"]["ssh"]["ok"] is True
    assert found["lab"]["login"]["ok"] is None and "hostkey_changed" in found["errors"]
    other.write_text("")
    found = look_at(client, code=3)
    assert "hostkey_unknown" in found["errors"] and "hosts add lab" in found["lab"]["host key"]["remedy"]


def test_a_key_that_is_not_taken_ends_on_that_rung(lab: Lab, tmp_path: Path) -> None:
    from jobrunner.lab.sshd import write_key_pair

    client = QuickClient(tmp_path / "client", lab)
    write_key_pair(tmp_path / "stranger", "stranger")
    config = client.folder / "ssh_config"
    config.write_text(config.read_text().replace(str(lab.sshd.user_key), str(tmp_path / "stranger")))
    checks = look_at(client, code=3)["lab"]
    assert checks["login"]["ok"] is False and checks["host key"]["ok"] is True and checks["login"]["remedy"]


def test_ports_where_nothing_or_something_else_listens(client: Client) -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    with ServerOf(lambda sock: sock.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")) as server:
        config = client.folder / "ssh_config"
        common = "  HostName 127.0.0.1\n  UserKnownHostsFile none\n"
        config.write_text(
            config.read_text() + f"Host nobody\n  Port {port}\n{common}Host web\n  Port {server.port}\n{common}"
            "Host nowhere\n  HostName nowhere.invalid\n"
        )
        found = look_at(client, "nobody", "web", "nowhere", "lab", code=0)
    assert found["nobody"]["port"]["ok"] is False and "nothing listens" in found["nobody"]["port"]["found"]
    assert found["web"]["ssh"]["ok"] is False and found["web"]["port"]["ok"] is True
    assert found["nowhere"]["address"]["ok"] is False and found["nowhere"]["port"]["ok"] is None
    assert found["lab"]["cards"]["ok"] is True  # others' faults are not its own
    assert {"refused", "not_ssh", "dns"} <= set(found["errors"])
    assert look_at(client, "nobody", code=3)["nobody"]["port"]["remedy"]


def test_a_server_with_few_channels_is_told(tmp_path: Path) -> None:
    with Lab(tmp_path / "lab", max_sessions=2) as lab:
        checks = look_at(QuickClient(tmp_path / "client", lab), code=0)["lab"]
    assert checks["channels"]["ok"] is False and checks["channels"]["found"].startswith("2 at once")
    assert "MaxSessions" in checks["channels"]["remedy"]


def test_set_up_lines_that_fail_stop_jobs(lab: Lab, tmp_path: Path) -> None:
    client = QuickClient(tmp_path / "client", lab, lab={"setup": ["source /nowhere/env.sh"]})
    checks = look_at(client, code=3)["lab"]
    assert checks["setup"]["ok"] is False and "exit code" in checks["setup"]["found"]
    assert checks["job python"]["ok"] is None


def test_the_plug_in_of_a_job_s_python_computes_on_a_card(lab: Lab, tmp_path: Path) -> None:
    """A simulated torch stands in: what counts is that a job's own set-up is used, and a card's number given."""
    site = tmp_path / "site"
    torch = (
        "import os\n"
        "class npu:\n"
        "    is_available = staticmethod(lambda: True)\n"
        "    device_count = staticmethod(lambda: 4)\n"
        "class T:\n"
        "    __add__ = lambda self, other: self\n"
        "    cpu = sum = lambda self: self\n"
        "    item = lambda self: 8.0 if os.environ['ASCEND_RT_VISIBLE_DEVICES'] == '3' else 0.0\n"
        "ones = lambda *shape, device: T()\n"
        "__version__ = '2.5.1'\n"
    )
    for name, text in (("torch", torch), ("torch_npu", "")):
        (site / name).mkdir(parents=True)
        (site / name / "__init__.py").write_text(text)
        (site / f"{name}-2.5.1.dist-info").mkdir()
    client = QuickClient(tmp_path / "client", lab, lab={"setup": [f"export PYTHONPATH={site}"], "only_cards": [3]})
    checks = look_at(client, code=0)["lab"]
    assert checks["plug-in"]["ok"] is True and "torch 2.5.1 with torch_npu sees 4 cards" in checks["plug-in"]["found"]
    assert checks["tensor"]["ok"] is True and "card 3" in checks["tensor"]["found"]
    assert checks["versions"]["ok"] is True and "torch_npu 2.5.1" in checks["versions"]["found"]


def test_what_the_hosts_file_says_of_the_cards_is_compared(lab: Lab, tmp_path: Path) -> None:
    client = QuickClient(tmp_path / "client", lab, lab={"only_cards": [2, 9]})
    check = look_at(client, code=0)["lab"]["declared cards"]
    assert check["ok"] is False and "names 9" in check["found"]


def test_cards_in_alarm_and_a_drain_are_told(lab: Lab, client: Client) -> None:
    lab.cards(cards={1: {"health": "Alarm"}})
    client.run("hosts", "drain", "lab")
    try:
        checks = look_at(client, code=0)["lab"]
        assert checks["card health"]["ok"] is False and "1 (Alarm)" in checks["card health"]["found"]
        assert checks["drained"]["ok"] is None and "undrain lab" in checks["drained"]["remedy"]
    finally:
        client.run("hosts", "undrain", "lab")
        lab.cards()


def test_hosts_are_looked_at_side_by_side(tmp_path: Path) -> None:
    """Five hosts that accept a connection and then say nothing for 3 s each, and one that is fine."""
    with Lab(tmp_path / "mlu", alias="mlu", device="mlu") as lab, ServerOf(lambda sock: None) as silent:
        client = QuickClient(tmp_path / "client", lab)
        config = client.folder / "ssh_config"
        names = [f"silent{number}" for number in range(5)]
        config.write_text(
            config.read_text() + f"Host {' '.join(names)}\n  HostName 127.0.0.1\n  Port {silent.port}\n"
            "  ConnectTimeout 3\n  UserKnownHostsFile none\n"
        )
        began = time.monotonic()
        found = look_at(client, "mlu", *names, code=0)
        took = time.monotonic() - began
    assert took < 12, f"{took:.1f} s; one after the other they take 15"
    for name in names:
        assert found[name]["ssh"]["ok"] is False and "said nothing" in found[name]["ssh"]["found"]
    assert found["mlu"]["cards"]["ok"] is True and "4 mlu" in found["mlu"]["cards"]["found"]
    assert "Neuware" in found["mlu"]["vendor set-up"]["found"]


@pytest.mark.skipif(sys.platform == "win32", reason="modes are POSIX")
def test_a_fault_of_this_machine_decides_the_exit_code(client: Client) -> None:
    secrets = client.folder / "secrets.env"
    secrets.write_text("TOKEN=do-not-show\n")
    secrets.chmod(0o640)
    done = client.run("doctor", code=2)
    assert (
        "✗ secrets file" in done.stdout
        and "chmod 600" in done.stdout
        and "do-not-show" not in done.stdout + done.stderr
    )
