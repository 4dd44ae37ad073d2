"""Which versions belong together: rows of a table, with where each is said. Pure.

A row speaks only of what its source names; versions that no row knows are not judged.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from jobrunner.core.values import dataclass

Versions = Mapping[str, "str | None"]
Key = tuple[int, ...]

ASCEND = "Ascend documentation, "
CUDA_SOURCE = "NVIDIA documentation, CUDA Compatibility: Minor Version Compatibility, table 1"


@dataclass(frozen=True)
class Least:
    """With `what` at a version that begins with `series`, `needs` has to be `least` or newer."""

    what: str
    series: str
    needs: str
    least: str
    source: str


# `cuda` is the CUDA that torch was built with, `driver` the kernel driver's version, `toolkit` CANN or CNToolkit.
NPU = (
    Least("toolkit", "8.5", "driver", "25.0.RC1", ASCEND + "CANN 8.5.0 release notes: version mapping"),
    Least("toolkit", "8.3", "driver", "24.1.0", ASCEND + "MindSDK 7.2.RC1 release notes: compatibility"),
    Least("toolkit", "8.2", "driver", "24.1.RC2", ASCEND + "MindIE 2.1.RC1 release notes: compatibility"),
    Least("toolkit", "8.1", "driver", "24.1.RC1", ASCEND + "MindSDK 7.1.RC1 release notes: compatibility"),
    Least("toolkit", "8.0", "driver", "23.0.2", ASCEND + "MindSDK 7.0.RC1 release notes: compatibility"),
    Least("torch_npu", "2.4", "toolkit", "8.0.RC2", ASCEND + "Extension for PyTorch 7.2.0: compatibility"),
    Least("torch_npu", "2.5", "toolkit", "8.0.RC2", ASCEND + "Extension for PyTorch 7.2.0: compatibility"),
    Least("torch_npu", "2.6", "toolkit", "8.0.RC2", ASCEND + "Extension for PyTorch 7.2.0: compatibility"),
    Least("torch_npu", "2.7", "toolkit", "8.0.RC2", ASCEND + "Extension for PyTorch 7.2.0: compatibility"),
    Least("torch_npu", "2.8", "toolkit", "8.0.RC2", ASCEND + "Extension for PyTorch 7.2.0: compatibility"),
)
MLU = (Least("toolkit", "4", "driver", "6.0.3", "Cambricon MLU-OPS, README: requirements (CNToolkit 4.1)"),)
GPU = (
    Least("cuda", "13", "driver", "580", CUDA_SOURCE),
    Least("cuda", "12", "driver", "525", CUDA_SOURCE),
    Least("cuda", "11", "driver", "450", CUDA_SOURCE),
)
ANY = (Least("numpy", "2", "torch", "2.3", "PyTorch #107302: NumPy 2 from torch 2.3.0 on"),)
TABLE: Mapping[str, tuple[Least, ...]] = {"npu": NPU, "mlu": MLU, "gpu": GPU, "cpu": ()}
PLUGIN_SOURCE = "Ascend documentation, Extension for PyTorch 7.2.0 release notes: related products"


def key(version: str) -> Key:
    """A version as numbers that compare: a release candidate comes before the release (`24.1.rc3` < `24.1.0`).

    Local parts (`+cpu`) and post releases are left out.
    """
    text = re.split(r"[+]|[.-]?post|[.-]?dev", version.lower().lstrip("v"))[0]
    found: list[int] = []
    for word in re.findall(r"rc\.?\d+|alpha\d+|beta\d+|\d+", text):
        digits = int(re.sub(r"\D", "", word))
        if word[0] == "r":
            found += [-1, digits]  # stands where a release has its patch number
        elif word[0] in "ab":
            break
        else:
            found.append(digits)
    return tuple(found)


def older(one: str, other: str) -> bool:
    """True if `one` comes before `other`; missing numbers are zeros."""
    a, b = key(one), key(other)
    length = max(len(a), len(b))
    return a + (0,) * (length - len(a)) < b + (0,) * (length - len(b))


def begins(version: str, series: str) -> bool:
    """True if a version belongs to a series: `8.2.RC1` to `8.2` and to `8`."""
    wanted = key(series)
    return key(version)[: len(wanted)] == wanted


@dataclass(frozen=True)
class Mismatch:
    """Two versions that do not belong together, why, and who says so."""

    text: str
    remedy: str
    source: str


def mismatches(device: str, versions: Versions) -> list[Mismatch]:
    """Every pair among `versions` (driver, toolkit, torch, torch_npu, torch_mlu, numpy, cuda) that does not fit."""
    return [*_plugin(versions), *_least(device, versions)]


def judged(device: str, versions: Versions) -> int:
    """How many pairs could be compared at all: none means that nothing is known."""
    rows = sum(1 for row in (*TABLE.get(device, ()), *ANY) if _applies(row, versions))
    return rows + sum(1 for _ in _plugin_pairs(versions))


def _applies(row: Least, versions: Versions) -> bool:
    have, other = versions.get(row.what), versions.get(row.needs)
    return bool(have and other and key(other) and begins(have, row.series))


def _least(device: str, versions: Versions) -> Iterator[Mismatch]:
    for row in (*TABLE.get(device, ()), *ANY):
        have, other = versions.get(row.what), versions.get(row.needs)
        if _applies(row, versions) and have and other and older(other, row.least):
            yield Mismatch(
                f"{NAMES[row.what]} {have} needs {NAMES[row.needs]} {row.least} or newer; {other} is there",
                f"upgrade {NAMES[row.needs]}, or use an older version of {NAMES[row.what]}",
                row.source,
            )


def _plugin_pairs(versions: Versions) -> Iterator[tuple[str, str, str, str]]:
    """(plug-in, its version, torch's version, the torch that it was made for)."""
    torch = versions.get("torch")
    npu, mlu = versions.get("torch_npu"), versions.get("torch_mlu")
    if torch and npu:
        yield "torch_npu", npu, torch, npu
    match = re.search(r"torch([0-9]+(?:\.[0-9]+)+)", mlu or "")
    if torch and mlu and match:
        yield "torch_mlu", mlu, torch, match[1]


def _plugin(versions: Versions) -> Iterator[Mismatch]:
    for name, version, torch, made_for in _plugin_pairs(versions):
        if key(torch)[:2] != key(made_for)[:2]:
            base = ".".join(map(str, key(made_for)[:3]))
            yield Mismatch(
                f"{name} {version} was made for torch {base}; {torch} is there",
                f"install torch {base}, or the {name} that was made for torch {torch}",
                PLUGIN_SOURCE if name == "torch_npu" else "the version of torch_mlu itself (+torchX.Y)",
            )


NAMES = {
    "toolkit": "the toolkit", "driver": "the driver", "torch": "torch", "torch_npu": "torch_npu",
    "torch_mlu": "torch_mlu", "numpy": "NumPy", "cuda": "torch's CUDA",
}  # fmt: skip
