"""vLLM's `RequestOutput`s, as `LLM.generate` returns and `AsyncLLM.generate` yields them: a request is a group.

What is read of a request: request_id, prompt_token_ids, outputs, finished, num_cached_tokens, prompt_routed_experts. Of
each output: token_ids, logprobs, text, finish_reason, stop_reason, routed_experts. `logprobs` has an entry for each
token: a dict from token ids to `Logprob`s, in a list or a `FlatLogprobs`, or a number. The last sampled token was never
an input of the model, so its experts may be missing; they are 0 then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dataplane_client.errors import InvalidArgumentError
from dataplane_rollout._rows import Array, Rollout, RolloutRows, Segment, collect, make_rollout, names_of


def from_vllm(requests: Sequence[Any], *, group_ids: Sequence[str] | None = None, logprobs: bool = True) -> RolloutRows:
    """The rows of finished requests, which have n outputs each.

    group_ids: one for each request; by default their request_ids, which an engine that starts again uses again.
    logprobs: whether rows must have them; sample with SamplingParams(logprobs=0) or more. Raises InvalidArgumentError
    that names the request, the output and the rule.
    """
    names = names_of("requests", group_ids, [request.request_id for request in requests])
    return collect(
        [
            _rollout(request, output, name, logprobs=logprobs)
            for request, name in zip(requests, names, strict=True)
            for output in _outputs(request)
        ]
    )


def _outputs(request: Any) -> list[Any]:
    if not getattr(request, "finished", True):
        raise InvalidArgumentError(f"vLLM request {request.request_id!r} is not finished; convert its last output")
    if request.prompt_token_ids is None:
        raise InvalidArgumentError(f"vLLM request {request.request_id!r} has no prompt_token_ids")
    return list(request.outputs)


def _rollout(request: Any, output: Any, group_id: str, *, logprobs: bool) -> Rollout:
    where = f"vLLM request {request.request_id!r}, output {output.index}"
    prompt, sampled = request.prompt_token_ids, output.token_ids
    chosen = _chosen(where, sampled, output.logprobs) if logprobs else None
    return make_rollout(
        where,
        group_id,
        [Segment(prompt), Segment(sampled, True, chosen)],
        logprobs=logprobs,
        columns={
            "response": output.text,
            "routed_experts": _experts(where, request, output, len(prompt) + len(sampled)),
        },
        tags={
            "finish_reason": output.finish_reason,
            "stop_reason": output.stop_reason,
            "request_id": request.request_id,
            "cached_tokens": getattr(request, "num_cached_tokens", None),
        },
    )


def _chosen(where: str, token_ids: Sequence[int], logprobs: Sequence[Any] | None) -> list[float] | None:
    """The logprob of each token; there may be those of other likely tokens beside it."""
    if logprobs is None:
        return None
    if len(logprobs) != len(token_ids):
        raise InvalidArgumentError(f"{where} has {len(logprobs)} logprobs for {len(token_ids)} tokens")
    chosen = []
    for position, (token, entry) in enumerate(zip(token_ids, logprobs, strict=True)):
        of_token: Any = entry.get(token) if isinstance(entry, Mapping) else entry
        if of_token is None:
            raise InvalidArgumentError(f"{where}: position {position} has no logprob of its token {token}")
        chosen.append(float(getattr(of_token, "logprob", of_token)))
    return chosen


def _experts(where: str, request: Any, output: Any, tokens: int) -> Array | None:
    """(tokens, layers, top_k): vLLM tells those of the prompt with the output's, or once for all outputs."""
    own = getattr(output, "routed_experts", None)
    if own is None:
        return None
    of_prompt = getattr(request, "prompt_routed_experts", None)
    experts = np.asarray(own) if of_prompt is None else np.concatenate([of_prompt, own])
    if len(experts) == tokens - 1:
        experts = np.concatenate([experts, np.zeros_like(experts[:1])])
    if len(experts) != tokens:
        raise InvalidArgumentError(f"{where} has routed experts of {len(experts)} tokens, but {tokens} tokens")
    return experts
