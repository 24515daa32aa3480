"""Calls come back from their bytes as they were, and nothing but calls does."""

from __future__ import annotations

import dataclasses
import typing
from typing import Any

import msgpack
import numpy as np
import pytest

from dataplane_server.core.calls import requests
from dataplane_server.core.calls.columns import ColumnSpec, Shape
from dataplane_server.core.calls.filters import Term
from dataplane_server.core.calls.flow import DrawBand, FlowPolicy
from dataplane_server.core.calls.policies import TaskPolicy, TaskPolicyOf
from dataplane_server.core.calls.refusal import Refusal
from dataplane_server.core.calls.requests import Call, CommitClaim, PutSamples
from dataplane_server.core.calls.values import Definition, Int64Array
from dataplane_server.durability.call_codec import decode_record, encode_batch, encode_call
from dataplane_server.service.translate.rows import clear, put
from rl_dataplane.v1 import data_plane_pb2 as pb

COLUMN = ColumnSpec("a", Shape("jagged", "uint8", (2,)), np.array([3, 1]))
VALUES: list[tuple[Any, object]] = [
    (str, "a\u00e4"),
    (bool, True),
    (int, -7),
    (float, 0.5),
    (Definition, Definition("p", ("a",), ("t",), 3, frozenset("ab"), None, {"e": ("x", "y")}, 2, True)),
    (ColumnSpec, COLUMN),
    (Term, Term("in", "n", values=(1, 0.5, "x"))),
    (TaskPolicyOf, TaskPolicyOf("t", TaskPolicy(2, "drop", "lowest_tag", "std", (Term("is null", "n"),), "drop"))),
    (
        FlowPolicy | None,
        FlowPolicy(9, None, 2, "evict", "oldest_version", (Term("is null", "n"),), DrawBand(2.0, -1.0, 8.0)),
    ),
    (Int64Array, np.array([1, -1])),
    (frozenset, frozenset("ab")),
    (typing.Literal, "rows"),
    (PutSamples | CommitClaim, PutSamples("r", "p", ("s0",), (COLUMN,), ({"x": None},))),
]
KINDS: list[Any] = [kind for kind in vars(requests).values() if isinstance(kind, type) and issubclass(kind, Call)]
CALLS: list[Any] = [kind for kind in KINDS if dataclasses.is_dataclass(kind)]


def value_of(hint: Any) -> object:
    """A value of an annotation, not None."""
    arguments = [argument for argument in typing.get_args(hint) if argument is not type(None)]
    for known, value in VALUES:
        if known in (hint, typing.get_origin(hint)) or (known is Int64Array and hint == Int64Array):
            return value
    if type(None) in typing.get_args(hint):
        return value_of(arguments[0])
    if arguments and typing.get_origin(hint) is not dict:
        return (value_of(arguments[0]), value_of(arguments[0]))
    return {"k": 1, "n": None}


@pytest.mark.parametrize("empty", [False, True], ids=["all fields", "only needed fields"])
def test_every_call_comes_back_as_it_was(empty: bool) -> None:
    assert len(CALLS) > 25
    for kind in CALLS:
        hints = typing.get_type_hints(kind)
        fields = [field for field in dataclasses.fields(kind) if not empty or field.default is dataclasses.MISSING]
        call = kind(**{field.name: value_of(hints[field.name]) for field in fields})
        ((now, again),) = decode_record(encode_call(1.5, call))
        assert (now, type(again), repr(again)) == (1.5, kind, repr(call))
        assert encode_call(1.5, again) == encode_call(1.5, call)


def test_lists_and_strided_arrays_are_taken_as_well() -> None:
    call = PutSamples("r", "p", ["s0", "s1"], [COLUMN], [{"x": None}, {}], np.array([3, 9, -1])[::2])
    ((_, again),) = decode_record(encode_call(0.0, call))
    assert isinstance(again, PutSamples)
    assert (again.sample_ids, again.tags) == (("s0", "s1"), ({"x": None}, {}))
    assert again.sequence_lengths is not None
    assert again.sequence_lengths.tolist() == [3, -1]


@pytest.mark.parametrize(
    "values",
    [["system", "true"], ["Grant", "c"], ["Heartbeat"], ["Heartbeat", "s", 1], ["PutSamples", *[7] * 13], [], 3, {}],
    ids=str,
)
def test_nothing_but_calls_can_be_decoded(values: object) -> None:
    data = msgpack.packb([0.0, *values] if isinstance(values, list) else values)
    for record in (data, data + b"\0", encode_batch([data])):
        with pytest.raises(ValueError, match="call"):
            decode_record(record)


LISTS, MAPS = b"\x91" * 600 + b"\xc0", b"\x81\xa1n" * 600 + b"\xc0"
"""Lists in lists and maps in maps, of more levels than msgpack writes; it reads them."""


@pytest.mark.parametrize("nested", [LISTS, MAPS], ids=["lists", "maps"])
def test_what_a_log_could_not_tell_is_refused_before_it_is_a_call(nested: bytes) -> None:
    term = pb.FilterTerm(operator=pb.FILTER_OPERATOR_EQUAL, tag="n", values=b"\x91" + nested)
    with pytest.raises(Refusal, match="term 1: a value is a number"):
        encode_call(0.0, clear(pb.ClearSamplesRequest(where=pb.Filter(terms=[term]))))
    with pytest.raises(Refusal, match=r"row 0 .*: tag 'n' is a "):
        encode_call(0.0, put(pb.PutSamplesHeader(row_tags=[b"\x81\xa1n" + nested])))
