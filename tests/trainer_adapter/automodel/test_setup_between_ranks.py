"""Two real ranks on gloo train like one process and continue from each other's checkpoints; see setup_cases.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.ranks import be_the_only_rank
from tests.trainer_adapter.automodel import setup_cases
from transformers import AutoModelForCausalLM

pytestmark = pytest.mark.xdist_group("ranks")
STEPPED = [case for case in setup_cases.CASES if case.partition("_")[0] in setup_cases.MODELS]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ranks")
    setup_cases.save_models(folder)
    return folder


@pytest.fixture(scope="module")
def ranks(folder: Path) -> list[dict[str, Any]]:
    """What each rank saw, by case."""
    return setup_cases.play_cases(folder, list(setup_cases.CASES))


@pytest.mark.parametrize("case", STEPPED)
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


def test_a_plan_of_ones_own_divides_what_it_names_and_nothing_else(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        parts = rank["llama_tp_logits_only"]["parts"]
        assert {name for name, part in parts.items() if part == 0.5} == {"lm_head.weight"}


@pytest.mark.parametrize("case", ["resumed_dp", "resumed_tp"])
def test_ranks_go_on_from_a_checkpoint_however_they_are_arranged(ranks: list[dict[str, Any]], case: str) -> None:
    expected = ranks[0]["checkpointed"]["losses"][2:]
    for rank in ranks:
        assert rank[case]["losses"] == pytest.approx(expected, rel=1e-6)


def test_another_process_alone_goes_on_from_the_ranks_checkpoint(
    folder: Path, ranks: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    be_the_only_rank(monkeypatch)
    with setup_cases.resume(folder) as state:
        losses = [setup_cases.train_step(state, 0, 1)[0] for _ in range(2)]
    assert losses == pytest.approx(ranks[0]["checkpointed"]["losses"][2:], rel=1e-6)


@pytest.mark.usefixtures("ranks")
def test_a_consolidated_checkpoint_is_a_model_that_others_load(folder: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(folder / "saved" / "weights" / "model")
    assert model.config.model_type == "qwen2"
    assert model.lm_head.weight is model.model.embed_tokens.weight


@pytest.mark.parametrize(
    ("case", "texts"),
    [
        (
            "unreadable",
            ("OSError: Error no file named model.safetensors", "RuntimeError: another rank failed: loading"),
        ),
        ("checkpointed", ("FileExistsError: ", "RuntimeError: another rank failed: making ")),
    ],
)
def test_a_failure_of_rank_0_is_one_of_all_ranks(
    ranks: list[dict[str, Any]], case: str, texts: tuple[str, str]
) -> None:
    for rank, text in zip(ranks, texts, strict=True):
        seen = rank[case]["again"] if case == "checkpointed" else rank[case]
        assert seen.startswith(text)
