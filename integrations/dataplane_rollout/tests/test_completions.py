"""Recorded responses of OpenAI's protocol, as dicts and as objects, are a hand-made batch."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from dataplane_client.errors import InvalidArgumentError
from dataplane_rollout import from_completions
from dataplane_rollout.tests.recordings import as_objects, assert_rows

SEVEN = {
    "text_offset": [0, 6],
    "token_logprobs": [-0.5, -0.25],
    "tokens": [" seven", "</s>"],
    "top_logprobs": [{" seven": -0.5}, {"</s>": -0.25}],
}
EIGHT = {"text_offset": [0], "token_logprobs": [-2.0], "tokens": [" eight"], "top_logprobs": [{}]}
STOPPED = {"index": 0, "finish_reason": "stop", "token_ids": [7, 2]}
COMPLETION: dict[str, Any] = {
    "id": "cmpl-1",
    "object": "text_completion",
    "model": "m",
    "choices": [
        {**STOPPED, "text": " seven", "logprobs": SEVEN, "stop_reason": None, "prompt_token_ids": [4, 5, 6]},
        {"index": 1, "text": " eight", "logprobs": EIGHT, "finish_reason": "length", "stop_reason": None}
        | {"token_ids": [8], "prompt_token_ids": [4, 5, 6]},
    ],
    "usage": {"prompt_tokens": 3, "total_tokens": 6, "completion_tokens": 3, "prompt_tokens_details": None},
}


def said(*tokens: tuple[str, float]) -> dict[str, Any]:
    return {"content": [{"token": token, "logprob": lp, "bytes": [32], "top_logprobs": []} for token, lp in tokens]}


CALL = {"role": "assistant", "content": None, "tool_calls": [{"id": "call-1", "type": "function"}]}
CHAT: dict[str, Any] = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "model": "m",
    "prompt_token_ids": [4, 5, 6],
    "choices": [
        {**STOPPED, "message": {"role": "assistant", "content": " seven", "tool_calls": []}, "stop_reason": 2}
        | {"logprobs": said((" seven", -0.5), ("</s>", -0.25))},
        {"index": 1, "message": CALL, "finish_reason": "tool_calls", "stop_reason": None, "token_ids": [8]}
        | {"logprobs": said((" eight", -2.0))},
    ],
    "usage": {"prompt_tokens": 3, "prompt_tokens_details": {"cached_tokens": 2}},
}
COLUMNS: dict[str, list[Any]] = {
    "input_ids": [[4, 5, 6, 7, 2], [4, 5, 6, 8]],
    "token_mask": [[False, False, False, True, True], [False, False, False, True]],
    "generation_logprobs": [[0, 0, 0, -0.5, -0.25], [0, 0, 0, -2.0]],
    "input_lengths": [5, 4],
    "sample_mask": [1, 1],
    "response": [" seven", " eight"],
}
TAGS: list[dict[str, Any]] = [
    {"finish_reason": "stop", "request_id": "cmpl-1"},
    {"finish_reason": "length", "request_id": "cmpl-1"},
]
CHAT_TAGS: list[dict[str, Any]] = [
    {"finish_reason": "stop", "stop_reason": 2, "request_id": "chatcmpl-1", "cached_tokens": 2},
    {"finish_reason": "tool_calls", "request_id": "chatcmpl-1", "cached_tokens": 2},
]
Kind = Callable[[Any], Any]


@pytest.mark.parametrize("kind", [dict, as_objects])
def test_one_response_without_a_list_is_refused_in_words(kind: Kind) -> None:
    with pytest.raises(InvalidArgumentError, match=r"takes a list of responses, got one: write \[response\]"):
        from_completions(kind(COMPLETION))


@pytest.fixture(params=[copy.deepcopy, as_objects], ids=["dicts", "objects"])
def kind(request: pytest.FixtureRequest) -> Kind:
    chosen: Kind = request.param
    return chosen


def test_completions_are_a_hand_made_batch(kind: Kind) -> None:
    assert_rows(from_completions([kind(COMPLETION)]), ["cmpl-1_g0", "cmpl-1_g1"], COLUMNS, TAGS)


def test_chat_completions_are_a_hand_made_batch(kind: Kind) -> None:
    columns = {**COLUMNS, "response": [" seven", ""]}
    assert_rows(from_completions([kind(CHAT)], group_ids=["p7"]), ["p7_g0", "p7_g1"], columns, CHAT_TAGS)


@pytest.mark.parametrize("response", [COMPLETION, CHAT], ids=["completion", "chat"])
def test_tokens_may_be_told_as_ids_and_prompts_beside_the_response(kind: Kind, response: dict[str, Any]) -> None:
    told = copy.deepcopy(response)
    told.pop("prompt_token_ids", None)
    for choice, tokens in zip(told["choices"], [["token_id:7", "token_id:2"], ["token_id:8"]], strict=True):
        choice.pop("prompt_token_ids", None)
        choice["token_ids"] = None
        if "content" in choice["logprobs"]:
            choice["logprobs"]["content"] = [
                {**entry, "token": token} for entry, token in zip(choice["logprobs"]["content"], tokens, strict=True)
            ]
        else:
            choice["logprobs"]["tokens"] = tokens
    rows = from_completions([kind(told)], group_ids=["p7"], prompt_ids=[[4, 5, 6]])
    assert_rows(rows, ["p7_g0", "p7_g1"], {**COLUMNS, "response": list(rows.columns["response"])})


def test_without_logprobs_there_is_no_column_of_them(kind: Kind) -> None:
    silent = copy.deepcopy(CHAT)
    for choice in silent["choices"]:
        choice["logprobs"] = None
    rows = from_completions([kind(silent)], logprobs=False)
    assert rows.columns.keys() == COLUMNS.keys() - {"generation_logprobs"}
    assert [ids.tolist() for ids in rows.columns["input_ids"]] == COLUMNS["input_ids"]


def changed(**choice: Any) -> dict[str, Any]:
    """The completion with another first choice."""
    response = copy.deepcopy(COMPLETION)
    response["choices"][0] |= choice
    return response


TOKENS = COMPLETION["choices"][0]["logprobs"]


@pytest.mark.parametrize(
    ("response", "message"),
    [
        (
            changed(token_ids=None),
            "completion 'cmpl-1', choice 0 has no token ids; ask the server for it (vLLM: return_",
        ),
        (changed(token_ids=None, logprobs={**TOKENS, "tokens": ["token_id:7", "</s>"]}), "has no token ids"),
        (changed(token_ids=None, logprobs={**TOKENS, "tokens": ["token_id:7", "token_id:x"]}), "has no token ids"),
        (changed(token_ids=None, logprobs={**TOKENS, "tokens": [None, None]}), "has no token ids"),
        (changed(logprobs=None), "choice 0 has no logprobs; ask the generator for them, or pass logprobs=False"),
        (changed(logprobs={**TOKENS, "token_logprobs": [-0.5]}), "choice 0 has 1 logprobs for 2 tokens"),
        (changed(logprobs={**TOKENS, "token_logprobs": [-0.5, None]}), "choice 0: logprobs must be a list of numbers"),
        (changed(prompt_token_ids=[1]), "completion 'cmpl-1' is of 2 prompts; request one each"),
        (
            {"id": "c", "choices": [{"index": 0, "token_ids": [1]}]},
            "'c', choice 0: the response has no prompt_token_ids",
        ),
        ({"id": "c", "object": "error"}, "completion 'c' has no choices, but is"),
        ({"choices": []}, "responses 0: the group id must be a text, got None; give group_ids"),
    ],
)
def test_what_is_incomplete_is_refused(kind: Kind, response: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgumentError) as refused:
        from_completions([kind(response)])
    assert message in str(refused.value)
    with pytest.raises(InvalidArgumentError, match="2 prompt_ids for 1 responses; give one for each"):
        from_completions([COMPLETION], prompt_ids=[[1], [2]])
