"""Who holds memory that clearing rows does not free, by the names of clients.

A write under way has its space until it ends. A row that is cleared or replaced while a client reads or views it keeps
its bytes until the client lets go of it. Either may take as long as the client lives.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from dataplane_server.core.calls.causes import Finding
from dataplane_server.core.calls.listings import Holder
from dataplane_server.core.calls.requests import CommitClaim, PutSamples
from dataplane_server.core.state.claim_table import ClaimTable
from dataplane_server.core.state.state import State
from dataplane_server.core.verbs.admission import Admission, size_text
from dataplane_server.core.verbs.reads import Reads
from dataplane_server.core.verbs.writes import Writes

_UNNAMED = "unnamed"
_OTHERS = "others"
_TOLD = 3
_NAME_LETTERS = 64


class Holders:
    """What clients hold of the memory budget, now."""

    def __init__(self, state: State, table: ClaimTable, admission: Admission, writes: Writes, reads: Reads) -> None:
        self._state = state
        self._table = table
        self._admission = admission
        self._writes = writes
        self._reads = reads

    @property
    def held_bytes(self) -> int:
        """What no clear frees."""
        return self._admission.reserved_bytes + self._owed_bytes

    def largest(self, most: int) -> list[Holder]:
        """The clients that hold most, the largest first; those beyond `most` together as the last, "others"."""
        found = sorted(_by_name([*self._lent(), *self._reads.held()]), key=_rank)
        return _by_name([*found[:most], *(replace(holder, client_name=_OTHERS) for holder in found[most:])])

    def finding(self) -> Finding | None:
        """What no clear frees and who holds it; None if that is nothing. Leases of rows that are there do not count: a
        clear would free the other rows, and a log has not all of them.
        """
        lent, owed = self._admission.reserved_bytes, self._owed_bytes
        parts = [f"{size_text(lent)} are lent to puts under way ({_names(self._lent())})"] if lent else []
        if owed:
            held = [holder for holder in self._reads.held() if holder.owed_bytes]
            parts.append(f"{size_text(owed)} belong to cleared rows that clients still read or view ({_names(held)})")
        return Finding("memory_held", "; ".join(parts), {"lent_bytes": lent, "owed_bytes": owed}) if parts else None

    @property
    def hold_most(self) -> bool:
        """Whether clients hold more of the budget than clears could free."""
        return 2 * self.held_bytes > self._state.limits.memory_bytes

    def summary(self) -> str:
        """The end of a refusal: `finding`, and what to do."""
        advice = "clear consumed rows or raise the budget"
        if self.hold_most:
            advice = "most of it is freed by no clear: end the clients that hold it, or raise the budget"
        found = self.finding()
        return f"; {advice}" if found is None else f"; {found.text}; {advice}"

    @property
    def _owed_bytes(self) -> int:
        """Also of partitions that were dropped while they were read."""
        partitions = dict.fromkeys([*self._state.partitions.values(), *self._reads.partitions()])
        return sum([partition.rows.owed_bytes for partition in partitions])

    def _lent(self) -> Iterator[Holder]:
        for ticket, size_bytes in self._admission.reserved():
            yield Holder(self.writer(self._writes.call_of(ticket)), lent_bytes=size_bytes)

    def writer(self, call: PutSamples | CommitClaim | None) -> str:
        """The name of the client that puts or commits; empty if it is not known."""
        if isinstance(call, PutSamples):
            return call.caller
        return "" if call is None else self._table.client_of(call.claim_id)


def _by_name(holders: Iterable[Holder]) -> list[Holder]:
    found: dict[str, Holder] = {}
    for holder in holders:
        name = holder.client_name or _UNNAMED
        so_far = found.get(name, Holder(name))
        found[name] = Holder(
            name,
            so_far.lent_bytes + holder.lent_bytes,
            so_far.leased_bytes + holder.leased_bytes,
            so_far.owed_bytes + holder.owed_bytes,
        )
    return list(found.values())


def _rank(holder: Holder) -> tuple[int, int, str]:
    return -(holder.lent_bytes + holder.owed_bytes), -holder.leased_bytes, holder.client_name


def _names(holders: Iterable[Holder]) -> str:
    found = sorted(_by_name(holders), key=_rank)
    summary = [f"{h.client_name[:_NAME_LETTERS]!r} {size_text(h.lent_bytes + h.owed_bytes)}" for h in found[:_TOLD]]
    return ", ".join([*summary, f"{len(found) - _TOLD} others"] if len(found) > _TOLD else summary)
