"""The loss of a microbatch for any layout of its logits.

The loss sees rows and positions as in the batch. A loss over log-probabilities gets them without gathering the
vocabulary on any rank, and once for all rows of a packed microbatch. A loss over logits gets them whole in float32,
which costs V floats for each position on every rank, and is called for each packed sequence.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from dataplane_client.batched_data_dict import BatchedDataDict
from trainer_adapter.automodel.config import TrainingSamplingParams
from trainer_adapter.automodel.data import ProcessedMicrobatch, packed_bounds, unpack_rows
from trainer_adapter.automodel.parallel.sequence import SequenceShard, sequence_shard
from trainer_adapter.automodel.parallel.vocab import vocab_shard
from trainer_adapter.automodel.rank import queue_copy
from trainer_adapter.automodel.train._logprobs import next_token_logprobs
from trainer_adapter.losses import LossFunction, LossInputType, LossResult, SequencePackingLossWrapper, call_loss
from trainer_adapter.losses._interface import value_of

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


class LossPostProcessor:
    """From logits to the loss and its metrics.

    loss_fn: of either shape, see trainer_adapter.losses.
    cp_mesh: the ranks that share a sequence; required if microbatches are prepared for context parallelism.
    enable_seq_packing: microbatches are packed.
    sampling_params: with top_k or top_p, a loss over log-probabilities gets -inf for excluded tokens.
    The other arguments are accepted for compatibility; logits and inputs of each microbatch give their layout.
    """

    def __init__(
        self,
        loss_fn: LossFunction,
        cfg: Mapping[str, Any],
        device_mesh: DeviceMesh | None,
        cp_mesh: DeviceMesh | None,
        tp_mesh: DeviceMesh | None,
        cp_size: int,
        dp_size: int,
        enable_seq_packing: bool = False,
        sampling_params: TrainingSamplingParams | None = None,
    ) -> None:
        self._loss_fn = loss_fn
        self._cp_mesh = cp_mesh
        self._is_packing = enable_seq_packing
        self._sampling_params = sampling_params

    def __call__(
        self,
        logits: Tensor,
        processed_mb: ProcessedMicrobatch,
        global_valid_seqs: Tensor,
        global_valid_toks: Tensor,
        temperature: float = 1.0,
    ) -> LossResult:
        """Return the microbatch's share of the loss, 0-d, and metrics. logits: [B,S,V], [1,L,V] packed, or a shard of
        them, not yet divided by the temperature.
        """
        inputs = processed_mb.processed_inputs
        data: BatchedDataDict[Any] = BatchedDataDict(processed_mb.data_dict)
        if "input_lengths" in data:  # which stay on the host for packing
            data["input_lengths"] = queue_copy(data["input_lengths"], logits.device)
        sequence = sequence_shard(inputs, self._cp_mesh)
        input_ids = inputs.input_ids if sequence is None else sequence.gather(inputs.input_ids)
        if not self._is_packing:
            data["input_ids"] = input_ids
        if value_of(self._loss_fn, "input_type") == LossInputType.LOGPROB.value:
            params = self._sampling_params
            found = next_token_logprobs(logits, input_ids, sequence, params, temperature=temperature)
            if self._is_packing:
                found = _rows_of(found, processed_mb)
            counts = {"global_valid_seqs": global_valid_seqs, "global_valid_toks": global_valid_toks}
            return self._loss_fn(data=data, next_token_logprobs=found, **counts)
        whole = _whole(logits, sequence, temperature)
        if not self._is_packing:
            return call_loss(self._loss_fn, whole, data, global_valid_seqs, global_valid_toks)
        packed_loss = SequencePackingLossWrapper(self._loss_fn, torch.tensor(packed_bounds(processed_mb).bounds))
        return packed_loss(whole, data, global_valid_seqs, global_valid_toks)


def _rows_of(found: Tensor, processed_mb: ProcessedMicrobatch) -> Tensor:
    """[N,S-1] from the [1,L-1] of a packed row: 0 behind each sequence, the first token of the next one included."""
    return unpack_rows(torch.nn.functional.pad(found, (1, 0)), processed_mb)[:, 1:]


def _whole(logits: Tensor, sequence: SequenceShard | None, temperature: float) -> Tensor:
    """[B,S,V] on every rank, at least in float32 and divided by the temperature, which 16 bits are too coarse for.

    In place if they are float32 already, because logits are often the largest tensor of a step; not in the part of a
    DTensor, which autograd protects.
    """
    shard = vocab_shard(logits)
    gathered = shard.gather()
    if sequence is not None:
        gathered = sequence.gather(gathered)
    exact = gathered.to(torch.promote_types(gathered.dtype, torch.float32))
    if temperature == 1.0:
        return exact
    is_part = isinstance(logits, DTensor) and shard.group is None
    return exact / temperature if is_part else exact.div_(temperature)
