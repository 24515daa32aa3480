"""What a rank holds once set-up is done, and the contexts its forward passes run in."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed import ProcessGroup

from dataplane_client.batched_data_dict import BatchedDataDict
from trainer_adapter.automodel.checkpoint import CheckpointManager
from trainer_adapter.automodel.config import (
    DistributedContext,
    ModelAndOptimizerState,
    PolicyConfig,
    RuntimeConfig,
    required,
)
from trainer_adapter.automodel.data import ProcessedInputs, ProcessedMicrobatch, get_microbatch_iterator
from trainer_adapter.automodel.parallel.context import context_parallel_contexts
from trainer_adapter.automodel.rank import rank_device
from trainer_adapter.automodel.setup import (
    get_tokenizer,
    setup_distributed,
    setup_model_and_optimizer,
    setup_reference_model_state,
    validate_and_prepare_config,
)

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

Contexts = Callable[[ProcessedInputs], AbstractContextManager[None]]


@dataclass(frozen=True)
class LoadedPolicy:
    """A policy on this rank. reference: this rank's part of the weights that training began with, on the CPU; None
    where nobody asks for them. device: where it computes.
    """

    config: PolicyConfig
    tokenizer: Any
    runtime: RuntimeConfig
    context: DistributedContext
    state: ModelAndOptimizerState
    checkpoints: CheckpointManager
    reference: Mapping[str, torch.Tensor] | None
    device: torch.device

    @property
    def model(self) -> torch.nn.Module:
        return self.state.model

    @property
    def dp_group(self) -> ProcessGroup:
        """The ranks that hold the other shards of a batch."""
        return self.context.device_mesh["dp"].get_group()

    def mesh(self, name: str) -> DeviceMesh | None:
        """A dimension of the mesh; None where it is this rank alone."""
        mesh = self.context.device_mesh[name]
        return mesh if mesh.size() > 1 else None

    def microbatches(self, data: BatchedDataDict[Any], mbs: int) -> tuple[Iterator[ProcessedMicrobatch], int]:
        """See get_microbatch_iterator. data is on this rank's device and carries the plan that it needs."""
        dp_mesh, cp_size = self.mesh("dp"), self.context.cp_size
        return get_microbatch_iterator(data, self.config, mbs, dp_mesh, self.tokenizer, cp_size)

    def forward_contexts(self) -> Contexts:
        """For the inputs of a microbatch the context in which its forward and backward passes run."""
        divided = context_parallel_contexts(self.context, self.config)
        autocasts = self.state.autocast_enabled and self.runtime.dtype != torch.float32

        @contextmanager
        def enter(inputs: ProcessedInputs) -> Iterator[None]:
            with ExitStack() as stack:
                if divided is not None:
                    stack.enter_context(divided(inputs))
                if autocasts:
                    stack.enter_context(torch.autocast(self.device.type, self.runtime.dtype))
                yield

        return enter


def load_policy(
    config: PolicyConfig,
    *,
    init_optimizer: bool = True,
    init_reference_model: bool = True,
    weights_path: str | None = None,
    optimizer_path: str | None = None,
) -> LoadedPolicy:
    """Set up this rank, as all ranks must at once; rank and world size come from the environment.

    The reference is the model as it is after weights_path has been loaded. What it raises is what the functions of
    trainer_adapter.automodel.setup raise.
    """
    tokenizer_config = required(config, "tokenizer")
    is_vlm = bool(tokenizer_config.get("use_processor", False))
    tokenizer: Any = get_tokenizer(tokenizer_config, get_processor=is_vlm)
    processor = tokenizer if is_vlm else None
    runtime = validate_and_prepare_config(config, processor, int(os.environ.get("RANK", "0")))
    context = setup_distributed(config, runtime)
    device = rank_device(context.device_mesh.device_type)
    checkpoints = CheckpointManager()
    state = setup_model_and_optimizer(
        config,
        tokenizer.tokenizer if is_vlm else tokenizer,
        runtime,
        context,
        checkpoints,
        is_vlm=is_vlm,
        init_optimizer=init_optimizer,
        weights_path=weights_path,
        optimizer_path=optimizer_path,
    )
    reference = setup_reference_model_state(state.model) if init_reference_model else None
    return LoadedPolicy(config, tokenizer, runtime, context, state, checkpoints, reference, device)
