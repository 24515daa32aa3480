"""JSON values of fields as wire columns, see "Values on the wire" in data_plane.proto.

| each sample has | column |
|---|---|
| a number, or true or false | dense |
| a list of numbers | jagged, also if all have one length |
| text, null, an object, a list of other things | objects |

The samples of a put have the same fields, and a field has one kind of values. JSON does not tell 1 from 1.0, so the
element type is the one that the body names in `dtypes`, otherwise the one that the field holds already, otherwise what
the values need: bool, int64, or float32 if one of them has a point or an exponent. A number that the type does not hold
is refused; floats are rounded to it. A field that holds objects takes any value.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, Final

import msgpack
import numpy as np

from dataplane_server.core.calls.columns import Shape
from dataplane_server.core.calls.refusal import Reason, Refusal
from dataplane_server.http_door.body import PutSample, refused
from rl_dataplane.v1 import data_plane_pb2 as pb
from rl_dataplane.v1.element_numbers import DTYPE_NUMBERS, KIND_NUMBERS
from rl_dataplane.v1.element_types import Kind

_DTYPES: Final = {
    dtype.name: dtype
    for dtype in map(np.dtype, ("?", "u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "f2", "f4", "f8"))
}
_PYTHON_TYPES: Final[dict[str, set[type]]] = {"b": {bool}, "u": {int}, "i": {int}, "f": {int, float}}
"""Which numbers fit an element type, by its kind."""
_MAX_DEPTH: Final = 128
_FREE_CONTAINERS: Final = 256
_BYTES_PER_CONTAINER: Final = 8


def wire_columns(
    samples: Sequence[PutSample], stored: Mapping[str, Shape], dtypes: Mapping[str, str]
) -> tuple[list[pb.Column], bytes]:
    """The columns of a put, and the bytes of their values. stored: the shapes of the fields that hold values. Refusal
    that names field, sample and rule.
    """
    names = _names(samples)
    if unknown := dtypes.keys() - set(names):
        raise refused(f"dtypes names {min(unknown)!r}, which no sample has", field=min(unknown))
    pairs = [_Values(name, samples, stored.get(name), dtypes.get(name)).column() for name in names]
    return [column for column, _ in pairs], b"".join(values for _, values in pairs)


def packed(where: str, value: object) -> bytes:
    """A value as msgpack, which readers accept. Refusal that says where it is."""
    try:
        containers = _containers(value, 0)
        data: bytes = msgpack.packb(value)
        if containers > _FREE_CONTAINERS + len(data) // _BYTES_PER_CONTAINER:
            raise ValueError(f"{containers} lists and objects in {len(data)} bytes are too many")
    except (ValueError, OverflowError) as error:
        raise refused(f"{where}: {error}") from None
    return data


def _containers(value: object, depth: int) -> int:
    """The number of lists and objects in a value, itself included."""
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("a number is beyond float64")
    if not isinstance(value, (dict, list)):
        return 0
    if depth == _MAX_DEPTH:
        raise ValueError(f"nested deeper than {_MAX_DEPTH} levels")
    items = value.values() if isinstance(value, dict) else value
    return 1 + sum(_containers(item, depth + 1) for item in items)


def _names(samples: Sequence[PutSample]) -> list[str]:
    """The fields, which all samples must have."""
    first = samples[0] if samples else None
    for sample in samples:
        if first is not None and sample.fields.keys() != first.fields.keys():
            name = min(sample.fields.keys() ^ first.fields.keys())
            having, lacking = (sample, first) if name in sample.fields else (first, sample)
            raise refused(
                f"field {name!r}: sample {having.sample_id!r} has it, sample {lacking.sample_id!r} has not; put "
                "samples with different fields in separate requests",
                Reason.ROW_COUNT_MISMATCH,
                field=name,
                sample_id=lacking.sample_id,
            )
    return [] if first is None else list(first.fields)


class _Values:
    """The values of one field."""

    def __init__(self, name: str, samples: Sequence[PutSample], stored: Shape | None, dtype: str | None) -> None:
        self._name = name
        self._samples = samples
        self._values = [sample.fields[name] for sample in samples]
        self._stored = stored
        self._dtype = dtype

    def column(self) -> tuple[pb.Column, bytes]:
        if self._stored is not None and self._stored.kind == "object":
            return self._of_objects()
        kind = self._kind()
        if kind == "object":
            return self._of_objects()
        if kind == "numbers":
            return self._of_numbers(list(chain.from_iterable(self._values)), list(map(len, self._values)))
        return self._of_numbers(self._values, None)

    def _kind(self) -> str:
        kinds = list(map(_kind, self._values))
        for row, kind in enumerate(kinds):
            if kind == "lists":
                raise self._refused(row, "a list of lists; flatten it, or put it into an object")
            if kind != kinds[0]:
                other = self._samples[0].sample_id
                raise self._refused(row, f"{_WORDS[kind]}, but sample {other!r} has {_WORDS[kinds[0]]}")
        return kinds[0]

    def _of_objects(self) -> tuple[pb.Column, bytes]:
        where = f"field {self._name!r}, sample "
        rows = [packed(f"{where}{sample.sample_id!r}", sample.fields[self._name]) for sample in self._samples]
        return _column(self._name, "object", None, list(map(len, rows))), b"".join(rows)

    def _of_numbers(self, numbers: list[Any], lengths: list[int] | None) -> tuple[pb.Column, bytes]:
        dtype = self._element_type(set(map(type, numbers)))
        try:
            with np.errstate(over="ignore"):
                array = np.array(numbers, dtype)
        except OverflowError:
            raise self._refused(None, f"a number that {dtype} does not hold") from None
        if dtype.kind == "f" and not np.isfinite(array).all():
            raise self._refused(None, f"a number that {dtype} does not hold; numbers must be finite")
        return _column(self._name, "dense" if lengths is None else "jagged", dtype.name, lengths), array.tobytes()

    def _element_type(self, found: set[type]) -> np.dtype[Any]:
        """Refusal if the numbers are of other types than the field's."""
        given = self._dtype or (self._stored.dtype if self._stored is not None else None)
        name = given or _natural(found)
        if name is None:
            raise self._refused(None, "nothing but empty lists; name its element type in dtypes")
        if name not in _DTYPES:
            raise self._refused(None, f"the element type {name!r}; through this door it can be {', '.join(_DTYPES)}")
        fits = _PYTHON_TYPES[_DTYPES[name].kind]
        if not found <= fits:
            wrong = ", ".join(sorted(kind.__name__ for kind in found - fits))
            raise self._refused(None, f"{wrong} values, but the element type is {name}")
        return _DTYPES[name]

    def _refused(self, row: int | None, what: str) -> Refusal:
        metadata = {"field": self._name}
        sample = "" if row is None else f", sample {self._samples[row].sample_id!r}"
        if row is not None:
            metadata["sample_id"] = self._samples[row].sample_id
        return refused(f"field {self._name!r}{sample}: {what}", Reason.FIELD_MISMATCH, **metadata)


_NUMBERS: Final = frozenset({bool, int, float})
_WORDS: Final = {"number": "a number", "numbers": "a list of numbers", "object": "another value"}


def _kind(value: object) -> str:
    if type(value) in _NUMBERS:
        return "number"
    if not isinstance(value, list):
        return "object"
    kinds = set(map(type, value))
    if kinds <= _NUMBERS:
        return "numbers"
    return "lists" if kinds == {list} else "object"


def _natural(found: set[type]) -> str | None:
    """The element type for Python numbers of these types."""
    if not found:
        return None
    return "bool" if found == {bool} else "int64" if found == {int} else "float32"


def _column(name: str, kind: Kind, dtype: str | None, lengths: list[int] | None) -> pb.Column:
    return pb.Column(
        name=name,
        kind=pb.FieldKind.ValueType(KIND_NUMBERS[kind]),
        data_type=pb.DataType.ValueType(0 if dtype is None else DTYPE_NUMBERS[dtype]),
        row_lengths=b"" if lengths is None else np.array(lengths, "<i8").tobytes(),
    )
