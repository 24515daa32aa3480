"""WeightPublisher: the methods of a colocatable policy that send weights to engines, for one rank.

Gathering sharded weights is a collective, so all ranks iterate over them together and to the end. A rank whose engine
fails continues to iterate for the other ranks, and raises afterwards; then the others raise too.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext

import torch
import torch.distributed
from torch import Tensor, nn

from trainer_adapter.automodel.rank import fail_together
from trainer_adapter.refit._endpoints import stream_endpoint
from trainer_adapter.refit._generation_parameters import RefitInfo, generation_parameters, refit_info
from trainer_adapter.refit._weight_collective import WeightCollective
from trainer_adapter.refit._weight_groups import default_buffer_bytes
from trainer_adapter.refit._weight_stream import shared_buffers, stream_weights


class WeightPublisher:
    """For one rank of a trainer. All ranks call each method together; each blocks until the engines are done."""

    def __init__(
        self,
        model: nn.Module,
        dtype: torch.dtype,
        device: torch.device,
        rank: int,
        *,
        timeout_s: float = 120.0,
        endpoint_folder: str | os.PathLike[str] | None = None,
    ) -> None:
        """dtype: of the weights that engines get.
        timeout_s: for each answer of an engine, and for engines to join.
        endpoint_folder: of the sockets on the CPU, see stream_endpoint.
        """
        self._model, self._dtype, self._device, self._rank = model, dtype, device, rank
        self._timeout_s, self._folder = timeout_s, endpoint_folder
        self._collective: WeightCollective | None = None
        self._buffers = shared_buffers(device)

    def prepare_refit_info(self) -> dict[str, tuple[torch.Size, torch.dtype]]:
        """Full shape and dtype of every weight by its name, for engines. Gathers nothing."""
        return refit_info(self._model, self._dtype)

    def stream_weights_via_ipc_zmq(
        self, buffer_size_bytes: int = 0, kv_scales: Mapping[str, float] | None = None
    ) -> None:
        """Send the weights to the engine at this rank's endpoint, on the same device.

        buffer_size_bytes: of both buffers together (0: 2 % of the GPU's memory, at most 5 GB; on the CPU 256 MiB).
        They are kept for later calls until `close`.

        Raises NotImplementedError for kv_scales, and what stream_endpoint and stream_weights raise. RuntimeError if
        another rank failed.
        """
        _refuse_scales(kv_scales)

        def send(info: RefitInfo, parameters: Iterator[tuple[str, Tensor]]) -> None:
            stream_weights(
                stream_endpoint(self._device, self._rank, self._folder),
                info,
                parameters,
                device=self._device,
                buffer_size_bytes=buffer_size_bytes or default_buffer_bytes(self._device),
                timeout_s=self._timeout_s,
                buffers=self._buffers,
            )

        self._send(send)

    def init_collective(self, ip: str, port: int, world_size: int, *, train_world_size: int) -> None:
        """Join a group of world_size ranks that meets at ip:port: train_world_size trainers first, then engines.

        Raises ValueError for sizes without a place for this rank or for an engine, TimeoutError if ranks do not join in
        time.
        """
        if not self._rank < train_world_size < world_size:
            raise ValueError(
                f"rank {self._rank} must be below train_world_size ({train_world_size}), and that below world_size "
                f"({world_size}): trainers have the first ranks, engines the following ones"
            )
        self._leave()
        self._collective = WeightCollective(ip, port, world_size, self._rank, self._device, self._timeout_s)

    def broadcast_weights_for_collective(self, kv_scales: Mapping[str, float] | None = None) -> None:
        """Send the weights of rank 0 to every engine of the group that init_collective made.

        Raises NotImplementedError for kv_scales, RuntimeError before init_collective or if another rank failed, and
        what WeightCollective.broadcast raises.
        """
        _refuse_scales(kv_scales)
        if self._collective is None:
            raise RuntimeError("no group to broadcast in: call init_collective first")
        self._send(self._collective.broadcast)

    def close(self) -> None:
        """Leave the group and drop the buffers; can be called again."""
        self._buffers = shared_buffers(self._device)
        self._leave()

    def _leave(self) -> None:
        if self._collective is not None:
            self._collective.close()
            self._collective = None

    def _send(self, send: Callable[[RefitInfo, Iterator[tuple[str, Tensor]]], None]) -> None:
        info, parameters = self.prepare_refit_info(), generation_parameters(self._model, self._dtype)
        with fail_together("sending weights to engines") if torch.distributed.is_initialized() else nullcontext():
            try:
                send(info, parameters)
            except Exception:
                deque(parameters, maxlen=0)
                raise


def _refuse_scales(kv_scales: Mapping[str, float] | None) -> None:
    if kv_scales is not None:
        raise NotImplementedError("kv_scales: sending scales to engines with a quantised KV cache is not supported yet")
