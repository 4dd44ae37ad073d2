"""Compiled modules are kept whole or not at all.

On a disk that is just full, older Pythons keep a compiled file that was cut short, and from then on no process of ours
would start there, however much room there is again.
"""

import os
import sys


def set_data(self, path, data, _mode=0o600):
    """What the import system calls to keep a compiled module; whatever goes wrong, there is none and it is no error."""
    aside = "{}.{}".format(path, os.getpid())
    try:
        folder = os.path.dirname(path)
        if not os.path.isdir(folder):
            os.mkdir(folder, 0o700)
        handle = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            whole = os.write(handle, data) == len(data)
        finally:
            os.close(handle)
        if whole:
            os.rename(aside, path)
            return
    except OSError:
        pass
    try:
        os.unlink(aside)
    except OSError:
        pass


sys.modules["_frozen_importlib_external"].SourceFileLoader.set_data = set_data
