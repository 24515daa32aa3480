"""Both ends of a weight stream in one process, each in its own thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from tests.trainer_adapter.refit.refit_cases import CPU, TinyModel, expected_weights, told

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


def broken() -> Iterator[tuple[str, torch.Tensor]]:
    yield from list(parameters())[:8]
    raise OSError("gathering failed")


def take(source: Any, into: dict[str, torch.Tensor]) -> None:
    """An engine that keeps copies."""
    with source as weights:
        for name, weight in weights:
            into[name] = weight.clone()


def taking(endpoint: str, into: dict[str, torch.Tensor], info: RefitInfo = INFO, timeout_s: float = 10) -> Any:
    return lambda: take(receive_streamed_weights(endpoint, info, CPU, timeout_s), into)


def assert_all_weights(got: dict[str, torch.Tensor]) -> None:
    expected = expected_weights(MODEL, torch.bfloat16)
    assert list(got) == list(expected)
    assert all(torch.equal(got[name], value) and got[name].dtype == value.dtype for name, value in expected.items())
