"""Whatever is wrong with what connecting ahead goes by: a command ends as it does without it, and leaves nothing."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from jobrunner.lab.sshd import write_key_pair
from tests.support.hosts import end_shared
from tests.support.lab import Client, Lab
from tests.support.relay import relayed
from tests.support.waiting import eventually

pytestmark = pytest.mark.needs_sshd
PROGRAM = "import sys; from jobrunner.cli import program; sys.argv[0] = 'jobrunner'; program()"
ALONE = f"import jobrunner.service.ahead as ahead; ahead.begin = lambda *_: None; {PROGRAM}"


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with Lab(tmp_path_factory.mktemp("lab")) as host:
        yield host


@pytest.fixture(params=["fabric", "openssh"])
def client(request: pytest.FixtureRequest, lab: Lab, tmp_path: Path) -> Iterator[Client]:
    """A client that knows a job which is not over, and how its host was reached."""
    client = Client(tmp_path / "client", lab, lab={"transport": request.param})
    client.settings(retry_for="1s", connect_timeout="3s")
    id_ = client.submit("device: cpu\ncommand: [sleep, '600']\ngrace: 0s\n", "job")
    yield client
    end_shared(client.folder / "state" / "ssh")
    client.run("cancel", id_)
    end_shared(client.folder / "state" / "ssh")


def start(client: Client, code: str, *words: str) -> subprocess.Popen[bytes]:
    """The program over a connection of its own; every process of it carries the client's folder as `MARK`."""
    end_shared(client.folder / "state" / "ssh")
    env = {**client.env, "MARK": str(client.folder)}
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, "-c", code, *words], env=env, cwd=client.folder,
                            stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, start_new_session=True)  # fmt: skip


def outcome(client: Client, code: str, *words: str) -> tuple[int, str, str]:
    process = start(client, code, *words)
    try:
        out, err = process.communicate(timeout=20)
    finally:
        process.kill()
    times = re.compile(r"just now|\d+ s( ago)?| +(?=\n)| {2,}")
    return process.returncode, times.sub(" ", out.decode()), err.decode()


def running(client: Client) -> list[str]:
    """Processes that the commands of a client have left."""
    found, mark = [], f"MARK={client.folder}".encode()
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and mark in (folder / "environ").read_bytes().split(b"\0"):
                found.append((folder / "cmdline").read_bytes().decode())
        except OSError:
            continue
    return found


def hinted(client: Client, **values: Any) -> None:
    """Other values in what is remembered of the way to the host, and of a shared connection to it."""
    file = client.folder / "state" / "cache" / "ahead.json"
    hints = json.loads(file.read_text())
    for where in hints.values():
        for target in where["targets"].values() if isinstance(where, dict) else ():
            target.update({name: value for name, value in values.items() if name in target})
            if target["shared"]:
                target["shared"].update({name: value for name, value in values.items() if name in target["shared"]})
    file.write_text(json.dumps(hints))


def replaced(client: Client, name: str, by: Callable[[Path], object]) -> None:
    path = client.folder / "state" / name
    path.unlink()
    by(path)


def other_key(client: Client, lab: Lab, **hints: Any) -> None:
    """The host is known by another key from now on."""
    known = client.folder / "known"
    if not known.exists():
        known.write_text(f"[127.0.0.1]:{lab.sshd.port} {write_key_pair(client.folder / 'other', 'other')}\n")
    config = client.folder / "ssh_config"
    config.write_text(config.read_text().replace(str(lab.sshd.known_hosts), str(known)))
    hinted(client, **hints)


FAULTS: dict[str, tuple[int, Callable[[Client, Lab], object]]] = {
    "limits that are none": (0, lambda c, _: hinted(c, connect_s=float("nan"), limit=float("inf"))),
    "limits that are too tight": (0, lambda c, _: hinted(c, connect_s=1e-6, request_s=1e-6)),
    "another program": (0, lambda c, _: hinted(c, python=f"touch {c.folder}/lie", root="/nonexistent")),
    "an option for an address": (0, lambda c, _: hinted(c, address=f"-oProxyCommand=touch {c.folder}/lie")),
    "a socket elsewhere": (0, lambda c, _: hinted(c, digest=f"../../../../../..{c.folder}/lie")),
    "hints that are a pipe": (0, lambda c, _: replaced(c, "cache/ahead.json", os.mkfifo)),
    "a ledger that is none": (4, lambda c, _: replaced(c, "ledger.db", lambda path: path.write_bytes(b"x" * 5000))),
    "a ledger that is a folder": (4, lambda c, _: replaced(c, "ledger.db", os.mkdir)),
    "another key": (3, lambda c, lab: other_key(c, lab)),
    "another key, and hints that take any": (3, lambda c, lab: other_key(c, lab, strict="no")),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_command_ends_as_it_does_without(client: Client, lab: Lab, fault: str) -> None:
    code, spoil = FAULTS[fault]
    kept = [client.folder / name for name in ("state/ledger.db", "state/cache/ahead.json", "ssh_config")]
    good = {path: path.read_bytes() for path in kept}
    told = []
    for program in (PROGRAM, ALONE):
        spoil(client, lab)
        told.append(outcome(client, program, "ls"))
        restore(good)
    assert told[0] == told[1] and told[0][0] == code and told[0][2].count("error:") == (code != 0), told
    assert not (client.folder / "lie").exists()


def restore(files: dict[Path, bytes]) -> None:
    """Write files anew, whatever is in their place or beside them."""
    for path, data in files.items():
        for old in path.parent.glob(f"{path.name}*"):
            old.rmdir() if old.is_dir() else old.unlink()
        path.write_bytes(data)


@pytest.mark.parametrize("code", [PROGRAM, ALONE], ids=["ahead", "alone"])
def test_an_interrupt_while_connecting_leaves_no_process(client: Client, lab: Lab, code: str) -> None:
    with relayed(client, lab) as relay:
        relay.stalled = True
        process = start(client, code, "ls")
        eventually(lambda: relay.open, 10, "the connection")
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=10)
        assert process.returncode == 130
        eventually(lambda: not running(client), 2, f"the end of {running(client)}")
    config = client.folder / "ssh_config"
    config.write_text(lab.sshd.ssh_config.read_text())
