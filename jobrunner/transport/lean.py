"""Fabric without the parts that are never used here: they would be a third of the time that importing it takes.

Invoke, on which Fabric stands, loads `unittest.mock` (with all of asyncio and TLS) for its users' tests, and a YAML
library for its own settings files, of which none is read. Both come when somebody asks for something in them.
"""

from __future__ import annotations

import importlib
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

# Module: the names that are taken out of it while Fabric is imported.
UNUSED: dict[str, tuple[str, ...]] = {"unittest.mock": ("Mock",), "invoke.vendor.yaml": ()}


class Later(types.ModuleType):
    """Stands for a module until something in it is asked for."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(_real(self.__name__), name)


def _real(name: str) -> types.ModuleType:
    if isinstance(sys.modules.get(name), Later):
        del sys.modules[name]
    return importlib.import_module(name)


def _maker(module: str, name: str) -> Callable[..., Any]:
    def make(*args: Any, **kwargs: Any) -> Any:
        return getattr(_real(module), name)(*args, **kwargs)

    make.__name__ = name
    return make


@contextmanager
def without_unused() -> Iterator[None]:
    """Within the block the modules of `UNUSED` that are not loaded yet are replaced by `Later`."""
    placed = {name: Later(name) for name in UNUSED if name not in sys.modules}
    for name, module in placed.items():
        for word in UNUSED[name]:
            setattr(module, word, _maker(name, word))
        sys.modules[name] = module
    try:
        yield
    finally:
        for name, module in placed.items():
            if sys.modules.get(name) is module:
                del sys.modules[name]
