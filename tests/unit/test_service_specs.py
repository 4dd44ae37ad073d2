"""Spec files from disk, the folder around them, and their secrets."""

import os
from pathlib import Path

import pytest

from jobrunner.core.errors import NotFoundError, SecretError, SpecError
from jobrunner.core.hosts import load_hosts
from jobrunner.core.inventory import Inventory
from jobrunner.service.specs import load_specs, take_secrets

CANARY = "s3cr3t=!\"'\\#$& 中文"


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "train.py").write_text("print(1)\n")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "eval.py").write_text("print(2)\n")
    return tmp_path


def write(folder, text, name="job.yaml"):
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def load(*paths, **more):
    return load_specs(paths, **{"environ": {}, "secrets_file": None, "hosts": Inventory(), **more})


def problems(*paths, **more):
    with pytest.raises(SpecError) as caught:
        load(*paths, **more)
    return caught.value.problems


def test_a_spec_knows_where_it_lies(folder, monkeypatch):
    write(folder, "script: sub/eval.py\ndevice: npu\n", "my job.yaml")
    monkeypatch.chdir(folder)
    [loaded] = load(Path("my job.yaml"))
    assert (loaded.spec.name, loaded.base, loaded.code_dir) == ("my job", folder, folder)
    assert loaded.text.startswith("script") and loaded.secrets == {}


def test_code_may_lie_elsewhere_or_nowhere(folder, monkeypatch):
    monkeypatch.setenv("HOME", str(folder))
    specs = [
        write(folder / "sub", "script: train.py\ncode: ..\ndevice: npu\n", "a.yaml"),
        write(folder, "script: eval.py\ncode: ~/sub\ndevice: npu\n", "b.yaml"),
        write(folder, "command: x\ncode: null\ndevice: npu\n", "c.yaml"),
    ]
    first, second, third = load(*specs)
    assert first.code_dir.resolve() == folder and second.code_dir == folder / "sub" and third.code_dir is None


def test_overrides_reach_every_spec(folder):
    paths = [write(folder, "script: train.py\ndevice: npu\n", name) for name in ("a.yaml", "b.yaml")]
    assert [s.spec.priority for s in load(*paths, overrides=["priority=7"])] == [7, 7]


def test_all_problems_of_all_specs_at_once(folder):
    paths = [
        write(folder, "script: trian.py\ndevice: npu\nsecrets: [A]\n", "a.yaml"),
        write(folder, "script: sub/evl.py\nhosts: [NPU_A, other]\ndevice: npux\n", "b.yaml"),
        write(folder, "command: x\ncode: sbu\ndevice: npu\n", "c.yaml"),
        write(folder, b"a: \xff", "d.yaml"),
        folder / "zzz.txt",
        folder / "sub",
    ]
    found = problems(*paths, hosts=load_hosts("hosts: {npu-a: }", "h"))
    told = [(os.path.basename(p.file), p.line, p.suggestion) for p in found]
    assert told == [
        ("a.yaml", 1, "train.py"),
        ("a.yaml", 3, ""),
        ("b.yaml", 1, "sub/eval.py"),
        ("b.yaml", 2, "npu-a"),
        ("b.yaml", 3, "npu"),
        ("c.yaml", 2, ""),
        ("d.yaml", 1, ""),
        ("zzz.txt", None, ""),
        ("sub", None, ""),
    ]


def test_a_script_that_is_a_folder(folder):
    [problem] = problems(write(folder, "script: sub\ndevice: npu\n"))
    assert "is a folder" in problem.message and (problem.line, problem.column) == (1, 9)


def secrets_file(folder, text, mode=0o600):
    path = folder / "secrets.env"
    path.write_text(text, encoding="utf-8")
    path.chmod(mode)
    return path


def test_the_environment_goes_before_the_file(folder):
    path = write(folder, "script: train.py\ndevice: npu\nsecrets: [A, B]\n")
    file = secrets_file(folder, f"# mine\n\nA=from file\nexport B={CANARY}\n")
    [loaded] = load(path, environ={"A": "from env"}, secrets_file=file)
    assert loaded.secrets == {"A": "from env", "B": CANARY}
    assert CANARY not in repr(loaded) and "from env" not in repr(loaded)
    assert take_secrets(["B"], {}, file) == {"B": CANARY}


def test_the_file_is_not_opened_without_need(folder):
    path = write(folder, "script: train.py\ndevice: npu\nsecrets: [A]\n")
    assert load(path, environ={"A": ""}, secrets_file=secrets_file(folder, "A=x\n", 0o644))[0].secrets == {"A": ""}


@pytest.mark.skipif(os.name != "posix", reason="file modes are a matter of POSIX")
@pytest.mark.parametrize("mode", [0o644, 0o640, 0o602, 0o610])
def test_a_file_that_others_can_read_is_refused(folder, mode):
    path = write(folder, "script: train.py\ndevice: npu\nsecrets: [A]\n")
    file = secrets_file(folder, f"A={CANARY}\n", mode)
    with pytest.raises(SpecError) as caught:
        load(path, secrets_file=file)
    assert f"{mode:04o}" in str(caught.value) and "chmod 600" in caught.value.remedy
    assert CANARY not in str(caught.value)
    with pytest.raises(SecretError):
        take_secrets(["A"], {}, file)


@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="only root can give a file away")
def test_a_file_of_somebody_else_is_refused(folder):
    file = secrets_file(folder, "A=x\n")
    os.chown(file, 12345, 12345)
    with pytest.raises(SecretError, match="another user"):
        take_secrets(["A"], {}, file)


def test_missing_secrets_are_named_with_what_to_do(folder):
    path = write(folder, "script: train.py\ndevice: npu\nsecrets: [A, B]\n")
    with pytest.raises(SpecError) as caught:
        load(path, environ={"B": CANARY}, secrets_file=folder / "secrets.env")
    assert caught.value.code == "secret_missing" and caught.value.exit_code == 2
    assert [(p.line, p.column) for p in caught.value.problems] == [(3, 11)]
    assert "A" in caught.value.remedy and "secrets.env" in caught.value.remedy
    with pytest.raises(SpecError) as caught:
        load(path, environ={}, secrets_file=None)
    assert caught.value.remedy == "set A and B in the environment"
    with pytest.raises(SecretError, match="not set: A"):
        take_secrets(["A", "B"], {"B": "x"}, None)


def test_a_bad_line_of_the_file_is_told_without_its_text(folder):
    path = write(folder, "script: train.py\ndevice: npu\nsecrets: [A]\n")
    found = problems(path, secrets_file=secrets_file(folder, f"A=x\n{CANARY.replace('=', ' ')}\n"))
    assert [(p.line, p.code) for p in found] == [(2, "secrets_file")]
    assert "s3cr3t" not in str(found)


def test_a_script_or_a_folder_is_no_spec_and_the_spec_beside_it_is_named(folder):
    write(folder, "script: train.py\ndevice: npu\n")
    for path in (folder / "train.py", folder):
        [problem] = problems(path)
        assert "spec" in problem.message and problem.suggestion.endswith(".yaml")


def test_jobs_that_after_names_must_be_known(folder):
    path = write(folder, "script: train.py\ndevice: npu\nafter: [here, {job: gone, when: any}]\n")

    def find(word):
        if word != "here":
            raise NotFoundError(f"no job is called {word}.", code="no_such_job")

    with pytest.raises(SpecError) as caught:
        load(path, find_job=find)
    assert caught.value.code == "no_such_job" and caught.value.exit_code == 5
    assert [str(p) for p in caught.value.problems] == [f"{path}:3:15: after: no job is called gone"]
    with pytest.raises(SpecError) as caught:
        load(write(folder, path.read_text() + "cards: two\n"), find_job=find)
    assert caught.value.exit_code == 2 and len(caught.value.problems) == 2
