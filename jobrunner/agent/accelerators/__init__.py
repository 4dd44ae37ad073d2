"""The kinds of accelerator that jobrunner knows, by name. A new kind is one file here and one line in `KINDS`."""

from . import gpu, mlu, musa, npu

KINDS = {kind.name: kind for kind in (npu.KIND, mlu.KIND, gpu.KIND, musa.KIND)}


def visible(device, indexes):
    """The visible-devices variables of a job on these cards of that device; without cards all kinds' set and empty."""
    if indexes and device in KINDS:
        return KINDS[device].environment(indexes)
    return {kind.variable: "" for kind in KINDS.values()}
