"""Results of a rank as columns of the rows that they were computed from."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from dataplane_client.codec import pack_per_token_field
from dataplane_client.records.meta import KVBatchMeta


def result_column(meta: KVBatchMeta, result: object, result_key: str) -> torch.Tensor:
    """The tensor of a worker's result, packed by `pack_column`.

    The lengths of the rows are the meta's sequence_lengths or, without them, the result's own input_lengths.
    RuntimeError for a result without the key, TypeError for a value that is not a tensor, ValueError for a wrong number
    of rows.
    """
    if not isinstance(result, Mapping):
        raise RuntimeError(f"write-back of {result_key!r}: the result is a {type(result).__name__}, not a mapping")
    if result_key not in result:
        raise RuntimeError(f"write-back of {result_key!r}: the result has no such key, only {sorted(map(str, result))}")
    value = result[result_key]
    if not isinstance(value, torch.Tensor):
        raise TypeError(f"write-back of {result_key!r}: expected a tensor, got {type(value).__name__}")
    return pack_column(meta, result_key, value, result.get("input_lengths"))


def pack_column(meta: KVBatchMeta, name: str, value: torch.Tensor, input_lengths: object) -> torch.Tensor:
    """Return (N, ...) for the meta's N rows without padding, detached; (N,) as it is.

    The column stays on its device, so that only ragged data is copied to the host. ValueError for a wrong number of
    rows, for columns narrower than a row, and if the rows' lengths are unknown (padding would be stored as tokens).
    """
    if value.dim() == 0 or value.shape[0] != meta.size:
        raise ValueError(f"column {name!r} has shape {tuple(value.shape)}, but the meta has {meta.size} rows")
    if value.dim() == 1 or value.is_nested:
        return value.detach()
    lengths = _lengths(meta, name, input_lengths)
    longest = int(lengths.max()) if len(lengths) else 0
    if value.shape[1] < longest:
        raise ValueError(f"column {name!r} has {value.shape[1]} positions, but a row has {longest} tokens")
    return pack_per_token_field(value, lengths)


def _lengths(meta: KVBatchMeta, name: str, input_lengths: object) -> torch.Tensor:
    if meta.sequence_lengths is not None:
        return torch.tensor(meta.sequence_lengths, dtype=torch.int64)
    if isinstance(input_lengths, torch.Tensor) and input_lengths.shape == (meta.size,):
        return input_lengths
    raise ValueError(
        f"column {name!r}: the lengths of the rows are unknown; the meta needs sequence_lengths, or the result "
        f"input_lengths ({meta.size},)"
    )
