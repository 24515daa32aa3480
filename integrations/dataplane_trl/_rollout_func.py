"""TRL's synchronous `rollout_func`: its prompts are rows that generators in other processes claim and answer.

The rank puts one row a prompt, and waits until all of them have their completions. A generator that dies gives its
prompts back, and another one answers them. The rows of a call are removed at its end, however it ends, and those of a
rank that was killed when it begins anew.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Any, Final

import numpy as np
import torch

from dataplane_client.client import DataPlaneClient, connect
from dataplane_client.codec import object_array
from dataplane_client.errors import ClaimTimeoutError, InvalidArgumentError, NotFoundError
from dataplane_common.number_array import number_array

_COMPLETION: Final[dict[str, type[np.generic]]] = {
    "prompt_ids": np.int32,
    "completion_ids": np.int32,
    "logprobs": np.float32,
}
_GENERATE: Final = "generate"
_COLLECT: Final = "collect"


def register_prompts(client: DataPlaneClient, partition: str = "prompts", extra_fields: Sequence[str] = ()) -> None:
    """Create the partition of prompts if it is not there. Generators and ranks may all call it."""
    client.register_partition(partition, ["prompt", *_COMPLETION, *extra_fields], 0, [_GENERATE, _COLLECT])


class RolloutFunc:
    """A `rollout_func` for GRPOTrainer, one in each rank.

    address, connection: as for `connect`, at the first call. partition: of one run. extra_fields: further columns that
    generators return, such as `env_mask`, or values for reward functions. timeout_s: how long a call waits for all
    completions.
    """

    def __init__(
        self,
        address: str | None = None,
        *,
        partition: str = "prompts",
        extra_fields: Sequence[str] = (),
        timeout_s: float = 600.0,
        **connection: Any,
    ) -> None:
        self._address, self._connection = address, connection
        self._partition, self._extra_fields, self._timeout_s = partition, list(extra_fields), timeout_s
        self._client: DataPlaneClient | None = None
        self._calls = count()

    def __call__(self, prompts: Sequence[Any], trainer: Any) -> dict[str, list[Any]]:
        """Returns `prompt_ids` and `completion_ids` (lists of token ids), `logprobs` (lists of floats) and the extra
        fields, with one entry for each prompt, in their order. TRL repeats a prompt for each of its completions.

        prompts: text or messages; a generator gets them as they are, and the trainer's step as the rows' weight
        version. Blocks until all completions are there; after timeout_s raises ClaimTimeoutError, which says what is
        missing.
        """
        rank = {"rank": int(trainer.accelerator.process_index)}
        client = self._connected(rank)
        call = {**rank, "call": next(self._calls)}
        ids = [f"rank {call['rank']}, call {call['call']}, {place}" for place in range(len(prompts))]
        column = object_array("prompt", prompts, len(prompts))
        tags = [{**call, "weight_version": int(trainer.state.global_step)}] * len(ids)
        try:
            client.put_samples(ids, self._partition, {"prompt": column}, tags)
            return self._collect(client, ids, call)
        finally:
            client.clear_samples(ids, self._partition)

    def close(self) -> None:
        """Disconnect. May be called again; a later call connects anew."""
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def _connected(self, rank: Mapping[str, int]) -> DataPlaneClient:
        if self._client is None:
            with contextlib.ExitStack() as unless_ready:
                client = unless_ready.enter_context(connect(self._address, **self._connection))
                register_prompts(client, self._partition, self._extra_fields)
                client.clear_samples(None, self._partition, where=rank)
                unless_ready.pop_all()
            self._client = client
        return self._client

    def _collect(self, client: DataPlaneClient, ids: list[str], call: Mapping[str, int]) -> dict[str, list[Any]]:
        fields = [*_COMPLETION, *self._extra_fields]
        many, where = len(ids), dict(call)
        with client.claim(self._partition, _COLLECT, fields, many, where=where, timeout_s=self._timeout_s) as claim:
            batch = client.read_columns(claim.meta, fields, layout="jagged")
            row_of = {sample_id: row for row, sample_id in enumerate(claim.meta.sample_ids)}
            columns = {name: _entries(batch[name]) for name in fields}
        return {name: [column[row_of[sample_id]] for sample_id in ids] for name, column in columns.items()}


def _entries(column: Any) -> list[Any]:
    """The rows of a column as Python's values."""
    if isinstance(column, torch.Tensor):
        return [row.tolist() for row in column.unbind()]
    return list(column)


def answer_prompts(
    client: DataPlaneClient,
    generate: Callable[[list[Any], list[int]], Mapping[str, Any]],
    *,
    partition: str = "prompts",
    batch_size: int = 16,
    timeout_s: float = 60.0,
) -> int:
    """Answer up to batch_size prompts, which generators call in a loop. Returns how many; 0 if none came in timeout_s
    seconds, or if their trainer gave them up meanwhile.

    generate(prompts, steps): the columns `prompt_ids`, `completion_ids`, `logprobs` and the extra fields, one entry for
    each prompt; steps: of the trainer that asked. If it raises, the prompts go back, to be answered by another call.
    """
    try:
        claim = client.claim(partition, _GENERATE, ["prompt"], batch_size, min_size=1, timeout_s=timeout_s)
    except ClaimTimeoutError:
        return 0
    try:
        with claim:
            prompts = list(client.read_columns(claim.meta, ["prompt"])["prompt"])
            columns = dict(generate(prompts, [int(tags["weight_version"] or 0) for tags in claim.tags]))
            for name, dtype in _COMPLETION.items():
                kinds = "fiu" if dtype is np.float32 else "iu"
                if (found := len(columns.get(name, ()))) != len(prompts):
                    raise InvalidArgumentError(f"generate returned {found} {name} for {len(prompts)} prompts")
                rows = enumerate(columns[name])
                columns[name] = [number_array(f"{name} of prompt {row}", ids, kinds, dtype) for row, ids in rows]
            for row, (ids, values) in enumerate(zip(columns["completion_ids"], columns["logprobs"], strict=True)):
                if len(ids) != len(values):
                    raise InvalidArgumentError(f"prompt {row}: {len(values)} logprobs for {len(ids)} completion_ids")
            claim.commit(columns)
    except NotFoundError:
        return 0
    return len(prompts)
