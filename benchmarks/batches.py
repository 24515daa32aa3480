"""The measured batches, the same for every system: NumPy columns made from a seed, with zero padding.

Needs NumPy only, so the environments of the peers make the same bytes.

- G: 512 rows of 512 to 4096 tokens; `input_ids` int64, 4 float32 fields a token, 3 fields a row (29 MB without
  padding, 50 MB with it).
- S: one row of 1,000 tokens; `input_ids`, 3 float32 fields a token, its length and mask.
- D: 1024 rows of 8192 float32 in each of 9 fields, dense (302 MB).
- R: 64 rows of 2048 to 8192 tokens, experts chosen in 16 layers, 8 each, uint8 (42 MB without padding, 67 MB with it).
- P: 64 rows of 18,432 tokens, 3 int64 fields a token (28 MB, no padding).
- Q: 1023 rows of 1 to 2304 tokens and one of 18,432, to which all are padded; fields as P (29 MB without padding, 453
  MB with it).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Columns = dict[str, npt.NDArray[Any]]

_PER_TOKEN = ("generation_logprobs", "prev_logprobs", "advantages", "token_mask")
_DENSE_FIELDS = 9
_DENSE_WIDTH = 8192
_EXPERTS = (16, 8)


@dataclass(frozen=True)
class Spec:
    """Description of a batch. Lengths are uniform between shortest and longest, in tokens. first: the length of the
    first row, if not 0.
    """

    name: str
    kind: Literal["rollout", "sample", "dense", "experts", "positions"]
    rows: int
    shortest: int = 0
    longest: int = 0
    first: int = 0

    def longer(self, factor: int) -> Spec:
        """The same rows, `factor` times as long."""
        shortest, longest = self.shortest * factor, self.longest * factor
        return replace(self, name=f"{self.name}x{factor}", shortest=shortest, longest=longest)


G = Spec("G", "rollout", 512, 512, 4096)
S = Spec("S", "sample", 1, 1000, 1000)
D = Spec("D", "dense", 1024)
R = Spec("R", "experts", 64, 2048, 8192)
P = Spec("P", "positions", 64, 18_432, 18_432)
Q = Spec("Q", "positions", 1024, 1, 2304, first=18_432)


@dataclass(frozen=True)
class Batch:
    """Columns with one row for each sample. per_token: names of the columns of shape (rows, longest row, ...).
    lengths: tokens of each row in these columns. A dense batch has neither.
    """

    name: str
    columns: Columns
    per_token: tuple[str, ...]
    lengths: npt.NDArray[np.int64] | None

    @property
    def rows(self) -> int:
        return len(next(iter(self.columns.values())))

    @property
    def sizes(self) -> str:
        return f"{self.rows} rows, {self.jagged_bytes / 1e6:.3g} MB, padded {self.padded_bytes / 1e6:.3g} MB"

    @property
    def padded_bytes(self) -> int:
        return sum(column.nbytes for column in self.columns.values())

    @property
    def jagged_bytes(self) -> int:
        """Bytes without padding."""
        return sum(self._kept_bytes(name, column) for name, column in self.columns.items())

    def _kept_bytes(self, name: str, column: npt.NDArray[Any]) -> int:
        if self.lengths is None or name not in self.per_token:
            return int(column.nbytes)
        return int(column.nbytes) // int(column.shape[0] * column.shape[1]) * int(self.lengths.sum())


def build(spec: Spec) -> Batch:
    """Build the batch of a description; every process builds the same one."""
    random = np.random.default_rng(0)
    if spec.kind == "dense":
        columns: Columns = {
            f"field_{number}": random.random((spec.rows, _DENSE_WIDTH), np.float32) for number in range(_DENSE_FIELDS)
        }
        return Batch(spec.name, columns, (), None)
    lengths = random.integers(spec.shortest, spec.longest + 1, spec.rows)
    lengths[0] = spec.first or lengths[0]
    width = int(lengths.max())
    columns = _per_token_columns(spec, width, random)
    padding = np.arange(width) >= lengths[:, None]
    for column in columns.values():
        column[padding] = 0
    per_token = tuple(columns)
    columns["input_lengths"] = lengths
    columns["sample_mask"] = np.ones(spec.rows, np.float32)
    if spec.kind == "rollout":
        columns["reward"] = random.random(spec.rows, np.float32)
    return Batch(spec.name, columns, per_token, lengths)


def _per_token_columns(spec: Spec, width: int, random: np.random.Generator) -> Columns:
    shape = (spec.rows, width)
    if spec.kind == "experts":
        return {"routed_experts": random.integers(0, 128, (*shape, *_EXPERTS), np.uint8)}
    if spec.kind == "positions":
        positions = np.tile(np.arange(width), (spec.rows, 1))
        return {
            "input_ids": random.integers(1, 32_000, shape),
            "attention_mask": np.ones(shape, np.int64),
            "position_ids": positions,
        }
    names = _PER_TOKEN if spec.kind == "rollout" else _PER_TOKEN[:3]
    columns: Columns = {"input_ids": random.integers(1, 32_000, shape)}
    columns.update({name: random.random(shape, np.float32) for name in names})
    return columns
