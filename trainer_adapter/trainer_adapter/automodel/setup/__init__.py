"""From a policy's configuration to the model on this rank and its optimizer.

A worker calls, in this order: get_tokenizer, validate_and_prepare_config, setup_distributed, setup_model_and_optimizer,
and setup_reference_model_state if it needs the initial weights later. Every rank of the job calls each of them. They
print their choices to standard output.
"""

from trainer_adapter.automodel.models.force_hf import _maybe_set_force_hf
from trainer_adapter.automodel.models.tokenizer import get_tokenizer
from trainer_adapter.automodel.setup._distributed import setup_distributed
from trainer_adapter.automodel.setup._model import setup_model_and_optimizer, setup_reference_model_state
from trainer_adapter.automodel.setup._optimizer import build_optimizer, build_scheduler
from trainer_adapter.automodel.setup._validation import STRING_TO_DTYPE, validate_and_prepare_config

__all__ = [
    "STRING_TO_DTYPE",
    "_maybe_set_force_hf",
    "build_optimizer",
    "build_scheduler",
    "get_tokenizer",
    "setup_distributed",
    "setup_model_and_optimizer",
    "setup_reference_model_state",
    "validate_and_prepare_config",
]
