"""Launchers as they behave, started as jobs: which cards they get, which port, and that nothing of them is left."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.agentproc import Tree, agent_host, until
from tests.support.running import Runs, gone, kill, of_job

NPU = "ASCEND_RT_VISIBLE_DEVICES"
# Behaves like DeepSpeed's runner: the variable counts only without --num_gpus and --include, and is then removed;
# each worker is told its own card. The host has eight.
DEEPSPEED = f"""#!/usr/bin/env python3
import argparse, os, subprocess, sys
parser = argparse.ArgumentParser()
parser.add_argument("--include", "-i", default="")
parser.add_argument("--num_gpus", type=int, default=-1)
parser.add_argument("--num_nodes", type=int, default=-1)
parser.add_argument("--master_port", type=int, default=29500)
parser.add_argument("script")
parser.add_argument("rest", nargs=argparse.REMAINDER)
args = parser.parse_args()
visible = os.environ.get("{NPU}", "")
if visible:
    if args.include or args.num_gpus > 0:
        print("Detected VISIBLE_DEVICES=%s but ignoring it" % visible, flush=True)
    else:
        args.include = "localhost:" + visible
    del os.environ["{NPU}"]
if args.num_nodes >= 0 and args.include:
    sys.exit("Cannot specify num_nodes/gpus with include/exclude")
cards = [int(card) for card in args.include.partition(":")[2].split(",")] if args.include else list(range(8))
cards = list(range(args.num_gpus)) if args.num_gpus > 0 else cards
workers = []
for rank, card in enumerate(cards):
    env = dict(os.environ, RANK=str(rank), CARD=str(card), MASTER_PORT=str(args.master_port))
    env["{NPU}"] = ",".join(str(card) for card in cards)
    workers.append(subprocess.Popen([sys.executable, args.script, *args.rest], env=env, close_fds=True))
codes = [worker.wait() for worker in workers]
sys.exit(max(codes))
"""
# Behaves like torchrun: as many workers as it is told, in sessions of their own; the port by option or PET_MASTER_PORT.
TORCHRUN = """#!/usr/bin/env python3
import argparse, os, subprocess, sys
parser = argparse.ArgumentParser()
parser.add_argument("--nproc_per_node", "--nproc-per-node", type=int, default=1)
parser.add_argument("--master_port", "--master-port", type=int, default=int(os.environ.get("PET_MASTER_PORT", 29500)))
parser.add_argument("script")
args = parser.parse_args()
workers = [
    subprocess.Popen([sys.executable, args.script], start_new_session=True, close_fds=True,
                     env=dict(os.environ, LOCAL_RANK=str(rank), RANK=str(rank), MASTER_PORT=str(args.master_port)))
    for rank in range(args.nproc_per_node)
]
sys.exit(max(worker.wait() for worker in workers))
"""
WORKER = f"""import os, sys, time
words = [os.environ.get(name, "-") for name in ("RANK", "CARD", "MASTER_PORT", "{NPU}", "HCCL_IF_BASE_PORT")]
sys.stdout.write("worker %s\\n" % " ".join(words)); sys.stdout.flush()
open("pid-%s" % os.environ["RANK"], "w").write(str(os.getpid()))
time.sleep(float(os.environ.get("WORK_S", "0")))
"""


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[Runs]:
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, text in (("deepspeed", DEEPSPEED), ("torchrun", TORCHRUN)):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    with agent_host(tmp_path) as host:
        yield Runs(host, PATH=f"{folder}:{os.environ['PATH']}")


def launch(runs: Runs, job_id: str, command: list[str] | str, cards: list[int], **run: Any) -> None:
    what = {"shell": command} if isinstance(command, str) else {"argv": command}
    limits = {"cards": 8, "only_cards": cards}
    tree = Tree().file("w.py", WORKER.encode())
    runs.submit(job_id, tree=tree, command=what, device="npu", cards=len(cards), limits=limits, **run)


def workers(log: str) -> list[list[str]]:
    return sorted(line.split()[1:] for line in log.splitlines() if line.startswith("worker "))


def told(runs: Runs, job_id: str) -> list[str]:
    return [event["text"] for event in runs.events(job_id) if event["kind"] == "launch"]


def test_deepspeed_gets_the_jobs_cards_and_port(runs: Runs) -> None:
    launch(runs, "alaunch01", ["deepspeed", "--num_gpus", "8", "w.py"], [4, 5])
    assert runs.final("alaunch01")["state"] == "COMPLETED", runs.log("alaunch01")
    found = workers(runs.log("alaunch01"))
    assert [(rank, card, visible) for rank, card, _, visible, _ in found] == [("0", "4", "4,5"), ("1", "5", "4,5")]
    ports = {int(port) for worker in found for port in (worker[2], worker[4])}
    assert len(ports) == 2 and 29500 not in ports and max(ports) - min(ports) >= 32
    assert "jobrunner: deepspeed --num_gpus 8" in runs.log("alaunch01") and len(told(runs, "alaunch01")) == 1


def test_deepspeed_in_shell_text_is_refused_or_told(runs: Runs) -> None:
    launch(runs, "alaunch02", "deepspeed --num_gpus 2 w.py", [4, 5])
    view = runs.final("alaunch02")
    assert (view["state"], view["reason"], view["exit_code"]) == ("FAILED", "setup", 125)
    assert "--num_gpus" in view["evidence"] and view["evidence"] in runs.log("alaunch02")
    assert not workers(runs.log("alaunch02"))
    launch(runs, "alaunch03", "deepspeed --num_gpus 2 w.py", [0, 1])
    assert runs.final("alaunch03")["state"] == "COMPLETED" and told(runs, "alaunch03")
    launch(runs, "alaunch04", "deepspeed w.py", [4, 5])
    assert runs.final("alaunch04")["state"] == "COMPLETED"
    assert [worker[1] for worker in workers(runs.log("alaunch04"))] == ["4", "5"]


def test_torchrun_gets_as_many_as_cards_and_a_port_of_its_own(runs: Runs) -> None:
    launch(runs, "alaunch05", ["torchrun", "--nproc_per_node", "8", "w.py"], [2, 3])
    launch(runs, "alaunch06", "torchrun --nproc_per_node 2 w.py", [4, 5])
    logs = []
    for job_id in ("alaunch05", "alaunch06"):
        assert runs.final(job_id)["state"] == "COMPLETED", runs.log(job_id)
        logs.append(workers(runs.log(job_id)))
    assert [worker[0] for worker in logs[0]] == ["0", "1"] and len(logs[1]) == 2
    ports = {worker[2] for log in logs for worker in log}
    assert len(ports) == 2 and "29500" not in ports
    assert "more than the job's 2" in told(runs, "alaunch05")[0] and not told(runs, "alaunch06")


@pytest.mark.parametrize("launcher", ["deepspeed", "torchrun"])
def test_a_killed_launcher_leaves_no_worker(runs: Runs, launcher: str) -> None:
    """Its workers have closed every descriptor that they did not know, so they hold no lease."""
    option = ["--nproc_per_node", "2"] if launcher == "torchrun" else []
    launch(runs, "alaunch07", [launcher, *option, "w.py"], [6, 7], env={"WORK_S": "600"})
    work = runs.host.job("alaunch07") / "1" / "work"
    start = runs.running("alaunch07")
    until(lambda: all((work / f"pid-{rank}").exists() and (work / f"pid-{rank}").read_text() for rank in (0, 1)))
    pids = [int((work / f"pid-{rank}").read_text()) for rank in (0, 1)]
    kill(start["command"]["pid"])
    view = runs.final("alaunch07")
    assert (view["state"], view["reason"]) == ("FAILED", "signal")
    assert all(gone(pid) for pid in pids) and of_job("alaunch07") == []
    assert [event for event in runs.events("alaunch07") if event["kind"] == "leftovers"]
    launch(runs, "alaunch08", ["true"], [6, 7])
    assert runs.final("alaunch08")["state"] == "COMPLETED"


def test_supervisor_and_launcher_killed_keep_the_cards_taken(runs: Runs) -> None:
    launch(runs, "alaunch09", ["torchrun", "--nproc_per_node", "1", "w.py"], [6], env={"WORK_S": "600"})
    start = runs.running("alaunch09")
    runs.logged("alaunch09", "worker ")
    launch(runs, "alaunch10", ["true"], [6])
    for pid in [*runs.agents("jr-dispatch"), start["supervisor"]["pid"], start["command"]["pid"]]:
        kill(pid)
    views = runs.channel.ask("look", jobs=["alaunch09", "alaunch10"])["jobs"]
    assert views["alaunch10"]["state"] == "QUEUED" and of_job("alaunch09")
    runs.channel.ask("stop", ids=["alaunch09"], grace_s=1, wait_s=15)
    assert runs.final("alaunch10")["state"] == "COMPLETED" and of_job("alaunch09") == []


def test_vendor_logs_go_into_the_attempt_and_their_variables_pass(runs: Runs) -> None:
    show = "echo $ASCEND_PROCESS_LOG_PATH $HCCL_CONNECT_TIMEOUT $CNCL_IB_HCA $HCCL_IF_BASE_PORT"
    given = {"host_env": {"HCCL_CONNECT_TIMEOUT": "600", "CNCL_IB_HCA": "mlx5"}}
    launch(runs, "alaunch11", show, [1], **given)
    assert runs.final("alaunch11")["state"] == "COMPLETED"
    folder = runs.host.job("alaunch11") / "1" / "ascend"
    path, timeout, hca, port = runs.log("alaunch11").split()
    assert path == str(folder) and folder.is_dir() and (timeout, hca) == ("600", "mlx5") and int(port) >= 20000
    launch(
        runs, "alaunch12", show, [1], env={"ASCEND_PROCESS_LOG_PATH": "/mine", "HCCL_IF_BASE_PORT": "61000"}, **given
    )
    runs.final("alaunch12")
    assert runs.log("alaunch12").split() == ["/mine", "600", "mlx5", "61000"]
