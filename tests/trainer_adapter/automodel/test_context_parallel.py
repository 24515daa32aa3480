"""Context parallelism without other ranks: sharding, attention, refusals and restored tensors."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.trainer_adapter.automodel.setup_cases import SHAPE
from tests.trainer_adapter.automodel.tiny_policy import TOKENIZER, batch_of
from transformers import AutoConfig, AutoModelForCausalLM, BloomConfig, BloomForCausalLM, LlamaConfig, LlamaForCausalLM

from trainer_adapter.automodel.data import ProcessedInputs, process_microbatch
from trainer_adapter.automodel.parallel.context import (
    check_attention,
    context_parallel_contexts,
    positions_of_ranks,
    register_attention,
)
from trainer_adapter.automodel.parallel.gathered_attention import attend_to, gathered_attention, shard_sequence
from trainer_adapter.automodel.parallel.ring_attention import ring_attention

CONFIG = {"dtensor_cfg": {"device": "cpu"}}
HEADS = torch.zeros(1, 1, 2, 4)


def second_of_two() -> Any:
    """The context of a rank whose neighbour is not asked for anything."""
    mesh = SimpleNamespace(size=lambda: 2, get_local_rank=lambda: 1, get_group=lambda: None)
    return SimpleNamespace(cp_size=2, device_mesh={"cp": mesh})


def contexts_of_second() -> Any:
    contexts = context_parallel_contexts(second_of_two(), CONFIG)
    assert contexts is not None
    return contexts


def inputs_of(width: int, cp_size: int = 2) -> ProcessedInputs:
    batch = batch_of([width, 1], width)
    return process_microbatch(batch, TOKENIZER, False, {}, cp_size)


def test_a_microbatch_that_is_a_part_of_a_batch_leaves_the_rest_alone_also_after_an_exception() -> None:
    contexts = contexts_of_second()
    batch = torch.arange(40).reshape(4, 10)
    part = batch[1:3, :8]
    inputs = ProcessedInputs(part, 8, cp_buffers=[part], seq_index=torch.arange(8)[None])
    for _ in range(2):  # the second time shows that the first left nothing behind
        with contexts(inputs):
            part.add_(1000)
        with pytest.raises(RuntimeError, match="must match"), contexts(inputs):
            part.add_(torch.ones(3))
    assert batch.tolist() == torch.arange(40).reshape(4, 10).tolist()
    assert part.tolist() == batch[1:3, :8].tolist()


@pytest.mark.parametrize(
    ("width", "cp_size", "text"),
    [
        (6, 2, "rows of 6 tokens.*context_parallel_size=2.*length_divisible_by to a multiple of 4"),
        (8, 1, "cp_size=2"),
    ],
)
def test_a_microbatch_that_cannot_be_divided_is_refused(width: int, cp_size: int, text: str) -> None:
    contexts = contexts_of_second()
    with pytest.raises(ValueError, match=text), contexts(inputs_of(width, cp_size)):
        pass


def test_two_microbatches_at_once_are_refused() -> None:
    contexts = contexts_of_second()
    inputs = inputs_of(8)
    with contexts(inputs), pytest.raises(RuntimeError), contexts(inputs):
        pass


@pytest.mark.parametrize(
    ("lengths", "cp_size", "layout", "width"),
    [
        ([3, 2], 1, {}, 5),
        ([3, 2], 2, {}, 8),
        ([3, 2], 3, {}, 6),
        ([3, 5], 2, {}, 8),
        ([3, 2], 1, {"tensor_parallel_size": 4, "sequence_parallel": True}, 8),
        ([3, 2], 1, {"tensor_parallel_size": 4, "sequence_parallel": False}, 5),
    ],
)
def test_packed_rows_are_made_as_wide_as_they_can_be_divided(
    lengths: list[int], cp_size: int, layout: dict[str, Any], width: int
) -> None:
    cfg = {"sequence_packing": {"train_mb_tokens": 4}, "dtensor_cfg": layout}
    inputs = process_microbatch(batch_of(lengths), TOKENIZER, True, cfg, cp_size)
    assert inputs.input_ids.shape == (1, width)
    assert inputs.seq_len == width


# --- attention ---


def is_seen(query: int, key: int, bounds: list[int] | None, window: int | None) -> bool:
    first = 0 if bounds is None else max(bound for bound in bounds if bound <= query)
    return first <= key <= query and (window is None or query - key < window)


@pytest.mark.parametrize("bounds", [None, [0, 3, 3, 7]])
@pytest.mark.parametrize("window", [None, 2])
def test_positions_see_what_is_before_them_in_their_sequence_and_window(
    bounds: list[int] | None, window: int | None
) -> None:
    positions = positions_of_ranks(12, 2, torch.device("cpu"))
    group: Any = None
    for rank, own in enumerate(positions):
        packed = None if bounds is None else torch.tensor(bounds, dtype=torch.int32)
        mask = shard_sequence(positions, rank, packed, group).mask(window)
        keys = torch.cat(positions).tolist()
        assert mask.tolist() == [[is_seen(query, key, bounds, window) for key in keys] for query in own.tolist()]


@pytest.fixture
def alone(only_rank: None) -> Iterator[None]:
    torch.distributed.init_process_group("gloo")
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(
    ("kind", "others"),
    [("mistral", {"sliding_window": 3}), ("qwen2", {"use_sliding_window": True, "sliding_window": 3}), ("qwen3", {})],
)
def test_a_model_gives_the_same_logits_whatever_order_it_gets_its_positions_in(
    kind: str, others: dict[str, Any]
) -> None:
    logits = []
    ids = batch_of([9, 9])["input_ids"]
    order = torch.tensor([4, 0, 8, 1, 7, 3, 2, 6, 5])
    for name in ("sdpa", register_attention(CONFIG)):
        torch.manual_seed(0)
        shape = {**SHAPE, "num_hidden_layers": 3, "max_window_layers": 1} if kind == "qwen2" else SHAPE
        config = AutoConfig.for_model(kind, **shape, **others, head_dim=8)
        model = AutoModelForCausalLM.from_config(config, attn_implementation=name).eval()
        check_attention(model)
        if name == "sdpa":
            logits.append(model(input_ids=ids, use_cache=False).logits[:, order])
        else:
            group: Any = torch.distributed.group.WORLD
            with attend_to(shard_sequence([order], 0, None, group)):
                shuffled = {"input_ids": ids[:, order], "position_ids": order.expand(2, -1)}
                logits.append(model(**shuffled, use_cache=False).logits)
    torch.testing.assert_close(logits[1], logits[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("attention", [gathered_attention, ring_attention])
def test_a_forward_pass_without_its_context_is_refused(attention: Any) -> None:
    with pytest.raises(RuntimeError, match="context_parallel_contexts"):
        attention(torch.nn.Module(), HEADS, HEADS, HEADS, None)


@pytest.mark.parametrize(("argument", "what"), [({"sliding_window": 3}, "sliding"), ({"dropout": 0.1}, "dropout")])
def test_what_a_ring_would_compute_wrongly_is_refused(argument: dict[str, Any], what: str) -> None:
    with pytest.raises(NotImplementedError, match=rf"{what}.*context_parallel_attention=gathered"):
        ring_attention(torch.nn.Module(), HEADS, HEADS, HEADS, None, **argument)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"attention_mask": None, "softcap": 30.0}, "softcap"),
        ({"attention_mask": None, "s_aux": HEADS}, "s_aux"),
        ({"attention_mask": HEADS}, "mask"),
    ],
)
def test_what_attention_would_leave_out_is_refused(arguments: dict[str, Any], text: str) -> None:
    contexts = contexts_of_second()
    with contexts(inputs_of(8)), pytest.raises(NotImplementedError, match=text):
        gathered_attention(torch.nn.Module(), HEADS, HEADS, HEADS, **arguments)
    with pytest.raises(NotImplementedError, match=text):
        ring_attention(torch.nn.Module(), HEADS, HEADS, HEADS, **arguments)


def test_models_that_attend_in_other_ways_are_refused() -> None:
    with torch.device("meta"):
        by_itself = BloomForCausalLM(BloomConfig(hidden_size=8, n_layer=1, n_head=1, vocab_size=8))
        mixed = LlamaForCausalLM(LlamaConfig(**SHAPE))
    mixed.config.layer_types = ["full_attention", "linear_attention"]
    with pytest.raises(NotImplementedError, match="BloomForCausalLM"):
        check_attention(by_itself)
    with pytest.raises(NotImplementedError, match=r"LlamaForCausalLM: .*linear_attention"):
        check_attention(mixed)
