"""Real ranks that share sequences, or divide layers or activations, take the step of a plain model; see ../equality.

Every run has each way of dividing sequences, with a loss over logits too, and a plan of a model with other layers than
Llama's; `make test-soak` has all cases. Where ranks hold other positions of a sequence, or more ranks share one, the
same code deals them out, and every position's results are compared; the model and the recomputation change nothing
about that.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed
from tests.rank_pool import RankPool
from tests.trainer_adapter.equality.layouts import Case, Difference, difference, loss_over_logits
from tests.trainer_adapter.worker.worker_cases import Layout, batch, save_model, worker
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.experimental import context_parallel
from torch.distributed.tensor.experimental._attention import _cp_options
from torch.utils._python_dispatch import TorchDispatchMode

from trainer_adapter.automodel.parallel.context import positions_of_ranks
from trainer_adapter.automodel.parallel.ring_attention import attend_in_ring, ring_attention

pytestmark = pytest.mark.xdist_group("ranks")
long, soak = pytest.mark.long, pytest.mark.soak

RERUN = {"activation_checkpointing": True}
RING = {"context_parallel_attention": "torch"}
BY_TOKENS = {"sequence_parallel": True}
CP, CP4, TP, DP_CP, DP_TP = Layout(cp=2), Layout(cp=4), Layout(tp=2), Layout(dp=2, cp=2), Layout(dp=2, tp=2)
CONTEXT = Case(CP, "none", "llama", loss=loss_over_logits)
TOKENS = Case(TP, "none", "llama", BY_TOKENS, loss_over_logits)
CASES: dict[str, tuple[Case, Any]] = {
    "context llama": (CONTEXT, ()),
    "context qwen2 dynamic": (Case(CP, "dynamic", "qwen2", RERUN), soak),
    "context qwen3 packed": (Case(CP, "sequence", "qwen3", RERUN), long),
    "context qwen3moe packed": (Case(CP, "sequence", "qwen3_moe", {"expert_parallel_size": 2, **RERUN}), long),
    "ring qwen3": (Case(CP, "none", "qwen3", {**RING, **RERUN}), long),
    "ring x4 llama": (Case(CP4, "none", "llama", RING), soak),
    "tokens llama": (TOKENS, ()),
    "tokens qwen2 dynamic": (Case(TP, "dynamic", "qwen2", {**BY_TOKENS, **RERUN}), long),
    "tokens qwen3 packed": (Case(TP, "sequence", "qwen3", {**BY_TOKENS, **RERUN}), soak),
    "context x4 llama": (Case(CP4, "none", "llama"), soak),
    "context x tensors qwen3 packed": (Case(Layout(cp=2, tp=2), "sequence", "qwen3", RERUN), soak),
    "data x context qwen2 dynamic": (Case(DP_CP, "dynamic", "qwen2"), soak),
    "data x context llama packed": (
        Case(DP_CP, "sequence", "llama", {"dp_replicate_size": 2}, loss_over_logits),
        long,
    ),
    "data x tokens qwen3": (Case(DP_TP, "none", "qwen3", BY_TOKENS), soak),
    "tensors phi3 packed": (Case(TP, "sequence", "phi3"), ()),
    "tokens glm": (Case(TP, "none", "glm", BY_TOKENS), long),
    "tokens starcoder2 packed": (Case(TP, "sequence", "starcoder2", {**BY_TOKENS, **RERUN}), long),
    "data x tensors gemma3_text dynamic": (Case(DP_TP, "dynamic", "gemma3_text"), soak),
}
GPU_CASES = {
    "ring llama on GPUs": Case(CP, "none", "llama", {**RING, "device": "cuda"}),
    "ring qwen3 on GPUs": Case(CP, "dynamic", "qwen3", {**RING, "device": "cuda", **RERUN}),
    "offloaded llama": Case(Layout(dp=2), "none", "llama", {"cpu_offload": True, "device": "cuda"}),
}
"""For two GPUs, over NCCL."""


@pytest.fixture(scope="module")
def measured(rank_pool: RankPool, tmp_path_factory: pytest.TempPathFactory) -> Callable[[Case], Difference]:
    folder = tmp_path_factory.mktemp("models")
    return lambda case: difference(rank_pool, folder, case)


@pytest.mark.parametrize("case", [pytest.param(case, id=name, marks=marks) for name, (case, marks) in CASES.items()])
def test_ranks_infer_and_train_as_one_process_does(measured: Callable[[Case], Difference], case: Case) -> None:
    found = measured(case)
    assert found.largest < 2e-5, found
    assert found.largest_gradient > 0.1


@pytest.fixture(scope="module")
def gpu_pool() -> Iterator[RankPool]:
    with contextlib.closing(RankPool(gpus=True)) as pool:
        yield pool


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@pytest.mark.parametrize("case", GPU_CASES.values(), ids=GPU_CASES)
def test_ranks_on_gpus_infer_and_train_as_one_process_does(gpu_pool: RankPool, tmp_path: Path, case: Case) -> None:
    found = difference(gpu_pool, tmp_path, case)
    assert found.largest < 1e-4, found  # kernels of GPUs sum in another order


def refused(_rank: int, folder: Path, case: Case) -> str:
    """What is said of rows that do not divide, after which everything still works."""
    odd = batch()
    odd.truncate_tensors(dim=1, truncated_len=31)
    with worker(case.config(folder), init_optimizer=False, init_reference_model=False) as made:
        with pytest.raises(ValueError, match="input_ids") as refusal:
            made.get_logprobs(odd)
        made.get_logprobs(batch())
    return str(refusal.value)


@pytest.mark.parametrize(
    ("case", "text", "multiple"),
    [
        (CONTEXT, "input_ids: rows of 31 tokens cannot be divided", 4),
        pytest.param(replace(CONTEXT, layout=CP4), "input_ids: rows of 31 tokens cannot be divided", 8, marks=soak),
        (TOKENS, "input_ids: dtensor_cfg.sequence_parallel cannot divide rows of 31 tokens", 2),
    ],
)
def test_rows_that_cannot_be_divided_are_refused_on_all_ranks(
    rank_pool: RankPool, tmp_path: Path, case: Case, text: str, multiple: int
) -> None:
    save_model(tmp_path / "llama", "llama")
    for said in rank_pool.play(refused, tmp_path, case, ranks=case.layout.ranks):
        assert said.startswith(text)
        assert said.endswith(f"set make_sequence_length_divisible_by to a multiple of {multiple}")


# --- a ring by itself ---


class Travel(TorchDispatchMode):
    """Counts the elements that this rank sends to its neighbours, and the sends."""

    elements = sends = 0

    def __torch_dispatch__(self, call: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "all_to_all_single" in str(call):
            self.elements += args[0].numel()
            self.sends += 1
        return call(*args, **(kwargs or {}))


def ring_of_groups(rank: int, ranks: int, heads: int, kv_heads: int) -> tuple[list[torch.Tensor], int, int]:
    """Differences between a rank's part of attention and of its gradients in a ring, and those of one process; elements
    sent, and in how many sends. Sequences of 16 tokens for each rank, heads of 4.
    """
    mesh = init_device_mesh("cpu", (ranks,))
    whole = [torch.randn(1, number, 16 * ranks, 4).requires_grad_() for number in (heads, kv_heads, kv_heads)]
    weight = torch.randn(1, 16 * ranks, heads, 4)
    attention: Any = torch.nn.functional.scaled_dot_product_attention
    output = attention(*whole, is_causal=True, enable_gqa=True).transpose(1, 2)
    wanted = [output, *torch.autograd.grad((output * weight).sum(), whole)]
    own = positions_of_ranks(16 * ranks, ranks, torch.device("cpu"))[rank]
    parts = [part.detach()[:, :, own].requires_grad_() for part in whole]
    with attend_in_ring(mesh.get_group()), Travel() as travel:  # type: ignore[no-untyped-call]
        found, _ = ring_attention(torch.nn.Module(), parts[0], parts[1], parts[2], None)
        gradients = torch.autograd.grad(found, parts, weight[:, own])
    index = torch.arange(16 * ranks)[None]
    with attend_in_ring(mesh.get_group()), context_parallel(mesh, buffers=[index], buffer_seq_dims=[1]):
        torchs_deal = index[0].tolist(), _cp_options.rotate_method.name
    assert torchs_deal == (own.tolist(), "ALL_TO_ALL"), "torch's own attention would get other positions"
    torch.distributed.destroy_process_group()
    own_wanted = [wanted[0][:, own], *(part[:, :, own] for part in wanted[1:])]
    differences = [part - other for part, other in zip((found, *gradients), own_wanted, strict=True)]
    return [part.detach() for part in differences], travel.elements, travel.sends


@pytest.mark.parametrize(("ranks", "kv_heads"), [(2, 1), (2, 4), pytest.param(4, 2, marks=soak)])
def test_keys_travel_with_their_own_heads(rank_pool: RankPool, ranks: int, kv_heads: int) -> None:
    """Four query heads. Keys and values travel in both passes, to the last rank; their gradients go home."""
    a_send = 2 * kv_heads * 16 * 4
    for differences, elements, sends in rank_pool.play(ring_of_groups, ranks, 4, kv_heads, ranks=ranks):
        assert (elements, sends) == (sends * a_send, 2 * (ranks - 1) + ranks)
        for part in differences:
            assert part.abs().max() < 1e-5
