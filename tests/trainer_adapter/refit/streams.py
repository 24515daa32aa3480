"""Both ends of a weight stream in one process, each in its own thread."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from tests.trainer_adapter.refit.refit_cases import CPU, TinyModel, told

from trainer_adapter.refit import RefitInfo, generation_parameters, receive_streamed_weights, refit_info

MODEL = TinyModel(adapter=True)
INFO = refit_info(MODEL, torch.bfloat16)


def parameters() -> Any:
    return generation_parameters(MODEL, torch.bfloat16)


def both(trainer: Callable[[], Any], engine: Callable[[], Any]) -> tuple[str, str]:
    """How it went for each."""
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(told, trainer)
        outcome = told(engine)
        return running.result(), outcome


def taking(endpoint: str, into: dict[str, torch.Tensor], info: RefitInfo = INFO, timeout_s: float = 10) -> Any:
    """An engine that keeps copies."""

    def take() -> None:
        with receive_streamed_weights(endpoint, info, CPU, timeout_s) as weights:
            for name, weight in weights:
                into[name] = weight.clone()

    return take
