from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from advantages import EPSILON, group_advantages, spread_over_tokens

_REWARDS = st.lists(st.lists(st.floats(-10, 10, width=32), min_size=4, max_size=4), min_size=1, max_size=4)


@settings(max_examples=50, deadline=None)
@given(rewards=_REWARDS)
def test_advantages_are_rewards_normalised_within_their_own_group(rewards: list[list[float]]) -> None:
    expected = []
    for group in rewards:
        mean = sum(group) / len(group)
        std = (sum((reward - mean) ** 2 for reward in group) / len(group)) ** 0.5
        expected.append([(reward - mean) / (std + EPSILON) for reward in group])
    torch.testing.assert_close(group_advantages(torch.tensor(rewards)), torch.tensor(expected), rtol=1e-3, atol=2e-2)


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_a_group_of_equal_rewards_teaches_nothing(value: float) -> None:
    assert torch.equal(group_advantages(torch.full((2, 8), value)), torch.zeros(2, 8))


@pytest.mark.parametrize("shape", [(4,), (4, 1), (2, 2, 2)], ids=str)
def test_rewards_that_are_not_groups_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="rewards"):
        group_advantages(torch.zeros(shape))


def test_an_advantage_is_spread_over_the_response_tokens_only() -> None:
    mask = torch.tensor([[0, 1, 1, 0], [0, 0, 1, 1]])
    spread = spread_over_tokens(torch.tensor([2.0, -1.0]), mask)
    assert spread.tolist() == [[0.0, 2.0, 2.0, 0.0], [0.0, 0.0, -1.0, -1.0]]
