"""A plugin of pytest: Hypothesis tells the first example that fails, and does not spend minutes on a smaller one."""

from __future__ import annotations

from hypothesis import Phase, settings

settings.register_profile("unshrunk", phases=[Phase.explicit, Phase.generate], derandomize=True, database=None)
settings.load_profile("unshrunk")
