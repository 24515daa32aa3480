"""Objects that a configuration names by a dotted path."""

from __future__ import annotations

import importlib
from typing import Any


def import_named(path: str, setting: str) -> Any:
    """Return the attribute of a module at a path such as "torch.optim.AdamW"; the module is imported.

    Raises ValueError naming the setting if there is none.
    """
    module, _, name = path.rpartition(".")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"{setting}: no attribute {path!r} found") from error
