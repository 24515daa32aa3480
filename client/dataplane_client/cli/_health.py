"""Whether a server is healthy, judged by its status.

Waiting claims do not make a server unhealthy: a trainer that is faster than its rollouts waits.
"""

from __future__ import annotations

from dataclasses import dataclass

from dataplane_client.answers.descriptions import ServerStatus
from dataplane_client.cli._text import age_text, plural, size_text

FULL_MEMORY = 0.95
FULL_ROWS = 0.99
MUCH_HELD = 0.5
_NAMED = 3
LONG_PUT_WAIT_S = 30.0
"""Half of the default time that a put waits for space."""


@dataclass(frozen=True)
class Health:
    """reasons: why the server is not healthy, one sentence each; empty if it is healthy."""

    reasons: tuple[str, ...]

    @property
    def healthy(self) -> bool:
        return not self.reasons


def health_of(status: ServerStatus) -> Health:
    judgements = (_draining, _held, _full, _slow_puts, _many_rows, _silent_nodes)
    return Health(tuple(filter(None, (judge(status) for judge in judgements))))


def _draining(status: ServerStatus) -> str:
    return "it is draining: running calls may finish, new calls are refused" if status.draining else ""


def _held(status: ServerStatus) -> str:
    if status.held_bytes <= MUCH_HELD * status.memory_budget_bytes:
        return ""
    share = f"{size_text(status.held_bytes)} of {size_text(status.memory_budget_bytes)}"
    names = ", ".join(holder.client_name for holder in status.holders[:_NAMED] if holder.lent_bytes + holder.owed_bytes)
    return f"no clear frees {share}, which clients hold until they let go or end: {names}"


def _full(status: ServerStatus) -> str:
    if not status.waiting_puts or status.memory_used_bytes <= FULL_MEMORY * status.memory_budget_bytes:
        return ""
    waiting = f"{plural(status.waiting_puts, 'put')} {'waits' if status.waiting_puts == 1 else 'wait'} for space"
    return f"memory is over {FULL_MEMORY * 100:.0f} % full and {waiting}: rows are put faster than they are cleared"


def _slow_puts(status: ServerStatus) -> str:
    waited_s = status.longest_put_wait_s
    if waited_s is None or waited_s <= LONG_PUT_WAIT_S:
        return ""
    return f"a put has waited for space for {age_text(waited_s)}: producers are blocked, and their puts will be refused"


def _many_rows(status: ServerStatus) -> str:
    if not status.max_rows or status.rows < FULL_ROWS * status.max_rows:
        return ""
    return f"it holds {status.rows:,} of at most {status.max_rows:,} rows (--max-rows): further puts are refused"


def _silent_nodes(status: ServerStatus) -> str:
    silent = [node for node in status.nodes if not node.up and not node.ended]
    if not silent:
        return ""
    do, its = ("does", "its") if len(silent) == 1 else ("do", "their")
    names = ", ".join(f"{node.number} on {node.host}" if node.host else str(node.number) for node in silent)
    fate = "read from mirrors" if all(node.mirrors for node in silent) else "lost"
    return f"node{'s' * (len(silent) > 1)} {names} {do} not answer: if this lasts, {its} rows are {fate}"
