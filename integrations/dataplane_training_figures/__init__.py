"""Figures of training data, and of the time that steps spend on it, to look at beside the loss.

Figures of several data-parallel ranks, or steps, are added with `+`. See "Figures beside the loss" in
docs/observability.md.
"""

from dataplane_training_figures._distribution import Distribution
from dataplane_training_figures._figures import FIELDS, BatchFigures, figures_of
from dataplane_training_figures._sinks import TrainingGauges, log_metrics
from dataplane_training_figures._step_clock import StepClock, StepTime

__all__ = [
    "FIELDS",
    "BatchFigures",
    "Distribution",
    "StepClock",
    "StepTime",
    "TrainingGauges",
    "figures_of",
    "log_metrics",
]
