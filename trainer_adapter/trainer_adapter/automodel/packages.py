"""What is used of NeMo Automodel, imported when its backend was chosen: the import takes 6 to 9 s.

Releases move and rename their parts. Ours are where 0.7 has them; another release is told apart by what it lacks, and
not by its number, so that a patched one will do.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

try:
    import transformers
except ImportError:  # the extra "trainer" is not installed
    transformers = None  # type: ignore[assignment]

PACKAGE = "nemo_automodel"
_SUPPORTED = "0.7"


def is_installed() -> bool:
    """Found out without importing it."""
    return importlib.util.find_spec(PACKAGE) is not None


def from_package(module: str, name: str) -> Any:
    """`name` of nemo_automodel.<module>; ImportError naming the extra to install, or the release that has it."""
    if not is_installed():
        raise ImportError(f"this needs {PACKAGE}: pip install 'rl-dataplane[automodel]'")
    try:
        return getattr(importlib.import_module(f"{PACKAGE}.{module}"), name)
    except (ImportError, AttributeError) as error:
        raise ImportError(
            f"{PACKAGE}.{module} has no {name} ({error}): this needs nemo-automodel {_SUPPORTED} with all it imports; "
            "pip install 'rl-dataplane[automodel]'"
        ) from error


def require_transformers() -> Any:
    """The package; ImportError naming the extra to install."""
    if transformers is None:
        raise ImportError("this needs transformers: pip install 'rl-dataplane[trainer]'")
    return transformers
