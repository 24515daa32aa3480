"""Real ranks over models that NeMo Automodel divides answer, and train, as one process does with a plain model of
transformers; see worker_cases.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tests.trainer_adapter.worker import worker_cases
from tests.trainer_adapter.worker.plain_policy import logits_alone, logprobs_of, model_alone
from tests.trainer_adapter.worker.test_worker_between_ranks import seen, trained_alone, whole
from tests.trainer_adapter.worker.worker_cases import OVER_AUTOMODEL, TEMPERATURE, Layout

pytestmark = [
    pytest.mark.automodel,
    pytest.mark.timeout(300),  # the package is imported in every rank
    pytest.mark.filterwarnings("ignore"),  # it is not ours to mend what the package warns of
    pytest.mark.skipif(torch.cuda.is_available(), reason="compares with ranks that compute on the CPU"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("automodel_worker")
    worker_cases.save_model(folder / "model")
    names = [f"automodel_{layout}_{packing}" for layout, packing in OVER_AUTOMODEL]
    worker_cases.play_cases(folder, names, warning="default", timeout_s=280)
    return folder


@pytest.mark.parametrize(("layout", "packing"), OVER_AUTOMODEL, ids=str)
def test_logprobs_are_those_of_a_plain_forward(folder: Path, layout: Layout, packing: str) -> None:
    with torch.no_grad():
        expected = logprobs_of(logits_alone(model_alone(folder / "model"), TEMPERATURE))
    found = whole(folder, f"automodel_{layout}_{packing}", layout, "logprobs")
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("layout", "packing"), OVER_AUTOMODEL, ids=str)
def test_one_step_is_that_of_a_single_process(folder: Path, layout: Layout, packing: str) -> None:
    loss, norm, weights = trained_alone(folder)
    case = f"automodel_{layout}_{packing}"
    for rank in seen(folder, case, layout.ranks):
        assert rank["loss"] == pytest.approx([loss], rel=1e-5)
        assert rank["grad_norm"] == pytest.approx(norm, rel=1e-5)
    after = load_file(folder / f"{case}.0.safetensors")
    for name, value in weights.items():
        torch.testing.assert_close(after[name], value, rtol=1e-5, atol=1e-6)
