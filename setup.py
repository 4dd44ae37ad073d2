"""The build hook beside pyproject.toml: the example specs travel inside the package, and there is one copy of them.

`job_specs/` lies at the top of the repository, where people look for it. A wheel has it as `jobrunner/lab/job_specs`;
an editable install and a checkout use the folder itself (`jobrunner.lab.examples`).
"""

from __future__ import annotations

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

SOURCE = Path("job_specs")
TARGET = Path("jobrunner", "lab", "job_specs")
IGNORED = ("__pycache__", "*.pyc", "ckpt", "metrics.json")


class BuildWithExamples(build_py):
    """setuptools' own step, then the example specs beside the lab."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            target = Path(self.build_lib) / TARGET
            shutil.rmtree(target, ignore_errors=True)
            shutil.copytree(SOURCE, target, ignore=shutil.ignore_patterns(*IGNORED))


setup(cmdclass={"build_py": BuildWithExamples})
