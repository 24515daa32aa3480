"""slime's train data, of groups of samples or of samples."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from dataplane_slime import convert_samples_to_train_data
from dataplane_slime.tests.samples import Sample, Status, generated


def groups() -> list[list[Sample]]:
    made = [generated([Sample(g, 2 * g + i, "p", reward=float(i * (g + 1))) for i in range(2)], 1) for g in range(2)]
    made[1][1].status = Status.TRUNCATED
    made[1][0].loss_mask = [0, 1]
    made[1][1].remove_sample = True
    return made


@pytest.mark.parametrize("nested", [True, False])
def test_train_data_has_a_list_for_each_key_that_slime_documents(nested: bool) -> None:
    samples = groups()
    given = samples if nested else [sample for group in samples for sample in group]
    data = convert_samples_to_train_data(SimpleNamespace(), given)
    assert data.pop("rewards") == pytest.approx([-(0.5**0.5), 0.5**0.5] * 2, abs=1e-5)
    assert data == {
        "tokens": [[7, 8]] * 4,
        "response_lengths": [2] * 4,
        "raw_reward": [0.0, 1.0, 0.0, 2.0],
        "truncated": [0, 0, 0, 1],
        "sample_indices": [0, 1, 2, 3],
        "loss_masks": [[1, 1], [1, 1], [0, 1], [0, 0]],
        "rollout_log_probs": [[-0.1, -1 / 3]] * 4,
    }


@pytest.mark.parametrize(
    ("settings", "rewards"),
    [
        ({"grpo_std_normalization": False}, [-0.5, 0.5, -1.0, 1.0]),
        ({"rewards_normalization": False}, [0.0, 1.0, 0.0, 2.0]),
    ],
)
def test_rewards_are_normalized_as_the_settings_say(settings: dict[str, Any], rewards: list[float]) -> None:
    assert convert_samples_to_train_data(SimpleNamespace(**settings), groups())["rewards"] == rewards


def test_one_of_several_rewards_is_chosen_and_a_lone_sample_has_none_above_others() -> None:
    lone = Sample(0, 0, "p", reward={"math": 2.0, "form": 1.0}, rollout_log_probs=None)
    data = convert_samples_to_train_data(SimpleNamespace(reward_key="math"), [lone])
    assert (data["raw_reward"], data["rewards"]) == ([2.0], [0.0])
    assert "rollout_log_probs" not in data
