"""Forward and backward passes over microbatches, and what is computed from their logits."""

from trainer_adapter.automodel.train._forward import apply_temperature_scaling, extract_logits, model_forward
from trainer_adapter.automodel.train._gradient_norm import clip_grad_norm
from trainer_adapter.automodel.train._inference import (
    LogprobsPostProcessor,
    ScorePostProcessor,
    TopkLogitsPostProcessor,
)
from trainer_adapter.automodel.train._loss import LossPostProcessor
from trainer_adapter.automodel.train._passes import automodel_forward_backward, forward_with_post_processing_fn
from trainer_adapter.automodel.train._statistics import aggregate_training_statistics

__all__ = [
    "LogprobsPostProcessor",
    "LossPostProcessor",
    "ScorePostProcessor",
    "TopkLogitsPostProcessor",
    "aggregate_training_statistics",
    "apply_temperature_scaling",
    "automodel_forward_backward",
    "clip_grad_norm",
    "extract_logits",
    "forward_with_post_processing_fn",
    "model_forward",
]
