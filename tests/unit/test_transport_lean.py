"""What stands for a library's unused parts while Fabric loads is as good as they are, then and later."""

from __future__ import annotations

import subprocess
import sys

_PROGRAM = """
import importlib
import sys
import unittest
from concurrent.futures import ThreadPoolExecutor

import paramiko

for package, last in ((importlib, "metadata"), (unittest, "mock")):
    sys.modules.pop(f"{package.__name__}.{last}", None)
    vars(package).pop(last, None)

from jobrunner.transport import lean

with lean.without_unused():
    import importlib.metadata
    import unittest.mock
    from importlib import metadata
    from importlib.metadata import version

    assert isinstance(metadata, lean.Later) and isinstance(unittest.mock, lean.Later)
    assert importlib.metadata.version("paramiko") == paramiko.__version__
    early = importlib.metadata
assert "importlib.metadata" not in sys.modules
assert importlib.metadata.version("paramiko") == version("paramiko") == paramiko.__version__
with ThreadPoolExecutor(8) as pool:
    found = list(pool.map(lambda name: getattr(early, "entry_points"), range(64)))
assert len(set(map(id, found))) == 1
import importlib.metadata as real
assert not isinstance(real, lean.Later) and real is importlib.metadata and real.entry_points is found[0]
assert version("pytest") == real.version("pytest")
try:
    version("no-such-package")
except metadata.PackageNotFoundError:
    pass
assert isinstance(unittest.mock.Mock(), unittest.mock.Mock) and not isinstance(unittest.mock, lean.Later)
print("fine")
"""


def test_stand_ins_serve_who_keeps_them_whoever_asks_at_once() -> None:
    done = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "fine\n"), done.stderr
