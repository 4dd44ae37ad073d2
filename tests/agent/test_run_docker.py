"""Containers, by a simulated `docker` that keeps them in files: what it is asked, and that stop reaches them."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from jobrunner.agent.containers_plan import refusal
from tests.support.agentproc import agent_host, until
from tests.support.running import Runs, gone, kill

FAKE = r"""#!/usr/bin/env python3
import json, os, signal, subprocess, sys
home = os.environ["FAKE_DOCKER"]
words = sys.argv[1:]
with open(os.path.join(home, "calls.jsonl"), "a") as calls:
    calls.write(json.dumps(words) + "\n")
def containers():
    for name in sorted(os.listdir(home)):
        if name.endswith(".pid"):
            job, pid = open(os.path.join(home, name)).read().split()
            try:
                if open("/proc/%s/stat" % pid).read().rpartition(")")[2].split()[0] == "Z":
                    continue
            except OSError:
                continue
            yield name[:-4], job, int(pid)
if words[0] == "ps":
    wanted = words[words.index("--filter") + 1].partition("=")[2].partition("=")[2]
    for name, job, pid in containers():
        if not wanted or job == wanted:
            print(job if "--format" in words else name)
elif words[0] == "kill":
    number = getattr(signal, "SIG" + words[words.index("--signal") + 1])
    for name, job, pid in containers():
        if name in words:
            os.kill(pid, number)
elif words[0] == "run":
    at = words.index("IMAGE")
    name = words[words.index("--name") + 1]
    job = words[words.index("--label") + 1].partition("=")[2]
    inner = [words[words.index("--entrypoint") + 1]] + words[at + 1:]
    names = [words[i + 1] for i, word in enumerate(words) if word == "--env"]
    env = {n: os.environ[n] for n in names if n in os.environ}
    # The container is no child of ours: a daemon's. It does not show the job's id to the host either.
    hidden = {k: v for k, v in env.items() if k != "JOBRUNNER_JOB_ID"}
    read, write = os.pipe()
    if os.fork() == 0:
        if os.environ.get("FAKE_DAEMON"):
            pass
        os.setsid()
        if os.fork():
            os._exit(0)
        child = subprocess.Popen(inner, env=dict(hidden, PATH=os.environ["PATH"], JOBRUNNER_AGENT="1"),
                                 cwd=words[words.index("--workdir") + 1])
        with open(os.path.join(home, name + ".pid"), "w") as handle:
            handle.write(job + " " + str(child.pid))
        os.write(write, str(child.wait()).encode())
        os._exit(0)
    os.close(write)
    code = int(os.read(read, 64) or b"137")
    sys.exit(code if code >= 0 else 128 - code)
"""


@pytest.fixture
def runs(tmp_path: Path):
    folder = tmp_path / "bin"
    folder.mkdir()
    path = folder / "docker"
    path.write_text(FAKE)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    home = tmp_path / "docker"
    home.mkdir()
    with agent_host(tmp_path) as host:
        yield Runs(host, PATH=f"{folder}:{os.environ['PATH']}", FAKE_DOCKER=str(home))


def calls(runs: Runs) -> list[list[str]]:
    return [json.loads(line) for line in (Path(runs.env["FAKE_DOCKER"]) / "calls.jsonl").read_text().splitlines()]


DOCKER = {"image": "IMAGE", "mounts": ["/data:/data:ro"], "options": ["--shm-size=8g"]}


def test_what_docker_is_asked(runs: Runs) -> None:
    runs.submit(
        "adocker01",
        command={"argv": ["sh", "-c", 'echo "$GREETING/$TOKEN/$CUDA_VISIBLE_DEVICES"; exit 3']},
        device="gpu",
        cards=2,
        limits={"cards": 4, "only_cards": [2, 3]},
        env={"GREETING": "hi $HOME"},
        secrets=["TOKEN"],
        secret_values={"TOKEN": "hush"},
        runtime={"docker": DOCKER, "setup": ["GREETING=$GREETING!", "export GREETING"]},
    )
    view = runs.final("adocker01")
    assert (view["state"], view["exit_code"]) == ("FAILED", 3)
    assert runs.log("adocker01") == "hi $HOME!/hush/0,1\n"
    (run,) = [words for words in calls(runs) if words[0] == "run"]
    assert not any("hush" in word or "hi $HOME" in word for word in run)
    assert run[run.index("--gpus") + 1] == '"device=2,3"' and "jobrunner.job=adocker01" in run
    assert "--shm-size=8g" in run and "/data:/data:ro" in run and "--ipc" not in run


def test_stop_reaches_the_container(runs: Runs) -> None:
    runs.submit("adocker02", command={"argv": ["sleep", "600"]}, runtime={"docker": DOCKER})
    record = Path(runs.env["FAKE_DOCKER"]) / "jobrunner-adocker02-1.pid"
    until(record.exists, what="the container runs")
    pid = int(until(lambda: record.read_text().split()[1:])[0])
    answer = runs.channel.ask("stop", ids=["adocker02"], wait_s=15)
    assert answer["jobs"]["adocker02"]["state"] == "CANCELLED" and gone(pid)


def test_container_outlives_everybody(runs: Runs) -> None:
    """Supervisor and `docker run` killed: the container keeps the job RUNNING, and its card taken."""
    one = {"cards": 1}
    runs.submit(
        "adocker03", command={"argv": ["sleep", "600"]}, device="gpu", cards=1, limits=one, runtime={"docker": DOCKER}
    )
    record = Path(runs.env["FAKE_DOCKER"]) / "jobrunner-adocker03-1.pid"
    until(lambda: record.exists() and record.read_text().split()[1:], what="the container runs")
    start = runs.running("adocker03")
    runs.submit("adocker04", "true", device="gpu", cards=1, limits=one)
    for pid in [*runs.agents("jr-dispatch"), start["supervisor"]["pid"], start["command"]["pid"]]:
        kill(pid)
    views = runs.channel.ask("look", jobs=["adocker03", "adocker04"])["jobs"]
    assert (views["adocker03"]["state"], views["adocker04"]["state"]) == ("RUNNING", "QUEUED")
    until(lambda: runs.start("adocker03")["supervisor"]["pid"] != start["supervisor"]["pid"], what="adopted")
    kill(int(record.read_text().split()[1]))
    assert runs.final("adocker03")["reason"] == "unobserved"
    assert runs.final("adocker04")["state"] == "COMPLETED"


@pytest.mark.parametrize(("options", "said"), [
    (["--device", "/dev/davinci0"], "not a card of this job"), (["--device=/dev/davinci0:/dev/davinci3"], "not a card"),
    (["--device", "/dev"], "--device /dev,"), (["--device=/dev//"], "--device"), (["--device", "//dev/davinci0"], "not a"),
    (["-e", "ASCEND_VISIBLE_DEVICES=0-7", "--runtime", "ascend"], "sets ASCEND_VISIBLE_DEVICES"),
    (["-eASCEND_RT_VISIBLE_DEVICES=0"], "sets ASCEND_RT_"), (["--env=CAMBRICON_VISIBLE_DEVICES=all"], "sets CAMBRICON_"),
    (["--env", "MLU_VISIBLE_DEVICE"], "sets MLU_"), (["-dit"], "-dit"), (["-t"], "run and watch"), (["--detach=true"], "--detach"),
    (["--gpus", "all"], "job's own"), (["--device", "/dev/davinci3"], None), (["--device", "/dev/davinci_manager"], None),
    (["--device", "/dev/infiniband", "-i", "--ulimit", "memlock=-1", "-e", "NAME=d", "-v", "/data:/data"], None),
    (["--privileged", "--pid", "host", "--cap-add", "SYS_PTRACE"], None), (["-u", "0:0"], None), ([], None),
])  # fmt: skip
def test_words_that_would_take_other_cards_or_the_container_away(options: list[str], said: str | None) -> None:
    reason = refusal(options, ["/dev/davinci3"])
    assert reason is None if said is None else reason is not None and said in reason
