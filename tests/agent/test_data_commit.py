"""Staging is killed at any of its steps, or the host goes down: each job is there once, or not at all."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jobrunner.agent import dispatcher, stage, together
from jobrunner.agent.layout import Layout
from tests.support.agentproc import Tree, job, load

CODE = Tree().file("train.py", b"print('hi')\n").file("lib/a.py", b"A = 1\n")


def three() -> list[tuple[dict[str, Any], Any]]:
    return [(dict(job(f"killed{n:03}"), secrets={"KEY": "s3cret"}), CODE.entries) for n in range(3)]


def killed_at(step: int, layout: Layout) -> bool:
    """Stage three jobs in a process that is killed before its call number `step` that changes a file system; False if
    it has ended before."""
    pid = os.fork()
    if not pid:
        left = iter(range(step))

        def deadly(real: Callable[..., Any]) -> Callable[..., Any]:
            def call(*words: Any, **named: Any) -> Any:
                if next(left, None) is None:
                    os.kill(os.getpid(), signal.SIGKILL)
                return real(*words, **named)

            return call

        try:
            for name in ("mkdir", "open", "write", "fsync", "link", "rename", "unlink"):
                setattr(os, name, deadly(getattr(os, name)))
            stage.commit(layout, three(), [])
        finally:
            os._exit(0)
    return os.WIFSIGNALED(os.waitpid(pid, 0)[1])


def test_killed_at_any_step_and_repeated_each_job_is_there_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatcher, "ensure_running", lambda layout: True)
    ids, step, cut = [entry["request"]["id"] for entry, _ in three()], 0, True
    while cut:
        step += 1
        layout = Layout(os.fsencode(tmp_path / str(step)), "i0000001")
        cut = killed_at(step, layout)
        there = [id_ for id_ in ids if stage._exists(layout, id_)]
        views = stage.commit(layout, [each for each in three() if each[0]["request"]["id"] not in there], there)["jobs"]
        assert {id_: view["state"] for id_, view in views.items()} == dict.fromkeys(ids, "QUEUED"), step
        home = Path(os.fsdecode(layout.home))
        assert sorted(path.name for path in (home / "queue").iterdir()) == ids, step
        assert {load(home / "queue" / id_)["id"] for id_ in ids} == set(ids), step
        folders = [path for path in (home / "jobs").iterdir() if not path.name.startswith(".tmp-")]
        assert sorted(path.name for path in folders) == ids, step
        for folder in folders:
            files = {"environ.json", "events.jsonl", "manifest.json", "request.json", "secrets.json"}
            assert {path.name for path in folder.iterdir()} == files, step
            kinds = [json.loads(line)["kind"] for line in (folder / "events.jsonl").read_text().splitlines()]
            assert kinds in (["submitted", "queued"], ["submitted"]), step  # killed between an entry and its line
        stage.sweep_leftovers(layout, older_than_s=-60)
        assert not list(home.rglob(".tmp-*")), step
    assert step > 60


def test_what_is_published_is_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All files of a job and its folder before it gets its name, that name and the entry before it waits."""
    monkeypatch.setattr(dispatcher, "ensure_running", lambda layout: True)
    layout, synced, queued = Layout(os.fsencode(tmp_path / "root"), "i0000001"), set[int](), list[str]()
    sync, rename, link = together.sync, os.rename, os.link

    def number(*parts: bytes) -> int:
        return os.stat(os.path.join(*parts)).st_ino

    def noted(path: bytes) -> None:
        sync(path)
        synced.add(number(path))

    def renamed(old: bytes, new: bytes) -> None:
        if os.path.dirname(new) == layout.jobs:
            inner = {number(old, name) for name in os.listdir(old) if name != b"events.jsonl"}
            assert {number(old), *inner} <= synced
            synced.discard(number(layout.jobs))
        rename(old, new)

    def linked(old: bytes, new: bytes) -> None:
        if os.path.dirname(new) == layout.queue:
            assert {number(old), number(layout.jobs)} <= synced
            queued.append(os.fsdecode(os.path.basename(new)))
        link(old, new)

    monkeypatch.setattr(together, "sync", noted)
    monkeypatch.setattr(os, "rename", renamed)
    monkeypatch.setattr(os, "link", linked)
    stage.commit(layout, three(), [])
    stage.commit(layout, [(job("alonejob1"), None)], [])
    assert queued == [*(entry["request"]["id"] for entry, _ in three()), "alonejob1"]
