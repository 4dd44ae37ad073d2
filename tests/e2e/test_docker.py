"""Jobs in containers of a real engine: cards, owners, values, stopping, killed supervisors, and what can be missing."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.agentproc import agent_host, load, pythons, until
from tests.support.engine import Engine, as_user
from tests.support.running import Runs, gone, kill, private_dirty_kb

pytestmark = pytest.mark.needs_docker
USER = 23456
# NPU, chip, logical and physical id: the device files are numbered otherwise than the cards.
MAP = "\n".join(
    "        ".join(f"{cell:<24}" for cell in row)
    for row in (
        ("        NPU ID", "Chip ID", "Chip Logic ID", "Chip Phy-ID", "Chip Name"),
        ("        0", "0", "0", "4", "Ascend910"),
        ("        0", "1", "1", "5", "Ascend910"),
        ("        0", "2", "-", "-", "Mcu"),
        ("        1", "0", "2", "6", "Ascend910"),
        ("        1", "1", "3", "7", "Ascend910"),
    )
)
VENDOR = "export FROM_VENDOR=$UNSET/yes LD_LIBRARY_PATH=/cann/lib; cd /tmp; exit 3\n"
IMAGE = {"image": "jobrunner-test:1"}


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine(Path(tempfile.mkdtemp(prefix="jr-dk-", dir="/tmp"))) as engine:
        os.chmod(engine.folder, 0o755)
        engine.image(IMAGE["image"], {"/usr/local/Ascend/ascend-toolkit/set_env.sh": VENDOR})
        yield engine


def hosted(engine: Engine, folder: Path, python: str) -> Iterator[Runs]:
    tools = folder / "tools"
    tools.mkdir()
    (tools / "npu-smi").write_text(f"#!/bin/sh\n[ \"$2\" = -m ] && cat <<'MAP'\n{MAP}\nMAP\n")
    (tools / "npu-smi").chmod(0o755)
    client = shutil.which("docker")
    assert client
    path = f"{tools}:{Path(client).parent}:/usr/local/sbin:/usr/sbin:/usr/bin:/bin"
    with agent_host(folder, python=python) as host:
        yield Runs(host, PATH=path, DOCKER_HOST=engine.host, HOME=str(folder))


@pytest.fixture
def runs(engine: Engine, tmp_path: Path) -> Iterator[Runs]:
    """A host of root's, with the oldest Python there is here."""
    yield from hosted(engine, tmp_path, engine.entry(tmp_path / "python", pythons()[0]))


@pytest.fixture
def user_runs(engine: Engine) -> Iterator[Runs]:
    """A host of an ordinary user's, with the system's Python."""
    if not os.path.exists("/usr/bin/python3"):
        pytest.skip("NOT TESTED HERE: an ordinary user needs /usr/bin/python3")
    folder = Path(tempfile.mkdtemp(prefix="jr-du-", dir="/tmp"))
    os.chown(folder, USER, USER)
    try:
        yield from hosted(engine, folder, engine.entry(folder / "python", "/usr/bin/python3", *as_user(USER)))
    finally:
        shutil.rmtree(folder)


def submit(runs: Runs, job_id: str, shell: str | None, docker: dict[str, Any] | None = None, **run: Any) -> None:
    options = run.pop("runtime", {})
    runs.submit(job_id, shell, runtime={**options, "docker": {**IMAGE, **(docker or {})}}, **run)


def cards(kind: str, *which: int) -> dict[str, Any]:
    return {
        "device": kind,
        "cards": len(which),
        "card_ids": list(which),
        "limits": {"cards": 8, "only_cards": [*which]},
    }


def test_only_the_leased_npus_by_their_device_files(runs: Runs, engine: Engine) -> None:
    submit(
        runs, "adk000001",
        "ls /dev | grep -E 'davinci|devmm|hisi' | sort; echo visible=$ASCEND_RT_VISIBLE_DEVICES cards=$JOBRUNNER_CARDS;"
        "echo vendor=$FROM_VENDOR lib=$LD_LIBRARY_PATH at=$PWD; ls -d /usr/local/dcmi;"
        "cat /usr/local/Ascend/driver/version.info;"
        "[ -c /dev/davinci6 ] && echo node; df -k /dev/shm | head -2",
        **cards("npu", 2, 3),
    )  # fmt: skip
    view = runs.final("adk000001", within=40)
    log = runs.log("adk000001")
    assert view["state"] == "COMPLETED", (view, log)
    nodes = ["davinci6", "davinci7", "davinci_manager", "devmm_svm"]  # physical numbers; hisi_hdc is not there
    assert log.splitlines()[:4] == nodes
    assert "visible=0,1 cards=2,3\n" in log and "node\n" in log
    assert f"vendor=/yes lib=/cann/lib at={runs.host.job('adk000001')}/1/work\n" in log
    assert "/usr/local/dcmi\n" in log and "25.0.rc1" in log
    record = load(runs.host.job("adk000001") / "1" / "runtime.json")
    assert record["docker"]["image"] == IMAGE["image"] and record["docker"]["id"].startswith("sha256:")
    assert record["driver"] == "25.0.rc1"
    assert engine.containers("label=jobrunner.job=adk000001") == []


def test_only_the_leased_mlus(runs: Runs) -> None:
    submit(runs, "adk000002", "ls /dev | grep cambricon | sort; echo visible=$MLU_VISIBLE_DEVICES", **cards("mlu", 2))
    assert runs.final("adk000002", within=40)["state"] == "COMPLETED", runs.log("adk000002")
    assert runs.log("adk000002") == "cambricon_ctl\ncambricon_dev2\ncambricon_ipcm2\nvisible=0\n"


def test_a_card_without_its_device_file_stops_the_job(runs: Runs) -> None:
    submit(runs, "adk000003", "true", **cards("mlu", 7))
    view = runs.final("adk000003", within=40)
    assert (view["state"], view["reason"]) == ("FAILED", "setup") and "/dev/cambricon_dev7" in view["evidence"]


def test_files_are_the_users_and_values_arrive(user_runs: Runs) -> None:
    value = 'it\'s "$(id)" é中\n two lines '
    submit(
        user_runs, "adk000004",
        'id -u; touch here "$JOBRUNNER_OUTPUT_DIR/there"; printf "%s" "$VALUE" > value; printf "%s" "$TOKEN" > token;'
        "env | grep -c ^SSH_; echo home=$HOME path=$PATH lib=$LD_LIBRARY_PATH; touch $HOME/x && echo written",
        env={"VALUE": value, "LD_LIBRARY_PATH": "/a b", "PATH": "/mine:/bin"}, secrets=["TOKEN"],
        secret_values={"TOKEN": "hush-2718"}, device="cpu", cards=0,
    )  # fmt: skip
    view = user_runs.final("adk000004", within=40)
    log = user_runs.log("adk000004")
    assert view["state"] == "COMPLETED", (view, log)
    folder = user_runs.host.job("adk000004")
    assert log.startswith(f"{USER}\n0\n") and "path=/mine:/bin lib=/a b\nwritten\n" in log
    for path in (folder / "1/work/here", folder / "out/there", folder / "1/work/value"):
        assert path.stat().st_uid == USER and path.stat().st_gid == USER, path
    assert (folder / "1/work/value").read_text() == value and (folder / "1/work/token").read_text() == "hush-2718"


def test_no_value_is_in_any_command_line(runs: Runs, engine: Engine) -> None:
    shell = "[ ${#TOKEN} = 13 ] && echo up; cat; sleep 60"
    submit(runs, "adk000005", shell, secrets=["TOKEN"], secret_values={"TOKEN": "canary-161803"},
           env={"PLAIN": "canary-plain", "PATH": "/bin:/canary-path"})  # fmt: skip
    runs.logged("adk000005", "up\n")
    [name] = engine.containers("label=jobrunner.job=adk000005")
    assert "canary-161803" not in engine.docker("inspect", name).stdout, "the engine does not know the secret"
    supervisor = runs.start("adk000005")["supervisor"]["pid"]
    assert private_dirty_kb(supervisor) < 8192
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                assert b"canary-" not in (entry / "cmdline").read_bytes(), entry
            except OSError:
                continue
    runs.channel.ask("stop", ids=["adk000005"], grace_s=0, wait_s=20)
    assert runs.state("adk000005", "CANCELLED")


TERMS = "trap 'echo TERM; n=$((n+1))' TERM; n=0; echo up; while [ $n -lt 1 ]; do sleep 0.1; done; sleep 0.3; echo n=$n"


def test_cancel_asks_once_and_brings_the_last_words(user_runs: Runs, engine: Engine) -> None:
    submit(user_runs, "adk000006", TERMS)
    user_runs.logged("adk000006", "up\n")
    answer = user_runs.channel.ask("stop", ids=["adk000006"], grace_s=10, wait_s=20)
    assert answer["jobs"]["adk000006"]["state"] == "CANCELLED"
    log = user_runs.log("adk000006")  # its shell also tells which children the signal has ended
    assert log.count("TERM\n") == 1 and "n=1\n" in log
    assert engine.containers("label=jobrunner.job=adk000006") == []


def test_what_ignores_term_is_killed_and_time_limits_hold(runs: Runs, engine: Engine) -> None:
    submit(runs, "adk000007", "trap '' TERM; echo up; while :; do sleep 1; done", timeout_s=1.5, grace_s=0.5)
    view = runs.final("adk000007", within=30)
    assert view["state"] == "TIMEOUT" and engine.containers("label=jobrunner.job=adk000007") == []


def test_a_container_outlives_its_supervisor_and_its_exit_code_is_known(runs: Runs, engine: Engine) -> None:
    one = {"device": "mlu", "cards": 1, "limits": {"cards": 1, "only_cards": [0]}}
    submit(runs, "adk000008", "echo up; while [ ! -e go ]; do echo tick; sleep 0.1; done; exit 7", **one)
    start = runs.running("adk000008")
    runs.logged("adk000008", "up\n")
    runs.submit("adk000009", "true", **one)
    for pid in [*runs.agents("jr-dispatch"), start["supervisor"]["pid"], start["command"]["pid"]]:
        kill(pid)
    views = runs.channel.ask("look", jobs=["adk000008", "adk000009"])["jobs"]
    assert (views["adk000008"]["state"], views["adk000009"]["state"]) == ("RUNNING", "QUEUED")
    until(lambda: runs.start("adk000008")["supervisor"]["pid"] != start["supervisor"]["pid"], what="adopted")
    seen = len(runs.log("adk000008"))
    until(lambda: len(runs.log("adk000008")) > seen, what="its new supervisor brings the output on")
    (runs.host.job("adk000008") / "1/work/go").touch()
    view = runs.final("adk000008", within=30)
    assert (view["state"], view["reason"], view["exit_code"]) == ("FAILED", "exit", 7), view
    assert runs.final("adk000009")["state"] == "COMPLETED"
    assert engine.containers("label=jobrunner.job=adk000008") == []


def test_the_client_alone_killed_leaves_no_container(runs: Runs, engine: Engine) -> None:
    submit(runs, "adk000010", "echo up; sleep 600")
    start = runs.running("adk000010")
    runs.logged("adk000010", "up\n")
    kill(start["command"]["pid"])
    view = runs.final("adk000010", within=30)
    assert (view["state"], view["reason"]) == ("FAILED", "signal") and not engine.containers()


@pytest.mark.parametrize(
    ("docker", "run", "reason", "code", "said"),
    [
        ({"image": "no-such-image:9"}, {}, "setup", 125, "could not be fetched"),
        ({"options": ["--device", "/dev/davinci0"]}, {}, "setup", 125, "not a card of this job"),
        ({"options": ["--gpus", "all"]}, {}, "setup", 125, "--gpus"),
        ({"options": ["--runtime", "ascend"]}, {}, "setup", 125, "ascend"),
        ({"mounts": ["/no/such\0"[:8] + ":relative"]}, {}, "setup", 125, "relative"),
        ({}, {"command": {"argv": ["no-such-program"]}}, "launch", None, "no-such-program"),
        ({}, {"runtime": {"setup": ["true", "(exit 9)"]}}, "setup", 9, "(exit 9)"),
        ({}, {"runtime": {"setup": ["exit 8"]}}, "setup", 8, "exit 8"),
        ({}, {"command": {"argv": ["bash", "-c", "exit 125"]}}, "exit", 125, "exit code 125"),
        ({}, {"host_setup": ["false; (exit 5)"], "command": {"argv": ["bash", "-c", "exit 4"]}}, "exit", 4, "code 4"),
    ],
)
def test_how_it_fails(runs: Runs, docker: Any, run: Any, reason: str, code: int | None, said: str) -> None:
    run = dict(run)
    options = {**run.pop("runtime", {}), "docker": {**IMAGE, **docker}}
    runs.submit("adk000011", **{"command": {"shell": "true"}, **run}, runtime=options)
    view = runs.final("adk000011", within=40)
    log = runs.log("adk000011")
    assert (view["state"], view["reason"], view["exit_code"]) == ("FAILED", reason, code), (view, log)
    assert said in view["evidence"] or said in log
    if "host_setup" in run:
        assert "passed over: false; (exit 5)" in log


def test_engine_or_client_missing(engine: Engine, tmp_path: Path) -> None:
    python = engine.entry(tmp_path / "python", sys.executable)
    empty = tmp_path / "bin"
    empty.mkdir()
    for name in ("bash", "sh", "env"):
        (empty / name).symlink_to(shutil.which(name) or "")
    client = Path(shutil.which("docker") or "").parent
    cases = (
        ("adk000012", f"{client}:/usr/bin:/bin", "unix:///tmp/jr-no-such.sock", "systemctl start docker"),
        ("adk000013", str(empty), engine.host, "Install docker"),
    )
    with agent_host(tmp_path, python=python) as host:
        for job_id, path, where, said in cases:
            runs = Runs(host, PATH=path, DOCKER_HOST=where)
            submit(runs, job_id, "true")
            view = runs.final(job_id, within=40)
            assert (view["state"], view["reason"]) == ("FAILED", "setup") and said in view["evidence"], view
            assert said in runs.log(job_id)


def test_shim_and_launcher_inside(runs: Runs) -> None:
    show = 'cat "${PYTHONPATH%%:*}/sitecustomize.py" | grep SHIMS; echo end=$PYTHONPATH'
    submit(runs, "adk000014", show, runtime={"migrate": True}, env={"PYTHONPATH": "/mine"}, **cards("npu", 1, 2))
    view = runs.final("adk000014", within=40)
    log = runs.log("adk000014")
    assert view["state"] == "COMPLETED" and "torch_npu.contrib.transfer_to_npu" in log and log.endswith(":/mine\n")
    words = {"argv": ["env", "deepspeed", "--num_gpus", "8", "train.py"]}
    submit(runs, "adk000015", None, command=words, **cards("npu", 1, 2))
    runs.final("adk000015", within=40)
    assert "(0,1)" in runs.log("adk000015"), "numbered as the container sees them"


def test_nothing_is_left_of_the_engine(engine: Engine) -> None:
    """Last of all: every container is gone, and every process that ran in one."""
    assert engine.containers() == []
    assert engine.process is not None and not gone(engine.process.pid)
