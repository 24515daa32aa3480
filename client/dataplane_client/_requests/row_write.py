"""A put or commit of rows, as it is sent: its message and the columns that follow it."""

from __future__ import annotations

from collections.abc import Sequence

from dataplane_client._values.column_messages import column_message
from dataplane_client._values.columns_layout import WireColumn, total_bytes
from dataplane_client._values.digests import digests_of
from rl_dataplane.v1 import data_plane_pb2 as pb


class RowWrite:
    """A write of n_rows rows of a partition. The header describes the columns. lengths: the tokens of each row, if the
    caller knows them.
    """

    def __init__(
        self,
        verb: str,
        header: pb.PutSamplesHeader | pb.CommitClaimHeader,
        columns: Sequence[WireColumn],
        partition_id: str,
        n_rows: int,
        lengths: list[int] | None,
    ) -> None:
        self.verb = verb
        self.header = header
        self.columns = columns
        self.size_bytes = total_bytes(columns)
        self.partition_id = partition_id
        self.n_rows = n_rows
        self.lengths = lengths

    def send_instead(self, columns: Sequence[WireColumn]) -> None:
        """Replace the columns, and what the header says of them."""
        self.columns, self.size_bytes = columns, total_bytes(columns)
        del self.header.columns[:]
        self.header.columns.extend([column_message(column) for column in columns])

    def hash_values(self) -> None:
        """Put digests into a header that is `hashed`, unless an earlier attempt has: then these hold."""
        if self.header.hashed and not self.header.digests:
            self.header.digests = digests_of(self.columns, self.n_rows)
