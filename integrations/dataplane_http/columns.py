"""JSON values of fields as columns of the client, and back.

| each sample has | column |
|---|---|
| a number, or true or false | dense |
| a list of numbers | jagged, also if all have one length |
| text, null, an object, a list of other things | objects |

The samples of a put have the same fields, and a field has one kind of values. JSON does not tell 1 from 1.0, so the
element type is the one that the body names in `dtypes`, otherwise the one that the field holds already, otherwise what
the values need: bool, int64, or float32 if one of them has a point or an exponent. A number that the type does not hold
is refused; only those with a point or an exponent are rounded to it. A field that holds objects takes any value.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Final

import numpy as np
import torch

from dataplane_client import FieldDescription
from dataplane_client.errors import InvalidArgumentError
from dataplane_http.errors import refused
from dataplane_http.models import SampleFields

_DTYPES: Final = {
    dtype.name: dtype
    for dtype in map(np.dtype, ("?", "u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "f2", "f4", "f8"))
}
_PYTHON_TYPES: Final[dict[str, set[type]]] = {"b": {bool}, "u": {int}, "i": {int}, "f": {int, float}}
"""Which numbers fit an element type, by its kind."""
_AT_ONCE: Final = 1 << 14
"""Numbers of which a text is made in some milliseconds."""
_NUMBERS: Final = frozenset({bool, int, float})
_WORDS: Final = {"number": "a number", "numbers": "a list of numbers", "object": "another value"}


def columns_of(
    samples: Sequence[SampleFields], stored: Mapping[str, FieldDescription], dtypes: Mapping[str, str]
) -> dict[str, object]:
    """The columns of a put, by name. stored: the fields of the partition. Raises InvalidArgumentError that names field,
    sample and rule.
    """
    names = sorted(samples[0].fields) if samples else []
    for sample in samples:
        if odd := sample.fields.keys() ^ samples[0].fields.keys():
            name = min(odd)
            having, lacking = (sample, samples[0]) if name in sample.fields else (samples[0], sample)
            raise refused(
                f"field {name!r}: sample {having.sample_id!r} has it, sample {lacking.sample_id!r} has not; put "
                "samples with different fields in separate requests",
                "ROW_COUNT_MISMATCH",
                field=name,
                sample_id=lacking.sample_id,
            )
    if unknown := dtypes.keys() - set(names):
        raise refused(f"dtypes names {min(unknown)!r}, which no sample has", field=min(unknown))
    return {name: _column(name, samples, stored.get(name), dtypes.get(name)) for name in names}


def _column(name: str, samples: Sequence[SampleFields], stored: FieldDescription | None, dtype: str | None) -> object:
    values = [sample.fields[name] for sample in samples]
    kind = "object" if stored is not None and stored.kind == "object" else _kind_of_all(name, samples, values)
    if kind == "object":
        column = np.empty(len(values), object)
        column[:] = values
        return column
    numbers = values if kind == "number" else list(chain.from_iterable(values))
    array = _array(name, numbers, dtype or (stored.dtype if stored is not None else ""))
    return array if kind == "number" else np.split(array, np.cumsum(list(map(len, values)))[:-1])


def _kind_of_all(name: str, samples: Sequence[SampleFields], values: Sequence[object]) -> str:
    kinds = list(map(_kind, values))
    for sample, kind in zip(samples, kinds, strict=True):
        if kind == "lists":
            raise _mismatch(name, "a list of lists; flatten it, or put it into an object", sample)
        if kind != kinds[0]:
            first = samples[0].sample_id
            raise _mismatch(name, f"{_WORDS[kind]}, but sample {first!r} has {_WORDS[kinds[0]]}", sample)
    return kinds[0]


def _kind(value: object) -> str:
    if type(value) in _NUMBERS:
        return "number"
    if not isinstance(value, list):
        return "object"
    kinds = set(map(type, value))
    if kinds <= _NUMBERS:
        return "numbers"
    return "lists" if kinds == {list} else "object"


def _array(name: str, numbers: Sequence[Any], dtype: str) -> np.ndarray[Any, Any]:
    found = set(map(type, numbers))
    if not dtype and not found:
        raise _mismatch(name, "nothing but empty lists; name its element type in dtypes")
    dtype = dtype or ("bool" if found == {bool} else "int64" if found == {int} else "float32")
    if dtype not in _DTYPES:
        raise _mismatch(name, f"the element type {dtype!r}; in JSON it can be {', '.join(_DTYPES)}")
    if wrong := found - _PYTHON_TYPES[_DTYPES[dtype].kind]:
        kinds = ", ".join(sorted(kind.__name__ for kind in wrong))
        raise _mismatch(name, f"{kinds} values, but the element type is {dtype}")
    try:
        with np.errstate(over="ignore"):
            array = np.array(numbers, _DTYPES[dtype])
    except OverflowError:
        raise _mismatch(name, f"a number that {dtype} does not hold") from None
    if int in found and any(
        type(number) is int and number != held for number, held in zip(numbers, array.tolist(), strict=True)
    ):
        raise _mismatch(name, f"a number that {dtype} does not hold")  # before NumPy 2, small types wrap around
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise _mismatch(name, f"a number that {dtype} does not hold; numbers must be finite")
    return array


def _mismatch(name: str, what: str, sample: SampleFields | None = None) -> InvalidArgumentError:
    where, details = ("", {}) if sample is None else (f", sample {sample.sample_id!r}", {"sample_id": sample.sample_id})
    return refused(f"field {name!r}{where}: {what}", "FIELD_MISMATCH", field=name, **details)


def json_rows(sample_ids: Sequence[str], columns: Mapping[str, Any]) -> Iterator[Iterator[str]]:
    """The rows that were read, each as a JSON object in pieces. A number that is not finite is null, tensors and arrays
    in objects are lists. A piece raises InvalidArgumentError for what JSON does not have, such as keys of numbers.
    """
    for sample_id, *values in zip(sample_ids, *map(_rows, columns.values()), strict=True):
        yield _json_row(sample_id, dict(zip(columns, values, strict=True)))


def numbers_of(columns: Mapping[str, Any]) -> int:
    """How many there are in columns of tensors."""
    tensors = [column for column in columns.values() if isinstance(column, torch.Tensor)]
    return sum(row.numel() for tensor in tensors for row in tensor.unbind())


def _rows(column: Any) -> Sequence[Any]:
    return column.unbind() if isinstance(column, torch.Tensor) else list(column)


def _json_row(sample_id: str, fields: Mapping[str, Any]) -> Iterator[str]:
    before = f'{{"sample_id": {json.dumps(sample_id)}, "fields": {{'
    for name, value in fields.items():
        yield f"{before}{json.dumps(name)}: "
        before = ", "
        try:
            yield from _texts(value)
        except (TypeError, ValueError) as error:
            message = f"field {name!r}, sample {sample_id!r}: JSON does not have its value ({error})"
            raise refused(message, "FIELD_MISMATCH", field=name, sample_id=sample_id) from None
    yield "}}"


def _texts(value: Any) -> Iterator[str]:
    """A value in JSON. A large tensor comes in pieces, since to make one holds the thread and the GIL."""
    if not isinstance(value, torch.Tensor) or value.numel() <= _AT_ONCE:
        yield json.dumps(_with_text_keys(value), default=_plain, allow_nan=False)
        return
    entries = _AT_ONCE * len(value) // value.numel()
    for start in range(0, len(value), entries or 1):
        yield ", " if start else "["
        if entries:
            yield json.dumps(value[start : start + entries], default=_plain, allow_nan=False)[1:-1]
        else:
            yield from _texts(value[start])
    yield "]"


def _with_text_keys(value: Any) -> Any:
    """The value. Raises TypeError for a key that is no text, as json would make it the same as one that is."""
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise TypeError(f"the key {key!r:.50}")
            _with_text_keys(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            _with_text_keys(item)
    return value


def _plain(value: Any) -> Any:
    """What JSON has no type for."""
    if not isinstance(value, (torch.Tensor, np.ndarray, np.generic)):
        raise TypeError(f"a {type(value).__name__}")
    listed = value.tolist()
    exact = value.dtype.is_floating_point if isinstance(value, torch.Tensor) else value.dtype.kind == "f"
    return _finite(listed) if exact else listed


def _finite(value: Any) -> Any:
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return value if math.isfinite(value) else None
