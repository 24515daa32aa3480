"""The loss of a microbatch for any layout of its logits.

The loss sees rows and positions as in the batch. A loss over log-probabilities gets them without gathering the
vocabulary on any rank; a loss over logits gets them whole, which costs V floats for each position on every rank.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from dataplane_client.batched_data_dict import BatchedDataDict
from trainer_adapter.automodel.config import TrainingSamplingParams
from trainer_adapter.automodel.data import ProcessedInputs, ProcessedMicrobatch, sequence_bounds
from trainer_adapter.automodel.parallel.sequence import SequenceShard, sequence_shard
from trainer_adapter.automodel.parallel.vocab import vocab_shard
from trainer_adapter.automodel.train._logprobs import next_token_logprobs
from trainer_adapter.automodel.train._sampling_filter import is_filtering
from trainer_adapter.losses import (
    LossFunction,
    LossInputType,
    LossResult,
    SequencePackingLossWrapper,
    call_loss,
    prepare_loss_input,
)
from trainer_adapter.losses._call import PrepareFunction
from trainer_adapter.losses._interface import value_of

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


class LossPostProcessor:
    """From logits to the loss and its metrics.

    loss_fn: of either shape, see trainer_adapter.losses.
    cp_mesh: the ranks that share a sequence; required if microbatches are prepared for context parallelism.
    enable_seq_packing: microbatches are packed, and the loss is called once for each sequence.
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
    ) -> LossResult:
        """Return the microbatch's share of the loss, 0-d, and metrics. logits: [B,S,V], [1,L,V] packed, or a shard of
        them.
        """
        inputs, data = processed_mb.processed_inputs, processed_mb.data_dict
        sequence = sequence_shard(inputs, self._cp_mesh)
        if sequence is not None and not self._is_packing:
            # The batch's own input_ids are one of the sharded buffers.
            data = BatchedDataDict({**data, "input_ids": sequence.gather(inputs.input_ids)})
        if not hasattr(self._loss_fn, "input_type"):
            logits, sequence = _gather_logits(logits, sequence), None

        def prepare(logits: Tensor, data: Mapping[str, Any], loss_fn: LossFunction) -> dict[str, Any]:
            return _prepare(logits, data, loss_fn, sequence, self._sampling_params)

        if not self._is_packing:
            return call_loss(self._loss_fn, logits, data, global_valid_seqs, global_valid_toks, prepare_fn=prepare)
        bounds = sequence_bounds(processed_mb)
        prepare_cut: PrepareFunction = prepare
        if sequence is not None:
            # A rank's positions are not a range of the packed row, so the results are reordered before the row is cut.
            logits, prepare_cut = self._reorder(logits, inputs, sequence)
        packed_loss = SequencePackingLossWrapper(self._loss_fn, bounds, bounds, prepare_fn=prepare_cut)
        return packed_loss(logits, data, global_valid_seqs, global_valid_toks)

    def _reorder(
        self, logits: Tensor, inputs: ProcessedInputs, sequence: SequenceShard
    ) -> tuple[Tensor, PrepareFunction]:
        """Return a packed row in order, and the function that prepares the loss's input of a piece of it.

        For a loss over log-probabilities the row is [1,L]; the last column of each piece predicts the next piece's
        first token. For any other loss it is the logits [1,L,V].
        """
        if value_of(self._loss_fn, "input_type") != LossInputType.LOGPROB.value:
            params = self._sampling_params
            return _gather_logits(logits, sequence), lambda piece, data, loss_fn: _prepare(
                piece, data, loss_fn, None, params
            )
        input_ids = sequence.gather(inputs.input_ids)
        found = next_token_logprobs(logits, input_ids, sequence, self._sampling_params)
        return torch.nn.functional.pad(found, (0, 1)), lambda piece, *_: {"next_token_logprobs": piece[:, :-1]}


def _prepare(
    logits: Tensor,
    data: Mapping[str, Any],
    loss_fn: LossFunction,
    sequence: SequenceShard | None,
    params: TrainingSamplingParams | None,
) -> dict[str, Any]:
    """The input that loss_fn asks for; prepare_loss_input makes it if the logits are whole and nothing is filtered."""
    is_plain = sequence is None and not isinstance(logits, DTensor) and not is_filtering(params)
    if value_of(loss_fn, "input_type") == LossInputType.LOGPROB.value and not is_plain:
        return {"next_token_logprobs": next_token_logprobs(logits, data["input_ids"], sequence, params)}
    return prepare_loss_input(_gather_logits(logits, sequence), data, loss_fn)


def _gather_logits(logits: Tensor, sequence: SequenceShard | None) -> Tensor:
    """Gather [B,S,V] on every rank."""
    logits = vocab_shard(logits).gather()
    return logits if sequence is None else sequence.gather(logits)
