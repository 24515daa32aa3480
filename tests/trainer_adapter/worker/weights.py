"""The weights of a worker, to be compared."""

from __future__ import annotations

import torch
from tests.trainer_adapter.automodel.setup_cases import whole_weights
from torch import Tensor

from trainer_adapter.worker import AutomodelPolicyWorker


def weights(worker: AutomodelPolicyWorker) -> dict[str, Tensor]:
    return whole_weights(worker._policy.model)


def assert_equal(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    assert [name for name, value in found.items() if not torch.equal(value, expected[name])] == []
