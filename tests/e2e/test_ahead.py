"""A submit that begins to connect before it has read anything: a hint, never a decision."""

from __future__ import annotations

import json
import subprocess
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from jobrunner.core.errors import HostError, UsageError
from jobrunner.service import ahead, hints, session
from jobrunner.transport.link import HostLink
from jobrunner.transport.settings import HostTarget
from tests.support.lab import Client, Lab
from tests.support.quick import QuickClient

pytestmark = pytest.mark.needs_sshd
SPEC = "device: cpu\ncommand: 'true'\n"


class Person(QuickClient):
    """Submits are programs of their own, since it is those that go ahead; everything else runs within the test."""

    def run(self, *words: str, code: int | None = 0, limit: float = 60.0) -> subprocess.CompletedProcess[str]:
        how = Client.run if "submit" in words else QuickClient.run
        return how(self, *words, code=code, limit=limit)


@pytest.fixture
def client(lab: Lab, tmp_path: Path) -> Person:
    QuickClient(tmp_path / "client", lab).submit(SPEC, "again")
    return Person(tmp_path / "client", lab)


def remembered(client: Client) -> dict[str, object]:
    return dict(json.loads((client.folder / "state" / "cache" / "ahead.json").read_text()))


def logins(lab: Lab) -> int:
    """Connections that sshd has let in so far."""
    return lab.sshd.log.read_text().count("Accepted publickey")


def test_the_second_submit_goes_ahead_over_one_connection(lab: Lab, client: Client) -> None:
    before = logins(lab)
    id_ = client.submit(SPEC, "again")
    assert logins(lab) == before + 1
    client.until(id_, "COMPLETED")


def test_a_sweep_goes_ahead_to_all_hosts_that_took_their_share(tmp_path: Path) -> None:
    with Lab(tmp_path / "one", alias="one") as one, Lab(tmp_path / "two", alias="two") as two:
        client = Person(tmp_path / "client", one, two)
        path = client.spec(f"{SPEC}sweep: {{parameters: {{n: [1, 2, 3, 4]}}}}\n", "swept")
        QuickClient.run(client, "submit", str(path))
        ways = hints.ways(client.folder / "state", Path(client.env["JOBRUNNER_HOSTS"]), client.env)
        assert sorted(ways["specs"][str(path)]) == ["one", "two"]
        asked = ahead._asked(["submit", str(path)])
        assert asked is not None and sorted(ahead._aliases(asked, ways, client.folder)) == ["one", "two"]
        before = [logins(lab) for lab in (one, two)]
        told = json.loads(client.run("submit", str(path), "--json", "--timings").stdout)
        assert min(told["timings"][phase] for phase in ("ledger", "request", "host work")) > 0
        assert [logins(lab) for lab in (one, two)] == [count + 1 for count in before]
        client.run("wait", *(job["id"] for job in told["data"]["jobs"]))


def test_timings_name_every_phase(client: Client) -> None:
    done = client.run("submit", str(client.spec(SPEC, "again")), "--json", "--timings")
    told = json.loads(done.stdout)["timings"]
    phases = ["import", "spec", "code", "connect", "authenticate", "request", "host work", "ledger", "total"]
    assert [name for name in told if name != "transfer"] == phases
    assert all(seconds > 0 for seconds in told.values())
    assert told["total"] > max(told["import"], told["spec"], told["host work"])
    assert [line.split()[1] for line in done.stderr.splitlines() if line.startswith("timing: ")][-1] == "total"


def test_a_spec_that_has_become_wrong_is_refused_and_nothing_reaches_the_host(lab: Lab, client: Client) -> None:
    before = {path.name for path in lab.root.glob("hosts/*/jobs/*")}
    path = client.spec("device: cpu\ncommand: 'true'\ncolour: red\n", "again")
    done = client.run("submit", str(path), code=2)
    assert "colour" in done.stderr
    assert {path.name for path in lab.root.glob("hosts/*/jobs/*")} == before


def test_a_hosts_file_that_leads_elsewhere_now_is_followed(lab: Lab, client: Client, tmp_path: Path) -> None:
    moved = Person(client.folder, lab, lab={"root": str(tmp_path / "other-root")})
    id_ = moved.submit(SPEC, "again")
    assert list((tmp_path / "other-root").glob(f"hosts/*/jobs/{id_}"))
    assert not list(lab.root.glob(f"hosts/*/jobs/{id_}"))
    moved.until(id_, "COMPLETED")


def test_a_hint_that_leads_elsewhere_is_not_followed(lab: Lab, client: Client, tmp_path: Path) -> None:
    file = client.folder / "state" / "cache" / "ahead.json"
    file.write_text(file.read_text().replace(str(lab.root), str(tmp_path / "lie")))
    id_ = client.submit(SPEC, "again")
    assert list(lab.root.glob(f"hosts/*/jobs/{id_}"))
    assert not (tmp_path / "lie" / "hosts").exists()
    client.until(id_, "COMPLETED")


def test_a_damaged_hint_costs_nothing_but_time(client: Client) -> None:
    ids = []
    for text in ("", "[]", "{", '{"v": 1, "x": 3}', '{"v": 2}'):
        (client.folder / "state" / "cache" / "ahead.json").write_text(text)
        ids.append(client.submit(SPEC, "again"))
        assert remembered(client)["v"] == hints.FORMAT, text
    client.run("wait", *ids)


def test_what_goes_wrong_ahead_is_the_commands_to_say(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    file = client.folder / "state" / "cache" / "ahead.json"
    first, before = client.submit(SPEC, "again"), remembered(client)
    spoilt = {key: {**where, "specs": ["?"]} if isinstance(where, dict) else where for key, where in before.items()}
    file.write_text(json.dumps(spoilt))
    client.run("wait", first, client.submit(SPEC, "again"))
    assert remembered(client) == before

    def homeless(_: object) -> Path:
        raise RuntimeError("there is no home folder")

    monkeypatch.setattr(session, "default_home", homeless)
    ahead.begin(["ls"], {})
    assert ahead.begun() is None


def test_a_host_that_is_gone_is_told_once_and_soon(tmp_path: Path) -> None:
    with Lab(tmp_path / "lab") as lab:
        client = Person(tmp_path / "client", lab)
        client.until(client.submit(SPEC, "again"), "COMPLETED")
    began = time.monotonic()
    done = client.run("submit", str(client.spec(SPEC, "again")), code=3)
    assert time.monotonic() - began < 8
    assert done.stderr.count("error:") == 1 and "refused" in done.stderr


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["submit", "a.yaml"], ("submit", "stage", ["a.yaml"], None, None, None)),
        (
            ["--json", "--hosts", "h.yaml", "submit", "a.yaml", "--host=x", "--wait"],
            ("submit", "stage", ["a.yaml"], "x", "h.yaml", None),
        ),
        (
            ["submit", "--set", "env.A=1", "a.yaml", "b.yaml"],
            ("submit", "stage", ["a.yaml", "b.yaml"], None, None, None),
        ),
        (["submit", "--transport", "openssh", "a.yaml"], ("submit", "stage", ["a.yaml"], None, None, "openssh")),
        (["logs", "submit"], ("logs", "tail", ["submit"], None, None, None)),
        (["wait", "x", "y", "--timeout", "5s"], ("wait", "look", ["x", "y", "5s"], None, None, None)),
        (["--timings", "ls"], ("ls", "look", [], None, None, None)),
        (["submit", "a.yaml", "--dry-run"], None),
        (["submit", "--help"], None),
        (["submit"], None),
        (["ls", "--offline"], None),
        (["show", "x", "--offline"], None),
        (["show", "x", "--help"], None),
        (["wait"], None),
        (["hosts", "ls"], None),
        (["--version"], None),
    ],
)
def test_what_a_command_line_asks_of_hosts(words: list[str], found: object) -> None:
    asked = ahead._asked(words)
    assert (None if asked is None else tuple(vars(asked).values())[:6]) == found


@pytest.mark.parametrize(
    ("words", "files"),
    [(["pull", "x"], True), (["checkpoints", "x", "--pull", "last"], True), (["checkpoints", "x"], False)],
)
def test_where_files_are_going_to_come(words: list[str], files: bool) -> None:
    asked = ahead._asked(words)
    assert asked is not None and asked.bulk is files


def test_commands_that_read_go_ahead_too_over_one_connection(lab: Lab, client: Person) -> None:
    id_ = client.submit("device: cpu\ncommand: [sleep, '600']\ngrace: 0s\n", "long")
    client.until(id_, "RUNNING")
    for words in (["ls"], ["show", id_], ["logs", "long"], ["pull", id_], ["cancel", id_]):
        before = logins(lab)
        Client.run(client, *words)
        assert logins(lab) == before + 1, words
    client.until(id_, "CANCELLED")
    before = logins(lab)
    Client.run(client, "show", id_)  # it is over: nobody is asked, so nothing is begun
    assert logins(lab) == before


def test_what_goes_wrong_ahead_is_told_by_the_first_use(lab: Lab, client: Client) -> None:
    target = client_target(client, lab)
    link = HostLink(replace(target, python="no-such-python"))
    link.expect()
    user = threading.Thread(target=link.prepare, args=("stage",))
    user.start()
    with pytest.raises(HostError):
        link.request("look", jobs=[])
    user.join()
    link.close()
    broken = HostLink(replace(target, python="-x"))
    broken.expect()
    broken.prepare("stage")
    with pytest.raises(UsageError):
        broken.open()
    broken.close()


def client_target(client: Client, lab: Lab) -> HostTarget:
    return HostTarget.of(lab.alias, ssh_config=client.folder / "ssh_config", root=str(lab.root))
