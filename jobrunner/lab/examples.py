"""Where the example specs are: inside the installed package, or at the top of the checkout."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from jobrunner.core.errors import NotFoundError


def examples_folder() -> Path:
    """The folder `job_specs`. A wheel carries it inside the package (see setup.py); a checkout has it at its top."""
    packaged = resources.files("jobrunner.lab") / "job_specs"
    if isinstance(packaged, Path) and packaged.is_dir():
        return packaged
    checkout = Path(__file__).resolve().parents[2] / "job_specs"
    if checkout.is_dir():
        return checkout
    raise NotFoundError(
        "the example specs are not in this installation of jobrunner",
        remedy="install jobrunner from its wheel or from a checkout",
    )


def example(name: str) -> Path:
    """One example spec by its file's stem: `digits`. Raises NotFoundError that names those that are there."""
    folder = examples_folder()
    found = folder / f"{name}.yaml"
    if not found.is_file():
        names = ", ".join(sorted(path.stem for path in folder.glob("*.yaml")))
        raise NotFoundError(f"there is no example spec {name!r}", remedy=f"there are: {names}")
    return found
