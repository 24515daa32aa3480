"""What the server keeps beside values, counted in bytes: rows and their ids, tags, views, groups, definitions, writes.

The counts are estimates from above, by fixed sizes, so they are the same on every machine. A call that adds to them is
checked before it changes anything. Puts, groups and registrations get six eighths of the limit. The seventh is for
views of claims, commits and delays, without which a full server could not be emptied; the last is for remembered
answers, see `state.answers`.
"""

from __future__ import annotations

from collections.abc import Sequence

from dataplane_server.core.calls.refusal import Reason, Refusal

ROW_BYTES = 56
"""Of a slot: its places in lists, and in the list of free slots."""
ID_BYTES = 130
"""Of an id, beside its characters."""
GROUP_BYTES = 640
PARTITION_BYTES = 8192
NAME_BYTES = 2048
"""Of a field or task, beside its name."""
WRITE_BYTES = 1024
DELAY_BYTES = 400
"""Of a delayed row."""
DEAD_BYTES = 104
DIGEST_BYTES = 400
"""Of a value that is kept once: its payload, and its digest in a dict."""


class Bookkeeping:
    """The bytes in use, of one server."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0

    def add(self, size_bytes: int) -> None:
        """Count size_bytes more; a negative size counts less."""
        self.used_bytes += size_bytes

    def check(self, size_bytes: int, *, urgent: bool = False) -> None:
        """Refusal LIMIT_REACHED if size_bytes more do not fit. urgent: for a call that helps to empty the server."""
        most = self.limit_bytes * (7 if urgent else 6) // 8
        if size_bytes > 0 and self.used_bytes + size_bytes > most:
            message = (
                f"the call needs {size_bytes} bytes for ids, tags, and other bookkeeping; {self.used_bytes} of at most "
                f"{most} are in use (bookkeeping_bytes {self.limit_bytes}): clear consumed rows or raise --bookkeeping"
            )
            raise Refusal(Reason.LIMIT_REACHED, message, bookkeeping_bytes=self.limit_bytes)


def text_bytes(text: str) -> int:
    """Memory of the characters of a string."""
    return len(text) if text.isascii() else 4 * len(text)


def id_bytes(sample_ids: Sequence[str]) -> int:
    joined = "".join(sample_ids)
    characters = len(joined) if joined.isascii() else sum(map(text_bytes, sample_ids))
    return ID_BYTES * len(sample_ids) + characters
