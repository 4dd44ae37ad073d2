"""Set-up by shell: steps and their failures, vendors' scripts that misbehave, modules, conda without conda on PATH."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from jobrunner.agent import env_shell

BASE = {b"PATH": os.environb[b"PATH"], b"KEEP": b"kept", b"EMPTY": b""}


def lines(*texts: str) -> list[tuple[bytes, bytes, bytes]]:
    return [(b"line", text.encode(), b"") for text in texts]


def vendor(folder: Path, text: str, **more: float) -> tuple[dict[bytes, bytes], str | None]:
    script = folder / "set_env.sh"
    script.write_text(text)
    return env_shell.vendor(os.fsencode(script), dict(BASE), os.fsencode(folder), **more)


@pytest.mark.parametrize(
    ("text", "expected", "problem"),
    [
        ("export A=1", b"1", None),
        ("export A=x$NOT_SET; [ -z $ZSH_VERSION ]", b"x", None),
        ("set -eu; export A=1; echo $NOT_SET; export A=2", b"1", "exit code"),
        ("export A=1; exit 3", b"1", "exit code 3"),
        ("export A=1; exit", b"1", None),
        ("export A=1; cd /; unset KEEP; false", b"1", "exit code 1"),
        ("echo said; echo wrong >&2; export A=1; return 2", b"1", "exit code 2"),
        ("export A=$#$1", b"0", None),
        ("export A=1\nif", b"1", "exit code"),
        ("export A=1; trap 'export A=5' EXIT", b"5", "nothing of it"),
        ("export A=1; sleep 60 &", b"1", None),
        ("kill -9 $$", None, "signal 9"),
        ("exec true", None, "ended the shell"),
    ],
)
def test_a_vendors_script_breaks_nothing(
    tmp_path: Path, text: str, expected: bytes | None, problem: str | None
) -> None:
    began = time.monotonic()
    made, said = vendor(tmp_path, text)
    assert time.monotonic() - began < 10
    if problem == "nothing of it":  # its own trap took the place of ours
        assert said is not None and problem in said and made == BASE
        return
    assert made.get(b"A") == expected and made[b"PATH"] == BASE[b"PATH"] and b"PWD" not in made
    assert (said is None) if problem is None else (said is not None and problem in said), said
    if "unset KEEP" not in text:
        assert made[b"KEEP"] == b"kept" and made[b"EMPTY"] == b""


def test_a_vendors_script_that_hangs_is_given_up(tmp_path: Path) -> None:
    made, said = vendor(tmp_path, "export A=1; sleep 600", limit_s=0.3)
    assert made == BASE and said is not None and "did not end within" in said
    made, said = vendor(tmp_path, "export A=1")
    assert made[b"A"] == b"1"


@pytest.mark.parametrize(
    ("texts", "code", "said"),
    [
        (("true", "exit 6"), 6, "exit code 6: exit 6"),
        (("(exit 7)", "true"), 7, "exit code 7: (exit 7)"),
        (("if",), 2, ": if"),
        (("exit 0",), 1, "ended the shell, so that the environment is not known: exit 0"),
        (("kill -TERM $$",), 143, "signal 15: kill -TERM $$"),
        (("exec false",), 1, "exec false"),
        (("no-such-command-here x",), 127, "no-such-command-here x"),
    ],
)
def test_a_line_that_fails_is_named(texts: tuple[str, ...], code: int, said: str) -> None:
    with pytest.raises(env_shell.SetupFailed) as failed:
        env_shell.steps(lines(*texts), dict(BASE), b"/")
    assert failed.value.code == code and said in str(failed.value)


def test_lines_see_each_other_and_change_only_what_they_export() -> None:
    odd = "a'b\n$HOME \udcff".encode("utf-8", "surrogateescape")
    texts = (
        "f() { echo x; }; shopt -s nullglob; cd /tmp",
        "set -eu",
        "export A=$(f)$PWD$not_set B='1\n2'; C=3",
        "unset KEEP",
    )
    made = env_shell.steps(lines(*texts), {**BASE, b"a.b": odd, b"ODD": odd, b"PWD": b"/old"}, b"/")
    assert made[b"A"] == b"x/tmp" and made[b"B"] == b"1\n2" and b"C" not in made and b"KEEP" not in made
    assert made[b"a.b"] == made[b"ODD"] == odd and made[b"PWD"] == b"/old" and b"_" not in made


def test_module_lines_work_in_a_shell_that_was_not_told_of_modules(tmp_path: Path) -> None:
    init = tmp_path / "init"
    init.mkdir()
    (init / "bash").write_text(
        'module() { echo "module $*"; [ "$2" != bad ] || return 1; [ -z "$UNSET" ] && export LOADED="$LOADED:$2"; }\n'
        f"export BASH_ENV={init}/bash\nfalse\n"
    )
    environment = {**BASE, b"MODULESHOME": os.fsencode(tmp_path)}
    made = env_shell.steps(
        lines("module load cann/8.0", "module load torch && export AFTER=$LOADED"), environment, b"/"
    )
    assert made[b"AFTER"] == b":cann/8.0:torch"
    shell = ["bash", "-c", "module load again; echo $LOADED"]
    assert b"again" in os.fsencode(_run(shell, made)), "the command's own bash knows `module`, too"
    with pytest.raises(env_shell.SetupFailed) as failed:
        env_shell.steps(lines("module load bad"), environment, b"/")
    assert failed.value.code == 1 and "module load bad" in str(failed.value)


def _run(words: list[str], environment: dict[bytes, bytes]) -> str:
    import subprocess

    env = {os.fsdecode(name): os.fsdecode(value) for name, value in environment.items()}
    return subprocess.run(words, env=env, capture_output=True, text=True, timeout=20).stdout


CONDA_SH = """conda() {
  [ "$1" = activate ] || return 9
  if [ ! -d "$2" ]; then echo "EnvironmentNameNotFound: $2" >&2; return 1; fi
  export CONDA_PREFIX="$2" CONDA_DEFAULT_ENV="${2##*/}" PATH="$2/bin:$PATH" CONDA_SHLVL=$((CONDA_SHLVL + 1))
  . "$2/etc/conda/activate.d/x.sh"
}
"""


def conda(folder: Path, *envs: str) -> Path:
    (folder / "etc/profile.d").mkdir(parents=True)
    (folder / "etc/profile.d/conda.sh").write_text(CONDA_SH)
    for name in envs:
        scripts = folder / "envs" / name / "etc/conda/activate.d"
        scripts.mkdir(parents=True)
        (scripts / "x.sh").write_text('export FROM_ENV="$NOT_SET$CONDA_DEFAULT_ENV"\n')
        (folder / "envs" / name / "bin").mkdir()
    return folder


def test_conda_is_found_after_the_lines_before_it(tmp_path: Path) -> None:
    base = conda(tmp_path / "c", "my env")
    asked: list[dict[bytes, bytes]] = []

    def find(table: dict[bytes, bytes]) -> tuple[bytes, bytes]:
        asked.append(table)
        return os.fsencode(base), os.fsencode(base / "envs/my env")

    steps = [*lines("export BEFORE=1"), (b"conda", b"", b"my env"), *lines("export AFTER=$CONDA_DEFAULT_ENV$BEFORE")]
    made = env_shell.steps(steps, dict(BASE), b"/", find)
    assert len(asked) == 1 and asked[0][b"BEFORE"] == b"1" and made[b"AFTER"] == b"my env1"
    assert made[b"FROM_ENV"] == b"my env" and made[b"PATH"].startswith(os.fsencode(base / "envs/my env/bin:"))
    with pytest.raises(env_shell.SetupFailed) as failed:
        env_shell.steps([(b"conda", os.fsencode(base), b"other")], dict(BASE), b"/")
    assert failed.value.code == 1 and "conda activate other" in str(failed.value)


def test_who_cannot_find_conda_ends_the_set_up() -> None:
    def find(table: dict[bytes, bytes]) -> tuple[bytes, bytes]:
        raise env_shell.SetupFailed(125, "no conda here")

    with pytest.raises(env_shell.SetupFailed, match="no conda here"):
        env_shell.steps([(b"conda", b"", b"x")], dict(BASE), b"/", find)


def test_an_environment_without_its_conda_is_activated_by_hand(tmp_path: Path) -> None:
    folder = conda(tmp_path / "c", "solo") / "envs" / "solo"
    made = env_shell.steps([(b"conda", b"hand", os.fsencode(folder))], dict(BASE), b"/")
    assert made[b"CONDA_PREFIX"] == os.fsencode(folder) == made[b"FROM_ENV"]
    assert made[b"PATH"].split(b":")[0] == os.fsencode(folder / "bin")


def test_a_virtual_environment_is_looked_for_when_its_turn_comes(tmp_path: Path) -> None:
    venv = (b"venv", os.fsencode(tmp_path / "v"), b"")
    steps = [*lines(f"mkdir -p {tmp_path}/v/bin", "export PYTHONHOME=/x"), venv]
    made = env_shell.steps(steps, dict(BASE), b"/")
    assert made[b"VIRTUAL_ENV"] == venv[1] and made[b"PATH"].startswith(venv[1] + b"/bin:")
    assert b"PYTHONHOME" not in made
    with pytest.raises(env_shell.SetupFailed, match="there is no virtual environment in /no/where"):
        env_shell.steps([(b"venv", b"/no/where", b"")], dict(BASE), b"/")


def test_what_bash_told_is_read_whole_messages_only() -> None:
    data = b"env\0A=1\0E=\0\0step\0" + b"3\0\0env\0B="
    assert env_shell.messages(data) == [(b"env", [b"A=1", b"E="]), (b"step", [b"3"])]
    assert env_shell.table([b"A=1=2", b"E=", b"odd", b"=x"]) == {b"A": b"1=2", b"E": b""}
