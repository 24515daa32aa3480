"""The expected results of ranks that divide sequences, from one process: rows one by one, unpadded, in the
plain model.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import torch
from tests.trainer_adapter.automodel.divided_cases import (
    CASES,
    FILTER,
    GPU_CASES,
    LENGTHS,
    SAMPLING,
    WIDTH,
    play_cases,
    whole_batch,
)
from tests.trainer_adapter.automodel.tiny_policy import logits_of_row
from torch import Tensor
from transformers import AutoModelForCausalLM


@functools.cache
def expected(folder: Path, name: str) -> dict[str, Tensor]:
    """By the names of divided_cases.play, for all rows in order, and the 0-d loss and norm of the gradients."""
    case = (CASES | GPU_CASES)[name]
    model: Any = AutoModelForCausalLM.from_pretrained(folder / case.model)
    batch = whole_batch()
    rows = [logits_of_row(model, batch, row) / SAMPLING.temperature for row in range(batch.size)]
    lines = [_of_row(logits.detach(), batch["input_ids"][row]) for row, logits in enumerate(rows)]
    found = {key: torch.stack([line[key] for line in lines]) for key in lines[0]}
    loss_of_row = functools.partial(_older, packed=case.batches == "packed") if case.loss == "older" else _nll
    masks = [batch["token_mask"][row, : len(logits)] for row, logits in enumerate(rows)]
    losses = [loss_of_row(logits, batch["input_ids"][row], masks[row]) for row, logits in enumerate(rows)]
    loss = torch.stack(losses).sum() / batch["token_mask"][:, 1:].sum()
    loss.backward()
    norm = torch.stack([parameter.grad.norm() for parameter in model.parameters()]).norm()
    torch.optim.SGD(model.parameters(), lr=0.5).step()
    weights = {f"weight {key}": value.detach() for key, value in model.state_dict().items()}
    return {**found, **weights, "loss": loss.detach(), "norm": norm}


def _of_row(logits: Tensor, tokens: Tensor) -> dict[str, Tensor]:
    length = len(logits)
    logprobs, filtered = torch.zeros(WIDTH), torch.zeros(WIDTH)
    for place in range(1, length):
        before, token = logits[place - 1], int(tokens[place])
        logprobs[place] = before.log_softmax(-1)[token]
        kept = before.topk(FILTER.top_k or 0)
        if token in kept.indices.tolist():
            filtered[place] = before[token] - kept.values.logsumexp(-1)
    values, ids = (torch.nn.functional.pad(part, (0, 0, 0, WIDTH - length)) for part in logits.topk(3))
    return {"logprobs": logprobs, "filtered": filtered, "values": values, "ids": ids}


def _nll(logits: Tensor, ids: Tensor, mask: Tensor) -> Tensor:
    chosen = logits[:-1].log_softmax(-1).gather(-1, ids[1 : len(logits), None])[:, 0]
    return -(chosen * mask[1:]).sum()


def _older(logits: Tensor, ids: Tensor, mask: Tensor, packed: bool) -> Tensor:
    """As small_older_loss, in which the last position of a row, however wide it is then, has no part."""
    last = len(logits) - 1 if packed or len(logits) == WIDTH else len(logits)
    weights = mask[:last, None] * (ids[:last, None] % 5)
    return (logits[:last].log_softmax(-1) ** 2 * weights).sum() / 1000


def assert_as_expected(folder: Path, name: str) -> None:
    """Every rank's results, by rows, the loss, and the weights after the step."""
    seen_by_ranks = play_cases(folder, "cuda" if name in GPU_CASES else "cpu")
    wanted, (first, last) = expected(folder, name), (CASES | GPU_CASES)[name].ranks
    is_token = torch.arange(WIDTH) < torch.tensor(LENGTHS)[:, None]
    tolerance = 1e-4 if name in GPU_CASES else 1e-5  # kernels of GPUs sum in another order
    for seen in seen_by_ranks[first : last + 1]:
        tensors, said = seen[name]
        rows = tensors["rows"]
        for key in ("logprobs", "filtered", "values", "ids"):
            shown = is_token[rows].view(*is_token[rows].shape, *[1] * (tensors[key].ndim - 2))
            _assert_close(key, tensors[key] * shown, wanted[key][rows], tolerance)
        for key in ("loss", "norm"):
            _assert_close(key, torch.tensor(said[key]), wanted[key], tolerance)
        assert said["intact"]
    held = seen_by_ranks[first][name][0]  # the first rank has the whole weights
    weights = {key for key in wanted if key.startswith("weight ")}
    assert weights == {key for key in held if key.startswith("weight ")}
    for key in weights:
        _assert_close(key, held[key], wanted[key], tolerance)


def _assert_close(what: str, found: Tensor, wanted: Tensor, tolerance: float) -> None:
    try:
        torch.testing.assert_close(found, wanted, rtol=tolerance, atol=tolerance)
    except AssertionError as error:
        raise AssertionError(f"{what}: {error}") from error
