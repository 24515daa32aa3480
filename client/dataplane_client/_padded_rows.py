"""Per-token fields on their way into a put, still padded: the rows are taken from where they lie, so that packing costs
one copy, into the message or into the server's memory.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from dataplane_client.codec import packed_fields

ObjectArray = npt.NDArray[np.object_]
Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class PaddedRows:
    """A jagged field whose row i is ``padded[i, :lengths[i]]``; padded is on the CPU and (N, S, ...)."""

    padded: torch.Tensor
    lengths: Int64Array

    def __len__(self) -> int:
        return len(self.lengths)


def with_padded_rows(
    fields: Mapping[str, torch.Tensor | ObjectArray],
    lengths: torch.Tensor,
    token_aligned_fields: Collection[str] | None,
) -> dict[str, object]:
    """The same fields as pack_jagged_fields packs, and the same errors, with PaddedRows where it would copy rows."""
    row_lengths = lengths.detach().to("cpu", torch.int64).numpy()
    longest = int(row_lengths.max(initial=0))
    padded = {
        name: PaddedRows(val.detach(), row_lengths)
        for name, val in fields.items()
        if isinstance(val, torch.Tensor)
        and _is_padded(val, row_lengths, longest)
        and (val.shape[1] == longest if token_aligned_fields is None else name in token_aligned_fields)
    }
    others = {name: val for name, val in fields.items() if name not in padded}
    named = None if token_aligned_fields is None else set(token_aligned_fields)
    packed, _ = packed_fields(others, lengths, named)
    return {name: padded[name] if name in padded else packed[name] for name in fields}


def _is_padded(val: torch.Tensor, lengths: Int64Array, longest: int) -> bool:
    if val.is_nested or val.dim() < 2 or val.device.type != "cpu" or not val.is_contiguous():
        return False
    return bool(len(lengths) and val.shape[0] == len(lengths) and val.shape[1] >= longest)
