"""Two real ranks on gloo train a NeMo Automodel model like one process trains a plain model of transformers; see
nemo_automodel_cases.py. ../equality has whole steps of a worker, with log-probabilities and the norm of gradients.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.rank_pool import RankPool
from tests.ranks import be_the_only_rank
from tests.trainer_adapter.automodel import lora_cases, rank_processes, setup_cases
from tests.trainer_adapter.automodel import nemo_automodel_cases as cases

pytestmark = [
    pytest.mark.automodel,
    pytest.mark.timeout(1800),  # the package is imported in three processes
    pytest.mark.filterwarnings("ignore"),  # it is not ours to mend what the package warns of
]


@pytest.fixture(scope="module")
def ranks(rank_pool: RankPool, folder: Path) -> list[dict[str, Any]]:
    """What each rank saw, by case."""
    return rank_processes.play_cases(rank_pool, cases.__name__, folder, warning="default")


@pytest.mark.parametrize("case", cases.STEPPED)
def test_logits_and_one_step_are_those_of_a_single_process(
    folder: Path, ranks: list[dict[str, Any]], case: str
) -> None:
    setup_cases.assert_stepped_as_alone(folder, case, ranks)


@pytest.mark.parametrize(("case", "norms"), [("llama_dp", 0.5), ("llama_tp", 1.0), ("qwen3moe_tp", 1.0)])
def test_each_rank_holds_its_part_of_the_weights(ranks: list[dict[str, Any]], case: str, norms: float) -> None:
    for rank in ranks:
        parts = {name: part for name, part in rank[case]["parts"].items() if "norm" in name or "self_attn" in name}
        assert parts == {name: norms if "norm" in name else 0.5 for name in parts}
        assert len(parts) > 8


@pytest.mark.parametrize("case", cases.ADAPTED)
def test_two_steps_of_adapters_are_those_of_a_single_process_on_merged_weights(
    folder: Path, ranks: list[dict[str, Any]], case: str
) -> None:
    lora_cases.assert_stepped_as_alone(folder, case, ranks)


@pytest.mark.parametrize("case", ["resumed_dp", "resumed_tp"])
def test_ranks_go_on_from_a_checkpoint_however_they_are_arranged(ranks: list[dict[str, Any]], case: str) -> None:
    expected = ranks[0]["checkpointed"]["losses"][2:]
    for rank in ranks:
        assert rank[case]["losses"] == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("model_backend", ["automodel", "transformers"])
def test_another_process_alone_goes_on_from_the_ranks_checkpoint_with_either_backend(
    folder: Path, ranks: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, model_backend: str
) -> None:
    expected = ranks[0]["checkpointed"]["losses"][2:]
    monkeypatch.setenv("NCCL_CUMEM_ENABLE", "1")  # validation sets it; so it is undone
    be_the_only_rank(monkeypatch)
    with setup_cases.resume(folder, model_backend=model_backend) as state:
        losses = [setup_cases.train_step(state, 0, 1)[0] for _ in range(2)]
    assert losses == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    ("case", "text"),
    [
        ("refused_experts", "NotImplementedError: dtensor_cfg.expert_parallel_size > 1 needs device=cuda"),
        ("refused_replicas", "ValueError: dp_replicate_size=2 must be less than dp_size=2"),
        ("unreadable", "OSError: Error no file named model.safetensors"),
    ],
)
def test_what_cannot_be_is_an_error_on_all_ranks(ranks: list[dict[str, Any]], case: str, text: str) -> None:
    for rank in ranks:
        assert rank[case].startswith(text)
