"""Figures of training data equal those of a plain loop, in each layout and however the rows are divided over ranks."""

from __future__ import annotations

import functools
import math
import operator
import pickle
import statistics
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tensordict import TensorDict
from torch.nested import nested_tensor_from_jagged

import dataplane_training_figures as training

Layout = Literal["padded", "jagged"]
Token = tuple[float, float, bool]
Row = tuple[list[Token], float]
"""The tokens of a row, each with rollout logprob, trainer logprob and mask; and its reward."""

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
DEVICES = ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, needs_cuda])]
SPECIAL = st.sampled_from([math.nan, math.inf, -math.inf, 0.0, -0.5, -40.0])
LOGPROBS = st.one_of(st.floats(-30, 0, width=32), st.floats(-(2.0**-13), 0, width=32), SPECIAL)
REWARDS = st.one_of(st.sampled_from([0.0, 1.0, -1.0, math.nan]), st.floats(-100, 100, width=32), st.just(2.0**30))
ROWS = st.lists(st.tuples(st.lists(st.tuples(LOGPROBS, LOGPROBS, st.booleans()), max_size=9), REWARDS), max_size=8)


def batch_of(
    rows: Sequence[Row], layout: Layout, floats: torch.dtype = torch.float32, masks: torch.dtype = torch.bool
) -> dict[str, torch.Tensor]:
    """Padding is NaN, and 0 in the mask."""
    width = max((len(tokens) for tokens, _ in rows), default=0) + 1
    offsets = torch.tensor([0, *np.cumsum([len(tokens) for tokens, _ in rows])], dtype=torch.int64)
    batch = {"reward": torch.tensor([reward for _, reward in rows], dtype=torch.float32)}
    for place, name in enumerate(training.FIELDS[:3]):
        pad = 0.0 if name == "token_mask" else math.nan
        each = [[float(token[place]) for token in tokens] for tokens, _ in rows]
        if layout == "padded":
            values = torch.tensor([row + [pad] * (width - len(row)) for row in each]).reshape(-1, width)
        else:
            flat = torch.tensor([value for row in each for value in row])
            values = nested_tensor_from_jagged(flat, offsets=offsets, min_seqlen=0, max_seqlen=width)
        batch[name] = values.to(masks if name == "token_mask" else floats)
    return batch


def rounded(number: float) -> float:
    """As the page says: toward zero to 7 significant bits."""
    fraction, exponent = math.frexp(abs(float(np.float32(number))))
    size = math.ldexp(math.floor(fraction * 128) / 128, exponent)
    return math.copysign(min(size, 127 * 2.0**17) if size >= 2.0**-24 else 0.0, number)


def quantile(numbers: Sequence[float], q: float) -> float:
    return rounded(sorted(numbers)[max(1, math.ceil(q * len(numbers))) - 1]) if numbers else math.nan


def mean(numbers: Sequence[float]) -> float:
    return math.fsum(numbers) / len(numbers) if numbers else math.nan


def expected_numbers(part: str, every: Sequence[float]) -> dict[str, float]:
    known = [number for number in every if math.isfinite(number)]
    figures = {
        "count": len(known),
        "non_finite": len(every) - len(known),
        "mean": mean(known),
        "std": statistics.pstdev(known) if known else math.nan,
        "min": min(known, default=math.nan),
        "max": max(known, default=math.nan),
    }
    figures |= {f"p{percent}": quantile(known, percent / 100) for percent in (10, 50, 90)}
    return {f"dataplane/{part}/{name}": value for name, value in figures.items()}


def expected_logprobs(tokens: Sequence[Token], bounds: tuple[float, float]) -> dict[str, float]:
    d = [rollout - trainer for rollout, trainer, counts in tokens if counts and math.isfinite(rollout - trainer)]
    clamped = [max(-20.0, min(20.0, each)) for each in d]
    figures = {
        "count": len(d),
        "non_finite": sum(counts for *_, counts in tokens) - len(d),
        "diff_mean": mean(d),
        "abs_diff_mean": mean([abs(each) for each in d]),
        "abs_diff_p50": quantile([abs(each) for each in d], 0.5),
        "abs_diff_p99": quantile([abs(each) for each in d], 0.99),
        "ratio_mean": mean([math.exp(-each) for each in clamped]),
        "ratio_outside": mean([not bounds[0] <= math.exp(-each) <= bounds[1] for each in d]),
        "kl_k3": mean([math.expm1(-each) + each for each in clamped]),
    }
    return {f"dataplane/logprobs/{name}": value for name, value in figures.items()}


@pytest.mark.parametrize("device", DEVICES)
@given(
    rows=ROWS,
    layout=st.sampled_from(["padded", "jagged"]),
    floats=st.sampled_from([torch.float32, torch.float64, torch.bfloat16]),
    masks=st.sampled_from([torch.bool, torch.int64, torch.uint8, torch.float32]),
    ranks=st.integers(1, 3),
    bounds=st.sampled_from([(0.8, 1.25), (0.0, 2.0), (1.0, 1.0)]),
)
def test_figures_are_those_of_a_loop(
    device: str, rows: list[Row], layout: Layout, floats: torch.dtype, masks: torch.dtype, ranks: int, bounds: Any
) -> None:
    shards = [batch_of(rows[rank::ranks], layout, floats, masks) for rank in range(ranks)]
    shards = [{name: column.to(device) for name, column in shard.items()} for shard in shards]
    figures = [training.figures_of(shard, bounds=bounds, longest=3) for shard in shards]
    metrics = functools.reduce(operator.add, figures).as_metrics()
    seen = [tuple(torch.tensor(token[:2]).to(floats).tolist()) + token[2:] for tokens, _ in rows for token in tokens]
    lengths = [sum(counts for *_, counts in tokens) for tokens, _ in rows]
    expected = expected_logprobs(seen, bounds) | expected_numbers("rewards", [reward for _, reward in rows])
    expected |= expected_numbers("response_lengths", lengths)
    expected["dataplane/response_lengths/truncated"] = mean([length >= 3 for length in lengths])
    largest = max((abs(reward) for _, reward in rows if math.isfinite(reward)), default=0.0)
    assert metrics.pop("dataplane/rewards/std", None) == pytest.approx(
        expected.pop("dataplane/rewards/std"), rel=1e-6, abs=1e-6 * largest, nan_ok=True
    )  # from the sum of squares, whose last bits are lost
    assert metrics == pytest.approx(expected, rel=1e-9, abs=1e-12, nan_ok=True)
    assert all(type(value) is float for value in metrics.values())


@given(ROWS, st.integers(1, 80))
def test_a_histogram_has_every_number_between_its_edges(rows: list[Row], most: int) -> None:
    rewards = training.figures_of(batch_of(rows, "padded")).parts["rewards"]
    counts, edges = rewards.histogram(most)
    assert len(edges) == len(counts) + 1 <= most + 1
    assert (np.diff(edges) > 0).all()
    numbers = np.array([number for _, number in rows if abs(number) < 2.0**24 and number not in edges])
    on_edges = [number for _, number in rows if math.isfinite(number) and number not in numbers]
    assert counts.sum() == len(numbers) + len(on_edges)
    assert (np.histogram(numbers, edges)[0] <= counts).all()


@pytest.mark.parametrize("layout", ["padded", "jagged"])
def test_nothing_waits_for_the_device_before_the_one_transfer(layout: Layout) -> None:
    row = ([(-1.0, -1.0, True)] * 3, 1.0)
    batch = {name: column.to("meta") for name, column in batch_of([row, row], layout).items()}
    with pytest.raises(NotImplementedError, match="Cannot copy out of meta tensor"):  # it has no values to wait for
        training.figures_of(batch)


def test_parts_can_be_left_out_and_names_have_the_partition() -> None:
    batch = TensorDict(batch_of([([(-1.0, -1.5, True)], 0.5)], "padded"), [1])
    lengths = training.figures_of(batch, rollout=None, reward=None).as_metrics("train")
    assert {name.rpartition("/")[0] for name in lengths} == {"dataplane/train/response_lengths"}
    assert "dataplane/rewards/p50" in training.figures_of(batch, rollout=None).as_metrics()


def test_figures_travel_between_ranks_and_refuse_others() -> None:
    batch = batch_of([([(-1.0, -1.5, True)], 0.5)], "padded")
    figures = training.figures_of(batch)
    assert pickle.loads(pickle.dumps(figures)).as_metrics() == figures.as_metrics()  # noqa: S301  # our own bytes
    for other in ({"bounds": (0.5, 2.0)}, {"longest": 7}, {"reward": None}):
        with pytest.raises(ValueError, match="must have the same bounds, longest and parts"):
            figures + training.figures_of(batch, **other)


ROW = ([(-1.0, -1.0, True)] * 2, 1.0)
PADDED, JAGGED = batch_of([ROW, ROW], "padded"), batch_of([ROW, ROW], "jagged")
UNEVEN = batch_of([(ROW[0] * 2, 1.0), ([], 1.0)], "jagged")["prev_logprobs"]
HOLES = torch.nested.narrow(torch.zeros(2, 3), 1, torch.tensor([0, 1]), torch.tensor([2, 2]), layout=torch.jagged)


@pytest.mark.parametrize(
    ("batch", "changes", "kind", "rule"),
    [
        (PADDED, {"token_mask": None}, TypeError, "field 'token_mask': must be a torch.Tensor, got NoneType"),
        (PADDED, {"reward": [1.0, 1.0]}, TypeError, "field 'reward': must be a torch.Tensor, got list"),
        (PADDED, {"reward": torch.ones(2, dtype=torch.complex64)}, TypeError, "field 'reward': must have a real dtype"),
        (PADDED, {"prev_logprobs": torch.ones(2, 3, dtype=torch.int64)}, TypeError, "must have a floating dtype"),
        (PADDED, {"prev_logprobs": torch.ones(2)}, ValueError, "field 'prev_logprobs': must have 2 dims, got 1"),
        (PADDED, {"prev_logprobs": torch.ones(2, 4)}, ValueError, "has 8 values in 2 rows on cpu, but 'token_mask'"),
        (PADDED, {"prev_logprobs": torch.ones(3, 2)}, ValueError, "has 6 values in 3 rows on cpu, but 'token_mask'"),
        (PADDED, {"reward": torch.ones(3)}, ValueError, "field 'reward': has 3 values in 3 rows"),
        (
            PADDED,
            {"token_mask": torch.full((2, 3), 0.5)},
            ValueError,
            "'token_mask': must be 0 or 1; 6 entries are not",
        ),
        (JAGGED, {"prev_logprobs": UNEVEN}, ValueError, "'prev_logprobs': rows must be as long as those of 'token_m"),
        (JAGGED, {"prev_logprobs": HOLES}, ValueError, "torch.jagged with no gaps"),
        (JAGGED, {"prev_logprobs": PADDED["prev_logprobs"]}, ValueError, "has 6 values in 2 rows"),
    ],
)
def test_a_refusal_names_the_field_and_the_rule(
    batch: dict[str, torch.Tensor], changes: dict[str, Any], kind: type[Exception], rule: str
) -> None:
    with pytest.raises(kind, match=rule):
        training.figures_of(batch | changes)


@pytest.mark.parametrize("bounds", [(1.1, 1.2), (0.5, 0.9), (-1.0, 2.0), (math.nan, 2.0)])
def test_bounds_must_be_around_1(bounds: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match="bounds: must be a ratio of 0 to 1 and one of at least 1"):
        training.figures_of(PADDED, bounds=bounds)


@pytest.mark.parametrize("q", [-0.1, 2, math.nan])
def test_a_quantile_of_no_share_is_refused(q: float) -> None:
    with pytest.raises(ValueError, match="q: must be a share of 0 to 1"):
        training.figures_of(PADDED).parts["rewards"].quantile(q)
