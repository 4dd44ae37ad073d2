"""Simulated cards: a folder that says what the tools in `tools_dir()` show when `JOBRUNNER_LAB` names it.

The tools print what the real `npu-smi`, `cnmon` and others print; the cards compute nothing. A kind of accelerator has
simulated cards as soon as a program with the name of its tool stands in `tools/`.
"""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

from jobrunner.agent.accelerators import KINDS

_FOLDER = Path(__file__).with_name("tools")
TOOLS = {name: str(kind.tool) for name, kind in KINDS.items() if (_FOLDER / kind.tool).is_file()}


def tools_dir() -> Path:
    """The folder with the simulated tools of all kinds, to be put first on a simulated host's PATH."""
    for tool in TOOLS.values():
        path = _FOLDER / tool
        mode = path.stat().st_mode
        if not mode & stat.S_IXUSR:
            path.chmod(mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
    return _FOLDER


def write_lab(folder: Path, device: str, count: int, model: str | None = None, **overrides: Any) -> None:
    """Write (or change, at once and whole) the state of a simulated host with `count` cards of a `device`.

    model     `910B3` (default), `910A`, `310P3`, `310P3-duo`, `Ascend910` (two dies a board), `Ascend950PR`;
              `MLU370-X8` (default), `MLU370-X4`, `MLU590-M9`; `NVIDIA RTX A6000` (default), `NVIDIA H100 80GB HBM3`;
              `MTT S4000` (default), `MTT S80`, `MTT S5000`: each tool's MODELS
    overrides `version`; `hang_s`: seconds before any answer; `fail`: text printed instead of an answer, with
              `fail_code`; `show_jobs`: False hides running jobs; `job_memory_mb`; `cards`: `{index: {…}}` with
              `health`, `codes`, `base_mb`, `total_mb`, `utilization`, `temperature_c`, `power_w`, `bus_id`, `npu_id`,
              `hidden`, `processes`: `[{pid, name, memory_mb}]` of others
    """
    if device not in TOOLS:
        raise ValueError(f"no simulated cards of device {device!r}: use one of {', '.join(TOOLS)}")
    cards = {str(index): facts for index, facts in (overrides.pop("cards", None) or {}).items()}
    state = {"device": device, "count": count, "model": model, "cards": cards, **overrides}
    folder.mkdir(parents=True, exist_ok=True)
    aside = folder / f"cards.json.{os.getpid()}.tmp"
    aside.write_text(json.dumps(state, indent=1), encoding="utf-8")
    os.replace(aside, folder / "cards.json")
