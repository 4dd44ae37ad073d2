"""pydantic without its search for plugins, which reads the metadata of every installed package. None is wanted.

It would be a tenth of what a submit needs; and whatever else is installed does not get to run in our process.
"""

from __future__ import annotations

import sys
import types

_LOADER = "pydantic.plugin._loader"


def without_plugins() -> None:
    """From now on pydantic finds no plugins, unless it has looked for them already."""
    if _LOADER not in sys.modules:
        module = types.ModuleType(_LOADER)
        module.__dict__["get_plugins"] = tuple
        sys.modules[_LOADER] = module
