"""Tests that slice a TensorDict with jagged leaves, which tensordict does from 0.15.3 on."""

from __future__ import annotations

from importlib.metadata import version

import pytest
from packaging.version import Version

INSTALLED = version("tensordict")

needs_jagged_slices = pytest.mark.skipif(
    Version(INSTALLED) < Version("0.15.3"), reason=f"tensordict {INSTALLED} does not slice jagged leaves"
)
