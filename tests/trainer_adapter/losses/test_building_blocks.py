"""Log-probabilities, masked means and the merging of metrics."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from trainer_adapter.losses import masked_mean, merge_metrics, next_token_logprobs


def plain_logprobs(logits: Tensor, input_ids: Tensor) -> Tensor:
    width = input_ids.shape[1]
    return logits[:, : width - 1].log_softmax(-1).gather(-1, input_ids[:, 1:, None]).squeeze(-1)


# --- next_token_logprobs ---


@pytest.mark.parametrize(("rows", "width", "given"), [(2, 5, 5), (1, 5, 8), (3, 2, 2), (2, 1200, 1200)])
def test_logprobs_and_their_gradient_equal_log_softmax_and_gather(rows: int, width: int, given: int) -> None:
    """`given` positions of logits; 2 * 1200 of them are more than are worked on at once."""
    torch.manual_seed(0)
    logits = torch.randn(rows, given, 7, dtype=torch.float64, requires_grad=True)
    ids, weights = torch.randint(7, (rows, width)), torch.randn(rows, width - 1, dtype=torch.float64)
    actual, expected = next_token_logprobs(logits, ids), plain_logprobs(logits, ids)
    torch.testing.assert_close(actual, expected)
    (gradient,) = torch.autograd.grad((actual * weights).sum(), logits)
    torch.testing.assert_close(gradient, torch.autograd.grad((expected * weights).sum(), logits)[0])


class LargestResult(TorchDispatchMode):
    """Elements of the largest tensor that an operation gave new memory."""

    elements = 0

    def __torch_dispatch__(self, call: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = call(*args, **(kwargs or {}))
        if isinstance(result, Tensor) and not call.is_view and "_(" not in str(call._schema).partition(" ")[0]:
            self.elements = max(self.elements, result.numel())
        return result


def test_the_logits_are_not_copied_until_they_get_a_gradient() -> None:
    """Each rank of a divided vocabulary computes in the same way."""
    logits = torch.randn(1, 5000, 32, requires_grad=True)
    with LargestResult() as forward:  # type: ignore[no-untyped-call]  # torch has no annotation
        found = next_token_logprobs(logits, torch.randint(32, (1, 5000)))
    assert forward.elements == 1024 * 32
    with LargestResult() as backward:  # type: ignore[no-untyped-call]
        found.sum().backward()
    assert backward.elements == logits.numel()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_logprobs_are_float32_and_their_gradient_of_the_logits_dtype(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    logits, ids = torch.randn(2, 5, 11).to(dtype).requires_grad_(), torch.randint(11, (2, 5))
    logprobs = next_token_logprobs(logits, ids)
    torch.testing.assert_close(logprobs, plain_logprobs(logits.float(), ids))
    assert torch.autograd.grad(logprobs.sum(), logits)[0].dtype == dtype


@pytest.mark.parametrize("shape", [(2, 4, 3), (1, 5, 3), (10, 3)])
def test_logits_that_do_not_cover_the_tokens_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"input_ids .*\[2, 5\]"):
        next_token_logprobs(torch.zeros(shape), torch.zeros(2, 5, dtype=torch.int64))


# --- masked_mean ---


@pytest.mark.parametrize(
    ("values", "mask", "factor", "mean"),
    [
        ([1.0, 2.0, 3.0], [True, False, True], 2, 2.0),
        ([1.0, 2.0, 3.0], [1.0, 0.5, 0.0], 3, 2 / 3),  # a mask may hold weights
        ([math.nan, 2.0, math.inf], [0, 1, 0], 4, 0.5),
        ([1.0], [0], 0, 0.0),
    ],
)
def test_a_masked_mean_divides_by_the_global_count(
    values: list[float], mask: list[float], factor: int, mean: float
) -> None:
    assert masked_mean(torch.tensor(values), torch.tensor(mask), factor).item() == pytest.approx(mean)


# --- merge_metrics ---


SENTINELS = {"ratio_min": math.inf, "ratio_max": -math.inf}


@pytest.mark.parametrize(
    ("parts", "merged"),
    [
        ([{"loss": 0.5}, {"loss": 0.25, "entropy_max": 2}, {"loss": 1.0}], {"loss": 1.75, "entropy_max": 2}),
        ([{"r_min": 0.75, "r_max": 1.5}, {"r_min": 0.5, "r_max": 1.25}], {"r_min": 0.5, "r_max": 1.5}),
        ([SENTINELS, SENTINELS], SENTINELS),
        *(
            ([{"r_min": odd, "r_max": odd}, {"r_min": 0.5, "r_max": 1.5}], {"r_min": 0.5, "r_max": 1.5})
            for odd in (math.inf, -math.inf, math.nan)
        ),
        ([{"loss": torch.tensor(1.0), "r_min": torch.tensor(math.inf)}, {"r_min": 2.0}], {"loss": 1.0, "r_min": 2.0}),
    ],
)
def test_metrics_are_summed_and_extremes_taken_of_what_is_finite(
    parts: list[dict[str, Any]], merged: dict[str, float]
) -> None:
    assert merge_metrics(parts) == merged
