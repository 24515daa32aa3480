"""The state of a rank after set-up, and the contexts of its forward passes."""

from __future__ import annotations

import logging
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
    check_types,
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

_log = logging.getLogger("trainer_adapter")

Contexts = Callable[[ProcessedInputs], AbstractContextManager[None]]


@dataclass(frozen=True)
class LoadedPolicy:
    """A policy on this rank.

    reference: this rank's part of the weights at the start of training, on the CPU; None if not wanted.
    device: the one that this rank computes on.
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
    def vocabulary(self) -> int:
        """The number of token ids that the model knows."""
        return int(self.model.config.get_text_config().vocab_size)  # type: ignore[operator, union-attr]

    @property
    def pad_token_id(self) -> int | None:
        """The tokenizer's; None if the model does not know it."""
        found: int | None = self.tokenizer.pad_token_id
        return found if found is not None and found < self.vocabulary else None

    @property
    def dp_group(self) -> ProcessGroup:
        """The ranks that hold the other shards of a batch."""
        return self.context.device_mesh["dp"].get_group()

    @property
    def pins_host_memory(self) -> bool:
        """Whether weights and optimizer state are pinned while they are on the host."""
        return bool(self.config["dtensor_cfg"].get("pin_host_memory", True))

    def mesh(self, name: str) -> DeviceMesh | None:
        """A dimension of the mesh; None if this rank is alone in it."""
        mesh = self.context.device_mesh[name]
        return mesh if mesh.size() > 1 else None

    def microbatches(self, data: BatchedDataDict[Any], mbs: int) -> tuple[Iterator[ProcessedMicrobatch], int]:
        """See get_microbatch_iterator. data must be on this rank's device and have the plan that it needs."""
        dp_mesh, cp_size = self.mesh("dp"), self.context.cp_size
        return get_microbatch_iterator(data, self.config, mbs, dp_mesh, self.tokenizer, cp_size)

    @property
    def processor_settings(self) -> dict[str, Any]:
        """The arguments that all post-processors of this policy share."""
        return {
            "cfg": self.config,
            "device_mesh": self.context.device_mesh,
            "cp_mesh": self.mesh("cp"),
            "tp_mesh": self.mesh("tp"),
            "cp_size": self.context.cp_size,
            "enable_seq_packing": self.runtime.enable_seq_packing,
        }

    def forward_contexts(self) -> Contexts:
        """Return a function from a microbatch's inputs to the context of its forward and backward pass."""
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
    """Set up this rank; a collective call of all ranks. Rank and world size come from the environment.

    The reference is the model after weights_path is loaded; rank 0 warns of that if an optimizer is loaded too.
    Raises what check_types and the functions of trainer_adapter.automodel.setup raise.
    """
    check_types(config)
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
    if init_reference_model and weights_path and optimizer_path and torch.distributed.get_rank() == 0:
        _log.warning(
            "the reference weights are those of the checkpoint %s. To resume with those of the run's beginning, start "
            "without weights_path and call load_checkpoint. init_reference_model=False keeps none",
            weights_path,
        )
    reference = setup_reference_model_state(state.model) if init_reference_model else None
    return LoadedPolicy(config, tokenizer, runtime, context, state, checkpoints, reference, device)
