"""The cases of one module, played by ranks of a pool."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.rank_pool import RankPool
from tests.ranks import WarningAction
from transformers.utils.logging import disable_progress_bar

Case = Callable[[int, Path], Any]
"""From a rank and the folder that all share to what the rank saw."""


def play_cases(
    pool: RankPool, module: str, folder: Path, names: list[str], *, ranks: int = 2, warning: WarningAction = "error"
) -> list[dict[str, Any]]:
    """What each rank saw, by case. module: has CASES, a Case for each name."""
    seen = {name: pool.play(_play, module, name, folder, ranks=ranks, warning=warning) for name in names}
    return [{name: seen[name][rank] for name in names} for rank in range(ranks)]


def _play(rank: int, module: str, name: str, folder: Path) -> Any:
    disable_progress_bar()
    return importlib.import_module(module).CASES[name](rank, folder)
