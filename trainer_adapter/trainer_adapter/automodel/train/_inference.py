"""Post-processors of inference: from the logits of a microbatch to log-probabilities, the largest logits, or scores.

Results have the rows and columns of the microbatch before packing, for any layout of the forward pass, and are the same
on every rank of a model. Log-probabilities at padding are 0; so are the largest logits of packed microbatches.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from trainer_adapter.automodel.config import TrainingSamplingParams
from trainer_adapter.automodel.data import ProcessedMicrobatch, unpack_rows
from trainer_adapter.automodel.parallel.sequence import sequence_shard
from trainer_adapter.automodel.parallel.vocab import vocab_shard
from trainer_adapter.automodel.rank import queue_copy
from trainer_adapter.automodel.train._logprobs import is_filtering, next_token_logprobs

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

_log = logging.getLogger("trainer_adapter")


class LogprobsPostProcessor:
    """From logits to the log-probability of every token given those before it.

    cfg: `logprob_chunk_size` is the number of positions that are normalised at once (None or absent: 1024); it changes
    memory, not results.
    cp_mesh: as for LossPostProcessor.
    enable_seq_packing: microbatches are packed.
    sampling_params: the distribution is that of top_k and top_p sampling.
    excluded: the result for a sampled token that these exclude; 0 as in NeMo RL.
    The other arguments are accepted for compatibility.
    """

    def __init__(
        self,
        cfg: Mapping[str, Any],
        device_mesh: DeviceMesh | None,
        cp_mesh: DeviceMesh | None,
        tp_mesh: DeviceMesh | None,
        cp_size: int,
        enable_seq_packing: bool = False,
        sampling_params: TrainingSamplingParams | None = None,
        excluded: float = 0.0,
    ) -> None:
        self._excluded = excluded
        self._chunk_size = cfg.get("logprob_chunk_size")
        self._cp_mesh = cp_mesh
        self._is_packing = enable_seq_packing
        self._sampling_params = sampling_params

    def __call__(self, logits: Tensor, processed_mb: ProcessedMicrobatch, temperature: float = 1.0) -> Tensor:
        """[B,S] float32; column 0 and padding are 0. logits: [B,S,V], [1,L,V] packed, or a shard of them.

        temperature: logits are divided by it. A sampled token that top_k or top_p exclude gets `excluded`, and a
        warning counts such tokens.
        """
        inputs = processed_mb.processed_inputs
        sequence = sequence_shard(inputs, self._cp_mesh)
        input_ids = inputs.input_ids if sequence is None else sequence.gather(inputs.input_ids)
        params = self._sampling_params
        found = next_token_logprobs(logits, input_ids, sequence, params, self._chunk_size, temperature)
        logprobs = torch.nn.functional.pad(found, (1, 0))
        if self._is_packing:
            logprobs = unpack_rows(logprobs, processed_mb)
        lengths = queue_copy(processed_mb.data_dict["input_lengths"], logprobs.device)
        logprobs = logprobs.masked_fill(~_is_predicted(lengths, logprobs.shape[1]), 0.0)
        return self._replace_excluded(logprobs) if is_filtering(params) else logprobs

    def _replace_excluded(self, logprobs: Tensor) -> Tensor:
        """The count makes the host wait for the device."""
        is_excluded = logprobs.isneginf()
        count = int(is_excluded.sum())
        if count:
            text = "%d tokens of the batch are excluded by top_k or top_p; their log-probability is set to %g"
            _log.warning(text, count, self._excluded)
        return logprobs.masked_fill(is_excluded, self._excluded)


def _is_predicted(lengths: Tensor, width: int) -> Tensor:
    """[B,S] bool: columns of tokens that have a token before them."""
    columns = torch.arange(width, device=lengths.device)
    return (columns > 0) & (columns < lengths[:, None])


class TopkLogitsPostProcessor:
    """From logits to the k largest of every position.

    k: at least 1; a smaller vocabulary gives all its logits. The other arguments are those of LogprobsPostProcessor.
    """

    def __init__(
        self,
        cfg: Mapping[str, Any],
        device_mesh: DeviceMesh | None,
        cp_mesh: DeviceMesh | None,
        tp_mesh: DeviceMesh | None,
        cp_size: int,
        k: int,
        enable_seq_packing: bool = False,
    ) -> None:
        if k < 1:
            raise ValueError(f"k must be at least 1, got {k}")
        self._cp_mesh = cp_mesh
        self._k = k
        self._is_packing = enable_seq_packing

    def __call__(
        self, logits: Tensor, processed_mb: ProcessedMicrobatch, temperature: float = 1.0
    ) -> tuple[Tensor, Tensor]:
        """Values [B,S,k] float32, largest first, and vocabulary ids [B,S,k] int64; the last position is included.

        temperature: values are divided by it.
        """
        sequence = sequence_shard(processed_mb.processed_inputs, self._cp_mesh)
        values, ids = vocab_shard(logits).topk(self._k)
        if sequence is not None:
            values, ids = sequence.gather(values), sequence.gather(ids)
        if self._is_packing:
            values, ids = unpack_rows(values, processed_mb), unpack_rows(ids, processed_mb)
        return values / temperature, ids


class ScorePostProcessor:
    """From the output of a reward model to one score for each sample."""

    def __init__(self, cfg: Mapping[str, Any]) -> None:
        del cfg  # accepted for compatibility with the other post-processors

    def __call__(self, logits: Tensor) -> Tensor:
        """[B] float32 from logits [B,1]."""
        whole = logits.full_tensor() if isinstance(logits, DTensor) else logits
        return whole.float().squeeze(-1)
