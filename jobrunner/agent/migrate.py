"""Run a CUDA script unchanged: a `sitecustomize` on PYTHONPATH that loads the vendor's migration shim with torch.

It is inherited by whatever the script starts (launchers, workers). Python that never imports torch pays nothing.
"""

import os

from . import env, files
from .accelerators import KINDS

_CODE = """import importlib
import importlib.util
import sys
from importlib.machinery import PathFinder

SHIMS = @SHIMS@


def _load():
    for shim in SHIMS:
        try:
            importlib.import_module(shim)
        except ImportError as error:
            # Without it the script would go on without the cards it was given.
            raise ImportError("runtime.migrate needs %s, which cannot be imported here: %s" % (shim, error))


class _AfterTorch(object):
    \"\"\"Loads the vendor's migration shim as soon as torch has been imported as a whole.\"\"\"

    def find_spec(self, name, path=None, target=None):
        if name != "torch":
            return None
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        spec = importlib.util.find_spec("torch")
        if spec is None or spec.loader is None:
            sys.meta_path.insert(0, self)
            return spec
        run = spec.loader.exec_module

        def exec_module(module):
            run(module)
            _load()

        spec.loader.exec_module = exec_module
        return spec


if "torch" in sys.modules:
    _load()
else:
    sys.meta_path.insert(0, _AfterTorch())
# Another sitecustomize further on the path is not to be lost.
_here = __file__.rpartition("/")[0]
_spec = PathFinder.find_spec("sitecustomize", [entry for entry in sys.path if entry.rstrip("/") != _here])
if _spec is not None and _spec.loader is not None:
    _other = importlib.util.module_from_spec(_spec)
    sys.modules["sitecustomize"] = _other
    _spec.loader.exec_module(_other)
"""


def make(device, folder):
    """Write a device's shim into a folder of its own below `folder`; that folder, or None for a device without one."""
    if device not in KINDS or not KINDS[device].migrate:
        return None
    place = os.path.join(folder, b"shim")
    files.make_dir(place)
    files.write_file(os.path.join(place, b"sitecustomize.py"), code(device).encode("ascii"), sync=False)
    return place


def shimmed(table, device, folder):
    """The environment with a device's shim, made in the attempt's folder, first on PYTHONPATH. GPUs need none."""
    place = make(device, folder)
    return table if place is None else env.prepended(table, b"PYTHONPATH", place)


def code(device):
    """The text of `sitecustomize.py`."""
    return _CODE.replace("@SHIMS@", repr(tuple(KINDS[device].migrate)))
