"""Modules that are loaded when something of them is used, rather than when somebody imports them.

Only for a process that is a command: it begins without them, and ends soon. The LazyLoader of importlib does not do:
up to Python 3.11 it loads a module as soon as a second one imports it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from types import ModuleType


class _Unloaded(ModuleType):
    """Stands for a module. Who imports it gets this; who uses it gets what the module has."""

    def __getattr__(self, name: str) -> object:
        from importlib import import_module

        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(import_module(self.__name__), name)


def leave_unloaded(modules: Iterable[str]) -> None:
    """From now on; those that are loaded already stay."""
    for name in modules:
        sys.modules.setdefault(name, _Unloaded(name))
