"""Digests of values: hashed by the producer's client, kept by the server, compared by whoever reads.

A digest is the XXH3-64 of a value's bytes, 0 for a value without bytes. It tells damage from what was put; it does not
resist forgers, who could put another value as well. Where values are copied, they are hashed in the same pass.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dataplane_client._common.arrays import ByteArray, Int64Array, int64_bytes, int64s
from dataplane_client._values.columns_layout import WireColumn
from dataplane_client._values.row_kernels import hash_rows
from dataplane_client.errors import CorruptedError, InternalError
from rl_dataplane.v1 import data_plane_pb2 as pb


def rows_of(column: WireColumn, n_rows: int) -> tuple[ByteArray, Int64Array, Int64Array]:
    """The bytes of a column, and where each of its rows begins there and how many bytes it has."""
    source: ByteArray = np.frombuffer(column.values, np.uint8)
    sizes = column.row_bytes(n_rows)
    return source, np.cumsum(sizes) - sizes if column.starts is None else column.starts, sizes


def digests_of(columns: Sequence[WireColumn], n_rows: int) -> bytes:
    """The digests of the values of columns of n_rows rows, as they travel."""
    return int64_bytes(hash_rows([rows_of(column, n_rows) for column in columns]))


class DigestCheck:
    """Compares the values of a read with their digests. where: the beginning of the error's message."""

    def __init__(self, digests: bytes, request: pb.ReadColumnsRequest, where: str) -> None:
        """InternalError unless there is one digest for each value of the request."""
        if len(digests) != 8 * len(request.fields) * len(request.sample_ids):
            raise InternalError(f"{where}: the server sent {len(digests)} bytes of digests")
        self._expected = int64s(digests)
        self._request = request
        self._where = where

    def check(self, hashes: Int64Array) -> None:
        """Raises CorruptedError, which names the first value that differs. hashes: column by column, row by row."""
        differ = np.flatnonzero(hashes != self._expected)
        if not differ.size:
            return
        request = self._request
        column, row = divmod(int(differ[0]), len(request.sample_ids))
        details = {
            "partition_id": request.partition_id,
            "sample_id": request.sample_ids[row],
            "field": request.fields[column],
        }
        more = f" (and {differ.size - 1} more of the read)" if differ.size > 1 else ""
        message = (
            f"{self._where}: partition {request.partition_id!r}, sample {details['sample_id']!r}, field "
            f"{details['field']!r}{more}: the value is not the one that its producer hashed"
        )
        raise CorruptedError(message, reason="DIGEST_MISMATCH", details=details)


def digest_check(header: pb.ReadColumnsHeader, request: pb.ReadColumnsRequest, where: str) -> DigestCheck | None:
    """None if values of the partition have no digests."""
    return DigestCheck(header.digests, request, where) if header.digests else None
