"""Rows with their values as JSON Lines.

A line is a row: its id, its tags, its group if it has one, and for each field either "values", numbers in nested lists,
with their "dtype", or "object". "shape" is beside "values" where lists do not tell it: before a dimension without
entries they end. So what was exported can be imported with the same types, shapes and groups.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, NoReturn

import torch

from dataplane_client._values.dtypes import WIRE_DTYPES, dtype_name, torch_dtype
from dataplane_client.cli._output import fail
from dataplane_client.records.descriptions import FieldDescription
from dataplane_client.records.meta import Tag

PAGE_ROWS = 256
_PACKED = [entry.torch_dtype for entry in WIRE_DTYPES if entry.name.startswith("float4")]
_JSON_SCALARS = (type(None), bool, int, float, str)


@dataclass(frozen=True)
class RowGroup:
    """A finished group: its id, how many rows it has, and the weight versions of its begin and end."""

    id: str
    rows: int
    start_weight_version: int | None = None
    end_weight_version: int | None = None


@dataclass(frozen=True)
class Row:
    """One row, with those of the fields that it has."""

    sample_id: str
    tags: Mapping[str, Tag]
    fields: Mapping[str, Any]
    group: RowGroup | None = None


def write(path: str, fields: Sequence[FieldDescription], rows: Iterator[Row]) -> int:
    """Write rows, and return how many. fields: of the rows."""
    written, objects = 0, {one.name for one in fields if one.kind == "object"}
    with _opened(path, "w") as file:
        for row in rows:
            file.write(f"{_line(row, objects)}\n")
            written += 1
    return written


def _line(row: Row, objects: set[str]) -> str:
    fields = {name: _written(row, value, name in objects) for name, value in row.fields.items()}
    group = {} if row.group is None else {"group": asdict(row.group)}
    return json.dumps({"sample_id": row.sample_id, "tags": dict(row.tags), **group, "fields": fields})


def _refuse(row: Row, what: str) -> NoReturn:
    fail(f"sample {row.sample_id!r} has a value that JSON cannot hold ({what}): choose fields with --field")


def _written(row: Row, value: Any, is_object: bool) -> dict[str, Any]:
    if isinstance(value, torch.Tensor) and not is_object:
        if value.is_complex() or value.dtype in _PACKED:
            _refuse(row, f"{dtype_name(value.dtype)} numbers")
        shape = {} if 0 not in value.shape[:-1] else {"shape": list(value.shape)}
        return {"dtype": dtype_name(value.dtype), "values": value.tolist(), **shape}
    return {"object": checked_object(row, value)}


def checked_object(row: Row, value: Any) -> Any:
    """An object of a row, which JSON gives back equal and of the same types; ends the command if it does not."""
    if lost := _lost(value):
        _refuse(row, lost)
    return value


def _lost(value: Any) -> str | None:
    """What of a value JSON would lose or change."""
    if type(value) is list:
        return next(filter(None, map(_lost, value)), None)
    if type(value) is dict:
        if others := [key for key in value if type(key) is not str]:
            return f"a key of type {type(others[0]).__name__}"
        return next(filter(None, map(_lost, value.values())), None)
    return None if type(value) in _JSON_SCALARS else f"type {type(value).__name__}"


def read(path: str) -> Iterator[tuple[list[Row], set[str]]]:
    """The rows, a page at a time. The names of dense fields beside them are empty: the lines do not tell."""
    with _opened(path, "r") as file:
        yield from ((rows, set()) for rows in _pages_of(file))


def _pages_of(file: IO[str]) -> Iterator[list[Row]]:
    rows: list[Row] = []
    for number, line in _numbered_lines(file):
        if line.strip():
            rows.append(_row_of(line, f"line {number} is not a row as `dataplane export` writes it"))
        if len(rows) == PAGE_ROWS:
            yield rows
            rows = []
    if rows:
        yield rows


def _numbered_lines(file: IO[str]) -> Iterator[tuple[int, str]]:
    try:
        yield from enumerate(file, 1)
    except UnicodeDecodeError:
        fail(f"{file.name} is not text in UTF-8, as `dataplane export` writes it")


def _row_of(line: str, refused: str) -> Row:
    try:
        read = json.loads(line)
    except (ValueError, RecursionError):
        fail(f"{refused}: it is not JSON")
    kinds = {"sample_id": str, "tags": dict, "fields": dict, "group": dict}
    parts = {"tags": {}, "group": {}, **read} if isinstance(read, dict) else {}
    if wrong := [name for name, kind in kinds.items() if not isinstance(parts.get(name), kind)]:
        fail(f'{refused}: it needs "{wrong[0]}", {"a text" if kinds[wrong[0]] is str else "an object"}')
    return Row(
        parts["sample_id"],
        parts["tags"],
        {name: _value_of(written, f"{refused}: field {name!r}") for name, written in parts["fields"].items()},
        _group_of(parts["group"], refused) if parts["group"] else None,
    )


def _group_of(written: dict[str, Any], refused: str) -> RowGroup:
    try:
        group = RowGroup(**written)
        of_id, of_rows, *of_versions = map(type, vars(group).values())
        if (of_id, of_rows) != (str, int) or not {*of_versions} <= {int, type(None)}:
            raise TypeError
        return group
    except TypeError:
        fail(f"{refused}: its group is not one as `dataplane export` writes it")


def _value_of(written: Any, refused: str) -> Any:
    if isinstance(written, dict) and "object" in written:
        return written["object"]
    if not isinstance(written, dict) or not {"values", "dtype"} <= written.keys():
        fail(f'{refused} needs "values" with their "dtype", or "object"')
    try:
        dtype = torch_dtype(str(written["dtype"]))
    except ValueError as error:
        fail(f"{refused}: {error}")
    try:
        values = torch.tensor(written["values"], dtype=dtype)
        if not dtype.is_floating_point and values.tolist() != written["values"]:
            raise ValueError
        return values.reshape(written.get("shape", values.shape))
    except (ValueError, TypeError, RuntimeError, OverflowError):
        fail(f'{refused}: "values" needs {written["dtype"]} numbers, in lists of equal lengths')


@contextlib.contextmanager
def _opened(path: str, mode: str) -> Iterator[IO[str]]:
    if path == "-":
        yield sys.stdin if mode == "r" else sys.stdout
        return
    with Path(path).open(mode, encoding="utf-8") as file:
        yield file
