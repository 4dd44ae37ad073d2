"""Environments of jobs that really run: vendor, conda and venv in their order, the record of what ran, the shims."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.agentproc import Tree, agent_host, load, pythons, until
from tests.support.running import Runs, living, of_job

from .test_env_shell import conda


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / "home"
    folder.mkdir()
    return folder


@pytest.fixture
def runs(tmp_path: Path, home: Path) -> Iterator[Runs]:
    with agent_host(tmp_path) as host:
        yield Runs(host, HOME=str(home))


NPU: dict[str, Any] = {"device": "npu", "cards": 1, "limits": {"cards": 2}}


def record(runs: Runs, job_id: str, what: str = "python") -> dict[str, Any]:
    """The attempt's `runtime.json`, once it says `what`."""
    path = runs.host.job(job_id) / "1" / "runtime.json"
    return until(lambda: path.exists() and (found := load(path)).get(what) and found, what=f"{what} in {path}")


def script(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def trace(word: str) -> str:
    return f'export TRACE="$TRACE {word}[$CONDA_DEFAULT_ENV]"\n'


def test_the_layers_come_in_their_order(runs: Runs, home: Path) -> None:
    """The toolkit, the host's lines, conda, what asks conda's python, the spec's lines."""
    script(home / "Ascend/cann-8.1/set_env.sh", "exit 9\n")
    script(home / "Ascend/cann-8.10/set_env.sh", trace("toolkit") + "echo noise\ncd /\nexit 3\n")
    script(home / "Ascend/nnal/atb/set_env.sh", trace("atb") + '[ -n "$ZSH_VERSION" ]\n')
    base = conda(home / "miniconda3", "train")
    runs.submit(
        "aenvjob01", "echo $TRACE; pwd; echo ${PATH%%:*}", host_setup=[trace("host").strip()],
        runtime={"conda": "train", "setup": [trace("spec").strip()]}, **NPU,
    )  # fmt: skip
    assert runs.final("aenvjob01")["state"] == "COMPLETED", runs.log("aenvjob01")
    log = runs.log("aenvjob01")
    assert "toolkit[] host[] atb[train] spec[train]\n" in log and "noise\n" in log
    assert log.splitlines()[-2:] == [str(runs.host.job("aenvjob01") / "1/work"), str(base / "envs/train/bin")]
    found = record(runs, "aenvjob01")
    assert found["sourced"] == [f"{home}/Ascend/cann-8.10/set_env.sh", f"{home}/Ascend/nnal/atb/set_env.sh"]
    assert found["conda"] == str(base / "envs/train") and found["device"] == "npu" and found["cards"] == [0]
    warnings = [event["text"] for event in runs.events("aenvjob01") if event["kind"] == "warning"]
    assert any("cann-8.10/set_env.sh ended with exit code 3" in text for text in warnings)


def test_vendor_off_and_an_environments_own_toolkit(runs: Runs, home: Path) -> None:
    script(home / "Ascend/ascend-toolkit/set_env.sh", trace("system"))
    base = conda(home / "miniforge3", "own")
    script(base / "envs/own/Ascend/cann-9.0.0/set_env.sh", trace("own"))
    for job_id, vendor, expected in (("aenvjob02", "auto", " system[] own[own]"), ("aenvjob03", "off", "")):
        runs.submit(job_id, 'echo "($TRACE)"', runtime={"conda": "own", "vendor": vendor}, **NPU)
        assert runs.final(job_id)["state"] == "COMPLETED", runs.log(job_id)
        assert runs.log(job_id) == f"({expected})\n" and len(record(runs, job_id)["sourced"]) == expected.count("[")


def test_failures_name_the_line_in_log_and_evidence(runs: Runs, home: Path) -> None:
    conda(home / "anaconda3")
    cases: list[tuple[dict[str, Any], int, str]] = [
        ({"setup": ["true", "(exit 5)"]}, 5, "setup failed with exit code 5: (exit 5)"),
        ({"setup": ["exit 6"]}, 6, "exit 6"),
        ({"conda": "absent"}, 1, "conda activate absent"),
        ({"venv": "~/gone"}, 1, f"there is no virtual environment in {home}/gone"),
    ]
    for number, (options, code, said) in enumerate(cases):
        job_id = f"aenvjob1{number}"
        runs.submit(job_id, "echo never", runtime=options)
        view = runs.final(job_id)
        assert (view["state"], view["reason"], view["exit_code"]) == ("FAILED", "setup", code), view
        assert said in view["evidence"] and said in runs.log(job_id) and "never\n" not in runs.log(job_id)


def test_no_conda_at_all_says_how_to_name_it(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    runs.submit("aenvjob20", "true", runtime={"conda": "x"}, env={"PATH": "/usr/bin:/bin"})
    view = runs.final("aenvjob20")
    if view["reason"] == "setup":
        assert "CONDA_EXE" in view["evidence"] or "conda activate" in view["evidence"]
    else:
        raise AssertionError(view)


def package(folder: Path, name: str, version: str) -> None:
    (folder / f"{name}-{version}.dist-info").mkdir(parents=True)


def venv(folder: Path, python: str = sys.executable) -> Path:
    """A virtual environment without pip: its packages are what a test puts there."""
    import subprocess

    subprocess.run([python, "-m", "venv", "--without-pip", folder], check=True, timeout=60)
    [site] = folder.glob("lib/python3*/site-packages")
    return site


def test_what_ran_is_recorded_without_importing_it(runs: Runs, home: Path) -> None:
    site = venv(home / "v")
    for name, version in (("torch", "2.1.0+cpu"), ("torch_npu", "2.1.0.post3"), ("My.Package", "1.2")):
        package(site, name, version)
    script(site / "torch/__init__.py", "open('imported', 'w')\nraise SystemExit(9)\n")
    for job_id in ("aenvjob21", "aenvjob22"):
        runs.submit(job_id, "sleep 0.3", runtime={"venv": "~/v"}, **NPU)
        assert runs.final(job_id)["state"] == "COMPLETED"
        found = record(runs, job_id)
        assert found["packages"] == {"torch": "2.1.0+cpu", "torch-npu": "2.1.0.post3", "my-package": "1.2"}
        assert found["python"]["version"] == ".".join(map(str, sys.version_info[:3])) and found["venv"] == f"{home}/v"
        assert not (runs.host.job(job_id) / "1/work/imported").exists()
    kinds = [event for event in runs.events("aenvjob22") if event["kind"] == "runtime"]
    assert [(event["torch"], event["torch_npu"]) for event in kinds] == [("2.1.0+cpu", "2.1.0.post3")]
    [known] = (runs.host.home / "pythons").iterdir()
    before = known.stat().st_mtime_ns
    package(site, "accelerate", "0.30")
    runs.submit("aenvjob23", "true", runtime={"venv": "~/v"}, **NPU)
    runs.final("aenvjob23")
    assert until(lambda: record(runs, "aenvjob23")["packages"].get("accelerate")) == "0.30"
    until(lambda: known.stat().st_mtime_ns != before, what="the cache is renewed")


def test_the_record_never_holds_a_job_up(runs: Runs, home: Path) -> None:
    """A Python that hangs is asked beside the job; it belongs to no job, and no job's end waits for it."""
    slow = home / "bin" / "python3"
    script(slow, "#!/bin/sh\nsleep 60\n")
    slow.chmod(0o755)
    runs.submit("aenvjob24", command={"argv": ["sh", "-c", "echo hi"]}, env={"PATH": f"{slow.parent}:/usr/bin:/bin"})
    view = runs.final("aenvjob24")
    assert view["state"] == "COMPLETED" and of_job("aenvjob24") == []
    assert not [event for event in runs.events("aenvjob24") if event["kind"] == "leftovers"]
    started = load(runs.host.job("aenvjob24") / "1/start.json")
    ended = load(runs.host.job("aenvjob24") / "1/exit.json")
    assert ended["usage"]["wall_s"] < 2 and started["phase"] == "command"
    found = load(runs.host.job("aenvjob24") / "1/runtime.json")
    assert found["python"] is None and found["packages"] == {}
    assert runs.agents("jr-runtime") or living(f"HOME={home}")


TORCH = "import sys\nLOADED = ['torch']\n"
SHIMS = {
    "npu": {
        "torch_npu/__init__.py": "import torch\ntorch.LOADED.append('torch_npu')\n",
        "torch_npu/contrib/__init__.py": "",
        "torch_npu/contrib/transfer_to_npu.py": "import torch\ntorch.LOADED.append('transfer_to_npu')\n",
    },
    "mlu": {
        "torch_mlu/__init__.py": "import torch\ntorch.LOADED.append('torch_mlu')\n",
        "torch_mlu/utils/__init__.py": "",
        "torch_mlu/utils/gpu_migration/__init__.py": "import torch\ntorch.LOADED.append('gpu_migration')\n",
    },
}
CUDA_SCRIPT = """import subprocess, sys
import torch
import sitecustomize
print(sys.argv[1:], torch.LOADED, getattr(sitecustomize, "OWN", None), flush=True)
if not sys.argv[1:]:
    subprocess.check_call([sys.executable, __file__, "worker"], close_fds=True)
"""


def shimmed(folder: Path, device: str) -> str:
    """A PYTHONPATH with a made-up torch, the vendor's plug-in, and a sitecustomize that is the site's own."""
    for path, text in {"torch/__init__.py": TORCH, "sitecustomize.py": "OWN = 'site'\n", **SHIMS[device]}.items():
        script(folder / path, text)
    return str(folder)


@pytest.mark.parametrize("device", ["npu", "mlu"])
def test_a_cuda_script_runs_through_the_shim(runs: Runs, tmp_path: Path, device: str) -> None:
    packages = shimmed(tmp_path / "site", device)
    tree = Tree().file("t.py", CUDA_SCRIPT.encode())
    run = {"device": device, "cards": 1, "limits": {"cards": 1}, "env": {"PYTHONPATH": packages}}
    runs.submit("aenvjob30", tree=tree, command={"script": "t.py", "args": []}, runtime={"migrate": True}, **run)
    assert runs.final("aenvjob30")["state"] == "COMPLETED", runs.log("aenvjob30")
    loaded = {"npu": ["torch", "torch_npu", "transfer_to_npu"], "mlu": ["torch", "torch_mlu", "gpu_migration"]}[device]
    assert runs.log("aenvjob30") == f"[] {loaded} site\n['worker'] {loaded} site\n"
    assert sorted(path.name for path in (runs.host.job("aenvjob30") / "1/work").iterdir() if path.suffix) == ["t.py"]
    runs.submit("aenvjob31", tree=tree, command={"script": "t.py", "args": []}, runtime={}, **run)
    runs.final("aenvjob31")
    assert runs.log("aenvjob31") == "[] ['torch'] site\n['worker'] ['torch'] site\n"


def test_the_shim_stays_first_whatever_the_set_up_does(runs: Runs, tmp_path: Path) -> None:
    packages = shimmed(tmp_path / "site", "npu")
    tree = Tree().file("t.py", b"import torch; print(torch.LOADED)\n")
    options = {"migrate": True, "setup": [f"export PYTHONPATH={packages}"]}
    runs.submit("aenvjob32", tree=tree, command={"argv": ["python3", "t.py"]}, runtime=options, **NPU)
    assert runs.final("aenvjob32")["state"] == "COMPLETED" and "transfer_to_npu" in runs.log("aenvjob32")


def test_a_missing_plugin_is_an_error_and_no_silent_cpu(runs: Runs, tmp_path: Path) -> None:
    script(tmp_path / "site/torch/__init__.py", TORCH)
    tree = Tree().file("t.py", b"import torch\nopen('trained', 'w')\n").file("u.py", b"print('no torch')\n")
    run: dict[str, Any] = {"runtime": {"migrate": True}, "env": {"PYTHONPATH": str(tmp_path / "site")}, **NPU}
    runs.submit("aenvjob33", tree=tree, command={"argv": ["python3", "t.py"]}, **run)
    assert runs.final("aenvjob33")["state"] == "FAILED"
    assert "runtime.migrate needs torch_npu" in runs.log("aenvjob33") and "No module named" in runs.log("aenvjob33")
    assert not (runs.host.job("aenvjob33") / "1/work/trained").exists()
    runs.submit("aenvjob34", tree=tree, command={"argv": ["python3", "u.py"]}, **run)
    assert runs.final("aenvjob34")["state"] == "COMPLETED" and runs.log("aenvjob34") == "no torch\n"


@pytest.mark.parametrize("python", pythons())
def test_the_shim_works_in_every_python(tmp_path: Path, python: str) -> None:
    import subprocess

    from jobrunner.agent import migrate

    packages = shimmed(tmp_path / "site", "mlu")
    table = migrate.shimmed({b"PYTHONPATH": os.fsencode(packages)}, "mlu", os.fsencode(tmp_path))
    env = {os.fsdecode(name): os.fsdecode(value) for name, value in table.items()}
    code = "import torch, sitecustomize, json; print(json.dumps([torch.LOADED, sitecustomize.OWN]))"
    done = subprocess.run([python, "-W", "error", "-c", code], env=env, capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [["torch", "torch_mlu", "gpu_migration"], "site"] and done.stderr == ""
