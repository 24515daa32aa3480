"""Real ranks on gloo that run the cases of one module and write JSON."""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed
from tests.ranks import WarningAction, environment, free_port, run_ranks
from torch.distributed.device_mesh import init_device_mesh
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
    """Start all ranks, with one process group for each case; what each saw, by case.

    module: has CASES, a Case for each name.
    """
    cases = [(name, free_port()) for name in names]
    arguments = [(module, rank, world_size, folder, cases) for rank in range(world_size)]
    run_ranks(_be_a_rank, arguments, warning=warning, timeout_s=timeout_s)
    return _seen(folder, world_size)


def play_in_one_group(module: str, folder: Path) -> list[dict[str, Any]]:
    """Start two ranks in one process group for all cases; what each saw, by case.

    module: its function `cases` makes the cases from a rank and the mesh of both.
    """
    run_ranks(_be_one_of_two, [(module, rank, folder) for rank in range(2)])
    return _seen(folder, 2)


def _seen(folder: Path, world_size: int) -> list[dict[str, Any]]:
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(world_size)]


def _be_a_rank(module: str, rank: int, world_size: int, folder: Path, cases: list[tuple[str, int]]) -> None:
    disable_progress_bar()
    plays: dict[str, Case] = importlib.import_module(module).CASES
    seen = {}
    for name, port in cases:
        os.environ.update(environment(rank, world_size, port))
        seen[name] = plays[name](rank, folder)
    (folder / f"rank{rank}.json").write_text(json.dumps(seen))


def _be_one_of_two(module: str, rank: int, folder: Path) -> None:
    timeout = timedelta(seconds=60)
    store = f"file://{folder}/store"
    torch.distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=2, timeout=timeout)
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("ranks",))
    seen = {name: play() for name, play in importlib.import_module(module).cases(rank, mesh).items()}
    (folder / f"rank{rank}.json").write_text(json.dumps(seen))
    torch.distributed.destroy_process_group()
