"""Losses and gradients over microbatches, compared with a forward pass for each row."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import torch
from tests.trainer_adapter.automodel import tiny_policy
from tests.trainer_adapter.automodel.tiny_policy import batch_of, expected_logprobs, gradients, processed
from torch import Tensor
from transformers import AutoConfig, AutoModelForSequenceClassification

from dataplane_client.batched_data_dict import BatchedDataDict
from trainer_adapter.automodel.config import TrainingSamplingParams
from trainer_adapter.automodel.data import ProcessedInputs, ProcessedMicrobatch
from trainer_adapter.automodel.train import (
    LossPostProcessor,
    ScorePostProcessor,
    automodel_forward_backward,
    clip_grad_norm,
    forward_with_post_processing_fn,
)
from trainer_adapter.losses import LossInputType, NLLLoss

LENGTHS = [7, 2, 12, 3]
VALID: dict[str, Any] = {"global_valid_seqs": torch.tensor(4.0), "global_valid_toks": torch.tensor(9.0)}


class OlderLoss:
    """Negative log-likelihood of the shape that takes logits, positionally, and does the shift."""

    def __call__(
        self, logits: Tensor, data: Mapping[str, Tensor], seqs: Tensor, toks: Tensor
    ) -> tuple[Tensor, dict[str, Any]]:
        found = logits[:, :-1].float().log_softmax(-1).gather(-1, data["input_ids"][:, 1:, None])[..., 0]
        loss = -(found * data["token_mask"][:, 1:] * data["sample_mask"][:, None]).sum() / toks
        return loss, {
            "num_valid_samples": float(data["sample_mask"].sum()),
            "longest_max": logits.shape[1],
            "shortest_min": 2.0,
            "nll_per_minibatch": 8.0,
        }


class LogitLoss(OlderLoss):
    """The same in the newer shape."""

    input_type = LossInputType.LOGIT

    def __call__(  # type: ignore[override]
        self, *, logits: Tensor, data: Mapping[str, Tensor], global_valid_seqs: Tensor, global_valid_toks: Tensor
    ) -> tuple[Tensor, dict[str, Any]]:
        return super().__call__(logits, data, global_valid_seqs, global_valid_toks)


class NotANumberLoss(OlderLoss):
    """What a loss is whose weights overflowed: NaN in value and in every gradient."""

    def __call__(self, *args: Any) -> tuple[Tensor, dict[str, Any]]:
        loss, metrics = super().__call__(*args)
        return loss * math.nan, metrics


@pytest.fixture(scope="module", params=["llama", "qwen2"])
def model(request: pytest.FixtureRequest) -> Any:
    return tiny_policy.tiny_model(request.param)


@pytest.fixture(scope="module")
def llama() -> Any:
    return tiny_policy.tiny_model("llama")


def post_processor(loss_fn: Any, packed: bool = False, params: Any = None) -> LossPostProcessor:
    return LossPostProcessor(loss_fn, {}, None, None, None, 1, 1, enable_seq_packing=packed, sampling_params=params)


def run(
    model: Any, batches: list[BatchedDataDict[Any]], loss_fn: Any, packed: bool = False, **settings: Any
) -> list[tuple[Any, dict[str, Any]]]:
    microbatches: Iterator[ProcessedMicrobatch] = (processed(batch, packed) for batch in batches)
    return automodel_forward_backward(model, microbatches, post_processor(loss_fn, packed), **VALID, **settings)


def expected_loss(model: Any, batch: BatchedDataDict[Any], temperature: float = 1.0) -> Tensor:
    weights = batch["token_mask"][:, 1:] * batch["sample_mask"][:, None]
    weighted: Tensor = expected_logprobs(model, batch, temperature)[:, 1:] * weights
    return -weighted.sum() / 9.0


def assert_same_gradients(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name in expected:
        torch.testing.assert_close(found[name], expected[name], rtol=1e-4, atol=1e-5)


# --- the loss of a microbatch ---


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("loss_fn", [OlderLoss(), LogitLoss(), NLLLoss()], ids=lambda loss: type(loss).__name__)
def test_loss_and_gradients_are_those_of_each_row_by_itself(
    model: Any, loss_fn: Any, packed: bool, temperature: float
) -> None:
    batch = batch_of(LENGTHS, width=14)
    batch["sample_mask"][1] = 0
    params = TrainingSamplingParams(temperature=temperature)
    [(loss, metrics)] = run(model, [batch], loss_fn, packed, sampling_params=params)
    found = gradients(model)
    expected = expected_loss(model, batch, temperature)
    expected.backward()
    torch.testing.assert_close(loss, expected.detach(), rtol=1e-5, atol=1e-5)
    assert_same_gradients(found, gradients(model))
    assert metrics["num_valid_samples"] == 3


def test_a_loss_over_logprobs_gets_minus_infinity_where_the_sampler_rules_a_token_out(llama: Any) -> None:
    given = []

    class Recorder(NLLLoss):
        def __call__(self, next_token_logprobs: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, dict[str, Any]]:
            given.append(next_token_logprobs)
            return super().__call__(next_token_logprobs, *args, **kwargs)

    batch = batch_of(LENGTHS)
    sampler = TrainingSamplingParams(top_k=8)
    forward_with_post_processing_fn(llama, post_processor(Recorder(), False, sampler), processed(batch, False), **VALID)
    logits = llama(input_ids=batch["input_ids"], use_cache=False).logits[:, :-1]
    rank = (logits > logits.gather(-1, batch["input_ids"][:, 1:, None])).sum(-1)
    assert torch.equal(given[0] == -math.inf, rank >= 8)
    assert bool((rank >= 8).any())


def test_logits_that_the_sampler_rules_out_get_no_gradient() -> None:
    batch: BatchedDataDict[Any] = BatchedDataDict(input_ids=torch.tensor([[1, 0]]), input_lengths=torch.tensor([2]))
    batch |= {"token_mask": torch.ones(1, 2), "sample_mask": torch.ones(1)}
    logits = torch.tensor([[[3.0, 2.0, 1.0, 0.0], [0.0] * 4]], requires_grad=True)
    processor = post_processor(NLLLoss(), params=TrainingSamplingParams(top_k=2))
    loss, _ = processor(logits, processed(batch, False), torch.tensor(1.0), torch.tensor(1.0))
    loss.backward()
    assert logits.grad is not None
    other = 1 / (1 + math.e)
    assert logits.grad[0, 0].tolist() == pytest.approx([-other, other, 0.0, 0.0])


def test_what_is_not_a_loss_runs_without_autograd_and_no_temperature_scales_scores(llama: Any) -> None:
    run, params = [processed(batch_of(LENGTHS), False)], TrainingSamplingParams(temperature=0.1)
    [(plain, _)] = automodel_forward_backward(llama, run, ScorePostProcessor({}))
    [(scores, metrics)] = automodel_forward_backward(llama, run, ScorePostProcessor({}), sampling_params=params)
    assert torch.equal(plain, scores)
    assert (scores.requires_grad, metrics) == (False, {})


def test_a_reward_model_scores_the_last_token_whatever_rows_are_padded_with() -> None:
    shape = {**tiny_policy.SHAPE, "num_labels": 1, "pad_token_id": tiny_policy.EOS + 1}
    model = AutoModelForSequenceClassification.from_config(AutoConfig.for_model("llama", **shape)).eval()
    batch, score = batch_of(LENGTHS), ScorePostProcessor({})
    batch["input_ids"][batch["input_ids"] == model.config.pad_token_id] += 1
    microbatch = processed(batch, False)
    with torch.no_grad():
        rows = zip(batch["input_ids"], LENGTHS, strict=True)
        alone = torch.cat([model(input_ids=ids[None, :length]).logits[0] for ids, length in rows])
        found, _, _ = forward_with_post_processing_fn(model, score, microbatch, is_reward_model=True)
    torch.testing.assert_close(found, alone, rtol=1e-5, atol=1e-5)
    assert microbatch.processed_inputs.input_ids is batch["input_ids"]


# --- several microbatches ---


def test_the_backward_pass_makes_up_for_the_mean_over_ranks_and_the_result_does_not_show_it(llama: Any) -> None:
    batch = batch_of(LENGTHS)
    [(plain, _)] = run(llama, [batch], NLLLoss())
    expected = {name: 6 * gradient for name, gradient in gradients(llama).items()}
    [(loss, _)] = run(llama, [batch], NLLLoss(), dp_size=3, cp_size=2)
    assert_same_gradients(gradients(llama), expected)
    assert torch.equal(loss, plain)
    assert not loss.requires_grad


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("dummy_loss", [OlderLoss, NotANumberLoss])
def test_dummies_contribute_nothing_not_even_as_nan(llama: Any, packed: bool, dummy_loss: type[OlderLoss]) -> None:
    real, dummy = batch_of(LENGTHS), batch_of([4, 5])
    dummy["sample_mask"] += 1  # only dummies have this, by which the loss tells them

    def loss_fn(logits: Tensor, data: Mapping[str, Tensor], *counts: Tensor) -> tuple[Tensor, dict[str, Any]]:
        return (OlderLoss() if data["sample_mask"].max() == 1 else dummy_loss())(logits, data, *counts)

    run(llama, [real], loss_fn, packed)
    expected = gradients(llama)
    results = run(llama, [real, dummy, dummy], loss_fn, packed, num_valid_microbatches=1)
    assert_same_gradients(gradients(llama), expected)
    assert [loss.item() for loss, _ in results][1:] == [0.0, 0.0]
    assert len(results) == 3


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_a_rank_of_dummies_alone_still_has_gradients_for_every_parameter_and_all_are_zero(
    llama: Any, temperature: float
) -> None:
    """Its logits, often the largest tensor of a step, are not copied for this."""
    places: list[int] = []

    def loss_fn(logits: Tensor, *others: Any) -> tuple[Tensor, dict[str, Any]]:
        places.append(logits.data_ptr())
        return NotANumberLoss()(logits, *others)

    with llama.register_forward_hook(lambda *call: places.append(call[2].logits.data_ptr())):
        params = TrainingSamplingParams(temperature=temperature)
        run(llama, [batch_of(LENGTHS)], loss_fn, num_valid_microbatches=0, sampling_params=params)
    assert places[0] == places[1]
    found = gradients(llama)
    assert found.keys() == dict(llama.named_parameters()).keys()
    assert not any(gradient.any() for gradient in found.values())


def test_metrics_of_real_microbatches_are_shares_of_the_step_except_extremes(llama: Any) -> None:
    batch = batch_of(LENGTHS)
    real, dummy = run(llama, [batch, batch], OlderLoss(), num_global_batches=4, num_valid_microbatches=1)
    assert real[1] == {"num_valid_samples": 1.0, "longest_max": 12, "shortest_min": 2.0, "nll_per_minibatch": 2.0}
    assert dummy[1] == {"num_valid_samples": 4.0, "longest_max": 12, "shortest_min": 2.0, "nll_per_minibatch": 8.0}
    assert real[0].item() == pytest.approx(expected_loss(llama, batch).item(), rel=1e-5)
    gradients(llama)


def test_forward_only_touches_no_gradient(llama: Any) -> None:
    [(loss, _)] = run(llama, [batch_of(LENGTHS)], NLLLoss(), forward_only=True)
    assert loss.item() > 0
    assert not loss.requires_grad
    assert gradients(llama) == {}


def test_each_microbatch_is_announced_and_its_passes_run_within_its_own_context(llama: Any) -> None:
    events: list[Any] = []

    @contextlib.contextmanager
    def context(inputs: ProcessedInputs) -> Iterator[None]:
        events.append(inputs.seq_len)
        yield
        events.append("end")

    handle = llama.lm_head.weight.register_hook(lambda gradient: events.append("backward"))
    batches = [batch_of([3, 2]), batch_of([5, 4])]
    run(llama, batches, NLLLoss(), train_context_fn=context, on_microbatch_start=lambda i: events.append(f"start {i}"))
    handle.remove()
    assert events == ["start 0", 3, "backward", "end", "start 1", 5, "backward", "end"]
    gradients(llama)


# --- clipping on one rank ---


def with_gradient(values: list[float], dtype: torch.dtype = torch.float32) -> torch.nn.Parameter:
    parameter = torch.nn.Parameter(torch.zeros(len(values), dtype=dtype))
    parameter.grad = torch.tensor(values, dtype=dtype)
    return parameter


@pytest.mark.parametrize(("max_norm", "scale"), [(2.5, 0.5), (5.0, 1.0), (6.0, 1.0), (None, 1.0)])
def test_gradients_are_scaled_down_to_the_largest_norm_and_never_up(max_norm: float | None, scale: float) -> None:
    one, other = with_gradient([3.0]), with_gradient([0.0, 4.0], torch.float64)
    norm = clip_grad_norm([one, other], max_norm)
    assert (norm.item(), norm.dtype, norm.shape) == (5.0, torch.float32, ())
    assert one.grad is not None
    assert other.grad is not None
    assert [*one.grad.tolist(), *other.grad.tolist()] == [3 * scale, 0.0, 4 * scale]


@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_a_norm_that_is_not_finite_is_reported_and_scales_nothing(value: float) -> None:
    broken, sound = with_gradient([value]), with_gradient([4.0])
    assert not clip_grad_norm([broken, sound], 1.0).isfinite()
    assert sound.grad is not None
    assert sound.grad.tolist() == [4.0]
