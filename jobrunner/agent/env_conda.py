"""Where conda is on a host: several bases, environments by name or by folder. Pure but for looking at files."""

import os

_NAMES = (
    b"miniconda3 anaconda3 miniforge3 mambaforge conda miniconda anaconda .miniconda3 .conda-base micromamba mamba"
).split()
_PROFILE = b"etc/profile.d/conda.sh"
_START_FILES = (b".bashrc", b".bash_profile", b".profile", b".zshrc")
_LIMIT = 1 << 18


def _text(path):
    try:
        with open(path, "rb") as file:
            return file.read(_LIMIT)
    except OSError:
        return b""


def initialised(text):
    """The bases that `conda init` wrote into a shell's start-up file, in order. Pure."""
    found = []
    for line in text.splitlines():
        for end in (b"/bin/conda'", b'/bin/conda"', b"/bin/conda ", b"/etc/profile.d/conda.sh"):
            before, hit, _ = line.partition(end)
            start = max(before.rfind(b"'"), before.rfind(b'"'), before.rfind(b" "), before.rfind(b"(")) + 1
            if hit and before[start : start + 1] == b"/" and before[start:] not in found:
                found.append(before[start:])
    return found


def conda_bases(environment, home, exists=os.path.exists, read=_text):
    """The folders of the conda installations that can be found, the likeliest first."""
    tried = []
    executable = environment.get(b"CONDA_EXE")
    if executable:
        tried.append(os.path.dirname(os.path.dirname(executable)))
    for folder in environment.get(b"PATH", b"").split(b":"):
        if folder and exists(os.path.join(folder, b"conda")):
            tried.append(os.path.dirname(os.path.dirname(os.path.realpath(os.path.join(folder, b"conda")))))
    for name in _START_FILES:
        tried += initialised(read(os.path.join(home, name)))
    for top in (home, b"/opt", b"/usr/local", b"/root", b"/data", b"/"):
        tried += [os.path.join(top, name) for name in _NAMES]
    found = []
    for base in tried:
        if base not in found and exists(os.path.join(base, _PROFILE)):
            found.append(base)
    return found


def conda_base(environment, home, exists=os.path.exists):
    """The folder of the likeliest conda installation, or None."""
    return next(iter(conda_bases(environment, home, exists)), None)


def choose(wanted, environment, home, exists=os.path.exists, read=_text):
    """`(base, environment)` to activate, or None where no conda can do it.

    `wanted` is a name, or a folder (with a `/` in it). Base `hand` means: no conda is there, but the folder is, and is
    activated without it; a base that is a program is micromamba.
    """
    bases = conda_bases(environment, home, exists, read)
    if b"/" in wanted:
        owner = os.path.dirname(os.path.dirname(wanted.rstrip(b"/")))
        for base in ([owner] if owner in bases or exists(os.path.join(owner, _PROFILE)) else []) + bases:
            return base, wanted
        return (b"hand", wanted) if exists(os.path.join(wanted, b"bin/python")) else None
    if wanted in (b"base", b"root") and bases:
        return bases[0], b"base"
    for base in bases:
        if exists(os.path.join(base, b"envs", wanted)):
            return base, os.path.join(base, b"envs", wanted)
    for folder in _elsewhere(environment, home, read):
        if os.path.basename(folder) == wanted and exists(os.path.join(folder, b"bin")):
            return (bases[0] if bases else b"hand"), folder
    if bases:
        return bases[0], wanted  # conda says itself which environments there are
    program = environment.get(b"MAMBA_EXE") or os.path.join(home, b".local/bin/micromamba")
    return (program, wanted) if program.endswith(b"mamba") and exists(program) else None


def _elsewhere(environment, home, read):
    """Folders of environments outside of the bases: what conda has noted, and where it is told to look."""
    noted = [line.strip() for line in read(os.path.join(home, b".conda/environments.txt")).splitlines()]
    folders = [folder for folder in environment.get(b"CONDA_ENVS_PATH", b"").split(b":") if folder]
    folders += [os.path.join(home, b".conda/envs")]
    seen = []
    for folder in folders:
        try:
            seen += [os.path.join(folder, name) for name in sorted(os.listdir(folder))]
        except OSError:
            continue
    return [line for line in noted if line.startswith(b"/")] + seen
