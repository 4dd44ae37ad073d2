"""Where set-ups lie, by values: every CANN generation, Neuware, several condas, a Python's record."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from jobrunner.agent import containers_plan, containers_prepare, env_conda, env_vendor, runtime_record
from jobrunner.agent.env_shell import SetupFailed

TOP = "/usr/local/Ascend"
HOME = b"/home/u"


def scripts(there: list[str], pointed: str | None = None) -> list[str]:
    known = {path.encode() for path in there}

    def listing(folder: bytes) -> list[bytes]:
        names = {path[len(folder) + 1 :].split(b"/")[0] for path in known if path.startswith(folder + b"/")}
        if not names:
            raise FileNotFoundError
        return sorted(names)

    found = env_vendor.vendor_scripts("npu", HOME, known.__contains__, listing, pointed.encode() if pointed else None)
    return [path.decode() for path in found]


ATB = f"{TOP}/nnal/atb/set_env.sh"


@pytest.mark.parametrize(
    ("there", "expected"),
    [
        ([f"{TOP}/ascend-toolkit/set_env.sh", ATB], [0, 1]),
        ([f"{TOP}/ascend-toolkit/set_env.sh", f"{TOP}/cann/set_env.sh"], [1]),
        ([f"{TOP}/cann-8.5.0/set_env.sh", f"{TOP}/cann-8.10.0/set_env.sh", ATB], [1, 2]),
        ([f"{TOP}/nnae/set_env.sh"], [0]),
        ([f"{TOP}/nnrt/set_env.sh"], [0]),
        (["/home/u/Ascend/ascend-toolkit/set_env.sh", "/home/u/Ascend/nnal/atb/set_env.sh", ATB], [0, 1]),
        (["/opt/conda/Ascend/cann-9.0.0/set_env.sh", "/opt/conda/Ascend/nnal/atb/set_env.sh"], [0, 1]),
        ([f"{TOP}/driver/version.info"], []),
        ([], []),
    ],
)
def test_every_generation_of_the_toolkit_is_found(there: list[str], expected: list[int]) -> None:
    assert scripts(there) == [there[at] for at in expected]


def test_where_the_environment_says_that_the_toolkit_is() -> None:
    there = [
        f"{TOP}/cann/set_env.sh",
        "/data/Ascend/ascend-toolkit/set_env.sh",
        "/data/Ascend/nnal/atb/set_env.sh",
        ATB,
    ]
    assert scripts(there, "/data/Ascend/ascend-toolkit/latest") == there[1:3]
    assert scripts(there, "/data/Ascend/ascend-toolkit") == there[1:3]
    assert scripts(there, "/gone/latest") == [there[0], ATB]
    assert env_vendor.is_late(ATB.encode()) and not env_vendor.is_late(there[0].encode())


def test_folders_that_need_no_script() -> None:
    there = {b"/d/driver/lib64", b"/d/driver/lib64/common", b"/usr/local/neuware", b"/usr/local/neuware/lib64"}
    made = env_vendor.vendor_values("npu", {b"LD_LIBRARY_PATH": b"/a"}, there.__contains__, b"/d/driver")
    assert made[b"LD_LIBRARY_PATH"] == b"/d/driver/lib64:/d/driver/lib64/common:/a"
    assert env_vendor.vendor_values("npu", made, there.__contains__, b"/d/driver") == made, "not twice"
    made = env_vendor.vendor_values("mlu", {b"PATH": b"/bin"}, there.__contains__)
    assert made == {
        b"PATH": b"/bin", b"NEUWARE_HOME": b"/usr/local/neuware", b"LD_LIBRARY_PATH": b"/usr/local/neuware/lib64",
    }  # fmt: skip
    assert env_vendor.vendor_values("mlu", {b"NEUWARE_HOME": b"/gone"}, there.__contains__) == {
        b"NEUWARE_HOME": b"/gone"
    }
    assert env_vendor.driver_folder(b"UserName=x\nDriver_Install_Path_Param=/opt/A\n") == b"/opt/A/driver"
    assert env_vendor.driver_folder(b"") == b"/usr/local/Ascend/driver"


def conda(
    there: list[str], wanted: str, environment: dict[bytes, bytes], files: dict[str, str]
) -> tuple[str, str] | None:
    bases = {f"{base}/etc/profile.d/conda.sh".encode() for base in there if "/envs/" not in base and "bin" not in base}
    known = bases | {path.encode() for path in there}
    texts = {path.encode(): text.encode() for path, text in files.items()}
    found = env_conda.choose(wanted.encode(), environment, HOME, known.__contains__, lambda path: texts.get(path, b""))
    return None if found is None else (found[0].decode(), found[1].decode())


INIT = """__conda_setup="$('/data/apps/conda/bin/conda' 'shell.bash' 'hook' 2> /dev/null)"
if [ -f "/data/apps/conda/etc/profile.d/conda.sh" ]; then
        . "/data/apps/conda/etc/profile.d/conda.sh"
"""


def test_an_environment_is_looked_for_in_every_conda() -> None:
    two = ["/home/u/miniconda3", "/opt/conda", "/opt/conda/envs/npu"]
    assert conda(two, "npu", {}, {}) == ("/opt/conda", "/opt/conda/envs/npu")
    assert conda(two, "base", {}, {}) == ("/home/u/miniconda3", "base")
    assert conda(two, "other", {}, {}) == ("/home/u/miniconda3", "other"), "conda says what there is"
    assert conda(two, "base", {b"CONDA_EXE": b"/opt/conda/bin/conda"}, {}) == ("/opt/conda", "base")
    assert conda(two, "/opt/conda/envs/npu", {}, {}) == ("/opt/conda", "/opt/conda/envs/npu")
    assert conda(two, "/data/e", {}, {}) == ("/home/u/miniconda3", "/data/e")
    noted = {"/home/u/.conda/environments.txt": "/opt/conda\n/data/envs/npu2\n"}
    assert conda([*two, "/data/envs/npu2/bin"], "npu2", {}, noted) == ("/home/u/miniconda3", "/data/envs/npu2")
    only = {"/home/u/.bashrc": INIT}
    assert conda(["/data/apps/conda"], "x", {}, only) == ("/data/apps/conda", "x")
    assert env_conda.initialised(INIT.encode()) == [b"/data/apps/conda"]


def test_without_conda_a_folder_still_works() -> None:
    assert conda([], "x", {}, {}) is None
    assert conda(["/data/e/bin/python"], "/data/e", {}, {}) == ("hand", "/data/e")
    assert conda([], "/data/e", {}, {}) is None
    assert conda(["/m/bin/micromamba"], "x", {b"MAMBA_EXE": b"/m/bin/micromamba"}, {}) == ("/m/bin/micromamba", "x")


def test_the_python_of_a_command(tmp_path: Path) -> None:
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, first in (
        ("python3", ""),
        ("torchrun", f"#!{folder}/python3\n"),
        ("tool", "#!/usr/bin/env python3\n"),
        ("sh1", "#!/bin/sh\n"),
    ):
        (folder / name).write_text(first)
        (folder / name).chmod(0o755)
    environment = {b"PATH": os.fsencode(folder)}
    python = os.fsencode(folder / "python3")
    for words in ([b"python3", b"-c", b"1"], [python], [b"torchrun", b"x"], [b"tool"], [b"sh1"], [b"gone"]):
        assert runtime_record.python_of(words, environment) == python, words
    assert runtime_record.python_of([b"x"], {b"PATH": b"/nowhere"}) is None
    assert runtime_record.versions({"torch": "2.1.0", "torch-npu": "2.1.0.post3", "pip": "1"}) == {
        "torch": "2.1.0", "torch_npu": "2.1.0.post3",
    }  # fmt: skip


FACTS = {
    "job": "ajob00001", "attempt": 2, "device": "npu", "cards": [3, 1], "work": "/j/2/work", "out": "/j,x/out",
    "uid": 5, "gid": 6, "names": ["B", "A"],
}  # fmt: skip


def test_a_containers_devices_have_their_own_numbers() -> None:
    physical = {1: 9, 3: 11}
    nodes = {"/dev/davinci9", "/dev/davinci11", "/dev/davinci1", "/dev/hisi_hdc"}
    words = containers_plan.docker_argv({"image": "i"}, ["x"], {**FACTS, "physical": physical, "nodes": nodes})
    given = [words[at + 1] for at, word in enumerate(words) if word == "--device"]
    assert given == ["/dev/davinci9", "/dev/davinci11", "/dev/hisi_hdc"]
    assert 'type=bind,"source=/j,x/out","target=/j,x/out"' in words
    assert "NVIDIA_VISIBLE_DEVICES=void" in words and "ASCEND_VISIBLE_DEVICES=void" not in words
    words = containers_plan.docker_argv({"image": "i"}, ["x"], {**FACTS, "device": "gpu", "client": "/usr/bin/podman"})
    assert "nvidia.com/gpu=1" in words and "--gpus" not in words and words[0] == "/usr/bin/podman"


@pytest.mark.parametrize(
    ("options", "refused"),
    [
        (["--shm-size=8g", "--ulimit", "memlock=-1"], False),
        (["--device", "/dev/davinci3"], False),
        (["--device=/dev/davinci4"], True),
        (["--device", "/dev/davinci_manager"], False),
        (["--gpus=all"], True),
        (["-d"], True),
        (["--restart", "always"], True),
    ],
)
def test_words_of_a_spec_that_would_take_the_container_away(options: list[str], refused: bool) -> None:
    assert (containers_plan.refusal(options, ["/dev/davinci3"]) is not None) == refused


def test_variables_that_the_client_acts_upon_go_by_a_file() -> None:
    values = {b"PATH": b"/x y", b"HOME": b"a\nb", b"V": b"1", b"LD_PRELOAD": b"/l.so"}
    by_name, lines = containers_prepare.split_variables(values)
    assert by_name == {b"HOME": b"a\nb", b"V": b"1"} and lines == [b"LD_PRELOAD=/l.so", b"PATH=/x y"]
    descriptor, path = containers_prepare.as_descriptor(lines)
    assert descriptor is not None and path is not None and os.get_inheritable(descriptor)
    with open(path, "rb") as file:
        assert file.read() == b"LD_PRELOAD=/l.so\nPATH=/x y\n"
    os.close(descriptor)
    assert containers_prepare.as_descriptor([]) == (None, None)


def test_an_engine_that_refuses_is_explained() -> None:
    for errors, said in (
        (b"permission denied while trying to connect to the Docker daemon socket", "usermod"),
        (b"Cannot connect to the Docker daemon at unix:///x. Is the docker daemon running?", "systemctl start docker"),
        (b"Error: something else\n", "something else"),
        (b"", "no reason"),
    ):
        found = containers_prepare.explained("the image x cannot be looked up", errors)
        assert isinstance(found, SetupFailed) and said in str(found) and found.code == 125
