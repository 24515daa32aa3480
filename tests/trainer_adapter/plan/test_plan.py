"""What a step is said to need, beside what torch counts while the worker runs one, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.rank_pool import RankPool
from tests.ranks import be_the_only_rank
from tests.trainer_adapter.automodel.lora_cases import LORA
from tests.trainer_adapter.automodel.setup_cases import SHAPE
from tests.trainer_adapter.worker.worker_cases import ADAM, Layout, config, save_model, worker
from torch.distributed._tools.mem_tracker import MemTracker
from torch.nn.modules.module import register_module_forward_pre_hook
from transformers import AutoConfig

from dataplane_client.batched_data_dict import BatchedDataDict
from trainer_adapter.losses import ClippedPolicyGradientLoss
from trainer_adapter.plan import read_layout, step_memory
from trainer_adapter.plan.__main__ import main

ROWS, WIDTH = 4, 384
WORDS = 2048
SHAPES = {
    "qwen3": {"num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 16, "tie_word_embeddings": False},
    "llama": {"num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 32, "tie_word_embeddings": False},
    "qwen2": {"num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 16, "tie_word_embeddings": True},
}
SIZES = {"vocab_size": WORDS, "hidden_size": 128, "intermediate_size": 320, "num_hidden_layers": 4}
ON = {"enabled": True, "train_mb_tokens": WIDTH, "sequence_length_round": 1}
long = pytest.mark.long


def rows() -> BatchedDataDict[Any]:
    filled = torch.ones(ROWS, WIDTH)
    return BatchedDataDict(
        input_ids=torch.randint(3, SHAPE["vocab_size"], (ROWS, WIDTH)),
        input_lengths=torch.full((ROWS,), WIDTH),
        token_mask=filled,
        sample_mask=torch.ones(ROWS),
        prev_logprobs=-7 * filled,
        generation_logprobs=-7 * filled,
        advantages=filled,
    )


def settings(folder: Path, packing: str, rows_at_once: int, checkpointing: bool, precision: str) -> Any:
    given = config(folder, Layout(), packing, precision=precision, optimizer=ADAM, max_grad_norm=1.0)
    given |= {"train_global_batch_size": ROWS, "train_micro_batch_size": rows_at_once}
    given["dtensor_cfg"]["activation_checkpointing"] = checkpointing
    given["sequence_packing"]["train_mb_tokens"] = rows_at_once * WIDTH
    return given


def counted(given: Any) -> int:
    """Bytes at the peak of the second step, by torch."""
    with worker(given, init_reference_model=False) as made:
        made.train(rows(), ClippedPolicyGradientLoss())
        tracker = MemTracker()
        model, optimizer = made._policy.model, made._policy.state.optimizer
        assert optimizer is not None
        tracker.track_external(optimizer, model)
        with _forgetting_calls(tracker, model), tracker:
            made.train(rows(), ClippedPolicyGradientLoss())
        peak = tracker.get_tracker_snapshot("peak")
    return int(peak[torch.device("cpu")]["Total"])


@contextmanager
def _forgetting_calls(tracker: Any, model: torch.nn.Module) -> Iterator[None]:
    """The tracker counts one forward pass of a module and refuses a second one; its peak is kept."""
    hook = register_module_forward_pre_hook(lambda module, _: tracker.reset_mod_stats() if module is model else None)
    try:
        yield
    finally:
        hook.remove()


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("kind", "packing", "rows_at_once", "checkpointing", "precision"),
    [
        pytest.param("qwen3", "none", 1, False, "bfloat16", marks=long),
        pytest.param("qwen3", "none", 4, False, "float32", marks=long),
        pytest.param("llama", "none", 4, True, "bfloat16", marks=long),
        ("llama", "none", 2, False, "float32"),
        pytest.param("qwen2", "sequence", 2, False, "bfloat16", marks=long),
        pytest.param("qwen2", "sequence", 2, True, "float32", marks=long),
    ],
)
def test_a_step_holds_what_the_plan_says(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    packing: str,
    rows_at_once: int,
    checkpointing: bool,
    precision: str,
) -> None:
    be_the_only_rank(monkeypatch)
    save_model(tmp_path, kind, **SIZES, **SHAPES[kind], max_position_embeddings=2048)
    given = settings(tmp_path, packing, rows_at_once, checkpointing, precision)
    planned = step_memory(*read_layout(given, 1, WIDTH)).total
    measured = counted(given)
    assert planned == pytest.approx(measured, rel=0.03)


# --- more ranks, and refusals ---

TWO_RANKS: list[tuple[Layout, dict[str, Any]]] = [
    (Layout(dp=2), {}),
    (Layout(cp=2), {"context_parallel_attention": "gathered"}),
    (Layout(cp=2), {"context_parallel_attention": "torch"}),
    (Layout(tp=2), {}),
    (Layout(tp=2), {"sequence_parallel": True}),
]


def planned_and_counted(_rank: int, folder: Path, number: int) -> tuple[int, int]:
    layout, changes = TWO_RANKS[number]
    given = settings(folder, "none", 2, False, "bfloat16")
    given["train_global_batch_size"] = ROWS * layout.dp
    sizes = {"tensor_parallel_size": layout.tp, "context_parallel_size": layout.cp}
    given["dtensor_cfg"] |= {**sizes, **changes}
    return step_memory(*read_layout(given, layout.ranks, WIDTH)).total, counted(given)


@pytest.mark.long
@pytest.mark.xdist_group("ranks")
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("number", range(len(TWO_RANKS)), ids=lambda number: str(TWO_RANKS[number]))
def test_each_of_two_ranks_holds_what_the_plan_says(rank_pool: RankPool, tmp_path: Path, number: int) -> None:
    save_model(tmp_path, "qwen3", **SIZES, **SHAPES["qwen3"], max_position_embeddings=2048)
    for said, found in rank_pool.play(planned_and_counted, tmp_path, number):
        assert said == pytest.approx(found, rel=0.03)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a model only its configuration is read."""
    folder = tmp_path_factory.mktemp("model")
    AutoConfig.for_model("qwen3", **SIZES, **SHAPES["qwen3"]).save_pretrained(folder)
    return folder


def planned(model: Path, ranks: int, changes: dict[str, Any] | None = None, row_tokens: int | None = WIDTH) -> Any:
    given = settings(model, "none", 2, False, "bfloat16")
    given |= {"train_global_batch_size": 8}
    given["dtensor_cfg"] |= changes or {}
    return read_layout(given, ranks, row_tokens)


def test_ranks_divide_what_they_can(model: Path) -> None:
    alone = step_memory(*planned(model, 1))
    data = step_memory(*planned(model, 4))
    tensors = step_memory(*planned(model, 2, {"tensor_parallel_size": 2}))
    context = step_memory(
        *planned(model, 2, {"context_parallel_size": 2, "context_parallel_attention": "torch", "device": "cuda"})
    )
    assert data.weights * 4 == pytest.approx(alone.weights, rel=0.01)
    assert data.optimizer == 2 * data.weights
    assert data.activations == alone.activations
    assert tensors.logits * 2 == context.logits * 2 == alone.logits
    assert context.activations * 2 == alone.activations < 2 * tensors.activations


@pytest.mark.parametrize(
    ("ranks", "changes", "row_tokens", "text"),
    [
        (3, {"tensor_parallel_size": 2}, WIDTH, "world size 3 is not a multiple of tensor_parallel_size=2"),
        (3, {"tensor_parallel_size": 3}, WIDTH, "tensor_parallel_size=3 .*num_attention_heads=8"),
        (3, {}, WIDTH, "train_global_batch_size=8 .*3 data-parallel"),
        (8, {}, WIDTH, "train_micro_batch_size=2 does not divide the 1 rows"),
        (1, {}, None, "tokens of a row is unknown: pass --row-tokens"),
        (0, {}, WIDTH, "--ranks must be positive, not 0"),
    ],
)
def test_a_job_that_cannot_be_divided_is_refused(
    model: Path, ranks: int, changes: dict[str, Any], row_tokens: int | None, text: str
) -> None:
    with pytest.raises(ValueError, match=text):
        planned(model, ranks, changes, row_tokens)


SHORT = {**ON, "train_mb_tokens": WIDTH - 1}
GATHERED = {"context_parallel_size": 2, "context_parallel_attention": "gathered"}


@pytest.mark.parametrize(
    ("ranks", "layout", "changes", "error", "text"),
    [
        (1, {}, {"dynamic_batching": ON, "sequence_packing": ON}, AssertionError, "both enabled"),
        (1, {}, {"precision": "float16"}, ValueError, "losses are not scaled"),
        (1, {"cpu_offload": True}, {}, NotImplementedError, "CPUOffload doesn't work on single GPU"),
        (1, {"device": "cuda"}, {"precision": "float32", "sequence_packing": ON}, ValueError, "flash needs precision"),
        (1, {}, {"sequence_packing": {**ON, "attention": "flex"}}, ValueError, "flex needs device=cuda"),
        (1, {}, {"sequence_packing": SHORT}, ValueError, "length 384 exceeds bin capacity 383"),
        (1, {}, {"dynamic_batching": SHORT}, AssertionError, "length 384 exceeds max_tokens_per_microbatch 383"),
        (4, GATHERED, {"sequence_packing": {**ON, "attention": "flash"}}, ValueError, r"attention must be sdpa"),
        (
            4,
            {**GATHERED, "tensor_parallel_size": 2, "sequence_parallel": True},
            {},
            AssertionError,
            "can't be used together with sequence parallel",
        ),
    ],
)
def test_a_job_that_the_worker_refuses_is_refused(
    model: Path, ranks: int, layout: dict[str, Any], changes: dict[str, Any], error: type[Exception], text: str
) -> None:
    given = settings(model, "none", 2, False, "bfloat16") | changes
    given["dtensor_cfg"] |= layout
    with pytest.raises(error, match=text):
        read_layout(given, ranks, WIDTH)


@pytest.mark.parametrize(
    ("ranks", "layout", "own"),
    [
        (2, {"device": "cuda", "tensor_parallel_size": 2}, {"dropout": 0.1}),
        (1, {"model_backend": "automodel"}, {"use_triton": True, "use_dora": False}),
    ],
)
def test_adapters_that_the_worker_accepts_are_planned(
    model: Path, ranks: int, layout: dict[str, Any], own: dict[str, Any]
) -> None:
    plain = planned(model, ranks, {**layout, "lora_cfg": LORA})
    assert planned(model, ranks, {**layout, "lora_cfg": LORA | own}) == plain != planned(model, ranks, layout)


def test_rows_are_as_wide_as_workers_make_them(model: Path) -> None:
    _, _, work = planned(model, 2, {"context_parallel_size": 2}, 382)
    assert (work.tokens, work.row_tokens) == (2 * 384, 384)


def test_a_fused_optimizer_holds_what_others_do_and_makes_nothing_in_a_step(model: Path) -> None:
    given = settings(model, "none", 2, False, "bfloat16")
    given["dtensor_cfg"]["device"] = "cuda"
    _, plain, _ = read_layout(given, 1, WIDTH)
    given["optimizer"] = {"name": ADAM["name"], "kwargs": {"fused": True}}
    _, weights, _ = read_layout(given, 1, WIDTH)
    assert weights == replace(plain, step_bytes=0) != plain


def test_a_model_with_other_layers_is_refused(tmp_path: Path) -> None:
    AutoConfig.for_model("gemma2", **SHAPE, head_dim=8).save_pretrained(tmp_path)
    with pytest.raises(NotImplementedError, match=r"Gemma2ForCausalLM: .*post_feedforward_layernorm"):
        planned(tmp_path, 1)


def test_the_command_tells_a_layout_or_the_reason_against_it(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "job.json"
    file.write_text(json.dumps({"policy": settings(model, "none", 2, True, "bfloat16")}))
    command = [str(file), "--row-tokens", str(WIDTH)]
    main([*command, "--json"])
    told = json.loads(capsys.readouterr().out)
    assert told["device"]["with_checkpointing"]["total"] < told["device"]["without_checkpointing"]["total"]
    assert told["host"]["reference"] == told["device"]["with_checkpointing"]["weights"]
    with pytest.raises(SystemExit, match="2"):
        main([*command, "--ranks", "3"])
    assert "train_global_batch_size=4 is not a multiple of the 3 data-parallel" in capsys.readouterr().err


def test_a_reference_beside_a_gpu_is_pinned_whatever_is_set(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    references = []
    for device, pins in (("cuda", True), ("cuda", False), ("cpu", True)):
        given = settings(model, "none", 2, False, "bfloat16")
        given["dtensor_cfg"] |= {"device": device, "pin_host_memory": pins}
        file = tmp_path / "job.json"
        file.write_text(json.dumps(given))
        main([str(file), "--row-tokens", str(WIDTH), "--json"])
        references.append(json.loads(capsys.readouterr().out)["host"]["reference"])
    assert references[0] == references[1] > references[2]
