"""The state of this rank's random numbers on disk, so that a resumed run drops out the same elements.

It belongs to the rank and to the arrangement of the ranks, which name its file. Ranks that are arranged in another way
draw other numbers.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgpack
import torch
from torch.distributed.tensor import DTensor

from trainer_adapter.automodel.checkpoint._files import write_plain
from trainer_adapter.automodel.rank import computes_on_gpu, fail_together


def write_random_state(folder: Path, model: torch.nn.Module) -> None:
    """Write the states of torch's generators; a collective call of all ranks."""
    states = [torch.get_rng_state(), *([torch.cuda.get_rng_state()] if computes_on_gpu() else [])]
    with fail_together("writing the random state"):
        write_plain(_path(folder, model), [state.numpy().tobytes() for state in states])


def read_random_state(folder: Path, model: torch.nn.Module) -> None:
    """Set the generators; does nothing if the checkpoint has no state of this rank in this arrangement."""
    if not _path(folder, model).exists():
        return
    states = msgpack.unpackb(_path(folder, model).read_bytes())
    cpu, *gpu = (torch.frombuffer(bytearray(state), dtype=torch.uint8) for state in states)
    torch.set_rng_state(cpu)
    if gpu and computes_on_gpu():
        torch.cuda.set_rng_state(gpu[0])


def _path(folder: Path, model: torch.nn.Module) -> Path:
    """Named by the mesh that divides the first weight."""
    first: Any = next(model.parameters())
    mesh: Any = first.device_mesh if isinstance(first, DTensor) else None
    sizes = [] if mesh is None else [f"{name}{mesh.size(at)}" for at, name in enumerate(mesh.mesh_dim_names)]
    return folder / f"random.{'x'.join(sizes)}.{torch.distributed.get_rank()}.msgpack"
