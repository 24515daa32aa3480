"""Whether the server is healthy, judged by its status: what `dataplane status`, page, metric and /healthz tell.

Waiting claims do not make a server unhealthy: a trainer that is faster than its rollouts waits.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple, get_args

from rl_dataplane.v1 import data_plane_pb2 as pb

Ailment = Literal["draining", "memory_held", "memory_full", "puts_wait", "row_limit", "nodes_silent"]
AILMENTS: tuple[Ailment, ...] = get_args(Ailment)
FULL_MEMORY = 0.95
FULL_ROWS = 0.99
MUCH_HELD = 0.5
LONG_PUT_WAIT_S = 30.0
"""Half of the default time that a put waits for space."""
_NAMED = 3


class Reason(NamedTuple):
    """Why the server is not healthy. text: a sentence, which names clients."""

    ailment: Ailment
    text: str


def reasons_of(status: pb.GetServerStatusResponse) -> Iterator[Reason]:
    """No reason if the server is healthy."""
    if status.draining:
        yield Reason("draining", "it is draining: running calls may finish, new calls are refused")
    if status.held_bytes > MUCH_HELD * status.memory_budget_bytes:
        share = f"{_size(status.held_bytes)} of {_size(status.memory_budget_bytes)}"
        holders = [holder.client_name for holder in status.holders[:_NAMED] if holder.lent_bytes + holder.owed_bytes]
        text = f"no clear frees {share}, which clients hold until they let go or end: {', '.join(holders)}"
        yield Reason("memory_held", text)
    puts = status.waiting_puts
    if puts and status.memory_used_bytes > FULL_MEMORY * status.memory_budget_bytes:
        waiting = f"{puts:,} put{' waits' if puts == 1 else 's wait'} for space"
        full = f"memory is over {FULL_MEMORY * 100:.0f} % full"
        yield Reason("memory_full", f"{full} and {waiting}: rows are put faster than they are cleared")
    waited_s = status.longest_put_wait.ToTimedelta().total_seconds()
    if waited_s > LONG_PUT_WAIT_S:
        text = f"a put has waited for space for {waited_s:.0f} s: producers are blocked, and their puts will be refused"
        yield Reason("puts_wait", text)
    if status.max_rows and status.rows >= FULL_ROWS * status.max_rows:
        text = f"it holds {status.rows:,} of at most {status.max_rows:,} rows (--max-rows): further puts are refused"
        yield Reason("row_limit", text)
    if silent := [node for node in status.nodes if not node.up and not node.ended]:
        do, its = ("does", "its") if len(silent) == 1 else ("do", "their")
        names = ", ".join(f"{node.number} on {node.host}" if node.host else str(node.number) for node in silent)
        fate = "read from mirrors" if all(node.mirrors for node in silent) else "lost"
        text = f"node{'s' * (len(silent) > 1)} {names} {do} not answer: if this lasts, {its} rows are {fate}"
        yield Reason("nodes_silent", text)


def _size(size_bytes: int) -> str:
    return f"{size_bytes / (1 << 20):.1f} MiB"
