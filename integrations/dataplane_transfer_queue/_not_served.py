"""Names of TransferQueue that have no counterpart here. They can be imported, and refuse to be used, with what to use.

A sampler runs in TransferQueue's controller and chooses rows for `get_meta(mode="fetch")`. Here the server chooses:
rows come in sequence, as with `SequentialSampler`. Groups, shards of ranks and balanced tokens are claims of
`dataplane_client`, which give rows back if their holder dies.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

SERVED = "SequentialSampler"

_CHECKPOINT = "save_checkpoint and load_checkpoint of the module, which keep rows, tags and cursors together"
NOT_SERVED: dict[str, dict[str, str]] = {
    "BatchMeta": {
        "add_fields": "the meta that `put` returns, which has the fields that were put",
        "get_dtypes": "`dtype` of the columns that `get_data` returns",
        "get_shapes": "shapes of the columns that `get_data` returns",
        "samples": "select_samples([i]), which is a meta of one row",
    },
    "TransferQueueClient": {
        "get_production_status": "check_production_status, or get_meta(mode='force_fetch')",
        **{f"{verb}_{what}_checkpoint": _CHECKPOINT for verb in ("load", "save") for what in ("controller", "storage")},
    },
}
"""Members of TransferQueue's classes that are not here, nor their `async_` twins, and what to use instead.
Metas name rows and fields only: types and shapes are those of the values, and the server keeps no state for each value.
"""


class BaseSampler(ABC):
    """What samplers derive from."""

    @abstractmethod
    def sample(
        self, ready_indexes: list[int], batch_size: int, *args: Any, **kwargs: Any
    ) -> tuple[list[int], list[int]]:
        """The rows to get, and those to count as consumed."""


class SequentialSampler(BaseSampler):
    """Rows in sequence, each once: what the server does. To be named in a configuration."""

    def sample(
        self, ready_indexes: list[int], batch_size: int, *args: Any, **kwargs: Any
    ) -> tuple[list[int], list[int]]:
        """The first ready rows; none if there are fewer than asked for."""
        chosen = ready_indexes[:batch_size] if len(ready_indexes) >= batch_size else []
        return chosen, list(chosen)


class GRPOGroupNSampler(SequentialSampler):
    """Not served: NotImplementedError."""

    def __init__(self, n_samples_per_prompt: int = 1) -> None:
        raise refusal("GRPOGroupNSampler", "put the samples of a prompt with reserve_group, claim(whole_groups=True)")


class RankAwareSampler(SequentialSampler):
    """Not served: NotImplementedError."""

    def __init__(self) -> None:
        raise refusal("RankAwareSampler", "claim_shard(step=..., dp_rank=...), which all ranks of a shard may call")


class SeqlenBalancedSampler(GRPOGroupNSampler):
    """Not served: NotImplementedError."""

    def __init__(self, n_samples_per_prompt: int = 1, dp_size: int = 1) -> None:
        raise refusal("SeqlenBalancedSampler", "claim_shard(balance='tokens', whole_groups=True)")


class StreamingDataset:
    """Not served: NotImplementedError."""

    def __init__(
        self,
        config: Any,
        batch_size: int,
        micro_batch_size: int,
        data_fields: list[str],
        partition_id: str,
        task_name: str,
        dp_rank: int,
        should_check_consumption_status: bool = False,
        fetch_batch_fn: Any = None,
        process_batch_fn: Any = None,
    ) -> None:
        raise refusal("StreamingDataset", "dataplane_client.loader.ClaimLoader")


class StreamingDataLoader:
    """Not served: NotImplementedError."""

    def __init__(self, dataset: Any, *args: Any, **kwargs: Any) -> None:
        raise refusal("StreamingDataLoader", "dataplane_client.loader.ClaimLoader")


def absent_member(owner: str, name: str) -> AttributeError:
    """The error for a member that a class does not have."""
    message = f"{owner!r} object has no attribute {name!r}"
    if instead := NOT_SERVED[owner].get(name.removeprefix("async_")):
        message += f": RL Data Plane does not serve TransferQueue's; use {instead}"
    return AttributeError(message)


def refusal(name: str, instead: str) -> NotImplementedError:
    return NotImplementedError(
        f"{name} is TransferQueue's, and RL Data Plane does not serve it; use {instead} (docs/adopting/own-loop.md)"
    )


def sampler_name(configured: object) -> str:
    """The name of a configured sampler, which may be a name, a class or an object; SERVED for none."""
    if isinstance(configured, str) or configured is None:
        return configured or SERVED
    return configured.__name__ if isinstance(configured, type) else type(configured).__name__


def check_sampler(name: str) -> None:
    """ValueError for a sampler that the server does not take the place of."""
    if name != SERVED:
        message = f"get_meta: controller.sampler is {name!r}, and RL Data Plane serves {SERVED} only: it would return"
        raise ValueError(f"{message} other rows; use the claims of dataplane_client (docs/adopting/own-loop.md)")
