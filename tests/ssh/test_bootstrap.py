"""The agent's package and the line that starts it: the same bytes everywhere, understood by every shell and Python."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
import zipfile
from pathlib import Path

import pytest

from jobrunner.agent import wire
from jobrunner.core.errors import UsageError
from jobrunner.transport import bootstrap
from jobrunner.transport.bootstrap import agent_image, bootstrap_command, build_image, interpreter_word, words_command
from tests.support.hosts import test_agent

FENCE = "f" * 32
VERSIONS = Path(os.environ.get("PYENV_ROOT", "/root/.pyenv")) / "versions"
PYTHONS = sorted(str(path) for path in VERSIONS.glob("3.*/bin/python")) or ["python3"]
OLD = sorted(str(path) for path in VERSIONS.glob("2.7*/bin/python"))
SHELLS = [name for name in ("sh", "bash", "dash", "zsh", "tcsh", "fish", "ksh") if shutil.which(name)]


def start(shell: str, python: str, home: Path, sent: bytes, root: str = "~/root") -> subprocess.CompletedProcess[bytes]:
    command = bootstrap_command(root, python, test_agent(), FENCE)
    env = {"HOME": str(home), "PATH": os.environ["PATH"], "SHELL": "/bin/given"}
    return subprocess.run([shell, "-c", command], input=sent, env=env, capture_output=True, timeout=60, check=False)


def answers(output: bytes) -> list[dict[str, object]]:
    data = memoryview(output)
    found, at = [], 0

    def read(count: int) -> bytes:
        nonlocal at
        piece = bytes(data[at : at + count])
        at += len(piece)
        return piece

    reader = wire.Reader(read)
    while (message := reader.json()) is not None:
        found.append(message)
    return found


@pytest.mark.parametrize("python", PYTHONS)
def test_every_python_from_3_6_on_installs_and_runs_it(tmp_path: Path, python: str) -> None:
    home = tmp_path / 'it\'s a "home"'
    home.mkdir()
    echo = wire.pack_json({"v": 1, "op": "echo", "value": "é"})
    head = f"\n{FENCE}\n".encode()
    first = start("sh", python, home, test_agent().data + echo)
    assert first.stdout.startswith(head + b"W /bin/given\nH\n"), first
    again = start("sh", python, home, echo + echo)
    assert again.stdout.startswith(head + b"H /bin/given\n"), again
    frames = again.stdout[len(head) + len(b"H /bin/given\n") :]
    assert [message["data"]["value"] for message in answers(frames)] == ["é", "é"]  # type: ignore[index]
    assert (first.stderr, again.stderr) == (b"", b"")
    installed = home / "root" / "agent"
    assert {path.name for path in installed.iterdir()} == {
        f"agent-{test_agent().hash}",
        f"agent-{test_agent().hash}.pyz",
    }
    assert installed.stat().st_mode & 0o777 == 0o700
    assert list((installed / f"agent-{test_agent().hash}").rglob("__pycache__")), "compiled once, for quick starts"


@pytest.mark.parametrize("shell", SHELLS)
def test_every_shell_reads_the_line(tmp_path: Path, shell: str) -> None:
    done = start(shell, PYTHONS[-1], tmp_path, test_agent().data)
    assert done.stdout == f"\n{FENCE}\nW /bin/given\nH\n".encode()
    assert done.returncode == 0
    assert done.stderr == b""


@pytest.mark.skipif(not OLD, reason="NOT TESTED HERE: there is no Python 2.7")
def test_python_2_is_named(tmp_path: Path) -> None:
    done = start("sh", OLD[0], tmp_path, b"")
    assert done.stdout == f"\n{FENCE}\nV 2.7\n".encode()
    assert not (tmp_path / "root").exists()


def test_a_damaged_package_is_not_installed(tmp_path: Path) -> None:
    data = bytearray(test_agent().data)
    data[100] ^= 1
    done = start("sh", PYTHONS[-1], tmp_path, bytes(data))
    assert b"X the agent arrived damaged" in done.stdout
    cut = start("sh", PYTHONS[-1], tmp_path, bytes(data[:1000]))
    assert cut.stdout.endswith(b"W /bin/given\n")
    assert list((tmp_path / "root" / "agent").iterdir()) == []


def test_a_damaged_installation_is_put_right(tmp_path: Path) -> None:
    start("sh", PYTHONS[-1], tmp_path, test_agent().data)
    package = tmp_path / "root" / "agent" / f"agent-{test_agent().hash}.pyz"
    package.write_bytes(package.read_bytes()[:-10])
    again = start("sh", PYTHONS[-1], tmp_path, test_agent().data)
    assert again.stdout.endswith(b"W /bin/given\nH\n")
    assert package.read_bytes() == test_agent().data
    shutil.rmtree(package.with_suffix(""))
    assert start("sh", PYTHONS[-1], tmp_path, test_agent().data).stdout.endswith(b"W /bin/given\nH\n")


def test_several_at_once_install_one(tmp_path: Path) -> None:
    command = bootstrap_command("~/root", PYTHONS[-1], test_agent(), FENCE)
    env = {"HOME": str(tmp_path), "PATH": os.environ["PATH"]}
    pipe = subprocess.PIPE
    running = [subprocess.Popen(["sh", "-c", command], stdin=pipe, stdout=pipe, stderr=pipe, env=env) for _ in range(5)]
    results = [process.communicate(test_agent().data, timeout=60) for process in running]
    for out, err in results:
        assert out.endswith((b"W \nH\n", b"H \n")), (out, err)
    assert len(list((tmp_path / "root" / "agent").iterdir())) == 2


def test_no_shell_finds_anything_to_read_in_the_line() -> None:
    line = bootstrap_command("~/a 'b'\n!\\", "~/my python/bin/python3", test_agent(), FENCE)
    assert not set("\n!\\") & set(line)
    assert line.count("'") == 4, "one quoted program, one quoted path"
    assert len(line) < 8000


@pytest.mark.parametrize("bad", ["", "a'b", "a!b", "a\\b", "a\nb", "-c"])
def test_an_interpreter_that_cannot_be_one_word_is_refused(bad: str) -> None:
    with pytest.raises(UsageError):
        interpreter_word(bad)


@pytest.mark.parametrize("shell", SHELLS)
def test_words_arrive_as_they_are(tmp_path: Path, shell: str) -> None:
    words = ["a b", "'", '"', "$HOME", "!!", "\\", "*", "\n", "é", "-n", ""]
    argv = ["python3", "-c", "import sys; print(sys.argv[1:])", *words]
    env = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
    command = words_command(PYTHONS[-1], argv)
    done = subprocess.run([shell, "-c", command], env=env, capture_output=True, check=True)
    assert done.stdout.decode("utf-8").strip() == str(words)


def test_the_package_is_the_same_wherever_it_is_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    image = build_image()
    assert build_image() == image
    for name, entry in bootstrap._sources():  # the same sources with other line ends, times and modes
        copy = tmp_path / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(Path(entry.path).read_bytes().replace(b"\n", b"\r\n"))
        copy.chmod(0o600)
        os.utime(copy, (1, 1))
    monkeypatch.setattr("jobrunner.agent.__file__", str(tmp_path / "jobrunner" / "agent" / "__init__.py"))
    assert build_image() == image
    (tmp_path / "jobrunner" / "agent" / "clock.py").write_bytes(b"# changed\n")
    assert build_image().hash != image.hash


def test_the_package_holds_the_agent_and_nothing_else(tmp_path: Path) -> None:
    file = tmp_path / "agent.pyz"
    file.write_bytes(build_image().data)
    names = zipfile.ZipFile(file).namelist()
    assert {"__main__.py", "jobrunner/__init__.py", "jobrunner/agent/rpc.py", "jobrunner/agent/wire.py"} <= set(names)
    assert not [name for name in names if "__pycache__" in name or not name.endswith((".py", ".json"))]
    assert all(
        name.startswith("jobrunner/agent/") for name in names if name not in ("__main__.py", "jobrunner/__init__.py")
    )


def test_the_package_is_kept_and_built_anew_after_a_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    image = build_image()
    assert agent_image(tmp_path / "cache") == image
    monkeypatch.setattr(bootstrap, "build_image", lambda: pytest.fail("it was kept"))
    assert agent_image(tmp_path / "cache") == image
    monkeypatch.undo()
    (tmp_path / "cache" / "agent.pyz").write_bytes(b"nonsense")
    assert agent_image(tmp_path / "cache") == image
    assert agent_image(Path(os.devnull) / "no") == image, "a folder that cannot be written only costs time"


def test_a_start_of_the_real_agent_is_quick(tmp_path: Path) -> None:
    """Generous limit for a busy machine; the measured value is a third of it."""
    image = build_image()
    command = bootstrap_command("~/root", PYTHONS[-1], image, FENCE)
    env = {"HOME": str(tmp_path), "PATH": os.environ["PATH"], "JOBRUNNER_LEASE_SCOPE": f"boot-{os.getpid()}"}
    request = wire.pack_json({"v": 1, "op": "look", "jobs": [], "cards": False})
    subprocess.run(["sh", "-c", command], input=image.data + request, env=env, capture_output=True, check=True)
    took = []
    for _ in range(5):
        began = time.perf_counter()
        done = subprocess.run(["sh", "-c", command], input=request, env=env, capture_output=True, check=True)
        took.append(time.perf_counter() - began)
    assert b'"ok":' in done.stdout
    assert min(took) < 0.15
