from __future__ import annotations

from pathlib import Path

import pytest
import torch

from settings import GrpoSettings
from trainer_adapter.automodel.config import required
from trainer_adapter.automodel.setup import build_optimizer, build_scheduler
from trainer_config import Packing, policy_config

STEPS = 60
SETTINGS = GrpoSettings()


def rates(warms_up: bool) -> list[float]:
    """The learning rate of every update of a run."""
    config = policy_config(Path("model"), SETTINGS, "dynamic", 1, STEPS, warms_up)
    optimizer = build_optimizer(torch.nn.Linear(1, 1), required(config, "optimizer"))
    scheduler = build_scheduler(optimizer, config["scheduler"])
    found = []
    for _ in range(SETTINGS.warmup_steps * warms_up + STEPS * SETTINGS.optimizer_steps_per_batch):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return found


@pytest.mark.filterwarnings("ignore:The epoch parameter in `scheduler.step:UserWarning")  # torch's own SequentialLR
def test_the_warm_up_rate_rises_then_falls_to_a_tenth_and_learning_has_its_own() -> None:
    found = rates(warms_up=True)
    warm_up, learning = found[: SETTINGS.warmup_steps], found[SETTINGS.warmup_steps :]
    assert max(warm_up) == pytest.approx(SETTINGS.warmup_lr)
    peak = warm_up.index(max(warm_up))
    assert 0 < peak < 30
    assert warm_up[: peak + 1] == sorted(warm_up[: peak + 1])
    assert warm_up[peak:] == sorted(warm_up[peak:], reverse=True)
    assert warm_up[-1] == pytest.approx(0.1 * SETTINGS.warmup_lr, rel=0.05)
    assert learning[0] == pytest.approx(SETTINGS.lr)
    assert learning == sorted(learning, reverse=True)
    assert learning[-1] == pytest.approx(0.1 * SETTINGS.lr, rel=0.1)


def test_without_a_warm_up_learning_begins_at_once() -> None:
    found = rates(warms_up=False)
    assert found[0] == pytest.approx(SETTINGS.lr)
    assert found == sorted(found, reverse=True)


@pytest.mark.parametrize(
    ("packing", "enabled"), [("none", (False, False)), ("dynamic", (True, False)), ("sequence", (False, True))]
)
def test_one_way_of_making_microbatches_is_enabled_at_most(packing: Packing, enabled: tuple[bool, bool]) -> None:
    config = policy_config(Path("model"), SETTINGS, packing, 2, STEPS, True)
    assert (config["dynamic_batching"]["enabled"], config["sequence_packing"]["enabled"]) == enabled
    assert config["dtensor_cfg"]["tensor_parallel_size"] == 2
