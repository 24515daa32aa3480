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
        "rollout_ids": [0, 1, 2, 3],
        "rollout_mask_sums": [2, 2, 1, 0],
        "source_names": ["unknown"] * 4,
        "loss_masks": [[1, 1], [1, 1], [0, 1], [0, 0]],
        "rollout_log_probs": [[-0.1, -1 / 3]] * 4,
    }


def doubled(args: Any, samples: list[Sample]) -> tuple[list[float], list[float]]:
    """As slime's option --custom-reward-post-process-path wants it."""
    raw = [float(sample.reward) for sample in samples]  # type: ignore[arg-type]
    return raw, [2 * reward for reward in raw]


@pytest.mark.parametrize(
    ("settings", "rewards"),
    [
        ({"grpo_std_normalization": False}, [-0.5, 0.5, -1.0, 1.0]),
        ({"rewards_normalization": False}, [0.0, 1.0, 0.0, 2.0]),
        ({"advantage_estimator": "reinforce_plus_plus_baseline"}, [-0.5, 0.5, -1.0, 1.0]),
        ({"advantage_estimator": "ppo"}, [0.0, 1.0, 0.0, 2.0]),
        ({"custom_reward_post_process_path": f"{__name__}.doubled"}, [0.0, 2.0, 0.0, 4.0]),
    ],
)
def test_rewards_are_normalized_as_the_settings_say(settings: dict[str, Any], rewards: list[float]) -> None:
    assert convert_samples_to_train_data(SimpleNamespace(**settings), groups())["rewards"] == rewards


def test_one_of_several_rewards_is_chosen_and_a_lone_sample_has_none_above_others() -> None:
    lone = Sample(0, 0, "p", reward={"math": 2.0, "form": 1.0}, rollout_log_probs=None)
    data = convert_samples_to_train_data(SimpleNamespace(reward_key="math"), [lone])
    assert (data["raw_reward"], data["rewards"]) == ([2.0], [0.0])
    assert "rollout_log_probs" not in data
    with pytest.raises(ValueError, match="sample 0 has no reward 'style'"):
        convert_samples_to_train_data(SimpleNamespace(reward_key="style"), [lone])


def test_rewards_of_samples_without_a_group_are_not_normalized() -> None:
    samples = [Sample(None, index, "p", reward=float(index)) for index in range(2)]
    with pytest.raises(ValueError, match="sample 0 has no group_index"):
        convert_samples_to_train_data(SimpleNamespace(), samples)
    data = convert_samples_to_train_data(SimpleNamespace(advantage_estimator="ppo"), samples)
    assert data["rewards"] == [0.0, 1.0]


def test_a_loss_mask_of_another_length_than_the_response_is_refused() -> None:
    wrong = Sample(0, 3, "p", reward=1.0, loss_mask=[1], response_length=2)
    with pytest.raises(ValueError, match="sample 3: loss_mask has 1 entries for 2 tokens of its response"):
        convert_samples_to_train_data(SimpleNamespace(), [wrong])


def test_samples_of_one_rollout_count_once() -> None:
    samples = [sample for group in groups() for sample in group]
    for sample, rollout in zip(samples, (1, 1, None, None), strict=True):
        sample.rollout_id = rollout
    data = convert_samples_to_train_data(SimpleNamespace(), samples)
    assert data["rollout_ids"] == [1, 1, 0, 2]
    assert data["rollout_mask_sums"] == [4, 4, 1, 0]


def test_what_samples_know_besides_is_passed_on() -> None:
    samples = [sample for group in groups() for sample in group]
    for sample in samples:
        sample.metadata |= {"round_number": 3, "raw_reward": 0.25, "source_name": "math"}
    data = convert_samples_to_train_data(SimpleNamespace(), samples)
    for key, value in (("round_number", 3), ("raw_reward", 0.25), ("source_names", "math")):
        assert data[key] == [value] * 4
    assert not {"multimodal_train_inputs", "teacher_log_probs"} & data.keys()
    samples[1].multimodal_train_inputs = {"pixels": 1}  # type: ignore[attr-defined]
    data = convert_samples_to_train_data(SimpleNamespace(), samples)
    assert data["multimodal_train_inputs"] == [None, {"pixels": 1}, None, None]
