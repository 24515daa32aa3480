"""What a step holds at most. Logits are often its largest tensor: 16k tokens x 152k words are 5 GB in bfloat16."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.trainer_adapter.automodel.setup_cases import SHAPE, policy_config, set_up
from tests.trainer_adapter.memory import HeldBytes
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from dataplane_client.batched_data_dict import BatchedDataDict
from trainer_adapter.automodel.config import TrainingSamplingParams
from trainer_adapter.automodel.data import ProcessedMicrobatch, process_microbatch
from trainer_adapter.automodel.train import (
    LogprobsPostProcessor,
    LossPostProcessor,
    TopkLogitsPostProcessor,
    automodel_forward_backward,
)
from trainer_adapter.losses import ClippedPolicyGradientLoss

VOCABULARY = 16384
LENGTHS = [700, 1500, 300, 596]
LOGITS = sum(LENGTHS) * VOCABULARY * 2  # bytes in bfloat16
SHORTER = [350, 750, 150, 298]  # of a whole model, whose layers take seconds on a CPU
PIECE = 1024 * VOCABULARY * 4  # what a piece of the logits takes in float32
CONFIG = {
    "sequence_packing": {"enabled": True, "train_mb_tokens": 1},
    "dynamic_batching": {"enabled": False},
    "dtensor_cfg": {},
}
LAYOUT: dict[str, Any] = {
    "cfg": CONFIG,
    "device_mesh": None,
    "cp_mesh": None,
    "tp_mesh": None,
    "cp_size": 1,
    "enable_seq_packing": True,
}


class Model(torch.nn.Module):
    """Logits in bfloat16 from a table; old: whether the last pass's logits lived when this one began."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Parameter(torch.zeros(16, VOCABULARY, dtype=torch.bfloat16))
        self.config = SimpleNamespace(model_type="none")
        self.old: list[bool] = []
        self._last: weakref.ref[Tensor] | None = None

    def forward(self, input_ids: Tensor, **_: Any) -> Tensor:
        self.old.append(self._last is not None and self._last() is not None)
        logits = self.table[input_ids]
        self._last = weakref.ref(logits)
        return logits


def microbatch(lengths: list[int]) -> ProcessedMicrobatch:
    rows, width = len(lengths), max(lengths)
    mask = torch.arange(width) < torch.tensor(lengths)[:, None]
    batch: BatchedDataDict[Any] = BatchedDataDict(
        input_ids=torch.randint(16, (rows, width)) * mask,
        input_lengths=torch.tensor(lengths),
        token_mask=mask.float(),
        sample_mask=torch.ones(rows),
        prev_logprobs=torch.full((rows, width), -9.0),
        advantages=torch.ones(rows, width),
    )
    inputs = process_microbatch(batch, SimpleNamespace(eos_token_id=0), True, CONFIG, 1)  # type: ignore[arg-type]
    return ProcessedMicrobatch(batch, inputs, rows, width)


def run(
    model: torch.nn.Module, processor: Any, batches: list[ProcessedMicrobatch], forward_only: bool = False
) -> HeldBytes:
    valid = torch.tensor(4.0), torch.tensor(3000.0)
    gc.collect()
    held = HeldBytes()
    with held:
        automodel_forward_backward(
            model,
            iter(batches),
            processor,
            forward_only,
            global_valid_seqs=valid[0],
            global_valid_toks=valid[1],
            sampling_params=TrainingSamplingParams(temperature=0.7),
        )
    return held


def loss() -> LossPostProcessor:
    return LossPostProcessor(ClippedPolicyGradientLoss(), **LAYOUT, dp_size=1)


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Nearly all of the model's weights are its embedding and its head."""
    folder = tmp_path_factory.mktemp("large")
    shape = {**SHAPE, "vocab_size": VOCABULARY, "max_position_embeddings": 4096}
    AutoModelForCausalLM.from_config(AutoConfig.for_model("llama", **shape)).save_pretrained(folder)
    return folder


def sharded(folder: Path) -> Any:
    return {**policy_config(folder), "precision": "bfloat16", "sequence_packing": {"enabled": True}}


def test_the_most_that_a_block_holds_is_what_its_tensors_take_at_once() -> None:
    with HeldBytes() as held:
        for _ in range(3):
            torch.zeros(1000)
        kept = [torch.zeros(1000), torch.ones(1000)[:, None]]
        kept.clear()
        torch.zeros(1000)
    assert (held.peak, held.held) == (8000, 0)


@pytest.mark.usefixtures("only_rank")
@pytest.mark.long
def test_a_step_holds_logits_and_their_gradient_in_the_models_precision(large: Path) -> None:
    """Above what all of it holds for a few tokens."""
    with set_up(sharded(large)) as state:
        run(state.model, loss(), [microbatch([8])])
        few, held = (run(state.model, loss(), [microbatch(lengths)] * 2).peak for lengths in ([8], SHORTER))
    # logits and gradient of half as many tokens, and two pieces
    assert LOGITS / 2 < held - few < LOGITS + 2 * PIECE


@pytest.mark.usefixtures("only_rank")
def test_loading_files_makes_no_second_model(large: Path) -> None:
    """Not even one whose memory is never touched: hosts that do not overcommit refuse it."""
    with HeldBytes() as held, set_up(sharded(large), init_optimizer=False) as state:
        sizes = [parameter.numel() * parameter.element_size() for parameter in state.model.parameters()]
    assert max(sizes) <= held.peak < 1.1 * max(sizes)


@pytest.mark.parametrize("kind", [LogprobsPostProcessor, TopkLogitsPostProcessor])
def test_inference_holds_logits_once_and_a_piece_of_float32(kind: Any) -> None:
    given = {"k": 4} if kind is TopkLogitsPostProcessor else {}
    held = run(Model(), kind(**LAYOUT, **given), [microbatch(LENGTHS)], forward_only=True)
    assert LOGITS <= held.peak < LOGITS + 3 * PIECE


@pytest.mark.parametrize("kind", [LossPostProcessor, LogprobsPostProcessor])
def test_no_microbatchs_logits_live_through_the_next_forward_pass(kind: Any) -> None:
    model = Model()
    processor = loss() if kind is LossPostProcessor else kind(**LAYOUT)
    run(model, processor, [microbatch([5, 3]) for _ in range(3)], forward_only=kind is not LossPostProcessor)
    assert model.old == [False] * 3


def test_the_kernels_of_a_packed_loss_do_not_grow_with_its_sequences() -> None:
    few, many = (run(Model(), loss(), [microbatch([8] * count)]).operations for count in (2, 32))
    assert many <= few + 40  # views of one sequence, to cut its tokens from the row
