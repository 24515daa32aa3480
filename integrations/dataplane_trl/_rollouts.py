"""Rollouts as rows: one row a sample, the samples of a prompt a group that becomes visible whole or not at all.

Values come back as TRL expects them: token ids and mask as int64 arrays, log-probabilities as float32, the advantage as
a float without a rounding. Samples of one prompt store it once. The model version of a sample is the row's tag
`weight_version`, by which the server knows how stale it is.
"""

from __future__ import annotations

import hashlib
import math
import threading
import time
import uuid
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from dataclasses import field as defaulted
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from dataplane_client.client import DataPlaneClient, Group
from dataplane_client.codec import object_array
from dataplane_client.errors import InvalidArgumentError
from dataplane_client.records.meta import KVBatchMeta
from dataplane_common.number_array import number_array

_PER_TOKEN: Final[dict[str, type[np.generic]]] = {
    "input_ids": np.int32,
    "completion_mask": np.int8,
    "old_log_probs": np.float32,
}
_NUMBERS: Final = ["advantage", "enqueued_at"]
_OBJECTS: Final = ["prompt", "completion", "metrics"]
FIELDS: Final = [*_PER_TOKEN, *_NUMBERS, *_OBJECTS]
_adding: Final[weakref.WeakKeyDictionary[Group, threading.Lock]] = weakref.WeakKeyDictionary()
"""Of each group, held from the naming of samples until its meta has them."""


@dataclass
class RolloutSample:
    """A sample with the attributes of TRL's own class of this name; either can be put, this one is handed out.

    input_ids, completion_mask, old_log_probs: (tokens,), of prompt and completion together. advantage: of the
    completion. model_version: of the weights that generated it, as the server counts; None, which it has until the
    first trainer begins, counts as 0. group_id: a number made of the name of the group. enqueued_at: seconds since the
    epoch; put_rollouts sets it if it is None.
    """

    prompt: Any
    completion: Any
    input_ids: NDArray[Any]
    completion_mask: NDArray[Any]
    old_log_probs: NDArray[Any]
    advantage: float
    model_version: int | None
    group_id: int = 0
    metrics: dict[str, float] = defaulted(default_factory=dict)
    enqueued_at: float | None = None


class Sample(Protocol):
    """What put_rollouts reads of a sample; see RolloutSample."""

    prompt: Any
    completion: Any
    input_ids: Any
    completion_mask: Any
    old_log_probs: Any
    advantage: float
    model_version: int | None
    metrics: dict[str, float]
    enqueued_at: float | None


def register_rollouts(client: DataPlaneClient, partition: str = "rollouts", task: str = "train") -> None:
    """Create the partition of rollouts if it is not there. Producers and trainer may all call it."""
    client.register_partition(partition, FIELDS, 0, [task], per_token_fields=list(_PER_TOKEN))


def put_rollouts(
    client: DataPlaneClient,
    partition: str,
    samples: Sequence[Sample],
    *,
    group: str | None = None,
    timeout_s: float | None = None,
) -> KVBatchMeta:
    """Put the samples of one prompt, all or none, as a group of this name (None: a new one).

    A producer that gives its own names may repeat a prompt after a failure: PreconditionError then means that the
    group exists. Blocks at most timeout_s (None: that of the client) while the server's memory or the partition
    (see FlowPolicy) has no room, then raises OutOfSpaceError or PartitionFullError. Raises NotFoundError before
    register_rollouts, InvalidArgumentError for no samples.
    """
    versions = [sample.model_version for sample in samples if sample.model_version is not None]
    name, oldest = group or uuid.uuid4().hex, min(versions, default=None)
    with client.reserve_group(partition, name, weight_version=oldest, timeout_s=timeout_s) as reserved:
        return add_rollouts(reserved, samples, timeout_s=timeout_s)


def add_rollouts(group: Group, samples: Sequence[Sample], *, timeout_s: float | None = None) -> KVBatchMeta:
    """Put samples of one prompt into its group, which the producer reserves before it begins to generate.

        with client.reserve_group("rollouts", name, weight_version=version) as group:
            add_rollouts(group, generate(prompt))

    So the trainer's check_health knows that a producer is at work, and `group.abort_hint` says when its weights are too
    old. May be called again for more samples, from any thread. Errors as put_rollouts.

    Samples are named NAME/0, NAME/1, ... after the group, and numbered after those that this object has. So a call that
    is repeated after a failure adds nothing twice; and of an object and its pickled copies only one may add samples, or
    they would write over each other's.
    """
    name, number = group.group_id, _number(group.group_id)
    columns = _columns(name, samples)
    tags = [{"weight_version": sample.model_version, "group_id": number} for sample in samples]
    with _adding.setdefault(group, threading.Lock()):
        named = [sample_id.rpartition("/") for sample_id in group.meta.sample_ids]
        first = 1 + max((int(last) for start, _, last in named if start == name and last.isdecimal()), default=-1)
        ids = [f"{name}/{first + index}" for index in range(len(samples))]
        return group.add(ids, columns, tags, once=["prompt"], timeout_s=timeout_s)


def _columns(name: str, samples: Sequence[Sample]) -> dict[str, Any]:
    """Raises InvalidArgumentError, which names the sample, for what the trainer would stumble over."""
    now = time.time()
    columns: dict[str, Any] = {field: [] for field in _PER_TOKEN}
    for index, sample in enumerate(samples):
        where = f"sample {index} of group {name!r}"
        for field, dtype in _PER_TOKEN.items():
            kinds = "fiu" if dtype is np.float32 else "biu"
            columns[field].append(number_array(f"{where}: {field}", getattr(sample, field), kinds, dtype))
        _check_numbers(where, sample)
        if not columns["completion_mask"][-1].any():
            raise InvalidArgumentError(f"{where}: completion_mask has no 1, so there is no token to train on")
    columns["advantage"] = np.array([sample.advantage for sample in samples], np.float64)
    columns["enqueued_at"] = np.array([sample.enqueued_at or now for sample in samples], np.float64)
    for name in _OBJECTS:
        columns[name] = object_array(name, [getattr(sample, name) for sample in samples], len(samples))
    return columns


def _check_numbers(where: str, sample: Sample) -> None:
    if not isinstance(sample.metrics, Mapping):
        raise InvalidArgumentError(f"{where}: metrics must be a mapping, got {sample.metrics!r}")
    numbers: dict[str, object] = {"advantage": sample.advantage}
    numbers.update({f"metrics {key!r}": value for key, value in sample.metrics.items()})
    for name, value in numbers.items():
        if not isinstance(value, (int, float, np.number)):
            raise InvalidArgumentError(f"{where}: {name} must be a number, got {value!r}")
    if not math.isfinite(sample.advantage):
        raise InvalidArgumentError(f"{where}: the advantage is {sample.advantage}; it must be finite")


def _number(name: str) -> int:
    """TRL's number of a group: the same for the same name, and another for each of millions of names."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=7).digest(), "big")


def read_rollouts(client: DataPlaneClient, meta: KVBatchMeta, base: int) -> list[RolloutSample]:
    """The samples of these rows, in their order. Their versions are counted from base."""
    batch = client.read_columns(meta, FIELDS, layout="jagged")
    rows = {name: [row.numpy() for row in batch[name].unbind()] for name in _PER_TOKEN}
    return [
        RolloutSample(
            prompt=batch["prompt"][row],
            completion=batch["completion"][row],
            input_ids=rows["input_ids"][row].astype(np.int64),
            completion_mask=rows["completion_mask"][row].astype(np.int64),
            old_log_probs=rows["old_log_probs"][row].copy(),
            advantage=float(batch["advantage"][row]),
            model_version=int(tags["weight_version"] or 0) - base,
            group_id=int(tags["group_id"] or 0),
            metrics=batch["metrics"][row],
            enqueued_at=float(batch["enqueued_at"][row]),
        )
        for row, tags in enumerate(meta.tags or ())
    ]
