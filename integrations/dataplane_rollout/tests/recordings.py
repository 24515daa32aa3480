"""What generators return, recorded by hand in the shapes that they document, and how batches are compared."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np

from dataplane_rollout import RolloutRows


@dataclass
class Logprob:
    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


@dataclass
class FlatLogprobs(Sequence[dict[int, Logprob]]):
    """The logprobs of all positions in flat lists; a position is a dict when it is asked for."""

    start_indices: list[int] = field(default_factory=list)
    end_indices: list[int] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    ranks: list[int | None] = field(default_factory=list)
    decoded_tokens: list[str | None] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.start_indices)

    def __getitem__(self, position: Any) -> Any:
        entries = range(self.start_indices[position], self.end_indices[position])
        return {self.token_ids[at]: Logprob(self.logprobs[at], self.ranks[at]) for at in entries}

    def __iter__(self) -> Iterator[dict[int, Logprob]]:
        return (self[position] for position in range(len(self)))


@dataclass
class CompletionOutput:
    index: int
    text: str
    token_ids: Sequence[int]
    cumulative_logprob: float | None = None
    logprobs: Any = None
    routed_experts: np.ndarray | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    lora_request: None = None


@dataclass
class RequestOutput:
    request_id: str
    prompt: str | None
    prompt_token_ids: list[int] | None
    outputs: list[CompletionOutput]
    finished: bool = True
    prompt_logprobs: None = None
    num_cached_tokens: int | None = None


def as_objects(value: Any) -> Any:
    """A decoded response as a client's object: attributes in place of keys."""
    if isinstance(value, dict):
        return SimpleNamespace(**{key: as_objects(entry) for key, entry in value.items()})
    return [as_objects(entry) for entry in value] if isinstance(value, list) else value


def assert_rows(
    rows: RolloutRows, ids: list[str], columns: dict[str, list[Any]], tags: list[dict[str, Any]] | None = None
) -> None:
    """The rows are these, column by column, token by token, in the element types of the trainer."""
    assert rows.sample_ids == ids
    assert rows.group_ids == [name.rpartition("_g")[0] for name in ids]
    assert {name: [_plain(value) for value in column] for name, column in rows.columns.items()} == columns
    dtypes = {"input_ids": np.int64, "token_mask": np.bool_, "generation_logprobs": np.float32}
    for name in dtypes.keys() & rows.columns.keys():
        assert {value.dtype for value in rows.columns[name]} == {np.dtype(dtypes[name])}
    if tags is not None:
        assert rows.tags == tags


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value
