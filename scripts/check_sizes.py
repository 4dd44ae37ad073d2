"""Refuse files and functions that have outgrown one sitting."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

MAX_FILE, MAX_FUNCTION = 450, 70
FOLDERS = ("jobrunner", "job_specs", "scripts")


def too_long(path: Path) -> list[str]:
    """What is too long in one file, a sentence each."""
    text = path.read_text(encoding="utf-8")
    lines = text.count("\n")
    found = [f"{path}: {lines} lines (at most {MAX_FILE})"] if lines > MAX_FILE else []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.end_lineno is not None:
            length = node.end_lineno - node.lineno + 1
            if length > MAX_FUNCTION:
                found.append(f"{path}:{node.lineno}: {node.name} has {length} lines (at most {MAX_FUNCTION})")
    return found


def main() -> int:
    """Print every excess on standard error; 1 if there is any."""
    found = [line for folder in FOLDERS for path in sorted(Path(folder).rglob("*.py")) for line in too_long(path)]
    sys.stderr.write("".join(line + "\n" for line in found))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
