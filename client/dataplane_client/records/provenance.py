"""What a batch consists of: of each row who produced which value, with which weights, and what has become of it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import blake2b

from dataplane_client.errors import NotFoundError
from dataplane_client.records.descriptions import SampleDescription

_ENDS = ("cleared", "rolled_back", "failed", "lost")


@dataclass(frozen=True)
class ValueProvenance:
    """producer: the client that wrote the value last, as it named itself; "" if the server's history of the row begins
    later. digest: the XXH3-64 of the value's bytes as that client hashed them, in hexadecimal; "" in a partition
    without digests.
    """

    producer: str
    digest: str


@dataclass(frozen=True)
class RowProvenance:
    """A row of a task. weight_version: its tag of that name; None if it has none. values: by field. deliveries: how
    often the task got it. state: for the task, such as "claimed" or "consumed". committed_by: the client that committed
    it; "" if it is not consumed, or the server's history of the row begins later. step, dp_rank: of its shard, if it is
    in one.
    """

    sample_id: str
    generation: int | None
    weight_version: int | None
    values: Mapping[str, ValueProvenance]
    deliveries: int
    state: str
    committed_by: str = ""
    step: int | None = None
    dp_rank: int | None = None


def row_provenance(sample_id: str, row: SampleDescription, task_name: str) -> RowProvenance:
    """row: resident. Raises NotFoundError if the partition has no such task any more."""
    producers: dict[str, str] = {}
    committed_by = ""
    for event in row.events:
        if event.what in _ENDS:  # of an earlier row of this id
            producers, committed_by = {}, ""
        producers.update(dict.fromkeys(event.fields, event.who))
        if event.what == "committed" and event.task == task_name:
            committed_by = event.who
    task = next((one for one in row.tasks if one.task == task_name), None)
    if task is None:
        raise NotFoundError(f"provenance of sample {sample_id!r}: its partition has no task {task_name!r}")
    version = row.tags.get("weight_version")
    return RowProvenance(
        sample_id,
        row.generation,
        version if isinstance(version, int) else None,
        {name: ValueProvenance(producers.get(name, ""), row.digests.get(name, "")) for name in row.fields},
        task.deliveries,
        task.state,
        committed_by if task.state == "consumed" else "",
        task.step,
        task.dp_rank,
    )


def digest_of_rows(rows: Sequence[RowProvenance]) -> str:
    """One digest of a batch, whatever the order of its rows: BLAKE2b of ids, generations, weight versions and the
    digests of values, in hexadecimal. Equal for whoever was given the same values.
    """
    told = sorted(
        (row.sample_id, row.generation, row.weight_version, {name: value.digest for name, value in row.values.items()})
        for row in rows
    )
    return blake2b(json.dumps(told, sort_keys=True).encode(), digest_size=16).hexdigest()


def as_json(rows: Sequence[RowProvenance]) -> dict[str, object]:
    return {"digest": digest_of_rows(rows), "rows": [asdict(row) for row in rows]}
