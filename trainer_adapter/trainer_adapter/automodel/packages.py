"""Optional packages: transformers and NeMo Automodel, and errors that name the extra to install.

NeMo Automodel is imported only when its backend is chosen, because the import takes 6 to 9 s. Its releases move and
rename their parts. The paths used here are those of 0.7; another release is recognised by the parts that it lacks, not
by its version number, so a patched release works as well.
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
    """Whether nemo_automodel is installed; does not import it."""
    return importlib.util.find_spec(PACKAGE) is not None


def from_package(module: str, name: str) -> Any:
    """Return `name` of nemo_automodel.<module>. ImportError naming the extra to install, or the supported release."""
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
    """Return the package transformers. ImportError naming the extra to install."""
    if transformers is None:
        raise ImportError("this needs transformers: pip install 'rl-dataplane[trainer]'")
    return transformers
