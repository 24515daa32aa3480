"""Groups: the rows of one prompt, reserved before their first value arrives.

Reserved rows exist, so no other call can take their ids, but they are hidden. Puts with add_to_group add more.
FinishGroup makes them visible, all at once. AbortGroup, or the end of the session that reserved them, removes them.
Either way the reservation has ended, and a put that names it is refused. A group that never had a row cannot be
finished: it would vanish at once, and its producer's `commit` would report a success that no consumer ever sees.

A rollout that failed is a row that is gone: AbortGroup removes it and counts it as "failed", so that it is never
trained on as if its reward were zero. A group may have a deadline. Then it is finished with the rows that are complete,
if they are enough, or removed; the rows that are not complete have failed. Either way the rows that are left have the
tag "missing_rows", which counts what their group lacks. FinishGroup after the deadline answers what the deadline did.

A group that may be regenerated a few times only is refused once it was rolled back more often than that, so a prompt
that nothing can solve is not tried for ever.
"""

from __future__ import annotations

from itertools import repeat

import numpy as np

from dataplane_server.core.calls.answers import GroupAborted, GroupFinished, Reserved, Waiting
from dataplane_server.core.calls.names import check_name, check_reason, check_sample_ids, check_weight_version
from dataplane_server.core.calls.refusal import Reason, Refusal
from dataplane_server.core.calls.requests import AbortGroup, FinishGroup, ReserveGroup
from dataplane_server.core.calls.values import Slots, Tags
from dataplane_server.core.rows.bookkeeping import GROUP_BYTES, id_bytes
from dataplane_server.core.rows.group_table import END_VERSION_TAG, Group, Terms
from dataplane_server.core.state import issued_ids
from dataplane_server.core.state.delays import Deadline
from dataplane_server.core.state.partition import Partition
from dataplane_server.core.state.put_checks import check_tags
from dataplane_server.core.state.state import Fact, State
from dataplane_server.core.verbs.flow import Flow


class Groups:
    """Reserves, finishes and aborts groups."""

    def __init__(self, state: State, flow: Flow) -> None:
        self._state = state
        self._flow = flow

    @property
    def open(self) -> int:
        """The number of reserved groups."""
        return sum(len(partition.groups.reserved) for partition in self._state.partitions.values())

    def reserve(self, call: ReserveGroup, now: float) -> Reserved | Waiting:
        """Refusal SAMPLE_EXISTS if the group or one of its rows exists."""
        partition, who = self._check(call)
        ticket = self._flow.enter_group(partition, call, now)
        return self._create(call, partition, who, now) if ticket is None else Waiting(ticket)

    def reserve_late(self, call: ReserveGroup, now: float) -> Reserved:
        """Reserve a group that waited, and that there is room for now. Refusals as of `reserve`."""
        return self._create(call, *self._check(call), now)

    def _create(self, call: ReserveGroup, partition: Partition, who: str, now: float) -> Reserved:
        if call.sample_ids:
            self._state.generations.record(now)
        slots = partition.create(call.sample_ids)
        reservation_id = issued_ids.reservation_id(self._state.incarnation, self._state.ticket())
        group = partition.groups.add(call.group_id, slots, reservation_id, call.session_id, call.weight_version)
        group.since = now
        if call.weight_version is not None:
            partition.rows.see_weight_version(call.weight_version)
        group.terms = Terms(call.min_rows, tuple(call.complete_fields), call.max_regenerations)
        if call.deadline_s:
            group.deadline = now + call.deadline_s
            self._state.deadlines.add(group.deadline, partition.partition_id, reservation_id)
            if self._state.deadlines.crowded:
                self._state.deadlines.sweep(self._is_reserved)
        self._report("reserved", partition, slots, who)
        return Reserved(reservation_id, partition.rows.generations(slots))

    def finish(self, call: FinishGroup, now: float) -> GroupFinished:
        """Refusal GROUP_INCOMPLETE for a group without rows, or names the first row that has no value yet; unless the
        deadline has passed, and the server has not ended the group yet.
        """
        late = self._state.ended_groups.get(call.reservation_id)
        if isinstance(late, int):
            return GroupFinished(late)
        partition, group = self._state.reserved_group(call.reservation_id)
        _check_version(partition, group.group_id, call.weight_version)
        if group.deadline is not None and group.deadline <= now:
            complete = int(np.count_nonzero(partition.complete(group)))
            if complete >= group.terms.min_rows > 0:
                return GroupFinished(self._show(partition, group, call.weight_version, group.size - complete))
        _check_complete(partition, group)
        return GroupFinished(self._show(partition, group, call.weight_version))

    def _show(self, partition: Partition, group: Group, weight_version: int | None, late_rows: int = 0) -> int:
        """Make the complete rows of a group visible, and remove the late ones. Returns how many it has. Refusal
        INVALID_REQUEST for a row that has no room for the tag of the weight version.
        """
        slots, missing = partition.groups.members(group.number), group.failed + late_rows
        kept = slots[partition.complete(group)] if late_rows else slots
        if weight_version is not None:
            tags: Tags = {END_VERSION_TAG: weight_version}
            most = self._state.limits.max_tags_per_row
            check_tags(partition, partition.rows.ids(kept), kept, repeat(tags), most)
        who = self._holder(group)
        if late_rows:
            self._fail(partition, group, np.setdiff1d(slots, kept), who, "it was not complete at its group's deadline")
        shown = partition.show_group(group, weight_version, missing)
        self._report("ready", partition, shown, who)
        return len(shown)

    def _fail(self, partition: Partition, group: Group, slots: Slots, who: str, reason: str) -> None:
        """Remove some rows of a group, which has others."""
        group.failed += len(slots)
        self._report("failed", partition, slots, who, reason)
        partition.clear(slots, "failed")

    def abort(self, call: AbortGroup) -> GroupAborted:
        """Refusal SAMPLE_NOT_FOUND, INVALID_REQUEST for a row that is none of the group."""
        check_reason(call.reason, self._state.limits)
        partition, group = self._state.reserved_group(call.reservation_id)
        who = self._holder(group)
        if call.sample_ids:
            check_sample_ids(call.sample_ids, self._state.limits)
            slots = partition.rows.find(call.sample_ids)
            partition.groups.check_members(group, slots)
            if len(slots) < group.size:
                self._fail(partition, group, slots, who, call.reason)
                return GroupAborted(len(slots), False)
        return GroupAborted(self._roll_back(partition, group, who, call.reason), True)

    def check_abandon(self, call: AbortGroup) -> None:
        """Refusal INVALID_REQUEST for an abort that names both a request and what it may have reserved."""
        check_reason(call.reason, self._state.limits)
        if call.reservation_id or call.sample_ids:
            message = "an abort must name reserve_request_id, or reservation_id and perhaps sample_ids, not both"
            raise Refusal(Reason.INVALID_REQUEST, message)

    def abandon(self, reservation_id: str, reason: str) -> int:
        """Remove a group whose caller never got its reservation: no attempt, since nobody could put a row. Returns the
        number of its rows, 0 if it is not reserved any more.
        """
        if self.partition_of(reservation_id) is None:
            return 0
        partition, group = self._state.reserved_group(reservation_id)
        return self._roll_back(partition, group, self._holder(group), reason, tried=False)

    def end_late(self, due: Deadline) -> None:
        """The deadline of a group has passed, if it is still reserved."""
        partition = self._state.partitions.get(due.partition_id)
        group = None if partition is None else partition.groups.reserved.get(due.reservation_id)
        if partition is None or group is None:
            return
        complete, least = int(np.count_nonzero(partition.complete(group))), group.terms.min_rows
        ended: int | str
        if least and complete >= least:
            ended = self._show(partition, group, None, group.size - complete)
        else:
            there = f"{complete} of {group.size} rows complete and {group.failed} failed"
            reason = f"its deadline passed with {there}; {f'min_rows is {least}' if least else 'it has no min_rows'}"
            self._roll_back(partition, group, self._holder(group), reason, late=True)
            ended = f"group {group.group_id!r} was removed: {reason}"
        self._state.note_ended(due.reservation_id, ended)

    def _is_reserved(self, deadline: Deadline) -> bool:
        partition = self._state.partitions.get(deadline.partition_id)
        return partition is not None and deadline.reservation_id in partition.groups.reserved

    def sessions(self) -> set[str]:
        """Sessions with reserved groups."""
        return {group.session_id for one in self._state.partitions.values() for group in one.groups.reserved.values()}

    def end_session(self, session_id: str, client_name: str) -> int:
        """Remove the rows of all groups that a session has reserved. Returns the number of groups."""
        held = [
            (partition, group)
            for partition in self._state.partitions.values()
            for group in partition.groups.reserved.values()
            if group.session_id == session_id
        ]
        for partition, group in held:
            self._roll_back(partition, group, client_name, "the session ended")
        return len(held)

    def end_all(self, reason: str) -> None:
        """Remove the rows of all reserved groups, whose producers have not failed."""
        for partition in self._state.partitions.values():
            for group in list(partition.groups.reserved.values()):
                self._roll_back(partition, group, self._holder(group), reason, tried=False)

    # -- steps ---------------------------------------------------------------------------------------------------------

    def _exists(self, partition: Partition, group: Group) -> Refusal:
        """The refusal of a group that is there already; its metadata says in which state it is."""
        state = "reserved" if group.reservation_id else "committed"
        if state == "committed":
            what = f"was committed, so it can be skipped; {group.size} of its rows are here"
        else:
            who = f"client {self._holder(group)!r}" if group.session_id else "a caller without a session"
            what = f"is being filled by {who}; it is removed if that client aborts it or dies"
        message = f"partition {partition.partition_id!r}: group {group.group_id!r} {what}"
        metadata = {"partition_id": partition.partition_id, "group_id": group.group_id, "group_state": state}
        return Refusal(Reason.SAMPLE_EXISTS, message, **metadata)

    def _check(self, call: ReserveGroup) -> tuple[Partition, str]:
        """The partition, and the name of the client."""
        partition, limits = self._state.partition(call.partition_id), self._state.limits
        who = self._state.sessions.find(call.session_id).client_name if call.session_id else ""
        check_name("group id", call.group_id, limits)
        _check_version(partition, call.group_id, call.weight_version)
        if len(call.sample_ids) > limits.max_group_rows:
            rows, most = len(call.sample_ids), limits.max_group_rows
            message = f"group {call.group_id!r} would have {rows} rows; the limit is {most} (max_group_rows)"
            raise Refusal(Reason.INVALID_REQUEST, message, group_id=call.group_id)
        if call.sample_ids:
            check_sample_ids(call.sample_ids, limits)
        where = f"partition {partition.partition_id!r}"
        group = partition.groups.find(call.group_id)
        if group is not None:
            raise self._exists(partition, group)
        if partition.rows.closed:
            message = f"{where} is closed to new rows; group {call.group_id!r} would have some"
            raise Refusal(Reason.PARTITION_CLOSED, message, partition_id=partition.partition_id, group_id=call.group_id)
        existing = np.flatnonzero(partition.rows.find_existing(call.sample_ids) >= 0)
        if existing.size:
            first = call.sample_ids[int(existing[0])]
            message = f"{where}: sample {first!r} of group {call.group_id!r} exists already"
            raise Refusal(Reason.SAMPLE_EXISTS, message, partition_id=partition.partition_id, sample_id=first)
        self._state.check_new_rows(len(call.sample_ids))
        of_rows = partition.rows.growth_bytes(len(call.sample_ids)) + id_bytes(call.sample_ids)
        self._state.bookkeeping.check(GROUP_BYTES + of_rows)
        self._check_terms(partition, call)
        return partition, who

    def _check_terms(self, partition: Partition, call: ReserveGroup) -> None:
        """Refusal INVALID_REQUEST, FIELD_NOT_DECLARED, GROUP_GIVEN_UP."""
        where, most_s = f"partition {partition.partition_id!r}: group {call.group_id!r}", self._state.limits.max_delay_s
        if not 0 <= call.deadline_s <= most_s:
            message = f"{where} may have a deadline of 0 to {most_s:g} s, got {call.deadline_s:g}"
        elif call.min_rows and not call.deadline_s:
            message = f"{where} has min_rows and no deadline at which they count"
        elif call.min_rows > self._state.limits.max_group_rows:
            message = f"{where} may have min_rows of at most {self._state.limits.max_group_rows} (max_group_rows)"
        elif call.complete_fields and not call.min_rows:
            message = f"{where} has complete_fields and no min_rows"
        else:
            partition.known_fields(call.complete_fields, self._state.limits)
            tried, most = partition.groups.attempts.get(call.group_id), call.max_regenerations
            if tried is None or most is None or tried.number <= most:
                return
            message = f"{where} was removed {tried.number} times, and max_regenerations is {most}; last: {tried.reason}"
            where_it_is = {"partition_id": partition.partition_id, "group_id": call.group_id}
            raise Refusal(Reason.GROUP_GIVEN_UP, message, attempts=tried.number, **where_it_is)
        raise Refusal(Reason.INVALID_REQUEST, message, partition_id=partition.partition_id, group_id=call.group_id)

    def partition_of(self, reservation_id: str) -> str | None:
        """The partition of a reserved group."""
        found = (of for of in self._state.partitions.values() if reservation_id in of.groups.reserved)
        return next((partition.partition_id for partition in found), None)

    def _holder(self, group: Group) -> str:
        return self._state.sessions.name(group.session_id)

    def _roll_back(
        self, partition: Partition, group: Group, who: str, reason: str, *, late: bool = False, tried: bool = True
    ) -> int:
        slots = partition.groups.members(group.number)
        self._report("rolled_back", partition, slots, who, reason)
        if tried:
            partition.groups.note_failure(group, reason)
        partition.roll_back(group, late=late)
        return len(slots)

    def _report(self, what: str, partition: Partition, slots: Slots, who: str, reason: str = "") -> None:
        self._state.report(Fact(what, partition.partition_id, partition.rows.ids(slots), who, reason=reason))


def _check_version(partition: Partition, group_id: str, version: int | None) -> None:
    if version is not None:
        what = f"partition {partition.partition_id!r}, group {group_id!r}: weight_version"
        check_weight_version(what, version, partition_id=partition.partition_id, group_id=group_id)


def _check_complete(partition: Partition, group: Group) -> None:
    slots = partition.groups.members(group.number)
    if not slots.size:
        message = (
            f"partition {partition.partition_id!r}: group {group.group_id!r} has no row; add one or abort the group"
        )
        metadata = {"partition_id": partition.partition_id, "group_id": group.group_id}
        raise Refusal(Reason.GROUP_INCOMPLETE, message, **metadata)
    empty = slots[partition.rows["produced"][slots] == 0]
    if empty.size:
        first = partition.rows.ids(empty[:1])[0]
        message = (
            f"partition {partition.partition_id!r}: sample {first!r} of group {group.group_id!r} has no value yet "
            f"({empty.size} of {group.size} rows have none); put it, clear it, or abort the group"
        )
        metadata = {"partition_id": partition.partition_id, "sample_id": first, "group_id": group.group_id}
        raise Refusal(Reason.GROUP_INCOMPLETE, message, **metadata)
