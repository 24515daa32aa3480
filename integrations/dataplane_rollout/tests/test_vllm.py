"""A recording of vLLM's outputs is a hand-made batch; what is incomplete is refused by request, output and rule."""

from __future__ import annotations

from array import array
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dataplane_client.errors import InvalidArgumentError
from dataplane_rollout import from_vllm
from dataplane_rollout.tests.recordings import CompletionOutput, FlatLogprobs, Logprob, RequestOutput, assert_rows

DICTS = [{7: Logprob(-0.5, 1), 9: Logprob(-1.5, 2)}, {2: Logprob(-0.25, 3), 5: Logprob(-0.125, 1)}]
FLAT = FlatLogprobs([0, 2], [2, 4], [7, 9, 2, 5], [-0.5, -1.5, -0.25, -0.125], [1, 2, 3, 1], [None] * 4)
FIRST = CompletionOutput(0, "seven", [7, 2], logprobs=DICTS, finish_reason="stop", stop_reason=2)
SECOND = CompletionOutput(1, "eight", array("l", [8]), logprobs=[{8: Logprob(-2.0)}], finish_reason="length")
REQUESTS = [
    RequestOutput("12", "a b c", [4, 5, 6], [FIRST, SECOND], num_cached_tokens=2),
    RequestOutput("13", "d", [3], [replace(SECOND, index=0, text="", token_ids=(), logprobs=[], stop_reason="END")]),
]
COLUMNS: dict[str, list[Any]] = {
    "input_ids": [[4, 5, 6, 7, 2], [4, 5, 6, 8], [3]],
    "token_mask": [[False, False, False, True, True], [False, False, False, True], [False]],
    "generation_logprobs": [[0, 0, 0, -0.5, -0.25], [0, 0, 0, -2.0], [0]],
    "input_lengths": [5, 4, 1],
    "sample_mask": [1, 1, 1],
    "response": ["seven", "eight", ""],
}
TAGS: list[dict[str, Any]] = [
    {"finish_reason": "stop", "stop_reason": 2, "request_id": "12", "cached_tokens": 2},
    {"finish_reason": "length", "request_id": "12", "cached_tokens": 2},
    {"finish_reason": "length", "stop_reason": "END", "request_id": "13"},
]


@pytest.mark.parametrize("logprobs", [DICTS, FLAT, [-0.5, -0.25]], ids=["dicts", "flat", "numbers"])
def test_requests_are_a_hand_made_batch(logprobs: Any) -> None:
    first = replace(REQUESTS[0], outputs=[replace(FIRST, logprobs=logprobs), SECOND])
    assert_rows(from_vllm([first, REQUESTS[1]]), ["12_g0", "12_g1", "13_g0"], COLUMNS, TAGS)


def test_groups_have_the_names_that_are_given() -> None:
    assert_rows(from_vllm(REQUESTS, group_ids=["p7", "p8"]), ["p7_g0", "p7_g1", "p8_g0"], COLUMNS, TAGS)
    assert from_vllm(REQUESTS, group_ids=["p7", "p7"]).sample_ids == ["p7_g0", "p7_g1", "p7_g2"]
    with pytest.raises(InvalidArgumentError, match="1 group_ids for 2 requests; give one for each"):
        from_vllm(REQUESTS, group_ids=["p7"])


def test_without_logprobs_there_is_no_column_of_them() -> None:
    rows = from_vllm([replace(REQUESTS[0], outputs=[replace(FIRST, logprobs=None)])], logprobs=False)
    assert rows.columns.keys() == COLUMNS.keys() - {"generation_logprobs"}


EXPERTS = np.arange(5 * 2 * 3, dtype=np.int16).reshape(5, 2, 3)
WITHOUT_THE_LAST = np.concatenate([EXPERTS[:4], np.zeros((1, 2, 3), np.int16)])


@pytest.mark.parametrize(
    ("prompt", "own", "expected"),
    [
        (None, EXPERTS, EXPERTS),
        (None, EXPERTS[:4], WITHOUT_THE_LAST),
        (EXPERTS[:3], EXPERTS[3:], EXPERTS),
        (EXPERTS[:3], EXPERTS[3:4], WITHOUT_THE_LAST),
    ],
    ids=["of all tokens", "without the last", "in two parts", "in two parts without the last"],
)
def test_routed_experts_have_an_entry_for_each_token(prompt: Any, own: Any, expected: Any) -> None:
    request = replace(REQUESTS[0], outputs=[replace(FIRST, routed_experts=own)])
    request.prompt_routed_experts = prompt  # type: ignore[attr-defined]  # only some versions have it
    (experts,) = from_vllm([request]).columns["routed_experts"]
    assert experts.dtype == np.int16
    assert np.array_equal(experts, expected)


@pytest.mark.parametrize(
    ("request_change", "output_change", "message"),
    [
        ({}, {"logprobs": None}, "vLLM request '12', output 0 has no logprobs; ask the generator for them, or pass"),
        ({}, {"logprobs": DICTS[:1]}, "vLLM request '12', output 0 has 1 logprobs for 2 tokens"),
        ({}, {"token_ids": [7, 3]}, "output 0: position 1 has no logprob of its token 3"),
        ({}, {"logprobs": [-0.5, float("nan")]}, "output 0: logprobs: entry 1 is nan; it must be a finite float32"),
        ({}, {"token_ids": [7.5, 2], "logprobs": [-0.5, -1]}, "output 0: token ids must be a list of integers"),
        ({}, {"routed_experts": EXPERTS[:3]}, "has routed experts of 3 tokens, but 5 tokens"),
        ({"prompt_token_ids": None}, {}, "vLLM request '12' has no prompt_token_ids"),
        ({"prompt_token_ids": [[1], [2, 3]]}, {}, "token ids must be a list of integers, got [[1], [2, 3]]"),
        ({"finished": False}, {}, "vLLM request '12' is not finished"),
        ({"request_id": ""}, {}, "requests 0: the group id must be a text, got ''"),
    ],
)
def test_what_is_incomplete_is_refused(
    request_change: dict[str, Any], output_change: dict[str, Any], message: str
) -> None:
    request = replace(REQUESTS[0], outputs=[replace(FIRST, **output_change)], **request_change)
    with pytest.raises(InvalidArgumentError) as refused:
        from_vllm([request])
    assert message in str(refused.value)
    with pytest.raises(InvalidArgumentError, match="'12', output 1 has no routed_experts, but vLLM request '12', out"):
        from_vllm([replace(REQUESTS[0], outputs=[replace(FIRST, routed_experts=EXPERTS), SECOND])])
