"""A starter spec and hosts file."""

from __future__ import annotations

from pathlib import Path

from jobrunner.core.errors import UsageError

_SPEC = """\
# What to run, and what it needs. `jobrunner submit job.yaml --dry-run` checks it and sends nothing.
name: my-job
code: .                      # the folder to send, as git would see it
script: train.py             # a file in it; .py is run by runtime.python
args: [--epochs, 3]          # words for the script; no shell reads them
device: npu                  # npu, mlu, gpu or cpu
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
# Hosts that jobrunner may use, by their SSH alias. Copy this to the place that `jobrunner hosts ls` names,
# or point JOBRUNNER_HOSTS at it. Any alias of your SSH configuration works without an entry, too.
hosts:
  npu-a:
    # address: user@10.0.0.5:22   # if your SSH configuration does not know the alias
    # tags: [910b]
    # max_cards: 4                # at most so many of mine at once
"""

_SCRIPT = """\
import os
import time

cards = os.environ.get("JOBRUNNER_CARDS", "")
print("cards:", cards or "none", flush=True)
os.makedirs("ckpt", exist_ok=True)
for epoch in range(3):
    time.sleep(1)
    print(f"epoch={epoch} loss={1 / (epoch + 1):.4f}", flush=True)
    with open(f"ckpt/epoch-{epoch}.pt", "w") as file:
        file.write(f"your model after epoch {epoch}\\n")
with open("metrics.json", "w") as file:
    file.write('{"loss": 0.33}\\n')
"""


def init(folder: Path) -> list[Path]:
    """Write `job.yaml`, `hosts.yaml` and, where there is none, `train.py`; returns what was written.

    Raises UsageError, writing nothing, if one of the two is there already.
    """
    files = {folder / "job.yaml": _SPEC, folder / "hosts.yaml": _HOSTS}
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
