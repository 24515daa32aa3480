"""Message logs: conversations with tools and environments, as lists of messages with their tokens.

A message is a mapping with `role`, `token_ids` (a list or tensor), and, if the model sampled it, `generation_logprobs`
or `logprobs`. Only the tokens of the role "assistant" are trained on: those of tools, users and templates are not the
model's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dataplane_client.errors import InvalidArgumentError
from dataplane_rollout._rows import Rollout, RolloutRows, Segment, collect, make_rollout, names_of


def from_message_logs(
    logs: Sequence[Sequence[Mapping[str, Any]]], *, group_ids: Sequence[str], logprobs: bool = True
) -> RolloutRows:
    """A row of each message log, with the column turn_lengths: the tokens of each of its messages.

    group_ids: one for each log; those of one prompt are equal. logprobs: whether assistant messages must have them.
    Raises InvalidArgumentError that names the log, the message and the rule.
    """
    names = names_of("message logs", group_ids, [""] * len(logs))
    pairs = enumerate(zip(logs, names, strict=True))
    return collect([_rollout(f"message log {number}", log, name, logprobs=logprobs) for number, (log, name) in pairs])


def _rollout(where: str, log: Sequence[Mapping[str, Any]], group_id: str, *, logprobs: bool) -> Rollout:
    if not log:
        raise InvalidArgumentError(f"{where} ({group_id!r}) has no messages")
    turns = [
        make_rollout(
            f"{where} ({group_id!r}), message {number} of role {message.get('role')!r}",
            group_id,
            [_segment(message)],
            logprobs=logprobs,
        )
        for number, message in enumerate(log)
    ]
    columns = {name: np.concatenate([turn.columns[name] for turn in turns]) for name in turns[0].columns}
    columns["turn_lengths"] = np.array([len(turn.columns["input_ids"]) for turn in turns], np.int64)
    return Rollout(where, group_id, columns, {})


def _segment(message: Mapping[str, Any]) -> Segment:
    sampled = message.get("role") == "assistant"
    values = message.get("generation_logprobs")
    return Segment(message.get("token_ids"), sampled, message.get("logprobs") if values is None else values)
