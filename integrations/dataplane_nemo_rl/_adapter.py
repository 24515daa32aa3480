"""The adapter: NeMo-RL's verbs as ours.

What NeMo-RL relies on, and how it is kept:

- They put columns that are declared nowhere, into partitions that are registered nowhere. Every partition is open, and
  the first put makes it.
- They register "train" at each step, while rows of other steps are there. What exists does not change.
- They give columns of any length. No field is declared per-token, so nothing is cut and no lengths are compared. Each
  put tells the tokens of its rows, for the metas of claims: the column or the tags `input_lengths`, or the entries of
  the tokens field.
- They claim up to batch_size rows. A claim waits for that many, and takes what is there when its time is over.
- They ask whether tasks have consumed the rows that are there, whatever number was announced.
- They clear partitions. A partition is dropped, with its tasks; the next put or registration makes it anew.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from dataplane_client.errors import (
    ClaimTimeoutError,
    EndOfDataError,
    InvalidArgumentError,
    NotFoundError,
    PreconditionError,
)
from dataplane_client.options import ClientOptions
from dataplane_client.records.meta import KVBatchMeta as RowMeta
from dataplane_common.coroutines import claim_meta, in_thread
from dataplane_nemo_rl._types import Interface, KVBatchMeta, their_meta

if TYPE_CHECKING:
    from tensordict import TensorDict

    from dataplane_client.client import DataPlaneClient

P = ParamSpec("P")
T = TypeVar("T")

_PAGE_ROWS = 1 << 16


def _verb(method: Callable[Concatenate[DataPlaneAdapter, P], T]) -> Callable[Concatenate[DataPlaneAdapter, P], T]:
    """Decorate a method: an adapter of coroutines runs it in a thread, and returns what is to be awaited."""

    @functools.wraps(method)
    def call(self: DataPlaneAdapter, /, *args: P.args, **kwargs: P.kwargs) -> T:
        if self.coroutines:
            return in_thread(method)(self, *args, **kwargs)  # type: ignore[return-value]  # a T, when awaited
        return method(self, *args, **kwargs)

    return call


class DataPlaneAdapter(Interface):
    """NeMo-RL's `DataPlaneClient`; a blocking client of one server, for any number of threads.

    address: `unix:///path` or `host:port`; None for the environment variable DATAPLANE_SERVER. coroutines: all verbs
    but close are coroutines, for any event loop. They run in threads, up to 1,024 at once. tokens_field: the column
    whose entries are the tokens of a row. connect: further settings, as `dataplane_client.connect` takes them, such as
    timeout_s.

    Opens nothing, and can be pickled: the first call connects, in whatever process it is made. All adapters of a
    process with the same settings share one connection. Calls are repeated while the server cannot be reached, at most
    timeout_s. Raises ValueError without an address, and ValueError or TypeError for settings that `connect` refuses.
    """

    def __init__(
        self, address: str | None = None, *, coroutines: bool = False, tokens_field: str = "input_ids", **connect: Any
    ) -> None:
        from dataplane_client.client import connect_later

        self.coroutines = coroutines
        self._options = ClientOptions.named(connect, "DataPlaneAdapter")
        self.address = connect_later(address, self._options).target
        self._tokens_field = tokens_field
        self._opened: DataPlaneClient | None = None
        self._used = False

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None}

    @property
    def _client(self) -> DataPlaneClient:
        from dataplane_client.client import connect_later

        client = self._opened
        if client is None:
            client = self._opened = connect_later(self.address, self._options)
        return client

    @property
    def _rows(self) -> DataPlaneClient:
        """The client, for an operation on rows."""
        self._used = True
        return self._client

    @_verb
    def register_partition(
        self,
        partition_id: str,
        fields: Sequence[str],
        num_samples: int,
        consumer_tasks: Sequence[str],
        grpo_group_size: int | None = None,
        enums: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        """Declare a partition, or add to it what it lacks; rows, cursors and claims stay. It takes other fields, too.
        grpo_group_size, enums and num_samples are stored for readers. Raises PreconditionError for another
        grpo_group_size or enum than the partition has.
        """
        declared = (partition_id, list(fields), num_samples, list(consumer_tasks), grpo_group_size, enums)
        self._client.register_partition(*declared, open=True)

    @_verb
    def claim_meta(
        self,
        partition_id: str,
        task_name: str,
        required_fields: Sequence[str],
        batch_size: int,
        dp_rank: int | None = None,
        blocking: bool = True,
        timeout_s: float = 60.0,
    ) -> KVBatchMeta:
        """Take up to batch_size rows that have the required fields and that the task has not taken. They are consumed.

        Blocks until batch_size rows are ready, at most timeout_s seconds; then it takes those that are. Raises
        TimeoutError if none is, EndOfDataError if the partition was closed and none is left, and KeyError for an
        unknown partition or task. blocking=False: takes what is ready now,
        perhaps no row. dp_rank is noted in extra_info and has no effect: ranks get different rows.
        """
        place = (partition_id, task_name, list(required_fields), batch_size)
        noted: dict[str, Any] = {} if dp_rank is None else {"dp_rank": dp_rank}
        meta = None
        if blocking:
            with contextlib.suppress(ClaimTimeoutError, EndOfDataError):  # of a closed partition the rest comes at once
                meta = claim_meta(self._rows, *place, timeout_s=timeout_s)
        try:
            away_s = self._options.timeout_s
            meta = meta or claim_meta(self._rows, *place, min_size=1, timeout_s=0.0, away_s=away_s)
        except ClaimTimeoutError:
            if blocking:
                raise
            meta = RowMeta(partition_id, task_name, [], place[2])
        meta.extra_info |= noted
        return their_meta(meta)

    @_verb
    def get_data(self, meta: KVBatchMeta, select_fields: Sequence[str] | None = None) -> TensorDict:
        """Read the rows of a meta, as get_samples does: the selected fields, or the meta's. ValueError if neither names
        a field.
        """
        names = select_fields or meta.fields
        if not names:
            raise InvalidArgumentError(
                f"get_data from {meta.partition_id!r}: neither select_fields nor meta.fields names a field"
            )
        return self._read(meta.sample_ids, meta.partition_id, names)

    @_verb
    def check_consumption_status(self, partition_id: str, task_names: Sequence[str]) -> bool:
        """Whether each of the tasks has consumed all rows that are there; also if there is none. False for an unknown
        task or partition.
        """
        try:
            partition = self._client.partition(partition_id)
        except NotFoundError:
            return False
        consumed = {task.task: task.consumed_rows for task in partition.tasks}
        return all(consumed.get(name) == partition.rows for name in task_names)

    @_verb
    def put_samples(
        self,
        sample_ids: Sequence[str],
        partition_id: str,
        fields: TensorDict | None = None,
        tags: Sequence[Mapping[str, Any]] | None = None,
    ) -> KVBatchMeta:
        """Write columns and tags of rows, atomically: creates rows that do not exist, and keeps what is not given.

        fields: tensors (N, ...), nested tensors that are ragged in dim 1, arrays of objects, NonTensorStacks. A column
        of another type than its field is converted if no value changes (`_columns`), at the cost of two more calls.
        tags: one mapping a row, of None, bool, int, float and str. The meta has the fields and tags of this put.

        Blocks while the server's memory is full, then raises OutOfSpaceError (a TimeoutError). Raises ValueError or
        TypeError for what cannot be stored. Nothing is pickled: objects are plain values, tensors, arrays and lists,
        tuples and dicts of them.
        """
        if not len(sample_ids):
            if tags or (fields is not None and fields.batch_size[0]):
                raise InvalidArgumentError(
                    f"put_samples into {partition_id!r}: fields or tags of rows, but no sample ids"
                )
            names = None if fields is None else [str(name) for name in fields.keys()]  # noqa: SIM118  # of a TensorDict
            return KVBatchMeta(partition_id, None, [], names, tags=None if tags is None else [])
        try:
            return self._put(sample_ids, partition_id, fields, tags)
        except NotFoundError as error:
            if error.reason != "PARTITION_NOT_FOUND":
                raise
        self._client.register_partition(partition_id, [], 0, [], open=True)  # a registration may bring tasks
        return self._put(sample_ids, partition_id, fields, tags)

    def _put(
        self,
        sample_ids: Sequence[str],
        partition_id: str,
        fields: TensorDict | None,
        tags: Sequence[Mapping[str, Any]] | None,
    ) -> KVBatchMeta:
        from dataplane_nemo_rl._columns import fitted, row_tokens

        tokens = row_tokens(fields, tags, self._tokens_field)
        put = functools.partial(self._rows.put_samples, sample_ids, partition_id, tags=tags, sequence_lengths=tokens)
        try:
            return their_meta(put(fields))
        except InvalidArgumentError as error:
            if fields is None or error.reason != "FIELD_MISMATCH":
                raise
        held = {field.name: field for field in self._client.partition(partition_id).fields}
        return their_meta(put(fitted(fields, held)))

    @_verb
    def get_samples(self, sample_ids: Sequence[str], partition_id: str, select_fields: Sequence[str]) -> TensorDict:
        """Read fields of rows, in the order of the ids; batch size [N], on the CPU. Ragged rows of one length come
        back dense, others as torch.jagged nested tensors, objects as a NonTensorStack. No ids: a TensorDict without
        fields and rows. Raises KeyError for a row that is not there, or that has not got a field.
        """
        return self._read(sample_ids, partition_id, select_fields)

    def _read(self, sample_ids: Sequence[str], partition_id: str, fields: Sequence[str]) -> TensorDict:
        if not len(sample_ids):
            from tensordict import TensorDict

            return TensorDict({}, batch_size=(0,))
        return self._rows.get_samples(sample_ids, partition_id, list(fields), layout="auto")

    @_verb
    def list_sample_ids(self, partition_id: str) -> list[str]:
        """The ids of the rows of a partition, sorted; none for an unknown one. A call for every 65,536 rows."""
        ids: list[str] = []
        page: int | None = 0
        with contextlib.suppress(NotFoundError):
            while page is not None:
                rows = self._client.list_samples(partition_id, page_size=_PAGE_ROWS, page=page)
                ids += rows.meta.sample_ids
                page = rows.next_page
        return sorted(ids)

    @_verb
    def clear_samples(self, sample_ids: Sequence[str] | None, partition_id: str) -> None:
        """Remove rows, claimed or not; None: the partition with all of its rows. Unknown ids and partitions are
        ignored.
        """
        if sample_ids is None:
            self._rows.drop_partition(partition_id)
            return
        with contextlib.suppress(NotFoundError):
            self._rows.clear_samples(sample_ids, partition_id)

    @_verb
    def save_checkpoint(
        self, checkpoint_dir: str | os.PathLike[str], *, metadata: Mapping[str, object] | None = None
    ) -> None:
        """Take a snapshot of the server, rows and cursors of all partitions, and name it in `data_plane.json` in the
        folder, which is complete when that file is there. Blocks until both are on disk. Other calls go on meanwhile.

        The server needs --data-dir. metadata: what JSON can hold; TypeError otherwise.
        """
        from dataplane_client.checkpoint_files import save_checkpoint

        save_checkpoint(self._client, checkpoint_dir, metadata or {})

    @_verb
    def load_checkpoint(self, checkpoint_dir: str | os.PathLike[str]) -> dict[str, Any]:
        """Make the server go on from the snapshot of a checkpoint, and return its metadata. What the server holds is
        gone afterwards: the server outlives a trainer that died, and rows of that one must not stop its successor.

        So it is this adapter that must be fresh: raises PreconditionError (a RuntimeError) if it, or the one that it
        was pickled from, has put, read, claimed or cleared rows. FileNotFoundError if no checkpoint is in the folder.
        """
        from dataplane_client.checkpoint_files import load_checkpoint

        if self._used:
            raise PreconditionError(
                f"load_checkpoint from {os.fspath(checkpoint_dir)!r}: this client has put, read, claimed or cleared "
                "rows already, which would be lost; load the checkpoint first"
            )
        return load_checkpoint(self._client, checkpoint_dir)

    def close(self) -> None:
        """Give up the connection, which ends with the last adapter of the process that uses it. Does not block, and may
        be called again. A later call connects again.
        """
        self._opened = None
