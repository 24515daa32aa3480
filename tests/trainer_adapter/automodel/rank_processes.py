"""Real ranks on gloo that run the cases of one module, one process group for each case, and write JSON."""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.ranks import WarningAction, environment, free_port, run_ranks
from transformers.utils.logging import disable_progress_bar

Case = Callable[[int, Path], Any]
"""From a rank and the folder that all share to what the rank saw."""


def play_cases(
    module: str,
    folder: Path,
    names: list[str],
    world_size: int = 2,
    warning: WarningAction = "error",
    timeout_s: float = 110.0,
) -> list[dict[str, Any]]:
    """Start all ranks; what each saw, by case. module: has CASES, a Case for each name."""
    cases = [(name, free_port()) for name in names]
    arguments = [(module, rank, world_size, folder, cases) for rank in range(world_size)]
    run_ranks(_be_a_rank, arguments, warning=warning, timeout_s=timeout_s)
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(world_size)]


def _be_a_rank(module: str, rank: int, world_size: int, folder: Path, cases: list[tuple[str, int]]) -> None:
    disable_progress_bar()
    plays: dict[str, Case] = importlib.import_module(module).CASES
    seen = {}
    for name, port in cases:
        os.environ.update(environment(rank, world_size, port))
        seen[name] = plays[name](rank, folder)
    (folder / f"rank{rank}.json").write_text(json.dumps(seen))
