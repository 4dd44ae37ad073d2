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
    sys.exit(code)
