"""Find the accelerator: Ascend (torch_npu), Cambricon (torch_mlu), NVIDIA (cuda), else the CPU.

The visible-devices variable is set for the job, so the first card that torch sees is the job's first card.
"""

import importlib
import os
import sys

import torch

BACKENDS = {"npu": "hccl", "mlu": "cncl", "cuda": "nccl", "cpu": "gloo"}
PLUGINS = {"npu": "torch_npu", "mlu": "torch_mlu"}


def available(kind):
    """Whether torch can use this kind here, and if not, why."""
    if kind == "cpu":
        return True, ""
    plugin = PLUGINS.get(kind)
    if plugin:
        try:
            importlib.import_module(plugin)
        except Exception as error:  # a plug-in without its driver fails in many ways: any of them means "not here"
            return False, f"{plugin} cannot be imported: {error}"
    module = getattr(torch, kind)
    if not module.is_available():
        return False, f"torch.{kind} sees no card"
    return True, ""


def choose(wanted):
    """The kind to use. `auto` takes what the job was given, and says so loudly when it falls back to the CPU."""
    if wanted != "auto":
        ok, why = available(wanted)
        if not ok:
            sys.exit(f"--device {wanted}: {why}")
        return wanted
    given = {"gpu": "cuda"}.get(os.environ.get("JOBRUNNER_DEVICE", ""), os.environ.get("JOBRUNNER_DEVICE", ""))
    for kind in [given] if given in BACKENDS else ["npu", "mlu", "cuda"]:
        ok, why = available(kind)
        if ok:
            return kind
        print(f"warning: {kind} is not used: {why}", file=sys.stderr, flush=True)
    print("warning: training on the CPU", file=sys.stderr, flush=True)
    return "cpu"


def place(kind, local_rank):
    """The torch device of this process."""
    if kind == "cpu":
        return torch.device("cpu")
    getattr(torch, kind).set_device(local_rank)
    return torch.device(kind, local_rank)
