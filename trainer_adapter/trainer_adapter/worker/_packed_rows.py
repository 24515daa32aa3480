"""A trial of packing: whether the loaded model keeps the sequences of a packed row apart.

A model that ignores position ids or bounds lets sequences attend to each other, or carries a recurrent state from one
to the next. Nothing fails then, and all log-probabilities but the first sequence's are wrong. No attribute of a model
tells this for all models, so it is tried.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dataplane_client.batched_data_dict import BatchedDataDict
from trainer_adapter.automodel.config import required
from trainer_adapter.automodel.rank import fail_together
from trainer_adapter.worker._inference import logprobs
from trainer_adapter.worker._loaded_policy import LoadedPolicy

_LENGTH = 16
_TOLERANCE = 0.05
"""Experts may round differently among other tokens; an attended sequence changes as much as a token does."""


def check_packed_rows(policy: LoadedPolicy) -> None:
    """Raise NotImplementedError if packed sequences see each other; a collective call of all ranks. Nothing without
    sequence packing.

    Three forward passes of one packed row each: the second sequence, behind another first sequence, must keep its
    log-probabilities. How much a seen change matters is measured by the same sequence with another first token.
    """
    if not policy.runtime.enable_seq_packing or required(policy.config, "dynamic_batching.enabled"):
        return  # every later call refuses both at once
    generator = torch.Generator().manual_seed(0)
    first, other, second = torch.randint(policy.vocabulary, (3, _LENGTH), generator=generator)
    changed = second.clone()
    changed[0] = (second[0] + 1) % policy.vocabulary
    expected = _packed_logprobs(policy, first, second)
    foreign = (_packed_logprobs(policy, other, second) - expected).abs().mean()
    own = (_packed_logprobs(policy, first, changed) - expected).abs().mean()
    with fail_together("trying packed sequences"):
        if not foreign <= _TOLERANCE * own:
            raise NotImplementedError(
                f"sequence_packing.enabled: {type(policy.model).__name__} does not keep the sequences of a packed row "
                f"apart: log-probabilities change by {foreign:.2g} with the sequence before. Set "
                "sequence_packing.enabled=false; dynamic_batching.enabled=true saves padding too"
            )


def _packed_logprobs(policy: LoadedPolicy, first: Tensor, second: Tensor) -> Tensor:
    """Those of the second sequence in a row of both; its first token has none."""
    rows = torch.stack([first, second])
    data: BatchedDataDict[Tensor] = BatchedDataDict(input_ids=rows, input_lengths=torch.tensor([_LENGTH, _LENGTH]))
    data.micro_batch_indices, data.micro_batch_lengths = [[[0, 2]]], [[2 * _LENGTH]]
    return logprobs(policy, data, None, None)[1, 1:]
