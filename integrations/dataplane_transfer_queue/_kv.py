"""The face by keys: rows by the names that callers give them, in partitions that no caller registers."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase, is_non_tensor

from dataplane_client import checkpoint_files
from dataplane_client.codec import object_leaf
from dataplane_client.errors import InvalidArgumentError, NotFoundError
from dataplane_common.coroutines import in_thread
from dataplane_transfer_queue._connection import attached
from dataplane_transfer_queue._metas import KVBatchMeta
from dataplane_transfer_queue._rows import Rows
from dataplane_transfer_queue._values import nested

Fields = TensorDictBase | Mapping[str, Any]
Parser = Callable[[dict[str, Any]], dict[str, Any]]


def kv_put(
    key: str,
    partition_id: str,
    fields: Fields | None = None,
    tag: Mapping[str, Any] | None = None,
    data_parser: Parser | None = None,
) -> KVBatchMeta:
    """Write fields and tags of one row, otherwise as kv_batch_put. fields: a TensorDict of one row or without batch
    dims, or a mapping: a tensor is the row's value, all else is an object. Raises ValueError for a nested tensor.
    """
    one_row = None if fields is None else _one_row(fields)
    return kv_batch_put([key], partition_id, one_row, None if tag is None else [tag], data_parser)


def kv_batch_put(
    keys: Sequence[str],
    partition_id: str,
    fields: Fields | None = None,
    tags: Sequence[Mapping[str, Any]] | None = None,
    data_parser: Parser | None = None,
) -> KVBatchMeta:
    """Write fields and tags of rows, atomically; others of a row stay. Makes rows and the partition if missing.

    fields: a TensorDict with one row a key. tags: None, bool, int, float or str; the server filters by tags, which it
    could not for lists or mappings, so these are refused: put them into a field. data_parser: gets the columns as a
    dict (nested and object columns as lists) and returns it, changed; it runs here, before the put.

    Returns all tags of the rows, and the fields that all of them hold, this put included; only its own if a row was
    cleared meanwhile. Raises ValueError for neither
    fields nor tags, another number of rows or tags than keys, and keys that come twice; nothing is written then.
    Raises UnsupportedTypeError (a TypeError) for tags and values that cannot be stored. Blocks while memory is full.
    """
    names = checked_keys(keys)
    if fields is None and tags is None:
        raise ValueError("kv_put needs fields, tags or both")
    _check_rows(names, fields, tags)
    rows = attached().rows
    columns = None if fields is None else parsed(fields, data_parser)
    generations = rows.put(names, partition_id, columns, [{}] * len(names) if tags is None else tags)
    own = [] if columns is None else sorted(columns.keys())
    return _meta(rows, names, partition_id, generations, own)


def kv_batch_get(
    keys: Sequence[str] | str, partition_id: str, select_fields: Sequence[str] | str | None = None
) -> TensorDict:
    """Read fields of rows (None: all that every row holds), in the order of the keys; a key may come twice.

    Numbers are dense, (N,), tensors with dimensions nested, whatever their shapes, and all else is a NonTensorStack.
    Raises ValueError for a row, partition or field that does not exist.
    """
    names = checked_keys(keys)
    rows = attached().rows
    try:
        chosen = _field_list(select_fields)
        if chosen is None:
            chosen = rows.fields(list(dict.fromkeys(names)), partition_id)
        if not chosen:
            raise ValueError(f"kv_batch_get from {partition_id!r}: there is no field that all of these rows hold")
        return rows.get(names, partition_id, chosen)
    except NotFoundError as error:
        raise InvalidArgumentError(f"kv_batch_get: not found: {error}", reason=error.reason) from error


def kv_batch_get_by_meta(meta: KVBatchMeta, select_fields: Sequence[str] | str | None = None) -> TensorDict:
    """Read fields of a meta's rows (None: the meta's own). As kv_batch_get, and ValueError for other fields than the
    meta has.
    """
    chosen = _field_list(select_fields)
    if chosen is None:
        chosen = meta.fields
    elif meta.fields is not None and not set(chosen) <= set(meta.fields):
        missing = sorted(set(chosen) - set(meta.fields))
        raise ValueError(f"kv_batch_get_by_meta: select_fields {missing} not found among the meta's {meta.fields}")
    if meta.partition_id is None:
        raise ValueError("kv_batch_get_by_meta: the meta names no partition")
    return kv_batch_get(meta.keys, meta.partition_id, chosen)


def kv_list(partition_id: str | None = None) -> dict[str, dict[str, dict[str, Any]]]:
    """Tags by partition and key (None: of all partitions); nothing for an unknown partition."""
    return attached().rows.tags(partition_id)


def kv_clear(keys: Sequence[str] | str, partition_id: str) -> None:
    """Remove rows. Ignores unknown keys and an unknown partition."""
    try:
        attached().rows.client.clear_samples(checked_keys(keys), partition_id)
    except NotFoundError:
        return


def save_checkpoint(
    checkpoint_dir: str | os.PathLike[str],
    *,
    include_storage: bool = True,
    metadata: Mapping[str, Any] | None = None,
) -> None:
    """Take a snapshot of the server, which keeps it in its data directory, and name it in checkpoint_dir.

    The server needs --data-dir (`backend.RLDataPlane.data_dir` for one that `init` starts); ValueError otherwise.
    metadata: what JSON can hold. include_storage: not used, since values are always saved. Blocks until all is on disk.
    """
    checkpoint_files.save_checkpoint(attached().rows.client, checkpoint_dir, metadata or {})


def load_checkpoint(checkpoint_dir: str | os.PathLike[str]) -> dict[str, object]:
    """Make the server go on from a checkpoint; all that came after it is gone. Returns the metadata.

    Raises FileNotFoundError if there is none in checkpoint_dir, PreconditionError if the server has not got its
    snapshot.
    """
    rows = attached().rows
    rows.forget()
    return checkpoint_files.load_checkpoint(rows.client, checkpoint_dir)


async_kv_put = in_thread(kv_put)
async_kv_batch_put = in_thread(kv_batch_put)
async_kv_batch_get = in_thread(kv_batch_get)
async_kv_batch_get_by_meta = in_thread(kv_batch_get_by_meta)
async_kv_list = in_thread(kv_list)
async_kv_clear = in_thread(kv_clear)


def _meta(rows: Rows, keys: list[str], partition_id: str, generations: Sequence[int], own: list[str]) -> KVBatchMeta:
    """Of rows that were put; another process may have taken and cleared them since. own: the fields of the put."""
    try:
        found, fields = rows.named(generations, partition_id), rows.fields(keys, partition_id)
    except NotFoundError:
        found, fields = {}, own
    tags = [found[generation][1] if generation in found else {} for generation in generations]
    return KVBatchMeta(keys, tags, partition_id, fields)


def checked_keys(keys: Sequence[str] | str) -> list[str]:
    given: object = [keys] if isinstance(keys, str) else keys
    if not isinstance(given, list) or not all(isinstance(key, str) for key in given):
        raise TypeError(f"keys must be a str or a list of str, got {keys!r:.100}")
    if not given:
        raise ValueError("keys is an empty list; name the rows")
    return given


def _check_rows(keys: list[str], fields: Fields | None, tags: Sequence[object] | None) -> None:
    size = getattr(fields, "batch_size", None)
    if size is not None and list(size[:1]) != [len(keys)]:
        raise ValueError(f"{len(keys)} keys, but fields of batch size {list(size)}")
    if tags is not None and len(tags) != len(keys):
        raise ValueError(f"{len(keys)} keys, but tags for {len(tags)}")


def _field_list(select_fields: Sequence[str] | str | None) -> list[str] | None:
    if select_fields is None:
        return None
    return [select_fields] if isinstance(select_fields, str) else list(dict.fromkeys(select_fields))


def _one_row(fields: Fields) -> Fields:
    """The fields of one row as columns."""
    if isinstance(fields, TensorDictBase):
        return fields if fields.batch_size else fields.unsqueeze(0)
    if any(isinstance(value, torch.Tensor) and value.is_nested for value in fields.values()):
        raise ValueError("kv_put takes no nested tensor, which has several rows: call kv_batch_put")
    return {
        name: value.unsqueeze(0) if isinstance(value, torch.Tensor) else object_leaf([value])
        for name, value in fields.items()
    }


def parsed(fields: Fields, parser: Parser | None) -> Fields:
    """The columns as the caller's parser changes them. ValueError unless it returns the dict that it got."""
    if parser is None:
        return fields
    changed: object = parser({name: _plain(column) for name, column in fields.items()})
    if not isinstance(changed, dict) or set(changed) != set(fields.keys()):
        raise ValueError(f"data_parser must return the dict that it got, with the same keys, got {changed!r:.100}")
    return {name: _as_before(fields.get(name), column) for name, column in changed.items()}


def _plain(column: Any) -> Any:
    if is_non_tensor(column):
        return column.tolist()
    return list(column.unbind()) if isinstance(column, torch.Tensor) and column.is_nested else column


def _as_before(column: Any, changed: Any) -> Any:
    """A list of rows as the column that it was."""
    if is_non_tensor(column):
        return object_leaf(changed)
    return nested(changed) if isinstance(changed, list) else changed
