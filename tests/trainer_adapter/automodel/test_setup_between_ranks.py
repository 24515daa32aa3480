"""Two real ranks on gloo train like one process and continue from each other's checkpoints; see setup_cases.py.

Every run has QUICK: weights divided by data and by tensors, replicated, and by a plan of one's own. `make test-soak`
has all cases.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.rank_pool import RankPool
from tests.trainer_adapter.automodel import rank_processes, setup_cases
from transformers import AutoModelForCausalLM

pytestmark = pytest.mark.xdist_group("ranks")


QUICK = {"llama_dp", "llama_replicated", "llama_tp_logits_only", "qwen3_tp_tied", "qwen3moe_experts"}
CASES = [pytest.param(case, marks=() if case in QUICK else pytest.mark.soak) for case in setup_cases.STEPPED]


@pytest.fixture(scope="module")
def ranks(rank_pool: RankPool, folder: Path) -> list[dict[str, Any]]:
    """What each rank saw, by case."""
    return rank_processes.play_cases(rank_pool, setup_cases.__name__, folder)


@pytest.mark.parametrize("case", CASES)
def test_logits_and_one_step_are_those_of_a_single_process(
    folder: Path, ranks: list[dict[str, Any]], case: str
) -> None:
    setup_cases.assert_stepped_as_alone(folder, case, ranks)


@pytest.mark.parametrize(
    ("case", "projections", "norms"),
    [("llama_dp", 0.5, 0.5), ("llama_replicated", 1.0, 1.0), ("qwen3_tp_tied", 0.5, 1.0)],
)
def test_each_rank_holds_its_part_of_the_weights(
    ranks: list[dict[str, Any]], case: str, projections: float, norms: float
) -> None:
    for rank in ranks:
        for name, part in rank[case]["parts"].items():
            assert part == (norms if "norm" in name else projections), name


@pytest.mark.long
@pytest.mark.parametrize("replicas", [1, 2])
def test_divided_experts_train_as_undivided_ones_and_go_on_from_a_checkpoint_as_these(
    folder: Path, tmp_path: Path, rank_pool: RankPool, replicas: int
) -> None:
    """Of four ranks every two hold all experts, and every two divide the same ones."""
    losses, norms = stepped_by_adam(folder / "qwen3moe")
    layout = {"expert_parallel_size": 2, "dp_replicate_size": replicas}
    for rank in rank_pool.play(setup_cases.stepped_experts, folder, tmp_path, False, layout, ranks=4):
        assert len(rank["divided"]) == 4
        assert all(".experts." in name for name in rank["divided"])
        assert rank["losses"] == pytest.approx(losses, rel=1e-5)
        assert rank["norms"] == pytest.approx(norms, rel=1e-5)
    for rank in rank_pool.play(setup_cases.stepped_experts, folder, tmp_path, True, {}, ranks=4):
        assert rank["divided"] == []
        assert rank["losses"] == pytest.approx(losses[2:], rel=1e-5)
        assert rank["norms"] == pytest.approx(norms[2:], rel=1e-5)


def stepped_by_adam(model_folder: Path) -> tuple[list[float], list[float]]:
    """Losses and gradient norms of four steps of a plain model, clipped as in stepped_experts."""
    model: Any = AutoModelForCausalLM.from_pretrained(model_folder)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, betas=(0.9, 0.95))  # as setup_cases.ADAM
    losses, norms = [], []
    for _ in range(4):
        loss = setup_cases.mean_nll(model(input_ids=setup_cases.BATCH).logits, setup_cases.BATCH)
        optimizer.zero_grad()
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1).item())
        optimizer.step()
        losses.append(loss.item())
    return losses, norms


def test_experts_that_no_plan_divides_are_refused(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        assert rank["refused_experts"].startswith("ValueError: dtensor_cfg.expert_parallel_size: transformers has no ")


def test_a_plan_of_ones_own_divides_what_it_names_and_nothing_else(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        parts = rank["llama_tp_logits_only"]["parts"]
        assert {name for name, part in parts.items() if part == 0.5} == {"lm_head.weight"}


@pytest.mark.parametrize("case", ["parts", "parts_tp"])
def test_each_rank_reads_its_part_of_the_files_itself(folder: Path, ranks: list[dict[str, Any]], case: str) -> None:
    """Transformers, which reads whole models, does not find these files."""
    plain = AutoModelForCausalLM.from_pretrained(folder / "llama")
    with torch.no_grad():
        for weight in plain.parameters():
            weight.copy_(weight.bfloat16())
        expected = plain(input_ids=setup_cases.BATCH).logits
    for rank in ranks:
        torch.testing.assert_close(torch.tensor(rank[case]), expected, rtol=1e-5, atol=1e-5)


def test_groups_of_meshes_have_the_configured_timeout_too(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        assert len(rank["timed"]) > 2
        assert set(rank["timed"]) == {77.0}


def test_a_consolidated_checkpoint_is_a_model_that_others_load(folder: Path, ranks: list[dict[str, Any]]) -> None:
    assert all(rank["checkpointed"] for rank in ranks)
    model = AutoModelForCausalLM.from_pretrained(folder / "saved" / "weights" / "model")
    assert model.config.model_type == "qwen2"
    assert model.lm_head.weight is model.model.embed_tokens.weight


def test_a_failure_of_rank_0_is_one_of_all_ranks(ranks: list[dict[str, Any]]) -> None:
    first, second = ([rank["unreadable"], rank["checkpointed"]["again"]] for rank in ranks)
    assert first[0].startswith("OSError: Error no file named model.safetensors")
    assert first[1].startswith("FileExistsError: ")
    assert second[0].startswith("RuntimeError: another rank failed: loading")
    assert second[1].startswith("RuntimeError: another rank failed: making ")


def test_files_that_one_rank_cannot_read_are_an_error_on_all(ranks: list[dict[str, Any]]) -> None:
    assert ranks[0]["damaged"].startswith("RuntimeError: another rank failed: reading the files of ")
    assert ranks[1]["damaged"].startswith("SafetensorError: ")
