"""The vendor's own set-up of a device: which scripts to source, which folders to add. Pure but for looking at files."""

import os

from .accelerators import KINDS

# A toolkit below one of its homes, newest generation first; `cann-*` is a versioned folder without the usual link.
_TOOLKITS = (b"cann", b"cann-*", b"ascend-toolkit", b"nnae", b"nnrt", b"")
_OPERATORS = b"nnal/atb/set_env.sh"
DRIVER = b"/usr/local/Ascend/driver"


def prepended(environment, name, folder):
    """The environment with a folder put before a colon-separated list, unless it is in it already. Pure."""
    old = environment.get(name)
    result = dict(environment)
    if not old:
        result[name] = folder
    elif folder not in old.split(b":"):
        result[name] = folder + b":" + old
    return result


def _newest(names, start):
    """The names that begin so, the highest version first. Pure."""

    def version(name):
        return [int(part) if part.isdigit() else -1 for part in name[len(start) :].replace(b"-", b".").split(b".")]

    return sorted((name for name in names if name.startswith(start)), key=version, reverse=True)


def _toolkit(top, exists, listing):
    for name in _TOOLKITS:
        names = [name]
        if name.endswith(b"*"):
            try:
                names = _newest(listing(top), name[:-1])
            except OSError:
                continue
        for folder in names:
            path = os.path.join(top, folder, b"set_env.sh")
            if exists(path):
                return path
    return None


def vendor_scripts(device, home, exists=os.path.exists, listing=os.listdir, pointed=None):
    """The vendor's own set-up scripts to source for a device, in order; empty where none is installed.

    One toolkit, and the operator library that lies beside it. `pointed` is where the environment says that the toolkit
    lies (`ASCEND_TOOLKIT_HOME`, `ASCEND_HOME_PATH`): it wins.
    """
    if device != "npu":
        return []
    for folder in (pointed, os.path.dirname(pointed)) if pointed else ():
        if exists(os.path.join(folder, b"set_env.sh")):
            above = os.path.dirname(folder)
            return _with_operators(os.path.join(folder, b"set_env.sh"), (above, os.path.dirname(above)), exists)
    for top in (b"/usr/local/Ascend", os.path.join(home, b"Ascend"), b"/opt/conda/Ascend"):
        path = _toolkit(top, exists, listing)
        if path is not None:
            return _with_operators(path, (top,), exists)
    return []


def env_scripts(prefix, exists=os.path.exists, listing=os.listdir):
    """The scripts of a toolkit that was installed into a conda environment; empty where there is none."""
    top = os.path.join(prefix, b"Ascend")
    path = _toolkit(top, exists, listing)
    return _with_operators(path, (top,), exists) if path else []


def _with_operators(path, tops, exists):
    beside = [os.path.join(top, _OPERATORS) for top in tops if exists(os.path.join(top, _OPERATORS))]
    return [path, *beside[:1]]


def is_late(path):
    """True for a script that asks the job's own python, so that it comes after conda or venv. Pure."""
    return path.endswith(b"/" + _OPERATORS)


def vendor_values(device, environment, exists=os.path.exists, driver=DRIVER):
    """The environment with the vendor's library folders that need no script. Pure but for `exists`."""
    result = dict(environment)
    if device == "npu":
        for folder in (b"lib64/driver", b"lib64/common", b"lib64"):
            if exists(os.path.join(driver, folder)):
                result = prepended(result, b"LD_LIBRARY_PATH", os.path.join(driver, folder))
    kit = KINDS[device].toolkit if device in KINDS else None
    if kit is not None and kit.variable:
        home = result.get(kit.variable.encode()) or kit.folder.encode()
        if exists(home):
            result[kit.variable.encode()] = home
            for name, folder in ((b"PATH", b"bin"), (b"LD_LIBRARY_PATH", kit.libraries.encode())):
                if exists(os.path.join(home, folder)):
                    result = prepended(result, name, os.path.join(home, folder))
    return result


def driver_folder(info):
    """Where the driver lies, by the text of `/etc/ascend_install.info`; the usual place without it. Pure."""
    for line in info.splitlines():
        name, _, value = line.partition(b"=")
        if name.strip() == b"Driver_Install_Path_Param" and value.strip().startswith(b"/"):
            return os.path.join(value.strip(), b"driver")
    return DRIVER
