"""What a listing costs: of live jobs on ten hosts, and of a ledger with 100,000 jobs. And starting at all."""

from __future__ import annotations

import json
import shlex
import sqlite3
import sys
from pathlib import Path

from measure import OURS, Taken, alternate, timed, walls
from places import Bench
from report import Aim

from jobrunner.core.jobs import JobRow
from jobrunner.core.states import JobState
from jobrunner.ledger import EventBatch, Ledger
from tests.support.lab import Client
from tests.support.waiting import eventually

HOSTS, EACH = 10, 10
STORED = 100_000


def live(bench: Bench) -> None:
    """`ls` of 100 live jobs on ten hosts, beside ten `ssh host ps` in parallel."""
    with bench.labs(HOSTS, cards=EACH) as labs, bench.client(labs) as (first, _):
        spec = "device: npu\ncode: null\ngrace: 0s\ncommand: [sleep, '3600']\n"
        paths = [str(first.spec(spec, f"live{number}")) for number in range(EACH)]
        for lab in labs:
            first.run("submit", *paths, "--host", lab.alias, limit=120)
        running = HOSTS * EACH

        def there() -> bool:
            rows = first.json("ls", limit=120)["jobs"]
            return sum(row["state"] == "RUNNING" for row in rows) == running

        eventually(there, 240, f"{running} running jobs")
        for trip in bench.trips:
            with bench.client(labs, trip) as (client, _):
                client.env["JOBRUNNER_HOME"] = first.env["JOBRUNNER_HOME"]  # the same ledger, another way to the hosts
                ssh = ["ssh", "-F", str(client.folder / "ssh_config")]
                asked = " & ".join(
                    f"{shlex.join(ssh)} {lab.alias} ps -eo pid,etime,args >out.{lab.alias}" for lab in labs
                )

                def by_hand(client: Client = client, asked: str = asked) -> Taken:
                    return timed(["bash", "-c", f"{asked} & wait"], client.env, client.folder)

                def ours(client: Client = client) -> Taken:
                    return timed([*OURS, "ls"], client.env, client.folder)

                ours(), by_hand()
                turns = alternate(bench.few(7), ours, by_hand)
                bench.report.ratio(
                    f"`ls` of {running} live jobs on {HOSTS} hosts", walls(turns, 0), f"{HOSTS} × ssh ps in parallel",
                    walls(turns, 1), Aim(0.8 if trip else 1.0), trip=trip,
                )  # fmt: skip


def stored(home: Path, count: int) -> str:
    """A ledger of so many jobs that are over, each with its request, attempt and journal; the id of the last one.

    One is written as commands write it; the others are copies of its rows.
    """
    at, path = "2026-01-01T00:00:00.000000Z", home / "ledger.db"
    row = JobRow("a000000000", "job0", JobState.STAGING, host="lab", submitted_at=at)
    spec = {"name": "job0", "device": "npu", "cards": 1, "command": ["python3", "train.py"], "env": {"SEED": "0"}}
    run = {"command": {"argv": ["python3", "train.py"]}, "device": "npu", "cards": 1, "after": [], "retry": None}
    kinds = ("queued", "started", "ended", "final")
    events = EventBatch(0, 400, [{"at": at, "kind": kind, "attempt": 1} for kind in kinds])
    view = {"id": row.id, "name": row.name, "state": "COMPLETED", "attempt": 1, "submitted_at": at, "exit_code": 0}
    attempt = {"number": 1, "started_at": at, "ended_at": at, "exit_code": 0, "cards": [0], "log_bytes": 1000}
    with Ledger(path) as ledger:
        ledger.insert_staging(row, {"id": row.id, "spec": spec, "run": run}, "d" * 64, "c" * 64, {})
        view |= {"started_at": at, "ended_at": at, "device": "npu", "cards": [0], "attempts": [attempt]}
        ledger.apply_view("lab", "instance", view, at, events)
        assert ledger.get(row.id).state is JobState.COMPLETED
    db = sqlite3.connect(path)
    try:
        numbers = (
            "WITH RECURSIVE c(copy) AS (SELECT 1 UNION ALL SELECT copy + 1 FROM c WHERE copy < ?) SELECT copy FROM c"
        )
        db.execute(f"CREATE TEMP TABLE copies AS {numbers}", (count - 1,))
        stamp = "strftime('%Y-%m-%dT%H:%M:%S', 1767225600 + copy * 60, 'unixepoch') || '.000000Z'"
        for table in ("jobs", "requests", "attempts", "events"):
            columns = [info[1] for info in db.execute(f"PRAGMA table_info({table})") if info[1] != "seq"]
            own = {
                "id": "printf('a%09d', copy)",
                "job": "printf('a%09d', copy)",
                "name": "'job' || copy",
                "submitted_at": stamp,
            }
            values = ", ".join(own.get(column, f'"{column}"') for column in columns)
            names = ", ".join(f'"{column}"' for column in columns)
            db.execute(f"INSERT INTO {table} ({names}) SELECT {values} FROM {table}, copies")
        db.commit()
    finally:
        db.close()
    return f"a{count - 1:09d}"


def startup(bench: Bench) -> None:
    """Commands that need no host, with 100,000 jobs in the ledger; a bare interpreter beside."""
    home = bench.place()
    id_ = stored(home, STORED)
    with bench.labs() as [lab], bench.client([lab]) as (client, _):
        env = {**client.env, "JOBRUNNER_HOME": str(home)}
        told = timed_words(env, client, "show", id_, "--json")
        assert told["data"]["job"]["id"] == id_
        complete = {
            "_JOBRUNNER_COMPLETE": "complete_bash",
            "COMP_WORDS": f"jobrunner show {id_[:8]}",
            "COMP_CWORD": "2",
        }
        program = str(Path(sys.executable).with_name("jobrunner"))
        completion = [program] if Path(program).exists() else OURS
        cases: list[tuple[str, float | None, list[str], dict[str, str]]] = [
            ("`--help`", None, [*OURS, "--help"], {}),
            (f"`ls --offline`, {STORED:,} jobs", 0.35, [*OURS, "ls", "--offline"], {}),
            (f"`show` of one of {STORED:,} jobs", 0.35, [*OURS, "show", id_], {}),
            (f"completion of an id, {STORED:,} jobs", 0.2, completion, complete),
        ]
        for what, limit, argv, more in cases:

            def ours(argv: list[str] = argv, more: dict[str, str] = more) -> Taken:
                return timed(argv, {**env, **more}, client.folder)

            def bare() -> Taken:
                return timed([sys.executable, "-c", "pass"], env, client.folder)

            ours()
            turns = alternate(max(bench.rounds, 3), ours, bare)
            theirs = sorted(walls(turns, 1))
            cpu = min(turn[0].cpu for turn in turns)
            bench.report.value(
                f"{what} (least CPU {cpu:.2f} s)", walls(turns, 0), Aim(limit, "s") if limit else None, unit="s",
                peer=f"`python3 -c pass`: {theirs[len(theirs) // 2]:.3f} s",
            )  # fmt: skip


def timed_words(env: dict[str, str], client: Client, *words: str) -> dict[str, dict[str, dict[str, str]]]:
    """A command's JSON document."""
    import subprocess

    done = subprocess.run([*OURS, *words], env=env, cwd=client.folder, capture_output=True, check=True, timeout=120)
    return dict(json.loads(done.stdout))
