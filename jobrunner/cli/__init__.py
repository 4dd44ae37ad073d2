"""The command line: parse, call one service function, print."""

from __future__ import annotations

import sys
from typing import NoReturn


def main() -> NoReturn:
    """The `jobrunner` program."""
    try:
        from jobrunner.cli.app import run

        code = run(sys.argv[1:])
    except KeyboardInterrupt:  # during the imports
        code = 130
    try:
        sys.stdout.flush()
    except (OSError, AttributeError):  # closed, full or missing: said already, and not to be said again at exit
        from jobrunner.cli.output import hush

        hush(sys.stdout)
    sys.exit(code)
