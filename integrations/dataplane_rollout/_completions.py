"""Completions and chat completions of servers that speak OpenAI's protocol, as dicts or as objects of its client.

A response is a group, a choice a row. The token ids of a choice are its `token_ids` (vLLM: `return_token_ids`), or the
numbers in tokens such as "token_id:123" (vLLM: `return_tokens_as_token_ids`). Those of the prompt are
`prompt_token_ids` of the choice or of the response, or given beside it. Logprobs are `logprobs.token_logprobs` of a
completion, and the `logprob`s of `logprobs.content` of a chat completion.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dataplane_client.errors import InvalidArgumentError
from dataplane_rollout._rows import Rollout, RolloutRows, Segment, collect, make_rollout, names_of

_PREFIX = "token_id:"


def from_completions(
    responses: Sequence[Any],
    *,
    group_ids: Sequence[str] | None = None,
    prompt_ids: Sequence[Sequence[int]] | None = None,
    logprobs: bool = True,
) -> RolloutRows:
    """The rows of responses to requests of one prompt each.

    group_ids: one for each response; by default their ids. prompt_ids: the token ids of each prompt, for servers that
    do not return them. logprobs: whether rows must have them. Raises InvalidArgumentError that names the response, the
    choice and the rule, also for a choice without token ids.
    """
    if _get(responses, "choices") is not None:
        raise InvalidArgumentError("from_completions takes a list of responses, got one: write [response]")
    names = names_of("responses", group_ids, [_get(response, "id") for response in responses])
    if prompt_ids is not None and len(prompt_ids) != len(responses):
        raise InvalidArgumentError(f"{len(prompt_ids)} prompt_ids for {len(responses)} responses; give one for each")
    rollouts: list[Rollout] = []
    for number, response in enumerate(responses):
        prompt = None if prompt_ids is None else prompt_ids[number]
        name = names[number]
        rollouts += [_rollout(response, choice, name, prompt, logprobs=logprobs) for choice in _choices(response)]
    return collect(rollouts)


def _rollout(response: Any, choice: Any, group_id: str, prompt: Sequence[int] | None, *, logprobs: bool) -> Rollout:
    where = f"completion {_get(response, 'id')!r}, choice {_get(choice, 'index')}"
    told = _prompt(response, choice)
    prompt = prompt if told is None else told
    if prompt is None:
        raise InvalidArgumentError(f"{where}: the response has no prompt_token_ids; {_ADVICE}, or give prompt_ids")
    message = _get(choice, "message")
    tokens, values = _told(_get(choice, "logprobs"))
    return make_rollout(
        where,
        group_id,
        [Segment(prompt), Segment(_sampled(where, choice, tokens), True, values)],
        logprobs=logprobs,
        columns={"response": _get(choice, "text") if message is None else _get(message, "content") or ""},
        tags={
            "finish_reason": _get(choice, "finish_reason"),
            "stop_reason": _get(choice, "stop_reason"),
            "request_id": _get(response, "id"),
            "cached_tokens": _get(_get(_get(response, "usage"), "prompt_tokens_details"), "cached_tokens"),
        },
    )


_ADVICE = "ask the server for it (vLLM: return_token_ids=True)"


def _prompt(response: Any, choice: Any) -> Sequence[int] | None:
    own: Sequence[int] | None = _get(choice, "prompt_token_ids")
    return own if own is not None else _get(response, "prompt_token_ids")


def _told(logprobs: Any) -> tuple[list[str], list[float] | None]:
    """The tokens of a choice as text, and their logprobs."""
    content = _get(logprobs, "content")
    if content is not None:
        return [str(_get(entry, "token")) for entry in content], [_get(entry, "logprob") for entry in content]
    return list(map(str, _get(logprobs, "tokens") or ())), _get(logprobs, "token_logprobs")


def _sampled(where: str, choice: Any, tokens: list[str]) -> Sequence[int]:
    """The token ids of a choice."""
    own: Sequence[int] | None = _get(choice, "token_ids")
    if own is not None:
        return own
    numbers = [token.removeprefix(_PREFIX) for token in tokens if token.startswith(_PREFIX)]
    if not tokens or len(numbers) < len(tokens) or not all(map(str.isdecimal, numbers)):
        raise InvalidArgumentError(
            f"{where} has no token ids; {_ADVICE}. Its text cannot take their place: tokenized again, it may give "
            "other tokens than those that were sampled"
        )
    return list(map(int, numbers))


def _choices(response: Any) -> list[Any]:
    """Those of one prompt; the choices of several do not belong together."""
    choices = _get(response, "choices")
    if not choices or not isinstance(choices, (list, tuple)):
        raise InvalidArgumentError(f"completion {_get(response, 'id')!r} has no choices, but is {response!r:.200}")
    prompts = {repr(_prompt(response, choice)) for choice in choices}
    if len(prompts) > 1:
        raise InvalidArgumentError(
            f"completion {_get(response, 'id')!r} is of {len(prompts)} prompts; request one each"
        )
    return list(choices)


def _get(owner: Any, name: str) -> Any:
    """An entry of a dict or an attribute; None if there is none."""
    return owner.get(name) if isinstance(owner, Mapping) else getattr(owner, name, None)
