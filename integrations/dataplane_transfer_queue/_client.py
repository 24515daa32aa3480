"""The native face: rows by number, claimed by tasks.

- `get_meta(mode="fetch")` is a claim that is consumed on delivery, in the order in which rows became ready. Tasks are
  declared when they are first named.
- A row that is put without a key gets one, by which `kv_list` and `kv_retrieve_keys` name it.
- A meta is of exactly its rows: after a clear, reads and writes under it raise NotFoundError (a KeyError).
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import torch
from tensordict import TensorDict, TensorDictBase

from dataplane_client.errors import ClaimTimeoutError, NotFoundError, PreconditionError
from dataplane_common.coroutines import claim_meta, in_thread
from dataplane_transfer_queue._connection import attached
from dataplane_transfer_queue._kv import Parser, checked_keys, parsed
from dataplane_transfer_queue._metas import BatchMeta
from dataplane_transfer_queue._not_served import absent_member, check_sampler
from dataplane_transfer_queue._rows import Rows

Mode = Literal["fetch", "force_fetch", "insert"]

_FETCH_S = 5.0
"""How long a fetch waits, as in TransferQueue."""


class TransferQueueClient:
    """Made by `get_client`. Any number of threads and event loops may use it at once, and it can be pickled.

    Each verb blocks until the server has answered; `async_` and its name is the same as a coroutine.
    """

    def __init__(self, rows: Rows, *, polling: bool, sampler: str) -> None:
        self._rows = rows
        self._polling = polling
        self._sampler = sampler

    if not TYPE_CHECKING:  # a type checker would accept any name

        def __getattr__(self, name: str) -> Any:
            raise absent_member("TransferQueueClient", name)

    # -- rows ----------------------------------------------------------------------------------------------------------

    def get_meta(
        self,
        data_fields: Sequence[str],
        batch_size: int,
        partition_id: str,
        mode: Mode = "fetch",
        task_name: str | None = None,
        sampling_config: Mapping[str, Any] | None = None,
    ) -> BatchMeta:
        """Name rows.

        - "fetch": batch_size rows that hold the fields and that the task has not got; it never gets them again, unless
          `reset_consumption`. Waits up to 5 s for that many, then raises RuntimeError; in polling mode returns a meta
          without rows at once.
        - "force_fetch": all rows of the partition, whatever they hold. field_names: those of the fields that some rows
          hold; ready if all rows hold them. Raises NotFoundError for an unknown partition.
        - "insert": batch_size new rows without values.

        Raises ValueError for another mode, a fetch without a task or with another sampler in the configuration of
        `init` than the sequential one, and a sampling_config: rows come in sequence, and
        each once. Only its dp_rank is accepted, and ignored, as in TransferQueue's sequential sampler.
        """
        if unknown := set(sampling_config or {}) - {"dp_rank"}:
            raise ValueError(f"get_meta: sampling_config {sorted(unknown)} is not supported; pass none")
        if mode == "fetch":
            return self._fetched(list(data_fields), batch_size, partition_id, task_name)
        if mode == "force_fetch":
            return self._all(data_fields, partition_id)
        if mode != "insert":
            raise ValueError(f"get_meta: mode must be 'fetch', 'force_fetch' or 'insert', got {mode!r}")
        keys = _new_keys(batch_size)
        generations = self._rows.put(keys, partition_id, tags=[{}] * batch_size)
        return BatchMeta(generations, [partition_id] * batch_size, data_fields, keys=keys)

    def _fetched(self, fields: list[str], batch_size: int, partition_id: str, task_name: str | None) -> BatchMeta:
        check_sampler(self._sampler)
        if task_name is None:
            raise ValueError("get_meta: a fetch needs a task_name")
        self._rows.ensure_task(partition_id, task_name)
        timeout_s = 0.0 if self._polling else _FETCH_S
        try:
            meta = claim_meta(self._rows.client, partition_id, task_name, fields, batch_size, timeout_s=timeout_s)
        except ClaimTimeoutError as error:
            if self._polling:
                return BatchMeta([], [], keys=[])
            raise RuntimeError(f"Timeout while waiting for sufficient data for task {task_name}: {error}") from error
        columns = (meta.generations or [], [partition_id] * meta.size, fields, [1] * meta.size)
        return BatchMeta(*columns, custom_meta=meta.tags, keys=meta.sample_ids)

    def _all(self, data_fields: Sequence[str], partition_id: str) -> BatchMeta:
        described = self._rows.describe(partition_id)
        held = {field.name: field.rows for field in described.fields if field.name in data_fields and field.rows}
        found = list(self._rows.listed(partition_id))
        ready = bool(held) and all(rows >= len(found) for rows in held.values())
        return BatchMeta(
            [generation for generation, _, _ in found],
            [partition_id] * len(found),
            list(held),
            [ready] * len(found),
            custom_meta=[tags for _, _, tags in found],
            keys=[key for _, key, _ in found],
        )

    def put(
        self,
        data: TensorDictBase,
        metadata: BatchMeta | None = None,
        partition_id: str | None = None,
        data_parser: Parser | None = None,
    ) -> BatchMeta:
        """Write columns, and the tags of the meta, to its rows, or to new rows of a partition. data, data_parser: as in
        `kv_batch_put`. Returns the meta of the rows, with the fields that were put.

        Raises ValueError for neither meta nor partition, a meta without rows or of several partitions, and another
        number of rows; NotFoundError for a row that was cleared.
        """
        if metadata is None:
            if partition_id is None:
                raise ValueError("put: without metadata it needs a partition_id")
            count = len(data)
            metadata = BatchMeta([0] * count, [partition_id] * count, keys=_new_keys(count))
            written = self._rows.put(metadata.keys or [], partition_id, parsed(data, data_parser))
        else:
            partition, keys = self._addresses(metadata, "put")
            if len(data) != metadata.size:
                raise ValueError(f"put: {len(data)} rows of data, but a meta of {metadata.size}")
            given = (keys, partition, parsed(data, data_parser), metadata.custom_meta)
            written = self._rows.put(*given, generations=metadata.global_indexes)
        meta = metadata.copy()
        meta.global_indexes = written
        meta.field_schema |= {str(name): {} for name in data.keys()}  # noqa: SIM118 - a TensorDict iterates over rows
        meta.production_status = [1] * meta.size
        return meta

    def get_data(self, metadata: BatchMeta) -> TensorDict:
        """Read the meta's fields of its rows, as `kv_batch_get` gives them; nothing of a meta without rows.

        Raises ValueError for a meta without fields or of several partitions, NotFoundError for a row that was cleared
        or does not hold a field.
        """
        if not metadata.size:
            return TensorDict({}, batch_size=[0])
        partition, keys = self._addresses(metadata, "get_data")
        if not metadata.field_names:
            raise ValueError("get_data: the meta names no field")
        return self._rows.get(keys, partition, metadata.field_names, metadata.global_indexes)

    def set_custom_meta(self, metadata: BatchMeta) -> None:
        """Merge the meta's tags into those of its rows. Raises as `put`."""
        partition, keys = self._addresses(metadata, "set_custom_meta")
        self._rows.put(keys, partition, tags=metadata.custom_meta, generations=metadata.global_indexes)

    def clear_samples(self, metadata: BatchMeta) -> None:
        """Remove the meta's rows; those that are gone are ignored. Raises NotFoundError for a missing partition."""
        for part in metadata.chunk_by_partition():
            partition, keys = self._addresses(part, "clear_samples")
            self._rows.client.clear_samples(keys, partition, generations=part.global_indexes)

    # -- partitions and tasks ------------------------------------------------------------------------------------------

    def get_partition_list(self) -> list[str]:
        """The partitions there are."""
        return [described.partition_id for described in self._rows.client.partitions()]

    def clear_partition(self, partition_id: str) -> None:
        """Remove a partition with its rows; does nothing if there is none."""
        self._rows.client.drop_partition(partition_id)
        self._rows.forget(partition_id)

    def get_consumption_status(
        self, task_name: str, partition_id: str
    ) -> tuple[torch.Tensor, torch.Tensor] | tuple[None, None]:
        """The number of each row, int64 (N,), and 1 for those that the task has consumed, int8 (N,). None and None for
        an unknown partition.
        """
        described = self._rows.known(partition_id)
        if described is None:
            return None, None
        known = task_name if task_name in described.task_names else None
        pages = list(self._rows.pages(partition_id, task_name=known))
        numbers = [generation for page in pages for generation in page.meta.generations or ()]
        consumed = [state == "consumed" for page in pages for state in page.states or ["untaken"] * page.meta.size]
        return torch.tensor(numbers, dtype=torch.int64), torch.tensor(consumed, dtype=torch.int8)

    def check_consumption_status(self, task_name: str, partition_id: str) -> bool:
        """Whether there are rows and the task has got all of them."""
        described = self._rows.known(partition_id)
        if described is None or not described.rows:
            return False
        return [task.consumed_rows for task in described.tasks if task.task == task_name] == [described.rows]

    def check_production_status(self, data_fields: Sequence[str], partition_id: str) -> bool:
        """Whether all rows of the partition hold these fields, of which there must be one."""
        described = self._rows.known(partition_id)
        if described is None:
            return False
        held = {field.name for field in described.fields if field.kind is not None and field.rows == described.rows}
        return bool(data_fields) and set(data_fields) <= held

    def reset_consumption(self, partition_id: str, task_name: str | None = None) -> bool:
        """Give all rows to a task again (None: to every task). Returns True, also if there is no such task."""
        described = self._rows.known(partition_id)
        known = () if described is None else described.task_names
        for name in known if task_name is None else {task_name}.intersection(known):
            self._rows.client.reset(partition_id, name)
        return True

    # -- keys ----------------------------------------------------------------------------------------------------------

    def kv_retrieve_meta(self, keys: Sequence[str] | str, partition_id: str, create: bool = False) -> BatchMeta:
        """The meta of rows by key, with the fields that all of them hold. create: make rows that do not exist;
        otherwise these are left out. Raises TypeError for keys that are not str.
        """
        names = checked_keys(keys)
        if create:
            found = dict(zip(names, self._rows.put(names, partition_id, tags=[{}] * len(names)), strict=True))
        else:
            found = self._rows.find(names, partition_id)
        named: dict[int, tuple[str, dict[str, Any]]] = {}
        fields: list[str] = []
        with contextlib.suppress(NotFoundError):  # another process has cleared a row since, or the partition
            named = self._rows.named(list(found.values()), partition_id)
            found = {key: generation for key, generation in found.items() if generation in named}
            fields = self._rows.fields(list(found), partition_id) if found else []
        if not named:
            return BatchMeta.empty()
        return BatchMeta(
            list(found.values()),
            [partition_id] * len(found),
            fields,
            [bool(fields)] * len(found),
            custom_meta=[named[generation][1] for generation in found.values()],
            keys=list(found),
        )

    def kv_retrieve_keys(self, global_indexes: Sequence[int] | int, partition_id: str) -> list[str]:
        """The keys of rows by number. Lists the rows that were made from the first of them to the last.

        Raises TypeError for other numbers than int, RuntimeError for a row that does not exist.
        """
        numbers = [global_indexes] if isinstance(global_indexes, int) else list(global_indexes)
        if not all(isinstance(number, int) for number in numbers):
            raise TypeError(f"global_indexes must be an int or a list of int, got {global_indexes!r:.100}")
        try:
            found = self._rows.named(numbers, partition_id)
        except NotFoundError:
            found = {}
        if missing := [number for number in numbers if number not in found]:
            raise PreconditionError(f"kv_retrieve_keys: partition {partition_id!r} has no rows {missing[:10]}")
        return [found[number][0] for number in numbers]

    def kv_list(self, partition_id: str | None = None) -> dict[str, dict[str, dict[str, Any]]]:
        """As the module's."""
        return self._rows.tags(partition_id)

    def close(self) -> None:
        """Does nothing: the connection is the process's, and ends with the module's `close`."""

    def _addresses(self, metadata: BatchMeta, verb: str) -> tuple[str, list[str]]:
        partitions = set(metadata.partition_ids)
        if len(partitions) != 1:
            raise ValueError(f"{verb}: the meta must be of one partition, got {sorted(partitions)}; chunk_by_partition")
        partition = metadata.partition_ids[0]
        if metadata.keys is None:
            return partition, self.kv_retrieve_keys(metadata.global_indexes, partition)
        return partition, metadata.keys

    async_get_meta = in_thread(get_meta)
    async_put = in_thread(put)
    async_get_data = in_thread(get_data)
    async_set_custom_meta = in_thread(set_custom_meta)
    async_clear_samples = in_thread(clear_samples)
    async_get_partition_list = in_thread(get_partition_list)
    async_clear_partition = in_thread(clear_partition)
    async_get_consumption_status = in_thread(get_consumption_status)
    async_check_consumption_status = in_thread(check_consumption_status)
    async_check_production_status = in_thread(check_production_status)
    async_reset_consumption = in_thread(reset_consumption)
    async_kv_retrieve_meta = in_thread(kv_retrieve_meta)
    async_kv_retrieve_keys = in_thread(kv_retrieve_keys)
    async_kv_list = in_thread(kv_list)


def get_client() -> TransferQueueClient:
    """The native face of this process's server. Raises RuntimeError if the process is not initialized."""
    found = attached()
    return TransferQueueClient(found.rows, polling=found.job["polling"], sampler=found.job["sampler"])


def _new_keys(count: int) -> list[str]:
    return [f"row-{uuid.uuid4().hex}" for _ in range(count)]
