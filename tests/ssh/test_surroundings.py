"""Whatever surrounds a command - closed descriptors, a closed pipe, no input - changes no result."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from jobrunner.lab.sshd import LoopbackHost

pytestmark = pytest.mark.needs_sshd

SCRIPT = """
import sys
from pathlib import Path
from jobrunner.transport.link import HostLink
from jobrunner.transport.settings import HostTarget
with HostLink(HostTarget.of("lab", ssh_config=sys.argv[1])) as link:
    link.request("look", jobs=[], cards=False)
    Path(sys.argv[2]).write_text(str(link.host_facts["hostname"]))
"""
WAYS = {
    "no input": "{} </dev/null",
    "closed": "{} <&- >&- 2>&-",
    "input closed": "{} <&-",
    "closed pipe": "{} | true",
    "background": "{} & wait",
    "input that waits": "sleep 5 | {{ {}; kill 0; }}",
}


@pytest.mark.parametrize("way", list(WAYS))
def test_the_result_is_the_same(host: LoopbackHost, tmp_path: Path, way: str) -> None:
    answer = tmp_path / "answer"
    line = WAYS[way].format('"$1" -W error -c "$2" "$3" "$4"')
    argv = ["bash", "-c", line, "bash", sys.executable, SCRIPT, str(host.ssh_config), str(answer)]
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(argv, env=env, capture_output=True, timeout=30, check=False, start_new_session=True)
    assert answer.read_text("utf-8") == os.uname().nodename
    assert b"Traceback" not in done.stderr
    assert b"Exception" not in done.stderr


def test_what_makes_no_connection_imports_no_ssh() -> None:
    code = (
        "import sys, jobrunner.transport.pool, jobrunner.transport.hostkeys\n"
        "print(sorted({'paramiko', 'fabric', 'invoke', 'cryptography'} & set(sys.modules)))"
    )
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, check=True, text=True)
    assert done.stdout.strip() == "[]"


def test_nothing_is_logged_by_default(tmp_path: Path) -> None:
    """A refused connection is one exception, not a page of tracebacks on standard error."""
    config = tmp_path / "config"
    config.write_text("Host odd\n HostName 127.0.0.1\n Port 1\n", encoding="ascii")
    code = (
        "import sys\n"
        "from jobrunner.core.errors import ConnectError\n"
        "from jobrunner.transport.link import HostLink\n"
        "from jobrunner.transport.settings import HostTarget\n"
        "try:\n"
        "    HostLink(HostTarget.of('odd', ssh_config=sys.argv[1])).open()\n"
        "except ConnectError as error:\n"
        "    print(error.code)\n"
    )
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(
        [sys.executable, "-c", code, str(config)], env=env, capture_output=True, check=True, text=True
    )
    assert (done.stdout.strip(), done.stderr) == ("refused", "")
