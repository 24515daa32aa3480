"""Rows with their values as a Parquet file: a column for the id, one for the tags (a map of JSON texts), one for the
group, then one for each field. A row without a group or a field has null there.

A field's column has numbers for scalars, else lists of numbers, which are the entries of a row without its inner
dimensions; for objects, JSON texts. The metadata "dataplane" of the column has the field's kind, element type and row
shape. Element types that Parquet lacks are float32 if that holds their values (bfloat16, float8), else bytes.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet as pq
import torch

from dataplane_client._values.dtypes import torch_dtype
from dataplane_client.cli._lines import PAGE_ROWS, Row, RowGroup, checked_object
from dataplane_client.cli._output import fail
from dataplane_client.records.descriptions import FieldDescription

_MEMBER = b"dataplane"
_NATIVE = {
    "bool",
    "float16",
    "float32",
    "float64",
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
}
_GROUP = {"id": pa.string(), **dict.fromkeys(("rows", "start_weight_version", "end_weight_version"), pa.int64())}
_ABOUT_ROWS = (
    pa.field("sample_id", pa.string()),
    pa.field("tags", pa.map_(pa.string(), pa.string())),
    pa.field("group", pa.struct(_GROUP)),
)


@dataclass(frozen=True)
class _Column:
    """How the values of a field are stored."""

    name: str
    kind: str
    dtype: str
    row_shape: tuple[int, ...]

    @property
    def stored(self) -> str:
        """The element type in the file."""
        widened = "float32" if self.dtype == "bfloat16" or self.dtype.startswith("float8") else "uint8"
        return self.dtype if self.dtype in _NATIVE else widened

    @property
    def is_scalar(self) -> bool:
        return self.kind == "dense" and not self.row_shape and (self.stored != "uint8" or self.dtype == "uint8")

    def field(self) -> pa.Field:
        if self.kind == "object":
            kind = pa.string()
        else:
            element = pa.bool_() if self.stored == "bool" else pa.from_numpy_dtype(self.stored)
            kind = element if self.is_scalar else pa.large_list(element)
        about = {"kind": self.kind, "dtype": self.dtype, "row_shape": self.row_shape}
        return pa.field(self.name, kind, metadata={_MEMBER: json.dumps(about)})

    def array(self, rows: Sequence[Row]) -> pa.Array:
        has = np.array([self.name in row.fields for row in rows], bool)
        if self.kind == "object":
            return pa.array([self._text(row) if self.name in row.fields else None for row in rows], pa.string())
        flat = [self._to_stored(row.fields[self.name]) for row, one in zip(rows, has, strict=True) if one]
        numbers = np.concatenate(flat) if flat else np.empty(0, self.stored)
        if self.is_scalar:
            spread = np.zeros(len(rows), numbers.dtype)
            spread[has] = numbers
            return pa.array(spread, mask=~has)
        ends = np.zeros(len(rows) + 1, np.int64)
        ends[1:][has] = [len(row) for row in flat]
        return pa.LargeListArray.from_arrays(np.cumsum(ends), pa.array(numbers), mask=pa.array(~has))

    def _text(self, row: Row) -> str:
        return json.dumps(checked_object(row, row.fields[self.name]))

    def values(self, array: pa.Array) -> Iterable[Any]:
        """Of an array without nulls."""
        if self.kind == "object":
            return map(json.loads, array.to_pylist())
        flat, lengths = array, [1] * len(array)
        if not self.is_scalar:
            flat, lengths = array.flatten(), pyarrow.compute.list_value_length(array).to_pylist()
        numbers = torch.from_numpy(flat.to_numpy(zero_copy_only=False).copy())
        return map(self._from_stored, numbers.split(lengths))

    def _to_stored(self, value: Any) -> np.ndarray[Any, Any]:
        as_declared = isinstance(value, torch.Tensor) and value.dtype == torch_dtype(self.dtype)
        inner = self.row_shape if self.kind == "dense" else (*value.shape[:1], *self.row_shape)
        if not as_declared or value.shape != inner:
            fail(f"field {self.name!r} was put in another shape while it was exported: export again")
        flat = value.detach().contiguous().flatten()
        stored: torch.Tensor = (flat.view if self.stored == "uint8" else flat.to)(getattr(torch, self.stored))
        return stored.numpy()

    def _from_stored(self, flat: torch.Tensor) -> torch.Tensor:
        values = (flat.view if self.stored == "uint8" else flat.to)(torch_dtype(self.dtype))
        return values.reshape(self.row_shape if self.kind == "dense" else (-1, *self.row_shape))


def write(path: str, fields: Sequence[FieldDescription], rows: Iterator[Row]) -> int:
    """Write rows, a page at a time. fields: of the rows. Returns how many rows there were."""
    columns = [_Column(one.name, one.kind, one.dtype, one.row_shape) for one in fields if one.kind is not None]
    names = {column.name for column in columns}
    written = 0
    if flat := [one.name for one in columns if one.kind == "jagged" and not math.prod(one.row_shape)]:
        fail(f"Parquet cannot hold the field {flat[0]!r}, whose entries have no numbers: choose fields with --field")
    schema = pa.schema([*_ABOUT_ROWS, *(column.field() for column in columns)])
    with pq.ParquetWriter(path, schema) as writer:
        while page := list(itertools.islice(rows, PAGE_ROWS)):
            if new := set().union(*(row.fields for row in page)) - names:
                fail(f"field {min(new)!r} was put for the first time while rows were exported: export again")
            writer.write_batch(_batch(schema, columns, page))
            written += len(page)
    return written


def _batch(schema: pa.Schema, columns: Sequence[_Column], page: Sequence[Row]) -> pa.RecordBatch:
    ids = pa.array([row.sample_id for row in page], _ABOUT_ROWS[0].type)
    tags = pa.array([[(key, json.dumps(tag)) for key, tag in row.tags.items()] for row in page], _ABOUT_ROWS[1].type)
    groups = pa.array([None if row.group is None else asdict(row.group) for row in page], _ABOUT_ROWS[2].type)
    return pa.RecordBatch.from_arrays([ids, tags, groups, *(column.array(page) for column in columns)], schema=schema)


def read(path: str) -> Iterator[tuple[list[Row], set[str]]]:
    """The rows, a page at a time, and the names of the fields that are dense."""
    try:
        with Path(path).open("rb") as bytes_of_file, pq.ParquetFile(bytes_of_file) as file:
            columns = [_Column(field.name, **_about(field)) for field in list(file.schema_arrow)[len(_ABOUT_ROWS) :]]
            for batch in file.iter_batches(PAGE_ROWS):
                yield _rows(batch, columns), {column.name for column in columns if column.kind == "dense"}
    except pa.ArrowException:
        fail(f"{path} is not a file as `dataplane export` writes it: it is not Parquet, or it is damaged")
    except (KeyError, TypeError, ValueError):
        fail(
            f"{path} is not a file as `dataplane export` writes it: it needs the columns sample_id, tags and "
            f"group, then fields with metadata {_MEMBER.decode()!r}"
        )


def _about(field: pa.Field) -> dict[str, Any]:
    about: dict[str, Any] = json.loads(field.metadata[_MEMBER])
    return {**about, "row_shape": tuple(about["row_shape"])}


def _rows(batch: pa.RecordBatch, columns: Sequence[_Column]) -> list[Row]:
    ids, tags, groups, *arrays = batch.columns
    fields: list[dict[str, Any]] = [{} for _ in range(batch.num_rows)]
    for column, array in zip(columns, arrays, strict=True):
        places = np.flatnonzero(array.is_valid().to_numpy(zero_copy_only=False))
        for place, value in zip(places, column.values(array.drop_null()), strict=True):
            fields[place][column.name] = value
    row_tags = [{key: json.loads(tag) for key, tag in of} for of in tags.to_pylist()]
    row_groups = [None if one is None else RowGroup(**one) for one in groups.to_pylist()]
    return list(map(Row, ids.to_pylist(), row_tags, fields, row_groups))
