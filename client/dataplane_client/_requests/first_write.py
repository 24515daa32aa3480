"""Prepares the first put of a rollout batch: which fields are per-token, to which width readers pad, the receipt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from dataplane_client._common.arguments import blame_caller, checked_count, checked_mapping, checked_name, checked_names
from dataplane_client._values.codec import with_padded_rows
from dataplane_client._values.plain_columns import plain_column
from dataplane_client.errors import InvalidArgumentError, UnsupportedTypeError
from dataplane_client.records.meta import PAD_TARGET_KEY, KVBatchMeta


class FirstWrite:
    """A checked batch in wire layout. Raises the ValueErrors and TypeErrors of kv_first_write."""

    def __init__(
        self,
        batch: Mapping[str, object],
        sample_ids: Sequence[str],
        pad_to_multiple: int,
        task_name: str,
        extra_info: Mapping[str, object],
    ) -> None:
        if not isinstance(batch, Mapping):
            raise UnsupportedTypeError(f"kv_first_write: the batch must be a mapping, got {type(batch).__name__}")
        self.sample_ids = checked_names("sample id", sample_ids, "kv_first_write")
        with blame_caller("kv_first_write"):
            columns = {name: plain_column(name, value) for name, value in batch.items()}
        lengths = _checked_lengths(columns)
        rows = lengths.shape[0]
        if (ids := len(self.sample_ids)) != rows:
            raise InvalidArgumentError(f"kv_first_write: {ids} sample_ids must match batch size {rows}")
        self._task_name = checked_name("task name", task_name, "kv_first_write")
        self._extra_info = checked_mapping("extra_info", extra_info, "kv_first_write")
        multiple = checked_count("pad_to_multiple", pad_to_multiple, "kv_first_write", least=1, most=(1 << 31) - 1)
        self.lengths: list[int] = lengths.tolist()
        longest = max(self.lengths, default=0)
        self.pad_target = -(-longest // multiple) * multiple
        per_token = {name for name, value in columns.items() if _width(value, rows) in {longest, self.pad_target}}
        with blame_caller("kv_first_write"):
            self.fields = with_padded_rows(columns, lengths, per_token)

    def receipt(self, meta: KVBatchMeta) -> KVBatchMeta:
        """The meta of the put, for the task."""
        extra_info = {**self._extra_info, PAD_TARGET_KEY: self.pad_target}
        return replace(meta, task_name=self._task_name, extra_info=extra_info)


def _checked_lengths(columns: Mapping[str, object]) -> torch.Tensor:
    for name in ("sample_mask", "input_lengths"):
        if not isinstance(columns.get(name), torch.Tensor):
            raise InvalidArgumentError(f"kv_first_write: the batch must hold the tensor {name!r}")
    lengths = columns["input_lengths"]
    if not isinstance(lengths, torch.Tensor) or lengths.dim() != 1:
        raise InvalidArgumentError("kv_first_write: input_lengths must have shape (N,)")
    if lengths.dtype is torch.bool or lengths.is_floating_point() or lengths.is_complex():
        raise UnsupportedTypeError(f"kv_first_write: input_lengths must be integers, got {lengths.dtype}")
    return lengths.detach().to("cpu", torch.int64)


def _width(value: object, rows: int) -> int:
    """Size of dim 1 of a tensor with one row for each sample, -1 for anything else."""
    if not isinstance(value, torch.Tensor) or value.is_nested or value.dim() < 2 or value.shape[0] != rows:
        return -1
    return int(value.shape[1])
