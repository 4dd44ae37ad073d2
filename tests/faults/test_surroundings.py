"""A whole cycle whatever the locale, the file names, the line ends and the login shell."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.commands import Laptop
from tests.faults.host import BreakableHost
from tests.support.hosts import private_etc
from tests.support.lab import Lab
from tests.support.quick import QuickClient
from tests.support.waiting import eventually

pytestmark = pytest.mark.needs_sshd
SHELLS = ("bash", "dash", "zsh", "tcsh", "fish")
NOISE = {
    "bash": (".bashrc", "echo welcome; echo noise >&2; printf '\\033[31mred'; cd /; set -u\n"),
    "zsh": (".zshenv", "echo welcome; echo noise >&2\n"),
    "tcsh": (".tcshrc", "echo welcome\n"),
    "fish": (".config/fish/config.fish", "echo welcome; echo noise >&2\n"),
}
CYCLE = """\
device: npu
grace: 1s
launcher: LAUNCHER
env: {WORD: "a 'b' \\"c\\" $(id) `id` !! \\\\ 中文 🚀"}
checkpoints: {paths: ["*.bin"]}
command: |
  printf '%s\\n' "$WORD"
  echo x > $JOBRUNNER_OUTPUT_DIR/a.bin
  sleep 600
"""


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BreakableHost]:
    with BreakableHost(tmp_path_factory.mktemp("names"), env={"LC_ALL": "C", "LANG": "C"}) as host:
        yield host


def test_names_under_the_c_locale(host: BreakableHost, tmp_path: Path) -> None:
    """Client and host in the C locale: names of any bytes arrive, run, and come home."""
    laptop = Laptop(tmp_path / "laptop", host)
    laptop.env.update(LC_ALL="C", LANG="C")
    spec = "device: cpu\nscript: 训练é.sh\noutputs: ['结果/*']\n"
    path = laptop.spec(spec, "names")
    script = "ls; mkdir -p $JOBRUNNER_OUTPUT_DIR/结果; cp *.txt $JOBRUNNER_OUTPUT_DIR/结果/\n"
    (path.parent / "训练é.sh").write_bytes(script.encode())
    Path(os.fsdecode(bytes(path.parent) + b"/odd \xff\xfe name.txt")).write_bytes(b"odd")
    (path.parent / "模型 🚀.txt").write_bytes(b"emoji")

    # Through the real program, since the locale is settled when Python starts.
    def run(*words: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "jobrunner", *words], env=laptop.env, cwd=laptop.folder, capture_output=True,
            stdin=subprocess.DEVNULL, timeout=60,
        )  # fmt: skip
        assert done.returncode == 0, done
        return done.stdout.decode()

    id_ = json.loads(run("submit", str(path), "--json"))["data"]["jobs"][0]["id"]
    run("wait", id_)
    run("ls")
    run("pull", id_, "--to", "home")
    found = {os.fsencode(file.name): file.read_bytes() for file in (laptop.folder / "home").rglob("*.txt")}
    assert found == {b"odd \xff\xfe name.txt": b"odd", "模型 🚀.txt".encode(): b"emoji"}
    assert "训练é.sh" in laptop.log(id_).decode("utf-8", "replace")


def test_a_script_with_crlf_arrives_as_it_is(host: BreakableHost, tmp_path: Path) -> None:
    laptop = Laptop(tmp_path / "laptop", host)
    path = laptop.spec("device: cpu\ncommand: [sha256sum, dos.sh]\n", "crlf")
    data = b"#!/bin/sh\r\necho dos\r\n# no line end"
    (path.parent / "dos.sh").write_bytes(data)
    id_ = laptop.json("submit", str(path))["jobs"][0]["id"]
    laptop.run("wait", id_)
    assert laptop.log(id_).split()[0].decode() == hashlib.sha256(data).hexdigest()


@pytest.mark.root
@pytest.mark.parametrize("shell", SHELLS)
def test_a_cycle_under_every_login_shell(tmp_path: Path, shell: str) -> None:
    """Submit, log, checkpoint, cancel: the same, with start-up files that print and move about; nohup beside tmux."""
    program = shutil.which(shell)
    assert program, f"{shell} is not installed"
    folder = tmp_path / "host"
    home = folder / "home"
    accounts = [(f"u{shell}", program, home)]
    (tmp_path / "etc").mkdir()
    with Lab(folder, user=f"u{shell}", wrapper=private_etc(tmp_path / "etc", accounts)) as lab:
        if shell in NOISE:
            name, text = NOISE[shell]
            (home / name).parent.mkdir(parents=True, exist_ok=True)
            (home / name).write_text(text)
        laptop = QuickClient(tmp_path / "laptop", lab)
        ids = [laptop.submit(CYCLE.replace("LAUNCHER", way), way) for way in ("nohup", "tmux")]
        wanted = "a 'b' \"c\" $(id) `id` !! \\ 中文 🚀"
        for id_ in ids:
            eventually(lambda id_=id_: list(lab.root.glob(f"hosts/*/jobs/{id_}/out/a.bin")), 20, "its checkpoint")
            assert wanted in laptop.log(id_).decode("utf-8", "replace")
            listed = eventually(lambda id_=id_: laptop.json("checkpoints", id_)["checkpoints"], 20)
            assert [item["name"] for item in listed] == ["a.bin"]
        assert [row["state"] for row in laptop.json("cancel", *ids)["jobs"]] == ["CANCELLED", "CANCELLED"]
        assert not [pid for id_ in ids for pid in lab.carriers(id_)]
