"""Sending a trainer's weights to generation engines, whole and with Hugging Face names.

Trainers use a `WeightPublisher`. Engines call `receive_streamed_weights` on the same device or join a
`WeightCollective` on another one, and can call `load_weights` for a torch model.
"""

from __future__ import annotations

from trainer_adapter.refit._endpoints import stream_endpoint
from trainer_adapter.refit._generation_parameters import RefitInfo, generation_parameters, refit_info
from trainer_adapter.refit._loading import load_weights
from trainer_adapter.refit._streamed_weights import receive_streamed_weights
from trainer_adapter.refit._weight_collective import WeightCollective
from trainer_adapter.refit._weight_publisher import WeightPublisher
from trainer_adapter.refit._weight_stream import stream_weights

__all__ = [
    "RefitInfo",
    "WeightCollective",
    "WeightPublisher",
    "generation_parameters",
    "load_weights",
    "receive_streamed_weights",
    "refit_info",
    "stream_endpoint",
    "stream_weights",
]
