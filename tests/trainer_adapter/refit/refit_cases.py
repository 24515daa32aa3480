"""Shared by the tests of sending weights: a small model, and two trainers and an engine as processes.

As a program it is an engine on a GPU. Usage: refit_cases.py ENDPOINT FOLDER DTYPE
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from trainer_adapter import refit
from trainer_adapter.refit._endpoints import own_folder

CPU = torch.device("cpu")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
TIMEOUT_S = 60.0
"""Processes that start together on busy cores are ready at very different times."""
BUFFER_BYTES = 3000
"""Of both together: the embedding is larger than half of it, and the rest takes several."""


class WithExtraState(nn.Linear):
    def get_extra_state(self) -> Any:
        return {"not": "a weight"}

    def set_extra_state(self, state: Any) -> None:
        pass


class TinyModel(nn.Module):
    """Tied embeddings, entries of other dtypes, shapes that two ranks cannot share evenly; an adapter if asked for."""

    def __init__(self, adapter: bool = False) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(5)
        self.embedding = nn.Embedding(61, 8)
        self.layers = nn.ModuleList(WithExtraState(8, 8) for _ in range(6))
        self.gate = nn.Linear(8, 3)
        self.head = nn.Linear(8, 61, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("steps", torch.tensor(7))
        self.register_buffer("flags", torch.tensor([True, False, True]))
        self.register_buffer("frequencies", torch.arange(5, dtype=torch.float64) / 3)
        if adapter:
            add_adapter(self.gate, 2, 0.5)
        for parameter in self.parameters():
            nn.init.normal_(parameter, generator=generator)
            parameter.data = (parameter.data * 16).round() / 16  # so that sums are exact in whatever order


def add_adapter(layer: Any, rank: int, scale: float) -> None:
    layer.lora_A = nn.Linear(layer.in_features, rank, bias=False)
    layer.lora_B = nn.Linear(rank, layer.out_features, bias=False)
    layer.scale = scale


def expected_weights(model: TinyModel, dtype: torch.dtype) -> dict[str, Tensor]:
    """Of a whole model, one by one."""
    expected = {}
    for name, value in model.state_dict().items():
        if "lora" not in name and "extra_state" not in name:
            expected[name] = value.to(dtype) if value.is_floating_point() else value
    gate: Any = model.gate
    if hasattr(gate, "scale"):
        merged = gate.weight + gate.lora_B.weight @ gate.lora_A.weight * gate.scale
        expected["gate.weight"] = merged.detach().to(dtype)
    return expected


def empty_model(dtype: torch.dtype) -> TinyModel:
    """As an engine has it before its weights come: its floating-point entries are of the dtype, and NaN."""
    model = TinyModel().to(dtype)
    for value in model.state_dict().values():
        if isinstance(value, Tensor):
            value.fill_(torch.nan if value.is_floating_point() else 0)
    return model


def told(step: Callable[[], Any]) -> str:
    """How it went."""
    try:
        step()
    except (RuntimeError, ValueError, OSError) as error:
        return f"{type(error).__name__}: {error}"
    return "done"


def mappings_of_weights() -> int:
    """How much shared memory this process still holds, by number of mappings and descriptors."""
    held = Path("/proc/self/maps").read_text().count("dataplane-weights")
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # another thread has closed it
            held += "dataplane-weights" in str(descriptor.readlink())
    return held


# --- two trainers and an engine, step by step together ---


def trainer(rank: int, folder: Path, port: int) -> dict[str, Any]:
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    seen: dict[str, Any] = {}
    with ExitStack() as stack:
        for name, dtype in DTYPES.items():
            model = TinyModel(adapter=True)
            fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
            publisher = refit.WeightPublisher(model, dtype, CPU, rank, timeout_s=TIMEOUT_S, endpoint_folder=folder)
            stack.callback(publisher.close)
            seen[f"{name}_info"] = [
                [key, list(shape), str(kind)] for key, (shape, kind) in publisher.prepare_refit_info().items()
            ]
            publisher.stream_weights_via_ipc_zmq(BUFFER_BYTES)
            publisher.stream_weights_via_ipc_zmq()
            seen["one_engine_refused"] = told(publisher.stream_weights_via_ipc_zmq)
            publisher.close()
        publisher = refit.WeightPublisher(model, torch.float32, CPU, rank, timeout_s=TIMEOUT_S, endpoint_folder=folder)
        publisher.init_collective("127.0.0.1", port, 3, train_world_size=2)
        publisher.broadcast_weights_for_collective()
        seen["refused_in_collective"] = told(publisher.broadcast_weights_for_collective)
        publisher.broadcast_weights_for_collective()
        seen["default_group"] = [torch.distributed.get_world_size(), torch.distributed.get_rank()]
        seen["held"] = mappings_of_weights()
        seen["engine_died"] = told(publisher.broadcast_weights_for_collective)
        seen["collective_closed"] = told(publisher.broadcast_weights_for_collective)
        publisher.close()
        publisher = refit.WeightPublisher(model, torch.float32, CPU, rank, timeout_s=0.5, endpoint_folder=folder)
        seen["no_engine"] = told(publisher.stream_weights_via_ipc_zmq)
        tempfile.tempdir = str(folder / f"rank{rank}")
        Path(tempfile.tempdir).mkdir()
        own_folder(Path(tempfile.tempdir)).chmod(0o700 if rank == 0 else 0o755)
        publisher = refit.WeightPublisher(model, torch.float32, CPU, rank, timeout_s=0.5)
        seen["no_folder"] = told(publisher.stream_weights_via_ipc_zmq)
    torch.distributed.destroy_process_group()
    return seen


def engine(folder: Path, port: int) -> None:
    """One engine for each trainer's rank while streaming, one for both afterwards; dies while weights come."""
    with ThreadPoolExecutor(2) as pool:
        for name in DTYPES:
            list(pool.map(streamed_engine, range(2), [name] * 2, [folder] * 2))
    info = refit.refit_info(TinyModel(), torch.float32)
    collective = refit.WeightCollective("127.0.0.1", port, 3, 2, CPU, timeout_s=TIMEOUT_S)
    for attempt in ("collective", "refused", "collective_again"):
        model = empty_model(torch.float32)
        if attempt == "refused":
            model.gate = nn.Linear(8, 4)
        outcome = told(partial(load_from, collective.receive(info), model, info))
        (folder / f"{attempt}.txt").write_text(outcome)
        save_model(model, folder / f"{attempt}.safetensors")
    with collective.receive(info) as weights:
        next(weights)
        os._exit(3)


def streamed_engine(rank: int, name: str, folder: Path) -> None:
    """Takes weights from small buffers, from large ones, and refuses the third time if it is rank 1's."""
    info = refit.refit_info(TinyModel(), DTYPES[name])
    for attempt in ("small", "large", "refused"):
        model = empty_model(DTYPES[name])
        if attempt == "refused" and rank == 1:
            model.gate = nn.Linear(8, 4)
        source = refit.receive_streamed_weights(
            refit.stream_endpoint(CPU, rank, folder), info, CPU, timeout_s=TIMEOUT_S
        )
        outcome = told(partial(load_from, source, model, info))
        (folder / f"{name}_{attempt}{rank}.txt").write_text(outcome)
        save_model(model, folder / f"{name}_{attempt}{rank}.safetensors")


def load_from(source: Any, model: nn.Module, info: Any) -> None:
    with source as weights:
        refit.load_weights(model, info, weights)


def save_model(model: nn.Module, path: Path) -> None:
    state: Iterator[tuple[str, Any]] = iter(model.state_dict().items())
    save_file({name: value.cpu().clone() for name, value in state if isinstance(value, Tensor)}, path)


def gpu_engine(endpoint: str, folder: Path, name: str) -> None:
    device = torch.device("cuda", 0)
    info = refit.refit_info(TinyModel(), DTYPES[name])
    model = empty_model(DTYPES[name]).to(device)
    load_from(refit.receive_streamed_weights(endpoint, info, device, timeout_s=60), model, info)
    save_model(model, folder / "gpu.safetensors")


def be_one_of_three(number: int, folder: Path, port: int) -> None:
    """Two ranks of a trainer come first."""
    if number == 2:
        engine(folder, port)
    else:
        (folder / f"rank{number}.json").write_text(json.dumps(trainer(number, folder, port)))


if __name__ == "__main__":
    gpu_engine(sys.argv[1], Path(sys.argv[2]), sys.argv[3])
