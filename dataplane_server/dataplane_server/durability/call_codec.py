"""Calls as bytes and back: MessagePack arrays, whose form follows from the annotations of the calls' fields.

A call is the name of its class and its fields, in their order. An array of int64 is its bytes, little-endian; a frozen
set is its sorted elements; a record (one of `_RECORDS`) is the array of its fields; all else is as it is. Sequences
come back as tuples. Names of classes select from a fixed table, so decoding runs no code of the data.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable
from operator import attrgetter
from types import UnionType
from typing import Any, NamedTuple

import msgpack
import numpy as np

from dataplane_server.core.calls import life_calls, node_calls, requests
from dataplane_server.core.calls.columns import ColumnSpec, Shape
from dataplane_server.core.calls.filters import Term
from dataplane_server.core.calls.flow import DrawBand, FlowPolicy
from dataplane_server.core.calls.policies import TaskPolicy, TaskPolicyOf
from dataplane_server.core.calls.requests import Call
from dataplane_server.core.calls.values import Definition, Int64Array

Convert = Callable[[Any], Any]

_PLAIN = (str, bytes, int, float, bool, type(None))
_RECORDS = (Shape, ColumnSpec, TaskPolicy, TaskPolicyOf, DrawBand, FlowPolicy, Definition, Term)


class _Form(NamedTuple):
    """How values of a type are encoded and decoded; None for as they are."""

    encode: Convert | None
    decode: Convert | None


class _Schema(NamedTuple):
    """kind: a class of records. get: its fields of a record. encode, decode: of the fields that need it, by place."""

    kind: type
    get: Callable[[Any], tuple[Any, ...]]
    encode: tuple[tuple[int, Convert], ...]
    decode: tuple[tuple[int, Convert], ...]

    def fields_of(self, record: object) -> list[Any]:
        """The fields of a record, encoded."""
        values = list(self.get(record))
        for place, convert in self.encode:
            values[place] = convert(values[place])
        return values

    def record_of(self, values: tuple[Any, ...]) -> Any:
        """The record of encoded fields. TypeError if their number is wrong."""
        made = list(values)
        for place, convert in self.decode:
            made[place] = convert(made[place])
        return self.kind(*made)


def encode_call(now: float, call: Call[Any]) -> bytes:
    schema = _SCHEMAS[type(call)]
    return msgpack.packb([now, schema.kind.__name__, *schema.fields_of(call)])  # type: ignore[no-any-return]


def encode_batch(calls: list[bytes]) -> bytes:
    return msgpack.packb(calls)  # type: ignore[no-any-return]


def decode_record(data: bytes) -> list[tuple[float, Call[Any]]]:
    """The calls of a record, which has one or a batch. ValueError for anything else."""
    try:
        unpacked = msgpack.unpackb(data, use_list=False)
        if isinstance(unpacked[0], bytes):
            return [_call_of(msgpack.unpackb(call, use_list=False)) for call in unpacked]
        return [_call_of(unpacked)]
    except (KeyError, TypeError, ValueError, IndexError, msgpack.UnpackException) as error:
        raise ValueError(f"not a call of this version: {error!r}") from None


def _call_of(unpacked: Any) -> tuple[float, Call[Any]]:
    now, name, *fields = unpacked
    return now, _NAMED[name].record_of(tuple(fields))


def _schema(kind: type) -> _Schema:
    hints = typing.get_type_hints(kind)
    names = [field.name for field in dataclasses.fields(kind)]
    forms = [_form(hints[name]) for name in names]
    return _Schema(
        kind,
        _getter(names),
        tuple((place, form.encode) for place, form in enumerate(forms) if form.encode is not None),
        tuple((place, form.decode) for place, form in enumerate(forms) if form.decode is not None),
    )


def _getter(names: list[str]) -> Callable[[Any], tuple[Any, ...]]:
    if len(names) > 1:
        return attrgetter(*names)
    return lambda record: tuple([getattr(record, name) for name in names])


def _form(hint: Any) -> _Form:
    """The form of values of an annotation. TypeError for one that this module does not know."""
    arguments = typing.get_args(hint)
    origin = typing.get_origin(hint)
    if hint == Int64Array:
        return _Form(_array_bytes, _array)
    if hint in _RECORDS:
        schema = _schema(hint)
        return _Form(schema.fields_of, schema.record_of)
    if hint in _PLAIN or origin is typing.Literal:
        return _Form(None, None)
    if type(None) in arguments:
        return _optional([_form(argument) for argument in arguments if argument is not type(None)])
    if origin is UnionType and all(argument in _PLAIN for argument in arguments):
        return _Form(None, None)
    if origin is UnionType and all(issubclass(argument, Call) for argument in arguments):
        return _Form(_named, _record_named)
    if origin is frozenset:
        return _Form(sorted, frozenset)
    if arguments and origin is not None and issubclass(origin, typing.Sequence):
        return _each(_form(arguments[0]))
    if arguments and origin is not None and issubclass(origin, typing.Mapping):
        return _Form(None, None)
    raise TypeError(f"no form for values of {hint}")


def _named(call: Call[Any]) -> list[Any]:
    """A call within another one."""
    schema = _SCHEMAS[type(call)]
    return [schema.kind.__name__, *schema.fields_of(call)]


def _record_named(named: tuple[Any, ...]) -> Any:
    return _NAMED[named[0]].record_of(named[1:])


def _optional(forms: list[_Form]) -> _Form:
    encode, decode = forms[0]
    if len(forms) > 1 or encode is None or decode is None:
        return _Form(None, None)
    return _Form(
        lambda value: None if value is None else encode(value), lambda value: None if value is None else decode(value)
    )


def _each(form: _Form) -> _Form:
    encode, decode = form
    if encode is None or decode is None:
        return _Form(_plain_sequence, None)
    return _Form(lambda values: [encode(value) for value in values], lambda values: tuple(map(decode, values)))


def _plain_sequence(values: Any) -> Any:
    """MessagePack knows lists and tuples; the ids of a request are a sequence of another type."""
    return values if isinstance(values, (list, tuple)) else list(values)


def _array_bytes(array: Int64Array) -> bytes:
    return np.ascontiguousarray(array, "<i8").tobytes()


def _array(data: bytes) -> Int64Array:
    return np.frombuffer(data, "<i8")


_NAMES = vars(requests) | vars(life_calls) | vars(node_calls)
_CALLS = [kind for kind in _NAMES.values() if isinstance(kind, type) and dataclasses.is_dataclass(kind)]
_SCHEMAS: dict[type, _Schema] = {kind: _schema(kind) for kind in _CALLS if issubclass(kind, Call)}
_NAMED = {kind.__name__: schema for kind, schema in _SCHEMAS.items()}
