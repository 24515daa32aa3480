"""Real ranks that share sequences, or divide layers or activations, compute what one process does: rows one by one,
unpadded, in the plain model. See divided_cases.py.

Every run has each way of dividing sequences with plain and with packed or dynamic batches, ranks of two dimensions, and
plans of models with other layers than Llama's;
`make test-soak` has all cases. Where ranks hold other positions of a sequence, or more ranks share one, the same code
deals them out, and every position's results are compared; the model and the recomputation change nothing about that.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.rank_pool import RankPool
from tests.trainer_adapter.automodel import divided_cases
from tests.trainer_adapter.automodel.divided_cases import (
    CASES,
    FILTER,
    GPU_CASES,
    LENGTHS,
    SAMPLING,
    WIDTH,
    whole_batch,
)
from tests.trainer_adapter.automodel.tiny_policy import logits_of_row
from torch import Tensor
from transformers import AutoModelForCausalLM

pytestmark = pytest.mark.xdist_group("ranks")
CONTEXT = "input_ids: rows of 7 tokens cannot be divided"
TOKENS = "input_ids: dtensor_cfg.sequence_parallel cannot divide rows of 7 tokens"
QUICK = {"context llama", "tokens llama", "tensors phi3 packed"}
LONG = {
    "data x context llama packed",
    "context qwen3 packed",
    "context qwen3moe packed",
    "tokens qwen2 dynamic",
    "tokens glm",
    "tokens starcoder2 packed",
    "ring qwen3",
}
Seen = list[tuple[dict[str, Tensor], dict[str, Any]]]
Played = Callable[[str], Seen]
"""What each rank of a case saw; a case is played when it is first asked for."""


def param(name: str, *values: object) -> Any:
    return pytest.param(
        name, *values, marks=() if name in QUICK else pytest.mark.long if name in LONG else pytest.mark.soak
    )


def played_by(pool: RankPool, folder: Path) -> Played:
    return functools.cache(
        lambda name: pool.play(divided_cases.play, folder, name, ranks=(CASES | GPU_CASES)[name].ranks)
    )


@pytest.fixture(scope="module")
def played(rank_pool: RankPool, folder: Path) -> Played:
    return played_by(rank_pool, folder)


@pytest.fixture(scope="module")
def played_on_gpus(folder: Path) -> Iterator[Played]:
    with contextlib.closing(RankPool(gpus=True)) as pool:
        yield played_by(pool, folder)


@pytest.mark.parametrize("name", [param(name) for name in CASES])
def test_ranks_infer_and_train_as_one_process_does(folder: Path, played: Played, name: str) -> None:
    assert_as_expected(folder, name, played(name))


@pytest.mark.parametrize(
    ("name", "text", "multiple"),
    [
        param("context llama", CONTEXT, 4),
        param("context x4 llama", CONTEXT, 8),
        param("tokens llama", TOKENS, 2),
        param("data x tokens qwen3", TOKENS, 2),
    ],
)
def test_rows_that_cannot_be_divided_are_refused_on_all_ranks(
    played: Played, name: str, text: str, multiple: int
) -> None:
    for _, said in played(name):
        (refusal,) = said["refused"]
        assert refusal.startswith(text)
        assert refusal.endswith(f"set make_sequence_length_divisible_by to a multiple of {multiple}")


@pytest.mark.parametrize(
    "name", [param("context llama"), param("context x4 llama"), param("context x tensors qwen3 packed")]
)
def test_torchs_own_attention_would_get_the_same_positions_and_pass_keys_around(played: Played, name: str) -> None:
    for _, said in played(name):
        torchs, own, travel = said["torch deals"]
        assert (torchs, travel) == (own, "ALL_TO_ALL")


@pytest.mark.parametrize(("ranks", "kv_heads"), [(2, 1), (2, 4), pytest.param(4, 2, marks=pytest.mark.soak)])
def test_keys_travel_with_their_own_heads(rank_pool: RankPool, ranks: int, kv_heads: int) -> None:
    """Four query heads. Keys and values travel in both passes, to the last rank; their gradients go home."""
    a_send = 2 * kv_heads * 16 * 4
    for differences, elements, sends in rank_pool.play(divided_cases.ring_of_groups, ranks, 4, kv_heads, ranks=ranks):
        assert (elements, sends) == (sends * a_send, 2 * (ranks - 1) + ranks)
        for difference in differences:
            assert difference.abs().max() < 1e-5


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@pytest.mark.parametrize("name", GPU_CASES)
def test_ranks_on_gpus_infer_and_train_as_one_process_does(folder: Path, played_on_gpus: Played, name: str) -> None:
    assert_as_expected(folder, name, played_on_gpus(name))


# --- the expected results ---


@functools.cache
def expected(folder: Path, name: str) -> dict[str, Tensor]:
    """By the names of divided_cases.play, for all rows in order, and the 0-d loss and norm of the gradients."""
    case = (CASES | GPU_CASES)[name]
    model: Any = AutoModelForCausalLM.from_pretrained(folder / case.model)
    batch = whole_batch()
    rows = [logits_of_row(model, batch, row) / SAMPLING.temperature for row in range(batch.size)]
    lines = [of_row(logits.detach(), batch["input_ids"][row]) for row, logits in enumerate(rows)]
    found = {key: torch.stack([line[key] for line in lines]) for key in lines[0]}
    loss_of_row = functools.partial(older, packed=case.batches == "packed") if case.loss == "older" else nll
    masks = [batch["token_mask"][row, : len(logits)] for row, logits in enumerate(rows)]
    losses = [loss_of_row(logits, batch["input_ids"][row], masks[row]) for row, logits in enumerate(rows)]
    loss = torch.stack(losses).sum() / batch["token_mask"][:, 1:].sum()
    loss.backward()
    norm = torch.stack([parameter.grad.norm() for parameter in model.parameters()]).norm()
    torch.optim.SGD(model.parameters(), lr=0.5).step()
    weights = {f"weight {key}": value.detach() for key, value in model.state_dict().items()}
    return {**found, **weights, "loss": loss.detach(), "norm": norm}


def of_row(logits: Tensor, tokens: Tensor) -> dict[str, Tensor]:
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


def nll(logits: Tensor, ids: Tensor, mask: Tensor) -> Tensor:
    chosen = logits[:-1].log_softmax(-1).gather(-1, ids[1 : len(logits), None])[:, 0]
    return -(chosen * mask[1:]).sum()


def older(logits: Tensor, ids: Tensor, mask: Tensor, packed: bool) -> Tensor:
    """As small_older_loss, in which the last position of a row, however wide it is then, has no part."""
    last = len(logits) - 1 if packed or len(logits) == WIDTH else len(logits)
    weights = mask[:last, None] * (ids[:last, None] % 5)
    return (logits[:last].log_softmax(-1) ** 2 * weights).sum() / 1000


def assert_as_expected(folder: Path, name: str, seen_by_ranks: Seen) -> None:
    """Every rank's results, by rows, the loss, and the weights after the step."""
    wanted = expected(folder, name)
    is_token = torch.arange(WIDTH) < torch.tensor(LENGTHS)[:, None]
    tolerance = 1e-4 if name in GPU_CASES else 1e-5  # kernels of GPUs sum in another order
    for tensors, said in seen_by_ranks:
        rows = tensors["rows"]
        for key in ("logprobs", "filtered", "values", "ids"):
            shown = is_token[rows].view(*is_token[rows].shape, *[1] * (tensors[key].ndim - 2))
            assert_close(key, tensors[key] * shown, wanted[key][rows], tolerance)
        for key in ("loss", "norm"):
            assert_close(key, torch.tensor(said[key]), wanted[key], tolerance)
        assert said["intact"]
    held = seen_by_ranks[0][0]  # the first rank has the whole weights
    weights = {key for key in wanted if key.startswith("weight ")}
    assert weights == {key for key in held if key.startswith("weight ")}
    for key in weights:
        assert_close(key, held[key], wanted[key], tolerance)


def assert_close(what: str, found: Tensor, wanted: Tensor, tolerance: float) -> None:
    torch.testing.assert_close(found, wanted, rtol=tolerance, atol=tolerance, msg=lambda text: f"{what}: {text}")
