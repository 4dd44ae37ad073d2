#!/bin/sh
# What runs on hosts must run under Python 3.6: by vermin's reading of it, and under every older Python found here.
set -eu
cd "$(dirname "$0")/.."
PATH="$(pwd)/.venv/bin:$PATH"
vermin -q --no-tips --violations -t=3.6- --backport argparse --eval-annotations jobrunner/agent jobrunner/lab/tools
for python in python3.6 python3.7 python3.8 python3.9 "$HOME"/.pyenv/versions/3.[6-9].*/bin/python; do
    "$python" -c pass >/dev/null 2>&1 || continue  # also a shim that leads nowhere
    PYTHONDONTWRITEBYTECODE=1 "$python" - jobrunner/agent jobrunner/lab/tools <<'PY'
import os, sys
for top in sys.argv[1:]:
    for folder, _, names in os.walk(top):
        for name in names:
            path = os.path.join(folder, name)
            with open(path, "rb") as file:
                text = file.read()
            if name.endswith(".py") or text.startswith(b"#!/usr/bin/env python3"):
                compile(text, path, "exec")
PY
done
