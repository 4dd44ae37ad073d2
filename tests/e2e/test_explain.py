"""A failed job is explained: from its log by the catalogue, by its end, and at the end of `logs`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.lab import Client, Lab

pytestmark = pytest.mark.needs_sshd

TORCH_NPU = (
    "import sys\n"
    "for step in range(40000):\n"
    "    print(f'step {step} loss 1.{step}')\n"
    "print('Traceback (most recent call last):', file=sys.stderr)\n"
    "print('RuntimeError: NPU out of memory. Tried to allocate 2.00 GiB (NPU 0)', file=sys.stderr)\n"
    "print('[ERROR] 2026-12-01-09:30:00 (PID:3121, Device:0, RankID:0) ERR99999 UNKNOWN applicaiton exception')\n"
    "for step in range(3000):\n"
    "    print('closing', step)\n"
    "sys.exit(1)\n"
)


def test_a_torch_npu_failure_is_explained(client: Client) -> None:
    id_ = client.submit("script: train.py\ndevice: npu\n", train__py=TORCH_NPU)
    told = client.run("wait", id_, code=1)
    assert "FAILED" in told.stdout + told.stderr
    first, *others = client.json("explain", id_)["findings"]
    assert set(first) == {"code", "summary", "evidence", "remedy"}
    assert first["code"] == "npu-out-of-memory" and "batch" in first["remedy"]
    assert first["evidence"].startswith("line 40002: RuntimeError: NPU out of memory")
    assert [item["code"] for item in others] == ["exit", "log"] and others[1]["evidence"].endswith("closing 2999")
    chinese = client.json("explain", id_, "--lang", "zh")["findings"][0]
    assert "显存不足" in chinese["summary"] and chinese["evidence"].startswith("第 40002 行")
    text = client.run("explain", id_).stdout
    assert text.index("NPU out of memory") < text.index("exit code 1") < text.index("closing 2999")


def test_logs_end_with_the_finding_on_standard_error(client: Client) -> None:
    text = "device: cpu\ncommand: \"echo ModuleNotFoundError: No module named \\\\'peft\\\\'; exit 3\"\n"
    id_ = client.submit(text)
    shown = client.run("logs", id_, "-f")
    assert shown.stdout == "ModuleNotFoundError: No module named 'peft'\n"
    assert "package peft is not in the environment" in shown.stderr and f"jobrunner explain {id_}" in shown.stderr
    for quiet in (("--raw",), ("--json",), ("-f", "--json")):
        assert "explain" not in client.run("logs", id_, *quiet).stderr
    client.env["LC_ALL"] = "zh_CN.UTF-8"
    assert "没有 Python 包 peft" in client.run("logs", id_).stderr


def test_what_completed_says_nothing(client: Client) -> None:
    id_ = client.submit("device: cpu\ncommand: echo No space left on device\n")
    assert "explain" not in client.run("logs", id_, "-f").stderr
    assert [item["code"] for item in client.json("explain", id_)["findings"]] == ["completed"]


def test_an_unknown_failure_shows_the_end_and_where_to_look(client: Client) -> None:
    id_ = client.submit("device: cpu\ncommand: echo hmm; exit 4\n")
    client.run("wait", id_, code=1)
    exited, unknown = client.json("explain", id_)["findings"]
    assert exited["code"] == "exit" and "4" in exited["summary"]
    assert unknown["code"] == "unknown" and unknown["evidence"] == "hmm" and f"logs {id_}" in unknown["remedy"]


def test_a_full_disk_names_the_mount(client: Client) -> None:
    id_ = client.submit("device: cpu\ncommand: \"echo 'OSError: [Errno 28] No space left on device'; exit 1\"\n")
    client.run("wait", id_, code=1)
    [verdict, log] = client.json("explain", id_)["findings"]
    assert verdict["code"] == "disk_full" and "No space left" in verdict["evidence"] and log["code"] == "log"


def test_a_setup_that_failed_is_explained_by_its_line(client: Client) -> None:
    id_ = client.submit("device: cpu\ncommand: 'true'\nruntime: {setup: ['torch-config --prefix']}\n")
    client.run("wait", id_, code=1)
    codes = [item["code"] for item in client.json("explain", id_)["findings"]]
    assert codes[:2] == ["command-not-found", "setup"]


def test_a_job_stopped_at_its_limit(client: Client) -> None:
    script = "import sys, time\nprint('EI0006: Getting socket times out', flush=True)\ntime.sleep(60)\n"
    id_ = client.submit("device: cpu\nscript: t.py\ntimeout: 1s\ngrace: 1s\n", t__py=script)
    client.run("wait", id_, code=1)
    codes = [item["code"] for item in client.json("explain", id_)["findings"]]
    assert codes == ["timeout", "hccl-socket-timeout", "log"]


def test_cann_logs_of_the_job_are_read(client: Client, lab: Lab) -> None:
    script = (
        "import os, pathlib, sys\n"
        "folder = pathlib.Path(os.environ['ASCEND_PROCESS_LOG_PATH']) / 'debug' / 'plog'\n"
        "folder.mkdir(parents=True)\n"
        "line = '[ERROR] HCCL(77,python):2026-12-01-09:30:00.100.200 [x.cc:1] EI0019: cannot bind the port'\n"
        "(folder / 'plog-77_20261201093000100.log').write_text('[INFO] fine\\n' + line + '\\n')\n"
        "print('E19999: Inner Error!')\n"
        "sys.exit(1)\n"
    )
    id_ = client.submit("device: npu\nscript: t.py\nenv: {ASCEND_PROCESS_LOG_PATH: plog}\n", t__py=script)
    client.run("wait", id_, code=1)
    first = client.json("explain", id_)["findings"][0]
    assert first["code"] == "hccl-port-taken"
    assert first["evidence"].startswith("plog-77_20261201093000100.log line 2: [ERROR] HCCL(77,python)")


def test_users_teach_it(client: Client) -> None:
    file = client.folder / "catalogue.yaml"
    file.write_text(
        "entries:\n"
        "  - id: house-licence\n"
        "    patterns: ['LICENCE (?P<what>\\w+) ran out']\n"
        "    cause: the licence {what} has ended\n"
        "    fix: {en: ask Li, zh: 找小李}\n"
        "  - id: broken\n"
        "    patterns: ['(']\n"
        "    cause: x\n"
    )
    id_ = client.submit('device: cpu\ncommand: "seq 30000; echo LICENCE magma ran out; seq 30000; exit 9"\n')
    client.run("wait", id_, code=1)
    done = client.run("explain", id_, "--lang", "zh")
    assert done.stdout.splitlines()[1] == "the licence magma has ended" and "找小李" in done.stdout
    assert f"{file}:7:" in done.stderr and "regular expression" in done.stderr
    assert Path(file).exists()
