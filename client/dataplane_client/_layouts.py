"""Columns to messages and back, and the stream of chunks between them. Knows bytes and shapes, no tensors."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from dataplane_client.columns_layout import ITEM_SIZES, Kind, WireColumn
from dataplane_client.errors import InternalError
from rl_dataplane.v1 import data_plane_pb2 as pb

_KINDS: dict[int, Kind] = {
    pb.FIELD_KIND_DENSE: "dense",
    pb.FIELD_KIND_JAGGED: "jagged",
    pb.FIELD_KIND_OBJECT: "object",
}
KIND_NUMBERS = {kind: number for number, kind in _KINDS.items()}
_DTYPES = {number: name.removeprefix("DATA_TYPE_").lower() for name, number in pb.DataType.items() if number}
_DTYPE_NUMBERS = {name: number for number, name in _DTYPES.items()}

Header = TypeVar("Header", pb.PutSamplesHeader, pb.CommitClaimHeader)
Frame = pb.PutSamplesRequest | pb.CommitClaimRequest


def column_message(column: WireColumn) -> pb.Column:
    return pb.Column(
        name=column.name,
        kind=pb.FieldKind.ValueType(KIND_NUMBERS[column.kind]),
        data_type=pb.DataType.ValueType(_DTYPE_NUMBERS.get(column.dtype, 0)),
        row_shape=column.row_shape,
        row_lengths=b"" if column.lengths is None else int64_bytes(column.lengths),
    )


def field_layout(message: pb.FieldDescription) -> tuple[Kind | None, str, tuple[int, ...]]:
    """Kind (None before the first put), element type and row shape of a described field."""
    return _KINDS.get(message.kind), _DTYPES.get(message.data_type, ""), tuple(message.row_shape)


def int64_bytes(values: Sequence[int] | npt.NDArray[np.int64]) -> bytes:
    return np.asarray(values, "<i8").tobytes()


def int64s(data: bytes) -> npt.NDArray[np.int64]:
    return np.frombuffer(data, "<i8").astype(np.int64, copy=False)


def chunks(columns: Sequence[WireColumn], chunk_bytes: int) -> Iterator[pb.Chunk]:
    """The values of all columns, one after the other, cut into chunks that continue one another."""
    offset = 0
    pieces: list[memoryview] = []
    room = chunk_bytes
    for column in columns:
        rest = column.values
        while rest.nbytes:
            piece, rest = rest[:room], rest[room:]
            pieces.append(piece)
            room -= piece.nbytes
            if not room:
                yield pb.Chunk(offset_bytes=offset, data=b"".join(pieces))
                offset, pieces, room = offset + chunk_bytes, [], chunk_bytes
    if pieces:
        yield pb.Chunk(offset_bytes=offset, data=b"".join(pieces))


def put_frames(header: pb.PutSamplesHeader, values: Iterator[pb.Chunk]) -> Iterator[pb.PutSamplesRequest]:
    """A put as a stream; the first chunk rides with the header."""
    yield pb.PutSamplesRequest(header=header, chunk=next(values, None))
    for chunk in values:
        yield pb.PutSamplesRequest(chunk=chunk)


def commit_frames(header: pb.CommitClaimHeader, values: Iterator[pb.Chunk]) -> Iterator[pb.CommitClaimRequest]:
    """A commit as a stream; the first chunk rides with the header."""
    yield pb.CommitClaimRequest(header=header, chunk=next(values, None))
    for chunk in values:
        yield pb.CommitClaimRequest(chunk=chunk)


class ColumnAssembler:
    """Puts the chunks of a read where they belong: one writable buffer a column, each byte copied once."""

    def __init__(self, header: pb.ReadColumnsHeader, n_rows: int) -> None:
        self.sequence_lengths = int64s(header.sequence_lengths)
        self.columns = [_empty_column(column, n_rows) for column in header.columns]
        self._size = sum(column.values.nbytes for column in self.columns)
        self._targets = iter(self.columns)
        self._target = memoryview(b"")
        self._received = 0

    def add(self, chunk: pb.Chunk) -> None:
        """Take the next chunk. Raises InternalError when it does not continue the stream or is too much."""
        source = memoryview(chunk.data)
        if chunk.offset_bytes != self._received or self._received + len(source) > self._size:
            raise InternalError(
                f"a chunk of {len(source)} bytes at byte {chunk.offset_bytes} came where byte {self._received} of "
                f"{self._size} was next"
            )
        self._received += len(source)
        while source:
            while not self._target:
                self._target = next(self._targets).values
            size = min(len(source), len(self._target))
            self._target[:size] = source[:size]
            self._target, source = self._target[size:], source[size:]

    def finish(self) -> list[WireColumn]:
        """The columns. Raises InternalError when bytes are missing."""
        if self._received != self._size:
            raise InternalError(f"the stream ended after {self._received} of {self._size} bytes")
        return self.columns


def _empty_column(message: pb.Column, n_rows: int) -> WireColumn:
    """A column with room for its values. Raises InternalError for a layout that contradicts itself."""
    kind, dtype, row_shape = _KINDS.get(message.kind), _DTYPES.get(message.data_type, ""), tuple(message.row_shape)
    if kind is None or (kind != "object" and dtype not in ITEM_SIZES):
        raise InternalError(f"field {message.name!r} came with an unknown kind or element type")
    lengths = None if kind == "dense" else int64s(message.row_lengths)
    if lengths is not None and len(lengths) != n_rows:
        raise InternalError(f"field {message.name!r} came with {len(lengths)} rows instead of {n_rows}")
    entries = n_rows if lengths is None else int(lengths.sum())
    entry_bytes = 1 if kind == "object" else math.prod(row_shape) * ITEM_SIZES[dtype]
    values = np.empty(entries * entry_bytes, np.uint8).data
    return WireColumn(message.name, kind, dtype, row_shape, lengths, values)
