"""A recorded conversation with a tool is a hand-made row: only what the model sampled is trained on."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from dataplane_client.errors import InvalidArgumentError
from dataplane_rollout import from_message_logs
from dataplane_rollout.tests.recordings import assert_rows

LOG: list[dict[str, Any]] = [
    {"role": "system", "content": "be brief", "token_ids": [1, 2]},
    {"role": "user", "content": "3 * 4?", "token_ids": [3, 4, 5]},
    {"role": "assistant", "content": "calc(3*4)", "token_ids": [6, 7], "generation_logprobs": [-0.5, -1.5]},
    {"role": "tool", "content": "12", "token_ids": [8], "generation_logprobs": [-9.0]},
    {"role": "assistant", "content": "12", "token_ids": [9, 2], "logprobs": [-0.25, -0.125]},
    {"role": "environment", "content": "", "token_ids": []},
]
COLUMNS: dict[str, list[Any]] = {
    "input_ids": [[1, 2, 3, 4, 5, 6, 7, 8, 9, 2], [3]],
    "token_mask": [[False] * 5 + [True, True, False, True, True], [False]],
    "generation_logprobs": [[0, 0, 0, 0, 0, -0.5, -1.5, 0, -0.25, -0.125], [0]],
    "turn_lengths": [[2, 3, 2, 1, 2, 0], [1]],
    "input_lengths": [10, 1],
    "sample_mask": [1, 1],
}
SHORT = [{"role": "user", "content": "?", "token_ids": [3]}]


def as_tensors(message: dict[str, Any]) -> dict[str, Any]:
    def tensor(name: str, value: Any) -> Any:
        dtype = torch.int64 if name == "token_ids" else torch.bfloat16
        return torch.tensor(value, dtype=dtype) if isinstance(value, list) else value

    return {name: tensor(name, value) for name, value in message.items()}


@pytest.mark.parametrize("log", [LOG, list(map(as_tensors, LOG))], ids=["lists", "tensors"])
def test_message_logs_are_a_hand_made_batch(log: list[dict[str, Any]]) -> None:
    assert_rows(from_message_logs([log, SHORT], group_ids=["p", "p"]), ["p_g0", "p_g1"], COLUMNS, [{}, {}])


def test_without_logprobs_there_is_no_column_of_them() -> None:
    silent = [{name: value for name, value in message.items() if "logprobs" not in name} for message in LOG]
    rows = from_message_logs([silent, SHORT], group_ids=["p", "q"], logprobs=False)
    expected = {name: column for name, column in COLUMNS.items() if name != "generation_logprobs"}
    assert_rows(rows, ["p_g0", "q_g0"], expected)


@pytest.mark.parametrize(
    ("message", "refusal"),
    [
        ({"role": "assistant", "token_ids": [1]}, "message log 1 ('q'), message 0 of role 'assistant' has no logprobs"),
        ({"role": "assistant", "token_ids": [1], "logprobs": []}, "of role 'assistant' has 0 logprobs for 1 tokens"),
        ({"role": "tool", "content": "12"}, "of role 'tool': token ids must be a list of integers, got None"),
        ({"role": "user", "token_ids": "12"}, "of role 'user': token ids must be a list of integers, got '12'"),
        (None, "message log 1 ('q') has no messages"),
    ],
)
def test_what_is_incomplete_is_refused(message: dict[str, Any] | None, refusal: str) -> None:
    with pytest.raises(InvalidArgumentError) as refused:
        from_message_logs([LOG, [] if message is None else [message]], group_ids=["p", "q"])
    assert refusal in str(refused.value)
