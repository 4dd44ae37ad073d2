"""What has to hold of times, whatever a host's clock did: judged by the steady clock, which the job wrote down as well."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tests.faults.host import BreakableHost

if TYPE_CHECKING:
    from tests.faults.play import Story

SLACK_S = 20.0  # a busy machine is late; a clock that is believed is wrong by more, or waits for ever


def check_times(story: Story, host: BreakableHost, id_: str, shown: dict[str, Any]) -> None:
    """No attempt ends before it began, lengths are the steady clock's, no back-off is cut short, events are in order.

    `shown` is what `show` says of the job.
    """
    began = {int(words[1]): float(words[3]) for words in host.truth(id_) if words[0] == "start"}
    ended = {int(words[1]): float(words[3]) for words in host.truth(id_) if words[0] == "end"}
    for attempt in shown["attempts"]:
        started_at, ended_at = attempt["started_at"], attempt["ended_at"]
        assert not started_at or not ended_at or started_at <= ended_at, f"{id_} ends before it begins: {attempt}"
    _lengths(host, id_, began, ended)
    if story.scenario.retry and not {"clock", "reboot"} <= set(story.fired):  # a reboot takes the steady clock along
        _back_off(story, host, id_, began, ended)
    _order(host, id_, shown["events"])


def _lengths(host: BreakableHost, id_: str, began: dict[int, float], ended: dict[int, float]) -> None:
    for number in set(began) & set(ended):
        path = host.job_folder(id_) / str(number) / "exit.json"
        usage = json.loads(path.read_text()).get("usage") or {}
        if "wall_s" in usage:
            length = ended[number] - began[number]
            assert length - 0.1 <= usage["wall_s"] <= length + SLACK_S, (id_, number, length, usage)


def _back_off(
    story: Story, host: BreakableHost, id_: str, began: dict[int, float], ended: dict[int, float]
) -> None:  # fmt: skip
    assert story.scenario.retry
    base = float(story.scenario.retry["backoff"].rstrip("s"))
    for number in sorted(ended):
        if number + 1 in began:
            waited = began[number + 1] - ended[number]
            assert waited >= base * 2 ** (number - 1) - 0.05, (id_, number, waited, host.truth(id_))


def _order(host: BreakableHost, id_: str, events: list[dict[str, Any]]) -> None:
    lines = (host.job_folder(id_) / "events.jsonl").read_text().splitlines()
    journal = [json.loads(line)["kind"] for line in lines]
    shown = [event["kind"] for event in events if event["source"] == "host"]
    assert shown == journal[: len(shown)] and len(shown) >= len(journal) - 1, (id_, shown, journal)
