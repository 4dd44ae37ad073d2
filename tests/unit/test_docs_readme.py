"""README, the other pages and the Makefile say nothing that is not there."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any

import pytest

from jobrunner.core.hosts import load_hosts
from jobrunner.core.specdoc import read_spec

REPOSITORY = Path(__file__).resolve().parents[2]
README = (REPOSITORY / "README.md").read_text(encoding="utf-8")
PAGES = [REPOSITORY / name for name in ("README.md", "ARCHITECTURE.md", "CHANGELOG.md")]
PAGES += sorted((REPOSITORY / "docs").glob("*.md"))


@functools.cache
def program() -> Any:
    """The command line as click knows it."""
    import typer

    from jobrunner.cli.app import app

    return typer.main.get_command(app)


@functools.cache  # to make them takes longer than all that is asked of them
def all_commands() -> dict[str, Any]:
    """Every command by its full name: `submit`, `hosts add`."""
    found: dict[str, Any] = {}
    for name, command in program().commands.items():
        inner = getattr(command, "commands", None)
        found.update({f"{name} {word}": sub for word, sub in inner.items()} if inner else {name: command})
    return found


def written_commands() -> list[str]:
    """Every command line in the README: `jobrunner …` in code, up to a comment, a pipe or the next command."""
    code = re.findall(r"`([^`\n]+)`", README)
    code += [line for block in re.findall(r"^```\n(.*?)^```", README, re.M | re.S) for line in block.splitlines()]
    found = []
    for text in code:
        for part in re.split(r"\s+#|&&|\|", text):
            match = re.match(r"\s*(?:\$ )?jobrunner (.+)", part)
            if match:
                found.append(match.group(1).strip())
    return found


def command_of(words: list[str]) -> str:
    pair = " ".join(words[:2])
    return pair if pair in all_commands() else words[0]


def test_readme_names_commands() -> None:
    assert len(written_commands()) > 25


@pytest.mark.parametrize("line", sorted(set(written_commands())))
def test_commands_and_their_options_exist(line: str) -> None:
    words = line.split()
    command = program() if words[0].startswith("-") else all_commands().get(command_of(words))
    assert command is not None, f"`jobrunner {line}`: no such command"
    options = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    for word in words:
        if word.startswith("-"):
            assert word in options, f"`jobrunner {line}`: {word} is no option of it"


def test_every_command_is_in_the_readme() -> None:
    named = {command_of(line.split()) for line in written_commands()}
    assert sorted(set(all_commands()) - named) == []


def test_options_in_the_table_exist() -> None:
    rows = [line.split("|")[1:3] for line in README.splitlines() if line.startswith("| `jobrunner ")]
    assert len(rows) > 15
    for name, does in rows:
        commands = [all_commands()[command_of(part.split())] for part in re.findall(r"`jobrunner ([^`]+)`", name)]
        options = {opt for command in commands for parameter in command.params for opt in parameter.opts}
        for word in re.findall(r"`(--?[a-z]+(?:-[a-z]+)*)", does):
            assert word in options, f"{name.strip()}: {word}"


def blocks(kind: str) -> list[str]:
    return re.findall(rf"<!-- {kind} -->\n```yaml\n(.*?)^```", README, re.M | re.S)


def test_every_yaml_block_is_checked() -> None:
    assert len(blocks("spec")) + len(blocks("hosts")) == README.count("```yaml") == 2


def test_the_spec_loads_and_explains_every_key() -> None:
    from jobrunner.core.spec import JobSpec

    (text,) = blocks("spec")
    document = read_spec(text, "README.md")
    assert [str(problem) for problem in document.problems] == []
    keys = set(re.findall(r"^([a-z_]+):", text, re.M)) | {"command"}
    later = {"sweep", "schedule", "promote"}
    assert keys == set(JobSpec.model_fields) - later


def test_the_hosts_file_loads() -> None:
    from jobrunner.core.hosts import HostsFile, HostSpec, Settings
    from jobrunner.core.inventory import Waits

    (text,) = blocks("hosts")
    hosts = load_hosts(text, "README.md")
    assert list(hosts.hosts) == ["npu-a"]
    assert set(re.findall(r"^    ([a-z_]+):", text, re.M)) == set(HostSpec.model_fields) - {"name"}
    assert set(re.findall(r"^([a-z_]+):", text, re.M)) == set(HostsFile.model_fields)
    assert hosts.settings == Waits(), "the values shown are the defaults"
    (line,) = re.findall(r"^settings: (.*)", text, re.M)
    assert all(f"{name}:" in line for name in Settings.model_fields)


def test_the_row_that_submit_shows_is_a_real_one(tmp_path: Path) -> None:
    from datetime import datetime, timezone

    from jobrunner.cli.views import job_table, upload_words
    from jobrunner.core.jobs import JobRow
    from jobrunner.core.states import JobState
    from jobrunner.service.init import init

    sizes = sorted(((path.stat().st_size, path.name) for path in init(tmp_path)), reverse=True)
    at = "2026-12-01T09:30:00.000000Z"
    row = JobRow("aqztumh95k", "my-job", JobState.QUEUED, host="npu-a", device="npu", submitted_at=at)
    shown = job_table([row], datetime(2026, 12, 1, 9, 30, tzinfo=timezone.utc)).plain()
    assert f"\n{shown}```" in README
    report = {"files": 3, "sent": 3, "sent_bytes": 2300, "biggest": [[name, size] for size, name in sizes]}
    assert [word.split(" ")[0] for word in upload_words(report).split("biggest: ")[1].split(", ")] == re.findall(
        r"([a-z]+\.[a-z]+) [0-9]", README.split("biggest: ")[1].split("\n")[0]
    )


def test_exit_codes_are_those_of_the_errors() -> None:
    from jobrunner.core import errors

    table = {int(code) for code in re.findall(r"^\| (\d+) \| ", README, re.M)}
    assert table == {0, 1, 2, 3, 4, 5, 124, 130}
    raised = {kind.exit_code for kind in vars(errors).values() if isinstance(kind, type) and hasattr(kind, "exit_code")}
    assert raised <= table


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_are_alive(page: Path) -> None:
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        assert not target.startswith("http"), f"{page.name} leads out of the project: {target}"
        assert (page.parent / target.split("#")[0]).exists(), f"{page.name}: {target}"


def test_make_targets_exist() -> None:
    makefile = (REPOSITORY / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.M))
    for page in PAGES:
        for target in re.findall(r"(?:`|^)make ([a-z]+(?:-[a-z]+)*)\b", page.read_text(encoding="utf-8"), re.M):
            assert target in targets, f"{page.name}: make {target}"


def test_constraints_pin_every_dependency() -> None:
    project = (REPOSITORY / "pyproject.toml").read_text(encoding="utf-8")
    pins = (REPOSITORY / "constraints.txt").read_text(encoding="utf-8")
    pinned = {line.split("==")[0] for line in pins.splitlines() if "==" in line}
    lists = re.findall(r"^(?:dependencies|demo|dev) = \[(.*?)\]", project, re.M | re.S)
    needed = {
        re.sub(r"[-_.]+", "-", name).lower() for block in lists for name in re.findall(r'"([A-Za-z0-9_.-]+)', block)
    }
    assert len(needed) > 15
    assert sorted(needed - pinned) == []
