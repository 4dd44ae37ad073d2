"""A starter spec and hosts file."""

from __future__ import annotations

import os
from pathlib import Path

from jobrunner.core.devices import names
from jobrunner.core.errors import UsageError
from jobrunner.core.words import one_of
from jobrunner.service.session import default_hosts_file

_SPEC = """\
# What to run, and what it needs. `jobrunner submit job.yaml --dry-run` checks it and sends nothing.
name: my-job
code: .                      # the folder to send, as git would see it
script: train.py             # a file in it; .py is run by runtime.python
args: [--epochs, 3]          # words for the script; no shell reads them
device: npu                  # DEVICES
cards: 1                     # how many cards, or which: [1, 3]; 0 for cpu
# hosts: [npu-a]             # where it may go; default: every known host with that device
# env: {BATCH: 32}
# runtime: {conda: my_env}   # or venv: ~/envs/train
# timeout: 12h
checkpoints:
  paths: ["ckpt/*.pt"]       # what a later attempt can go on from
outputs: [metrics.json]      # what `jobrunner pull` fetches
"""

_HOSTS = """\
# Hosts that jobrunner may use, by their SSH alias. An example: nothing reads it here. It counts at
#   HOSTS_FILE
# (where `jobrunner hosts add` writes, too), or wherever --hosts or JOBRUNNER_HOSTS points.
# It is not needed for `--host ALIAS`, with any alias of your SSH configuration.
hosts:
  npu-a:
    # address: user@10.0.0.5:22   # if your SSH configuration does not know the alias
    # tags: [910b]
    # max_cards: 4                # at most so many of mine at once
"""

_SCRIPT = """\
import argparse
import json
import os
import time

options = argparse.ArgumentParser()
options.add_argument("--epochs", type=int, default=3)
epochs = options.parse_args().epochs

print("cards:", os.environ.get("JOBRUNNER_CARDS") or "none", flush=True)
first = 1
resume_from = os.environ.get("JOBRUNNER_RESUME_FROM")  # set when there is a checkpoint to go on from
if resume_from:
    with open(resume_from) as file:
        first = json.load(file)["epoch"] + 1
    print(f"going on from epoch {first - 1}", flush=True)

os.makedirs("ckpt", exist_ok=True)
for epoch in range(first, epochs + 1):
    time.sleep(1)  # your training
    loss = 1 / epoch
    print(f"epoch={epoch} loss={loss:.4f}", flush=True)
    with open(f"ckpt/epoch-{epoch}.pt.part", "w") as file:
        json.dump({"epoch": epoch, "loss": loss}, file)  # your torch.save
    os.replace(f"ckpt/epoch-{epoch}.pt.part", f"ckpt/epoch-{epoch}.pt")  # whole or not there at all
with open("metrics.json", "w") as file:
    json.dump({"loss": 1 / epochs}, file)
"""


def init(folder: Path) -> list[Path]:
    """Write `job.yaml`, `hosts.yaml` and, where there is none, `train.py`; returns what was written.

    Raises UsageError, writing nothing, if one of the two is there already.
    """
    example = _HOSTS.replace("HOSTS_FILE", str(default_hosts_file(os.environ)))
    files = {folder / "job.yaml": _SPEC.replace("DEVICES", one_of(names())), folder / "hosts.yaml": example}
    there = [str(path) for path in files if path.exists()]
    if there:
        raise UsageError(
            f"{' and '.join(there)} already there: nothing was written",
            code="exists",
            remedy="name another folder: jobrunner init DIR",
        )
    if not (folder / "train.py").exists():
        files[folder / "train.py"] = _SCRIPT
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path, text in files.items():
            path.write_text(text, encoding="utf-8", newline="\n")
    except OSError as error:
        raise UsageError(f"{error.filename or folder} cannot be written: {error.strerror}", code="init") from error
    return list(files)
