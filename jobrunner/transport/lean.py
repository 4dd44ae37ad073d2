"""Fabric without the parts that are never used here: they would be a third of the time that importing it takes.

Invoke, on which Fabric stands, loads `unittest.mock` (with all of asyncio and TLS) for its users' tests, and a YAML
library for its own settings files, of which none is read. paramiko loads `importlib.metadata` (with all of email and
zip) to learn its own version. Each of them comes when somebody asks for something in it.
"""

from __future__ import annotations

import importlib
import os
import sys
import threading
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

_PLACING = threading.Lock()


class Later(types.ModuleType):
    """Stands for a module until something in it is asked for."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(_real(self.__name__), name)


def _real(name: str) -> types.ModuleType:
    _remove(name)
    return importlib.import_module(name)


def _place(name: str, module: Later) -> None:
    """Let it be imported; also by its whole name, which looks for it in its package (one that is loaded)."""
    package, _, last = name.rpartition(".")
    with _PLACING:
        sys.modules[name] = module
        if package in sys.modules:
            vars(sys.modules[package]).setdefault(last, module)


def _remove(name: str) -> None:
    """From now on who imports it gets the real one; in its package it stays until then, for who has its whole name."""
    with _PLACING:
        if isinstance(sys.modules.get(name), Later):
            del sys.modules[name]


def _mock(*args: Any, **kwargs: Any) -> Any:
    return _real("unittest.mock").Mock(*args, **kwargs)


def _version(package: str) -> str:
    """A package's version by the folder that was installed beside its code, else by the book."""
    start, end = f"{package}-", ".dist-info"
    for place in getattr(sys.modules.get(package), "__path__", ()):
        try:
            names: list[str] = os.listdir(os.path.dirname(place))
        except OSError:  # it lies in an archive
            continue
        found = [name for name in names if name.startswith(start) and name.endswith(end)]
        if len(found) == 1:
            return found[0][len(start) : -len(end)]
    return str(_real("importlib.metadata").version(package))


# Module: what is taken out of it while Fabric is imported.
UNUSED: dict[str, dict[str, Callable[..., Any]]] = {
    "unittest.mock": {"Mock": _mock},
    "invoke.vendor.yaml": {},
    "importlib.metadata": {"version": _version},
}


@contextmanager
def without_unused() -> Iterator[None]:
    """Within the block the modules of `UNUSED` that are not loaded yet are replaced by `Later`."""
    placed = {name: Later(name) for name in UNUSED if name not in sys.modules}
    for name, module in placed.items():
        vars(module).update(UNUSED[name])
        _place(name, module)
    try:
        yield
    finally:
        for name in placed:
            _remove(name)
