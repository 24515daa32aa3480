"""PackedTensor: one tensor a row, of different sizes, to be concatenated along one dimension just before use.

Image patches are the typical content: row i of a batch has any number of patches, or none (None), and the model takes
the patches of a whole microbatch in one tensor. Rows stay separate until then, so that slicing and sharding a batch
copies nothing: slice and concat share the row tensors with their source.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from dataplane_client._common.arrays import as_ints


class PackedTensor:
    """Rows `tensors`, each a tensor or None; all tensors agree in every dimension but dim_to_pack."""

    def __init__(self, tensors: torch.Tensor | Sequence[torch.Tensor | None], dim_to_pack: int) -> None:
        """A bare tensor is a single row. A list must not be empty; slice a PackedTensor to get one without rows."""
        if isinstance(tensors, torch.Tensor):
            tensors = [tensors]
        if not isinstance(tensors, (list, tuple)):
            raise TypeError(f"PackedTensor wraps a tensor or a list of tensors, got {type(tensors).__name__}")
        if not tensors:
            raise AssertionError("PackedTensor needs a non-empty list of tensors, got an empty one")
        for row, tensor in enumerate(tensors):
            if tensor is not None and not isinstance(tensor, torch.Tensor):
                raise TypeError(f"row {row} of a PackedTensor must be a tensor or None, got {type(tensor).__name__}")
        self.tensors: list[torch.Tensor | None] = list(tensors)
        self.dim_to_pack = dim_to_pack

    @classmethod
    def _of_rows(cls, rows: list[torch.Tensor | None], dim_to_pack: int) -> PackedTensor:
        packed = cls.__new__(cls)
        packed.tensors = rows
        packed.dim_to_pack = dim_to_pack
        return packed

    def __len__(self) -> int:
        return len(self.tensors)

    def __repr__(self) -> str:
        shapes = [None if t is None else tuple(t.shape) for t in self.tensors]
        return f"PackedTensor(rows={shapes}, dim_to_pack={self.dim_to_pack})"

    def as_tensor(self, device: torch.device | str | None = None) -> torch.Tensor | None:
        """A new tensor: the rows, moved to device if one is given, concatenated along dim_to_pack. None if every row is
        None. The rows themselves stay on their devices.
        """
        present = [t if device is None else t.to(device) for t in self.tensors if t is not None]
        return torch.cat(present, dim=self.dim_to_pack) if present else None

    def to(self, device: torch.device | str) -> PackedTensor:
        """Move every row in place; returns self."""
        self.tensors = [None if t is None else t.to(device) for t in self.tensors]
        return self

    def slice(self, indices: Iterable[int] | torch.Tensor) -> PackedTensor:
        """The rows at indices, in that order. No indices give length 0, and as_tensor() None."""
        return self._of_rows([self.tensors[i] for i in as_ints(indices, "row indices")], self.dim_to_pack)

    @classmethod
    def empty_like(cls, other: PackedTensor) -> PackedTensor:
        """A PackedTensor with as many rows as other, all None."""
        return cls._of_rows([None] * len(other), other.dim_to_pack)

    @classmethod
    def concat(cls, packed: Sequence[PackedTensor]) -> PackedTensor:
        """The rows of all of them, one after another."""
        dim = _common_dim(packed)
        return cls._of_rows([row for p in packed for row in p.tensors], dim)

    @classmethod
    def flattened_concat(cls, packed: Sequence[PackedTensor]) -> PackedTensor:
        """One row for each element of packed: its rows concatenated. as_tensor() equals that of concat.

        It makes the turns of one conversation one row of a batch.
        """
        dim = _common_dim(packed)
        return cls._of_rows([p.as_tensor() for p in packed], dim)


def _common_dim(packed: Sequence[PackedTensor]) -> int:
    dims = sorted({p.dim_to_pack for p in packed})
    if len(dims) != 1:
        raise AssertionError(f"PackedTensors to concatenate must share one dim_to_pack, found {dims}")
    return dims[0]
