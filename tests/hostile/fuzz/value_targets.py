"""Filters, and values as the client decodes them.

What is no filter or no value is refused in the way that the function documents. A filter and a value that were
accepted mean the same after they are written and read again, and the server's columns agree about a filter with plain
Python, row by row.
"""

from __future__ import annotations

import functools

import numpy as np
from tests.core.row_filters import fits
from tests.hostile.fuzz.inputs import pieces
from tests.hostile.fuzz.world import TAGS, World, loop

from dataplane_client._values.column_messages import column_layouts
from dataplane_client._values.columns_layout import WireColumn
from dataplane_client._values.object_leaves import unpack_objects
from dataplane_client._values.object_values import ObjectPacker
from dataplane_client._values.wire_columns import decode_columns
from dataplane_client.errors import InternalError, InvalidArgumentError, UnsupportedTypeError
from dataplane_client.records.filters import filter_message, filter_text
from dataplane_server.core.calls.filters import Term
from dataplane_server.core.calls.refusal import Refusal
from dataplane_server.core.plane import DataPlane
from dataplane_server.service.messages.parsing import Messages
from dataplane_server.service.translate.filters import rows_that_fit
from rl_dataplane.v1 import data_plane_pb2 as pb


def filter_expression(data: bytes) -> None:
    """An expression is refused, or its text is an expression for the same filter, which chooses the rows that fit."""
    try:
        message = filter_message(data.decode(errors="replace"), "fuzz")
    except InvalidArgumentError:
        return
    if message is None:
        raise AssertionError("an expression without a filter")
    text = filter_text(message)
    again = filter_message(text, "fuzz")  # `and` and `or` may be grouped in another way
    if again is None or filter_text(again) != text or _evaluate(again) != _evaluate(message):
        raise AssertionError(f"another filter than that of {text!r}")


def filter_terms(data: bytes) -> None:
    """The message of a filter is refused, or chooses the rows that fit."""
    plane = _plane()
    try:
        message = Messages(plane.limits).parse(pb.Filter, data)
    except Refusal:
        return
    _evaluate(message)


def _evaluate(message: pb.Filter) -> tuple[str, ...] | None:
    """The rows that a filter chooses; None if the server refuses it."""
    try:
        where = rows_that_fit(message)
        found = tuple(_plane().list_samples("p", "", [], where, 100, 0, 1.0).sample_ids)
    except Refusal:
        return None
    expected = [f"s{row}" for row, tags in enumerate(TAGS) if fits(where, functools.partial(_tag, tags))]
    if list(found) != expected and not any(term.of_row for term in where):
        raise AssertionError(f"{where} chooses {found} instead of {expected}")
    return found


def _tag(tags: dict[str, object], term: Term) -> object:
    return tags.get(term.subject)


@functools.cache
def _plane() -> DataPlane:
    """Two rows, which no filter changes."""
    world = World()
    loop().run_until_complete(world.fill())
    return world.plane


# -- values ------------------------------------------------------------------------------------------------------------


def objects(data: bytes) -> None:
    """Rows of objects, each a piece: what is accepted is what the client would have packed for the same values."""
    rows = pieces(data)
    try:
        values = unpack_objects("o", np.array(list(map(len, rows)), np.int64), memoryview(b"".join(rows)))
    except (ValueError, UnsupportedTypeError):
        return
    packer = ObjectPacker()
    packed = [packer.pack(value) for value in values]
    again = unpack_objects("o", np.array(list(map(len, packed)), np.int64), memoryview(b"".join(packed)))
    if [packer.pack(value) for value in again] != packed:
        raise AssertionError(f"unpacked and packed again: {again!r} instead of {values!r}")


def columns(data: bytes) -> None:
    """A read's header and its values, as the client decodes them for up to 255 rows: the first byte says how many."""
    header_bytes, values = [*pieces(data[1:]), b"", b""][:2]
    n_rows = int.from_bytes(data[:1], "little")
    try:
        header = pb.ReadColumnsHeader.FromString(header_bytes)
    except Exception:  # noqa: BLE001  # gRPC's to refuse
        return
    request = pb.ReadColumnsRequest(fields=[column.name for column in header.columns], sample_ids=["s"] * n_rows)
    try:
        layouts = column_layouts(header, request)
    except InternalError:
        return
    wire, begin = [], 0
    for layout in layouts:
        view = memoryview(bytearray(values[begin : begin + min(layout.size_of(n_rows), len(values))]))
        wire.append(WireColumn(layout.name, layout.kind, layout.dtype, layout.row_shape, layout.lengths, view))
        begin += len(view)
    try:
        decoded = decode_columns(wire, n_rows)
    except ValueError:
        return
    if decoded.batch_size[0] != n_rows:
        raise AssertionError(f"{decoded.batch_size[0]} rows instead of {n_rows}")
