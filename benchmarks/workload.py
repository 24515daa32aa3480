"""The workload of TransferQueue's performance test, the row of a model call, and how results are read and compared.

Rows x fields x length. In the simple case all fields are dense float32 of `length`. In the complex case a third of them
is dense, a third jagged with 1 to `length` float32 a row, and a third strings of `length` characters.

A result may be a view of memory that its process has not touched yet. So a get ends when `touch` has read a number of
each page. Needs torch, tensordict and NumPy only, because peers' environments import it too.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from tensordict import NonTensorStack, TensorDict

Form = Literal["jagged", "dense"]
PAGE_BYTES = 4096
_RECORD_TOKENS, _RECORD_NUMBERS, _RECORD_TEXTS = 1000, 13, 5


@dataclass(frozen=True)
class Workload:
    """name: of the setting whose rows these are, or fewer of them."""

    name: str
    rows: int
    fields: int
    length: int
    complex: bool

    @property
    def names(self) -> list[str]:
        return [f"field_{number}" for number in range(self.fields)]

    def partition(self, system: str) -> str:
        return f"{self.name} {self.kind} of {system}"

    @property
    def kind(self) -> str:
        return "complex" if self.complex else "simple"

    def batch(self) -> TensorDict:
        """The same numbers in every process."""
        torch.manual_seed(0)
        kinds = [field % 3 if self.complex else 0 for field in range(self.fields)]
        return TensorDict(dict(zip(self.names, map(self._column, kinds), strict=True)), batch_size=[self.rows])

    def _column(self, kind: int) -> Any:
        if kind == 0:
            return torch.randn(self.rows, self.length)
        if kind == 1:
            lengths = torch.randint(1, self.length + 1, (self.rows,)).tolist()
            return torch.nested.as_nested_tensor([torch.randn(each) for each in lengths], layout=torch.jagged)
        return NonTensorStack(*(f"{row:08d}" * (self.length // 8) for row in range(self.rows)))


def record(form: Form) -> TensorDict:
    """A row as NeMo-RL's token sink stages it for one model call, with names of ours: three columns of 1,000 tokens
    (int64, float32, float32), as nested tensors or as rectangles with one row, 13 numbers and 5 texts.
    """
    torch.manual_seed(0)
    tokens = {
        "token_ids": torch.randint(0, 32_000, (_RECORD_TOKENS,)),
        "logprobs": -torch.rand(_RECORD_TOKENS),
        "token_mask": torch.rand(_RECORD_TOKENS),
    }
    columns: dict[str, Any] = {
        name: values[None] if form == "dense" else torch.nested.as_nested_tensor([values], layout=torch.jagged)
        for name, values in tokens.items()
    }
    for number in range(_RECORD_NUMBERS):
        columns[f"number_{number:02d}"] = torch.rand(1) if number % 2 else torch.randint(0, 1000, (1,))
    for number in range(_RECORD_TEXTS):
        columns[f"text_{number}"] = NonTensorStack(f"call-{number:08d}")
    return TensorDict(columns, batch_size=[1])


def arrays(batch: Any) -> Iterable[Any]:
    """The bytes of each tensor, in order of the names, and those of all texts."""
    yield from (numbers.numpy().view(np.uint8) for numbers in _tensors(batch))
    yield np.frombuffer("".join(_texts(batch)).encode(), np.uint8)


def touch(batch: Any) -> float:
    """Read a number of each page of the tensors."""
    return sum(float(numbers[:: PAGE_BYTES // numbers.itemsize].sum()) for numbers in _tensors(batch))


def digest(batch: Any) -> str:
    found = hashlib.blake2b()
    for array in arrays(batch):
        found.update(np.ascontiguousarray(array).data)
    return found.hexdigest()


def _tensors(batch: Any) -> Iterable[torch.Tensor]:
    """The numbers of each tensor, flat, without a copy if they are contiguous."""
    for _, column in sorted(batch.items()):
        if isinstance(column, torch.Tensor):
            yield (column.values() if column.is_nested else column).flatten()


def _texts(batch: Any) -> Iterable[str]:
    for name, column in sorted(batch.items()):
        if not isinstance(column, torch.Tensor):
            yield from (str(text) for text in batch[name])
