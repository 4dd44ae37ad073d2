"""Every Python on this machine that the agent must run under (3.6 and newer), and a way to run a snippet in each."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def _candidates() -> list[Path]:
    found = sorted(Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")).glob("versions/*/bin/python"))
    for folder in os.environ.get("PATH", "").split(os.pathsep):
        found += [Path(folder) / f"python3.{minor}" for minor in range(6, 16)]
    return [*found, Path(sys.executable)]


@lru_cache(maxsize=1)
def interpreters() -> tuple[Path, ...]:
    """One interpreter per version, oldest first; the one that runs the tests is among them."""
    ask = "import sys; print(sys.version_info[0] * 100 + sys.version_info[1])"
    found: dict[int, Path] = {}
    for path in _candidates():
        if path.exists():
            answer = subprocess.run([path, "-c", ask], capture_output=True, text=True, timeout=30)
            version = int(answer.stdout) if answer.returncode == 0 and answer.stdout.strip().isdigit() else 0
            if version >= 306:
                found.setdefault(version, path)
    return tuple(found[version] for version in sorted(found))


def run_snippet(python: Path, code: str, env: Mapping[str, str] | None = None, timeout: float = 60) -> str:
    """What `code` prints under that interpreter, which can import this checkout; AssertionError with its errors."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    environ.update(env or {}, PYTHONPATH=str(ROOT), PYTHONDONTWRITEBYTECODE="1", PYTHONWARNINGS="error")
    answer = subprocess.run([python, "-c", code], capture_output=True, env=environ, timeout=timeout, cwd=ROOT)
    assert answer.returncode == 0, f"{python} ended with {answer.returncode}: {answer.stderr.decode(errors='replace')}"
    return answer.stdout.decode()
