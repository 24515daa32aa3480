"""Row operations on nested tensors of shape (N, ragged, *trailing).

Nested tensors can be added or compared only if they hold the same offsets object. So columns whose rows have the same
lengths share one: an object of the class below is used for all columns of a batch.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from dataplane_client._common.arrays import Int64Array
from dataplane_client._values.jagged import JaggedRows, RowSplit, build_jagged, read_jagged, split_rows
from dataplane_client._values.rows import gather_rows


class JaggedColumns:
    """Makes the nested columns of one new batch. Raises ValueError, naming the column, for those that are ragged in
    another dim than dim 1.
    """

    def __init__(self) -> None:
        self._splits: dict[tuple[bytes, torch.device], RowSplit] = {}

    def slice(self, key: str, nested: torch.Tensor, start: int, end: int) -> torch.Tensor:
        """Rows [start, end); a view of the values if the rows adjoin there."""
        rows = read_jagged(nested, key)
        part = JaggedRows(rows.values, rows.starts[start:end], rows.lengths[start:end])
        return self._nested(part.packed(), part.lengths)

    def take(self, key: str, nested: torch.Tensor, index: Int64Array) -> torch.Tensor:
        """Copies of the rows at index, in that order."""
        rows = read_jagged(nested, key)
        lengths = rows.lengths[index]
        return self._nested(gather_rows(rows.values, rows.starts[index], lengths), lengths)

    def join(self, key: str, columns: Sequence[torch.Tensor]) -> torch.Tensor:
        """Copies of the rows of all columns."""
        parts = [read_jagged(nested, key) for nested in columns]
        return self._nested(
            torch.cat([rows.packed() for rows in parts]), np.concatenate([rows.lengths for rows in parts])
        )

    def _nested(self, values: torch.Tensor, lengths: Int64Array) -> torch.Tensor:
        key = (lengths.tobytes(), values.device)
        if key not in self._splits:
            self._splits[key] = split_rows(lengths, values.device)
        return build_jagged(values, self._splits[key])
