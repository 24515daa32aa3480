"""The losses of this package, and the interface of losses in general. `examples/losses` has others.

`call_loss` calls a loss of either shape (see `LossFunction`); `SequencePackingLossWrapper` runs one over a packed row.
"""

from __future__ import annotations

from trainer_adapter.losses._call import call_loss, prepare_loss_input
from trainer_adapter.losses._interface import LossFunction, LossInputType, LossResult, LossType
from trainer_adapter.losses._nll import NLLLoss
from trainer_adapter.losses._packing import SequencePackingLossWrapper
from trainer_adapter.losses._policy_gradient import ClippedPolicyGradientLoss, ClippedPolicyGradientOptions
from trainer_adapter.losses._token_logprobs import next_token_logprobs
from trainer_adapter.losses.masking import masked_mean
from trainer_adapter.losses.metrics import merge_metrics

__all__ = [
    "ClippedPolicyGradientLoss",
    "ClippedPolicyGradientOptions",
    "LossFunction",
    "LossInputType",
    "LossResult",
    "LossType",
    "NLLLoss",
    "SequencePackingLossWrapper",
    "call_loss",
    "masked_mean",
    "merge_metrics",
    "next_token_logprobs",
    "prepare_loss_input",
]
