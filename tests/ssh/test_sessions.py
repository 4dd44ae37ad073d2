"""Requests and streams over a real sshd: sizes, streams, deaths, and what a person is told."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from jobrunner.core.errors import AgentError, ConnectError, LinkLostError
from jobrunner.lab.sshd import LoopbackHost
from jobrunner.transport.link import HostLink
from jobrunner.transport.settings import HostTarget
from tests.support.hosts import loopback, target_of, test_agent
from tests.support.waiting import eventually

pytestmark = pytest.mark.needs_sshd
Reach = Callable[..., HostTarget]


def test_values_arrive_as_they_were(link: HostLink) -> None:
    value = {"text": "a 'b' \"c\" $(x) `y` \\ \n ! 中文 \udce4", "list": [1, None, True]}
    assert link.request("echo", value=value)["value"] == value
    assert link.host_facts["instance"] == "test"
    assert link.notes == []


def test_one_channel_serves_many_requests(link: HostLink) -> None:
    pids = {link.request("echo")["pid"] for _ in range(5)}
    assert len(pids) == 1


def test_many_threads_share_a_link(link: HostLink) -> None:
    answers: list[int] = []

    def ask(number: int) -> None:
        answers.append(link.request("echo", value=number)["value"])

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(answers) == list(range(12))


def test_an_answer_of_16_mb_costs_little(link: HostLink) -> None:
    link.request("echo")
    before = time.process_time()
    assert len(link.request("big", bytes=16_000_000)["value"]) == 16_000_000
    assert time.process_time() - before < 2.0


def test_output_and_errors_of_6_mb_each(link: HostLink) -> None:
    began = time.monotonic()
    with link.stream("both", pieces=96) as stream:
        got = sum(len(payload) for kind, payload in stream if kind == b"B")
    assert got == 96 * 65536
    assert time.monotonic() - began < 5.0


def test_errors_alone_do_not_stop_the_answer(link: HostLink) -> None:
    assert link.request("flood", pieces=96) == {}


def test_the_agents_own_error_is_passed_on_and_the_channel_lives(link: HostLink) -> None:
    pid = link.request("echo")["pid"]
    with pytest.raises(AgentError) as caught:
        link.request("fail", code="no_such_job")
    assert (caught.value.code, caught.value.message, caught.value.remedy) == ("no_such_job", "as asked", "do not ask")
    assert caught.value.host == "lab"
    assert link.request("echo")["pid"] == pid


def test_three_deaths_are_three_results(host: LoopbackHost, link: HostLink) -> None:
    with pytest.raises(AgentError, match="by a signal") as killed:
        link.request("killed")
    assert killed.value.code == "agent_died"
    with pytest.raises(AgentError, match=r"exit code 3 .*last words"):
        link.request("die")
    with link.stream("ticks") as stream:
        stream.frame()
        host.drop_sessions()
        with pytest.raises(LinkLostError) as cut:
            for _ in stream:
                pass
    assert cut.value.code == "link_lost"
    assert link.request("echo", value=1)["value"] == 1, "the next request opens a new connection"


def test_closing_here_ends_a_waiting_request(host: LoopbackHost, reach: Reach) -> None:
    link = HostLink(reach(host), image=test_agent())
    caught: list[BaseException] = []

    def ask() -> None:
        try:
            link.request("sleep", seconds=60, timeout=60)
        except BaseException as error:
            caught.append(error)

    link.request("echo")
    thread = threading.Thread(target=ask)
    thread.start()
    eventually(lambda: not link._idle, what="the request on its way")
    began = time.monotonic()
    link.close()
    thread.join(5)
    assert time.monotonic() - began < 1.5
    assert [type(error) for error in caught] == [LinkLostError]


def test_a_late_answer_is_a_timeout_and_the_next_request_works(link: HostLink) -> None:
    began = time.monotonic()
    with pytest.raises(LinkLostError, match="did not answer `sleep` within 0 s") as caught:
        link.request("sleep", seconds=30, timeout=0.3)
    assert caught.value.code == "timeout"
    assert time.monotonic() - began < 3
    assert link.request("echo", value=2)["value"] == 2


def test_long_work_may_last_as_long_as_it_says_so(link: HostLink) -> None:
    """The limit is for each sign of life; silence ends it, and signs without end are no work."""
    began = time.monotonic()
    link.request("ticks", timeout=0.8, working=True, count=5, pause=0.3)
    assert time.monotonic() - began > 1.5
    began = time.monotonic()
    with pytest.raises(LinkLostError, match="`sleep` within 1 s"):
        link.request("sleep", timeout=0.8, working=True, seconds=60)
    assert time.monotonic() - began < 3
    # One long answer over a slow way: as long as it comes.
    link.request("slowly", timeout=0.8, working=True, pieces=6, pause=0.3)
    with pytest.raises(AgentError, match="messages without end"):
        link.request("ticks", timeout=5.0, working=True)


@pytest.mark.parametrize("text", ["hello\n", "J\xff\xff\xff\xff", "J\0\0\0\x05[1,2]", "J\0\0\0\x03abc"])
def test_garbage_is_an_error_and_not_memory(link: HostLink, text: str) -> None:
    with pytest.raises(AgentError) as caught:
        link.request("garbage", text=text)
    assert caught.value.code == "bad_answer"
    assert link.request("echo", value=3)["value"] == 3


def test_an_upload_waits_for_a_slow_reader(link: HostLink) -> None:
    data = os.urandom(12_000_000)
    with link.bulk().stream("upload", pause=0.005) as stream:
        stream.send_bytes(data)
        stream.send_end()
        answer = stream.result()
    assert answer == {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def test_ranges_of_a_file_and_one_that_it_has_not_got(link: HostLink, tmp_path: Path) -> None:
    data = os.urandom(3_000_000)
    (tmp_path / "file").write_bytes(data)
    with open(tmp_path / "file", "rb") as file:
        with link.stream("upload", pause=0) as stream:
            assert stream.send_range(file.fileno(), 1_000_000, 2_000_000)
            assert stream.send_range(file.fileno(), 0, 1_000_000)
            stream.send_end()
            assert stream.result()["sha256"] == hashlib.sha256(data[1_000_000:] + data[:1_000_000]).hexdigest()
        with link.stream("upload", pause=0) as stream:
            assert not stream.send_range(file.fileno(), 2_999_999, 2)


@pytest.mark.parametrize("transport", ["fabric"], indirect=True)
def test_bulk_runs_over_a_connection_of_its_own(link: HostLink) -> None:
    assert link.bulk() is link.bulk()
    assert link.bulk().request("echo")["pid"] != link.request("echo")["pid"]
    assert link.bulk()._connection is not link._connection
    assert link.bulk()._connection is not None
    assert link.bulk()._connection.transport.local_cipher.startswith("aes128-gcm")


def test_a_command_that_reads_input_gets_none_of_ours(link: HostLink) -> None:
    session = link.stream("cat")
    with session:
        session._channel.shutdown_write()
        assert session.result()["text"] == ""


def test_few_channels_are_made_do_with(tmp_path: Path, reach: Reach) -> None:
    with loopback(tmp_path, max_sessions=1) as small, HostLink(reach(small), image=test_agent()) as link:
        for _ in range(3):
            assert link.request("echo", value=1)["value"] == 1
            with link.stream("both", pieces=1) as stream:
                assert [kind for kind, _ in stream] == [b"B", b"J"]


def test_no_channel_at_all_is_said(tmp_path: Path, reach: Reach, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobrunner.transport.link.BUSY_S", 0.5)
    with (
        loopback(tmp_path, max_sessions=0) as none,
        HostLink(reach(none), image=test_agent()) as link,
        pytest.raises(ConnectError) as caught,
    ):
        link.request("echo")
    assert caught.value.code == "sessions_full"


def test_a_host_that_was_restarted_is_reached_again(tmp_path: Path, reach: Reach) -> None:
    with loopback(tmp_path) as host, HostLink(reach(host), image=test_agent()) as link:
        assert link.request("echo", value=1)["value"] == 1
        host.restart()
        eventually(lambda: not link._connection.is_connected, what="the end of the old link")
        assert link.request("echo", value=2)["value"] == 2


def test_another_version_of_the_agent_is_put_beside(host: LoopbackHost) -> None:
    root = host.folder / "home" / "root" / "agent"
    for salt in ("one", "two"):
        with HostLink(target_of(host), image=test_agent(salt)) as link:
            link.request("echo")
    names = {path.name for path in root.iterdir()}
    for salt in ("one", "two"):
        name = f"agent-{test_agent(salt).hash}"
        assert {name, name + ".pyz"} <= names
        assert (root / (name + ".pyz")).stat().st_mode & 0o777 == 0o600
    assert not [name for name in names if name.endswith(".tmp")]
