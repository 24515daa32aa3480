"""The cases of one module, played by ranks of a pool."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from tests.rank_pool import RankPool
from tests.ranks import WarningAction
from transformers.utils.logging import disable_progress_bar

Case = Callable[[int, Path], Any]
"""From a rank and the folder that all share to what the rank saw."""


class Seen(dict[str, Any]):
    """What a rank saw, by case. A case is played when it is first asked for."""

    def __init__(self, rank: int, play: Callable[[str], list[Any]]) -> None:
        super().__init__()
        self._rank, self._play = rank, play

    def __missing__(self, name: str) -> Any:
        return self._play(name)[self._rank]


def play_cases(pool: RankPool, module: str, folder: Path, *, warning: WarningAction = "error") -> list[dict[str, Any]]:
    """What each of two ranks sees. module: has CASES, a Case for each name."""
    play = cache(lambda name: pool.play(_play, module, name, folder, warning=warning))
    return [Seen(rank, play) for rank in range(2)]


def _play(rank: int, module: str, name: str, folder: Path) -> Any:
    disable_progress_bar()
    return importlib.import_module(module).CASES[name](rank, folder)
