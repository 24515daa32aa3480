"""The batch type of trainers.

Rows are samples; the columns are a plain dictionary (see _columns for their kinds). Methods that return a batch do not
change their source; reorder_data, truncate_tensors and to() change the batch in place. Three metadata attributes say
how a shard's rows form microbatches (see _sharding): shard_by_batch_size sets them, get_batch reduces them to one
global batch, and no other method copies them.
"""

from __future__ import annotations

import copy
from collections import UserDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar, overload

import numpy as np
import torch

from dataplane_client._common.arrays import as_ints
from dataplane_client._common.displays import html_table
from dataplane_client.batched_data_dict import _sharding
from dataplane_client.batched_data_dict._args import DynamicBatchingArgs, SequencePackingArgs
from dataplane_client.batched_data_dict._columns import (
    describe,
    first_column_rows,
    require_equal_rows,
    slice_rows,
    take_rows,
)
from dataplane_client.batched_data_dict._concat import concat_batches
from dataplane_client.batched_data_dict._gather import gather_columns
from dataplane_client.batched_data_dict.packed_tensor import PackedTensor

if TYPE_CHECKING:
    from typing_extensions import Self  # typing has it from Python 3.11 on

SpecT = TypeVar("SpecT")
RowIndices = Sequence[int] | torch.Tensor


class BatchedDataDict(UserDict[str, Any], Generic[SpecT]):
    """Columns by name. SpecT is a TypedDict that documents the columns; it is not checked.

    This is not a dict: test for collections.abc.Mapping.
    """

    ADDITIONAL_OPTIONAL_KEY_TENSORS: ClassVar[list[str]] = ["token_type_ids", "mm_token_type_ids"]
    """Plain tensors that belong to a model's multimodal arguments."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """As dict()."""
        self.micro_batch_indices: _sharding.MicroBatchIndices | None = None
        self.micro_batch_lengths: _sharding.MicroBatchLengths | None = None
        self.elem_counts_per_gb: list[int] | None = None
        super().__init__(*args, **kwargs)

    def __missing__(self, name: object) -> Any:
        if isinstance(name, str):
            raise KeyError(f"no column {name!r}; the batch holds {', '.join(map(repr, self.data)) or 'none'}")
        raise KeyError(f"{name!r} is no column name; for rows use slice(start, end)")

    def __repr__(self) -> str:
        """Name, element type and shape of each column, without values."""
        columns = (f"{name} {' '.join(describe(value))}" for name, value in self.data.items())
        return f"<{type(self).__name__} {', '.join(columns)}>"

    def _repr_html_(self) -> str:
        """A table of the columns, for notebooks."""
        rows = [(name, *describe(value)) for name, value in self.data.items()]
        return html_table(type(self).__name__, ("column", "type", "shape"), rows)

    # --- columns ---

    @property
    def size(self) -> int:
        """Rows of the first column; 0 without columns."""
        return first_column_rows(self.data)

    def get_dict(self) -> dict[str, Any]:
        """The underlying dictionary itself."""
        return self.data

    def get_multimodal_dict(self, as_tensors: bool = False, device: torch.device | str | None = None) -> dict[str, Any]:
        """The PackedTensor columns and the optional token-type columns, without other tensors.

        as_tensors: concatenate each PackedTensor (None if all its rows are). device: where the returned values are
        moved; this batch does not change.
        """
        packed = {key: value for key, value in self.data.items() if isinstance(value, PackedTensor)}
        found: dict[str, Any] = {
            key: value.as_tensor(device) if as_tensors else _moved(value, device) for key, value in packed.items()
        }
        for key in self.ADDITIONAL_OPTIONAL_KEY_TENSORS:
            if key in self.data and key not in found:
                found[key] = self.data[key] if device is None else self.data[key].to(device)
        return found

    # --- rows of one batch ---

    def slice(self, start: int, end: int) -> SlicedDataDict[SpecT]:
        """Rows [start, end). Tensors are views of this batch's and must have at least end rows (AssertionError
        otherwise); shorter lists and arrays give fewer rows.
        """
        return SlicedDataDict(slice_rows(self.data, start, end))

    def get_batch(self, batch_idx: int, batch_size: int | None = None) -> SlicedDataDict[SpecT]:
        """Global batch batch_idx with its microbatches.

        For packed data (elem_counts_per_gb is set) the rows recorded for it; batch_size is then ignored. Otherwise the
        batch_idx-th batch_size rows.
        """
        if self.elem_counts_per_gb is not None:
            if self.micro_batch_indices is None:
                raise AssertionError("micro_batch_indices must be present when elem_counts_per_gb is")
            if not 0 <= batch_idx < len(self.elem_counts_per_gb):
                raise IndexError(f"batch_idx {batch_idx} is outside {len(self.elem_counts_per_gb)} global batches")
            start = sum(self.elem_counts_per_gb[:batch_idx])
            batch = self.slice(start, start + self.elem_counts_per_gb[batch_idx])
            batch.elem_counts_per_gb = [self.elem_counts_per_gb[batch_idx]]
        elif batch_size is None:
            raise TypeError("get_batch needs batch_size unless the data is packed")
        else:
            batch = self.slice(batch_idx * batch_size, (batch_idx + 1) * batch_size)
        if self.micro_batch_indices is not None and self.micro_batch_lengths is not None:
            batch.micro_batch_indices = [self.micro_batch_indices[batch_idx]]
            batch.micro_batch_lengths = [self.micro_batch_lengths[batch_idx]]
        return batch

    def select_indices(self, indices: RowIndices) -> Self:
        """The rows at indices, in that order, with repeats. Tensors and arrays are copies."""
        return type(self)(take_rows(self.data, as_ints(indices, "row indices")))

    def chunk(self, rank: int, chunks: int) -> SlicedDataDict[SpecT]:
        """A copy of the rank-th of equally large parts. AssertionError if rows do not divide or rank is invalid."""
        rows = require_equal_rows(self.data, "chunk: batch sizes are not the same")
        if chunks < 1 or rows % chunks:
            raise AssertionError(f"batch size ({rows}) is not a multiple of chunks ({chunks})")
        if not 0 <= rank < chunks:
            raise AssertionError(f"index OOB: rank {rank} of {chunks} chunks")
        part = rows // chunks
        return SlicedDataDict(take_rows(self.data, list(range(rank * part, (rank + 1) * part))))

    def reorder_data(self, indices: RowIndices) -> None:
        """Move row p to indices[p], in place: the inverse of select_indices.

        It restores the order of rows that were sharded: indices[p] is where row p came from. AssertionError if the
        sizes differ, ValueError if indices are not a permutation; the batch is then unchanged.
        """
        complaint = "Batch sizes are not the same"
        rows = require_equal_rows(self.data, complaint)
        targets = as_ints(indices, "row indices")
        if len(targets) != rows:
            raise AssertionError(f"{complaint}: the batch has {rows} rows, {len(targets)} indices were given")
        sources = sorted(range(rows), key=targets.__getitem__)
        if any(targets[source] != row for row, source in enumerate(sources)):
            raise ValueError(f"indices to reorder {rows} rows must hold each of 0 to {rows - 1} once")
        self.data.update(take_rows(self.data, sources))

    def repeat_interleave(self, num_repeats: int) -> Self:
        """Every row num_repeats times in succession. Elements of lists and object arrays are deep copies."""
        if num_repeats < 0:
            raise ValueError(f"num_repeats must be nonnegative, got {num_repeats}")
        for key, value in self.data.items():
            if isinstance(value, PackedTensor):
                raise NotImplementedError(f"repeat_interleave: column {key!r} is a PackedTensor")
        rows = require_equal_rows(self.data, "Batch sizes are not the same")
        repeated = take_rows(self.data, [row for row in range(rows) for _ in range(num_repeats)])
        return type(self)({key: _with_own_elements(value) for key, value in repeated.items()})

    def truncate_tensors(self, dim: int, truncated_len: int) -> None:
        """Cut every tensor that has dimension dim to its first truncated_len positions there, in place (views).

        ValueError when one of them is shorter; the batch is then unchanged.
        """
        cut: dict[str, torch.Tensor] = {}
        for key, value in self.data.items():
            if not isinstance(value, torch.Tensor) or value.ndim <= dim:
                continue
            if value.is_nested:
                raise TypeError(f"column {key!r} is a nested tensor, which cannot be truncated: pad it first")
            if value.shape[dim] < truncated_len:
                raise ValueError(f"column {key!r} has {value.shape[dim]} positions in dim {dim}, not {truncated_len}")
            cut[key] = value.narrow(dim, 0, truncated_len)
        self.data.update(cut)

    def to(self, device: torch.device | str) -> Self:
        """Move tensors and PackedTensors in place; returns self."""
        for key, value in self.data.items():
            if isinstance(value, (torch.Tensor, PackedTensor)):
                self.data[key] = value.to(device)
        return self

    # --- several batches ---

    @classmethod
    def from_batches(
        cls,
        batches: Iterable[Mapping[str, Any]],
        pad_value_dict: Mapping[str, float] | None = None,
    ) -> Self:
        """All rows of all batches, keys sorted. Tensors of two or more dimensions are padded on the right of dim 1 to
        the longest with the column's value in pad_value_dict (default 0).

        Batches without rows may lack columns. Raises KeyError for a column that another batch lacks.
        """
        return cls(concat_batches(batches, pad_value_dict or {}))

    def all_gather(self, group: torch.distributed.ProcessGroup) -> Self:
        """The rows of all ranks of group in rank order, on every rank; a collective call.

        Ranks may have different numbers of rows, but the same columns, dtypes and row shapes: ValueError on every rank
        otherwise, NotImplementedError for PackedTensors and nested tensors, TypeError for elements that a rank cannot
        pickle. Results carry no gradients.
        """
        return type(self)(gather_columns(self.data, group))

    @overload
    def shard_by_batch_size(
        self,
        shards: int,
        batch_size: int | None = None,
        allow_uneven_shards: bool = False,
        dynamic_batching_args: None = None,
        sequence_packing_args: None = None,
    ) -> list[SlicedDataDict[SpecT]]: ...

    @overload
    def shard_by_batch_size(
        self,
        shards: int,
        batch_size: int | None = None,
        allow_uneven_shards: bool = False,
        *,
        dynamic_batching_args: DynamicBatchingArgs,
        sequence_packing_args: None = None,
    ) -> tuple[list[SlicedDataDict[SpecT]], list[int]]: ...

    @overload
    def shard_by_batch_size(
        self,
        shards: int,
        batch_size: int | None = None,
        allow_uneven_shards: bool = False,
        dynamic_batching_args: None = None,
        *,
        sequence_packing_args: SequencePackingArgs,
    ) -> tuple[list[SlicedDataDict[SpecT]], list[int]]: ...

    def shard_by_batch_size(
        self,
        shards: int,
        batch_size: int | None = None,
        allow_uneven_shards: bool = False,
        dynamic_batching_args: DynamicBatchingArgs | None = None,
        sequence_packing_args: SequencePackingArgs | None = None,
    ) -> list[SlicedDataDict[SpecT]] | tuple[list[SlicedDataDict[SpecT]], list[int]]:
        """Split every batch_size rows (default: all) between shards; shard k holds part k of each in turn, as copies.

        dynamic_batching_args: microbatches of rows of similar length, padded to one: max_tokens_per_microbatch, which
        rows times padded length never exceed; sequence_length_round, of which padded lengths are multiples unless they
        reach the width; input_key, a padded column; input_lengths_key, the column of lengths. sequence_packing_args:
        microbatches of rows to lay end to end: max_tokens_per_microbatch, which the sum of padded lengths never
        exceeds; input_key, the column to pack, which is not read; input_lengths_key; algorithm, such as
        "first_fit_decreasing"; sequence_length_pad_multiple, of which padded lengths are multiples; and, if wanted,
        microbatch_order: "packer" (or None, the default) or "largest_first"; and seed, with which "first_fit_shuffle"
        packs equal lengths alike in every process (None, the default: it draws from the global random module).

        Without arguments for microbatches, returns a list of shards. Otherwise returns the shards, with microbatch
        metadata, and the row numbers in the order of the shards: reorder_data(numbers) on from_batches(shards) restores
        the original order (with dynamic batching only without batch_size: the order is chunk by chunk, not shard by
        shard). Arrays become lists. AssertionError if rows or sizes do not match. The source of `_sharding` has the
        rules.
        """
        if shards < 1:
            raise ValueError(f"shards must be positive, got {shards}")
        if allow_uneven_shards and batch_size is not None:
            raise AssertionError("batch_size must be None when allow_uneven_shards is set")
        if dynamic_batching_args is not None and sequence_packing_args is not None:
            raise AssertionError("dynamic_batching_args and sequence_packing_args cannot be passed together")
        total = require_equal_rows(self.data, "Batch sizes are not the same across the rollout batch")
        # Dynamic batching pairs the p-th rows of all shards, so there its shards must be even.
        uneven = allow_uneven_shards and dynamic_batching_args is None
        chunks = _sharding.cut_into_chunks(total, shards, batch_size, uneven=uneven)
        if dynamic_batching_args is not None:
            _check_keys("dynamic_batching_args", dynamic_batching_args, DynamicBatchingArgs)
            lengths = self._lengths(dynamic_batching_args["input_lengths_key"])
            width = self._width(dynamic_batching_args["input_key"])
            plans, order = _sharding.plan_dynamic(lengths, width, chunks, shards, dynamic_batching_args)
            return self._shards(plans), order
        if sequence_packing_args is not None:
            _check_keys("sequence_packing_args", sequence_packing_args, SequencePackingArgs)
            lengths = self._lengths(sequence_packing_args["input_lengths_key"])
            plans, order = _sharding.plan_packed(lengths, chunks, shards, sequence_packing_args)
            return self._shards(plans), order
        return self._shards(_sharding.plan_plain(chunks, shards))

    def _lengths(self, key: str) -> list[int]:
        lengths = as_ints(self[key], f"column {key!r}")
        for row, length in enumerate(lengths):
            if length < 0:
                raise ValueError(f"length {length} in row {row} of column {key!r} is negative")
        return lengths

    def _width(self, key: str) -> int:
        tensor = self[key]
        if not isinstance(tensor, torch.Tensor) or tensor.is_nested or tensor.ndim < 2:
            raise TypeError(f"dynamic batching needs a rectangular tensor of rows x positions in column {key!r}")
        return tensor.shape[1]

    def _shards(self, plans: list[_sharding.ShardPlan]) -> list[SlicedDataDict[SpecT]]:
        return [self._shard(plan) for plan in plans]

    def _shard(self, plan: _sharding.ShardPlan) -> SlicedDataDict[SpecT]:
        columns = take_rows(self.data, plan.rows)
        shard: SlicedDataDict[SpecT] = SlicedDataDict(
            {key: value.tolist() if isinstance(value, np.ndarray) else value for key, value in columns.items()}
        )
        shard.micro_batch_indices = plan.micro_batch_indices
        shard.micro_batch_lengths = plan.micro_batch_lengths
        shard.elem_counts_per_gb = plan.elem_counts_per_gb
        return shard

    # --- microbatches ---

    def make_microbatch_iterator(self, microbatch_size: int) -> Iterator[SlicedDataDict[SpecT]]:
        """Consecutive slices of microbatch_size rows. AssertionError at the first next() when rows do not divide."""
        if microbatch_size < 1 or self.size % microbatch_size:
            raise AssertionError(
                f"batch size ({self.size}) is not a multiple of the provided microbatch size ({microbatch_size})"
            )
        for start in range(0, self.size, microbatch_size):
            yield self.slice(start, start + microbatch_size)

    def make_microbatch_iterator_with_dynamic_shapes(self, sequence_dim: int = 1) -> Iterator[SlicedDataDict[SpecT]]:
        """Slices of one global batch by its metadata, every tensor cut along sequence_dim to the microbatch's length.

        AssertionError at the first next() unless the batch holds the metadata of exactly one global batch.
        """
        spans, lengths = self._only_chunk()
        for (start, end), length in zip(spans, lengths, strict=True):
            microbatch = self.slice(start, end)
            microbatch.truncate_tensors(dim=sequence_dim, truncated_len=length)
            yield microbatch

    def get_microbatch_iterator_dynamic_shapes_len(self) -> int:
        return len(self._only_chunk()[0])

    def make_microbatch_iterator_for_packable_sequences(self) -> Iterator[SlicedDataDict[SpecT]]:
        """Slices of one global batch by its metadata, each to be packed into one row by the caller; nothing is cut.

        AssertionError at the first next() unless the batch holds the metadata of exactly one global batch.
        """
        for start, end in self._only_chunk()[0]:
            yield self.slice(start, end)

    def get_microbatch_iterator_for_packable_sequences_len(self) -> tuple[int, int]:
        """The number of microbatches, and the tokens of the fullest one."""
        spans, lengths = self._only_chunk()
        return len(spans), max(lengths)

    def _only_chunk(self) -> tuple[list[list[int]], list[int]]:
        indices, lengths = self.micro_batch_indices, self.micro_batch_lengths
        if indices is None or lengths is None or len(indices) != 1 or len(lengths) != 1:
            chunks = 0 if indices is None else len(indices)
            raise AssertionError(f"microbatches are made of one global batch at a time, found metadata of {chunks}")
        return indices[0], lengths[0]


class SlicedDataDict(BatchedDataDict[SpecT]):
    """A part of another batch."""


def _check_keys(what: str, given: Mapping[str, object], kind: Any) -> None:
    """Raise ValueError for a dictionary of arguments that lacks one, or has another one. kind: its TypedDict."""
    lacking = sorted(kind.__required_keys__ - given.keys())
    unknown = sorted(given.keys() - kind.__required_keys__ - kind.__optional_keys__)
    if lacking or unknown:
        wrong = [*(f"lacks {name!r}" for name in lacking), *(f"has an unknown key {name!r}" for name in unknown)]
        raise ValueError(f"{what} {' and '.join(wrong)}; its keys are {', '.join(sorted(kind.__annotations__))}")


def _moved(packed: PackedTensor, device: torch.device | str | None) -> PackedTensor:
    return packed if device is None else packed.slice(range(len(packed))).to(device)


def _with_own_elements(column: Any) -> Any:
    if isinstance(column, list):
        return [copy.deepcopy(element) for element in column]
    if isinstance(column, np.ndarray) and column.dtype == object:
        own = np.empty_like(column)
        for i, element in np.ndenumerate(column):
            own[i] = copy.deepcopy(element)
        return own
    return column
