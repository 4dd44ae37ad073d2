"""The ladder of checks on the way to a host that cannot be asked."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import jobrunner.transport
from jobrunner.core.errors import (
    AgentError,
    AuthError,
    ConnectError,
    HostError,
    HostKeyError,
    HostSetupError,
    JobrunnerError,
    LinkLostError,
)
from jobrunner.service.doctor.reach import LADDER, failed, passed

from .doctor_facts import facts

ENDS = [
    (ConnectError("m", code="dns"), "address"),
    (HostError("m", code="ssh_config"), "address"),
    (ConnectError("m", code="refused"), "port"),
    (ConnectError("m", code="timeout"), "port"),
    (ConnectError("m", code="unreachable"), "port"),
    (ConnectError("m", code="proxy"), "port"),
    (ConnectError("m", code="silent"), "ssh"),
    (ConnectError("m", code="not_ssh"), "ssh"),
    (ConnectError("m", code="throttled"), "ssh"),
    (HostKeyError("m", code="hostkey_unknown"), "host key"),
    (HostKeyError("m", code="hostkey_changed"), "host key"),
    (HostKeyError("m", code="hostkey_revoked"), "host key"),
    (AuthError("m", code="auth"), "login"),
    (AuthError("m", code="passphrase"), "login"),
    (AuthError("m", code="too_many_keys"), "login"),
    (AuthError("m", code="no_keys"), "login"),
    (ConnectError("m", code="sessions_full"), "channels"),
    (HostSetupError("m", code="nologin"), "shell"),
    (HostSetupError("m", code="shell_exits"), "shell"),
    (HostSetupError("m", code="no_python"), "python"),
    (HostSetupError("m", code="old_python"), "python"),
    (HostSetupError("m", code="root_not_writable"), "root"),
    (HostSetupError("m", code="no_space"), "root"),
    (AgentError("m", code="root_not_ours"), "root"),
    (AgentError("m", code="agent_died"), "agent"),
    (LinkLostError("m", code="timeout"), "agent"),
    (LinkLostError("m"), "agent"),
    (AgentError("m", code="internal"), "agent"),
    (JobrunnerError("m", code="internal"), "agent"),
]


@pytest.mark.parametrize(("error", "rung"), ENDS, ids=[f"{type(e).__name__}-{e.code}" for e, _ in ENDS])
def test_the_way_ends_on_the_rung_that_the_error_names(error: JobrunnerError, rung: str) -> None:
    error.remedy = "do this"
    checks = failed(error)
    assert [check.name for check in checks] == [step.name for step in LADDER]
    at = [check.name for check in checks].index(rung)
    assert [check.ok for check in checks] == [True] * at + [False] + [None] * (len(checks) - at - 1)
    assert (checks[at].found, checks[at].remedy) == ("m", "do this")
    assert all(rung in check.found for check in checks[at + 1 :])


def test_every_code_that_connecting_can_end_with_has_its_rung() -> None:
    """Codes as they stand in the transport's source: a new one must be given a rung, or be known to be the agent's."""
    known = {code for step in LADDER for code in step.codes}
    others = {"link_lost", "closed", "bad_answer", "agent_died", "internal", "no_terminal", "agent", "code"}
    found = set()
    for path in Path(jobrunner.transport.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.keyword) and node.arg == "code":
                found |= {item.value for item in ast.walk(node.value) if isinstance(item, ast.Constant)}
    codes = {code for code in found if isinstance(code, str) and code.replace("_", "").isalpha()}
    assert {"dns", "refused", "auth", "no_python"} <= codes
    assert codes - known - others == set()


def test_a_host_that_answers_has_passed_the_same_rungs() -> None:
    checks = passed(facts())
    assert [check.name for check in checks] == [step.name for step in LADDER][: len(checks)]
    assert all(check.ok and check.found for check in checks)
    assert "10.0.0.5 port 22" in checks[0].found and "ml on npu-a" in checks[-1].found
