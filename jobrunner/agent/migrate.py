"""Run a CUDA script unchanged: a `sitecustomize` on PYTHONPATH that loads the vendor's migration shim with torch.

It is inherited by whatever the script starts (launchers, workers). Python that never imports torch pays nothing.
"""

import os

from . import env, files

SHIMS = {
    "npu": ("torch_npu", "torch_npu.contrib.transfer_to_npu"),
    "mlu": ("torch_mlu", "torch_mlu.utils.gpu_migration"),
}

_CODE = """import importlib
import sys


class _AfterTorch:
    \"\"\"Loads the vendor's migration shim as soon as torch has been imported as a whole.\"\"\"

    def find_spec(self, name, path=None, target=None):
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        from importlib.util import find_spec
        spec = find_spec("torch")
        if spec is None or spec.loader is None:
            return spec
        run = spec.loader.exec_module

        def exec_module(module):
            run(module)
            for shim in @SHIMS@:
                importlib.import_module(shim)

        spec.loader.exec_module = exec_module
        return spec


sys.meta_path.insert(0, _AfterTorch())
# Another sitecustomize further on the path is not to be lost.
_here = __file__.rpartition("/")[0]
_path = [entry for entry in sys.path if entry.rstrip("/") != _here]
try:
    from importlib.machinery import PathFinder
    _spec = PathFinder.find_spec("sitecustomize", _path)
    if _spec is not None and _spec.loader is not None:
        _spec.loader.exec_module(importlib.util.module_from_spec(_spec))
except Exception as _error:
    sys.stderr.write("sitecustomize: %s\\n" % _error)
"""


def shimmed(table, device, folder):
    """The environment with a device's shim, made in the attempt's folder, first on PYTHONPATH. GPUs need none."""
    if device not in SHIMS:
        return table
    place = os.path.join(folder, b"shim")
    files.make_dir(place)
    files.write_file(os.path.join(place, b"sitecustomize.py"), code(device).encode("ascii"), sync=False)
    return env.prepended(table, b"PYTHONPATH", place)


def code(device):
    """The text of `sitecustomize.py`."""
    return _CODE.replace("@SHIMS@", repr(SHIMS[device]))
