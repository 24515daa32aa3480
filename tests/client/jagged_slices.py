"""Tests that slice a TensorDict with jagged leaves, which tensordict does from 0.15.3 on."""

from __future__ import annotations

import pytest
import tensordict
from packaging.version import Version

needs_jagged_slices = pytest.mark.skipif(
    Version(tensordict.__version__) < Version("0.15.3"),
    reason=f"tensordict {tensordict.__version__} does not slice jagged leaves",
)
