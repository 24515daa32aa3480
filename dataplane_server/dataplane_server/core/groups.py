"""Groups: the rows of one prompt, which become visible to claims all at once, or vanish all at once.

A group is reserved before its first value comes. Its rows exist from then on, so that nobody else takes their ids, but
they are hidden: no view holds them. To finish the group makes them visible; to abort it, or the death of the session
that reserved it, removes them. Either way the reservation has ended, and a put that still comes in its name is refused.

What stays is membership: claims can take groups whole. Rows that are cleared leave their group; one without rows is
gone, and its id is free again. `GroupTable` keeps the members; `Groups` is the desk where groups are reserved and end.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dataplane_server.core.calls import GroupAborted, GroupFinished, GroupPart, Reserve, Reserved
from dataplane_server.core.names import check_name, check_new_rows, check_reason, check_sample_ids
from dataplane_server.core.refusal import Reason, Refusal
from dataplane_server.core.rows import RowTable, Slots

if TYPE_CHECKING:
    from dataplane_server.core.admission import Admission
    from dataplane_server.core.partition import Partition
    from dataplane_server.core.sessions import Session
    from dataplane_server.core.state import State


@dataclass(slots=True, eq=False)
class Group:
    """The rows of one prompt. `slots` are all that were reserved, of which `size` are left; `number` stands in the
    column "group" of those. reservation_id is empty once the reservation has ended.
    """

    number: int
    group_id: str
    slots: Slots
    size: int
    reservation_id: str
    session: Session | None
    start_weight_version: int | None
    end_weight_version: int | None = None


class GroupTable:
    """The groups of one partition. `reserved` are those that are not finished, by reservation."""

    def __init__(self, rows: RowTable) -> None:
        self.reserved: dict[str, Group] = {}
        self._rows = rows
        self._groups: dict[int, Group] = {}  # by number
        self._number_of: dict[str, int] = {}  # by id
        self._unused: list[int] = []  # numbers of groups that are gone

    def __len__(self) -> int:
        return len(self._groups)

    def __iter__(self) -> Iterator[Group]:
        return iter(self._groups.values())

    def __contains__(self, group_id: str) -> bool:
        return group_id in self._number_of

    def add(self, request: Reserve, slots: Slots, reservation_id: str, session: Session | None) -> None:
        """Make a group of rows and hide them; the session holds it."""
        number = self._unused.pop() if self._unused else len(self._groups) + 1
        group = Group(number, request.group_id, slots, len(slots), reservation_id, session, request.weight_version)
        self._groups[number] = self.reserved[reservation_id] = group
        self._number_of[request.group_id] = number
        self._rows["group"][slots] = number
        self._rows["hidden"][slots] = True
        if request.weight_version is not None:
            self._rows.set_weight_version(slots, request.weight_version)
        if session is not None:
            session.groups[reservation_id] = None

    def of_reservation(self, reservation_id: str) -> Group:
        """Refusal GROUP_FENCED when the group is not reserved any more."""
        try:
            return self.reserved[reservation_id]
        except KeyError:
            raise fenced(reservation_id) from None

    def check_members(self, reservation_id: str, slots: Slots) -> None:
        """Refusal GROUP_FENCED when the group is not reserved any more, INVALID_REQUEST for a row of others."""
        group = self.of_reservation(reservation_id)
        strange = slots[self._rows["group"][slots] != group.number]
        if strange.size:
            first = self._rows.ids(strange[:1])[0]
            message = f"sample {first!r} is not one of the {group.size} rows of group {group.group_id!r}"
            raise Refusal(Reason.INVALID_REQUEST, message, sample_id=first, group_id=group.group_id)

    def check_free(self, slots: Slots) -> None:
        """Refusal ROW_RESERVED for a row whose group is reserved."""
        reserved = slots[self._rows["hidden"][slots]]
        if reserved.size:
            first = self._rows.ids(reserved[:1])[0]
            group_id = self.id_of(int(reserved[0]))
            message = (
                f"sample {first!r} belongs to group {group_id!r}, which is reserved; a put must name the reservation"
            )
            raise Refusal(Reason.ROW_RESERVED, message, sample_id=first, group_id=group_id)

    def members(self, number: int) -> Slots:
        """The rows of a group that are left, in order of arrival."""
        slots = self._groups[number].slots
        members: Slots = slots[self._rows["group"][slots] == number]
        return members

    def size(self, number: int) -> int:
        """How many rows are left of a group; 0 when it is gone."""
        group = self._groups.get(number)
        return 0 if group is None else group.size

    def id_of(self, slot: int) -> str:
        """The id of a row's group, empty when it has none."""
        number = int(self._rows["group"][slot])
        return self._groups[number].group_id if number else ""

    def parts(self, slots: Slots) -> tuple[GroupPart, ...]:
        """The groups of rows, of which those of one group adjoin."""
        numbers = self._rows["group"][slots]
        begins = np.flatnonzero((np.diff(numbers, prepend=-1) != 0) | (numbers == 0))
        rows = np.diff(begins, append=len(slots))
        return tuple(map(self._part, numbers[begins].tolist(), rows.tolist()))

    def _part(self, number: int, rows: int) -> GroupPart:
        if not number:
            return GroupPart("", rows)
        group = self._groups[number]
        return GroupPart(group.group_id, rows, group.start_weight_version, group.end_weight_version)

    def show(self, group: Group, weight_version: int | None) -> Slots:
        """End a reservation by making its rows visible; those rows."""
        slots = self.members(group.number)
        self._rows["hidden"][slots] = False
        group.end_weight_version = weight_version
        if weight_version is not None:
            self._rows.see_weight_version(weight_version)
        self.end_reservation(group)
        return slots

    def end_reservation(self, group: Group) -> None:
        """Nothing may be done any more in the name of the reservation."""
        del self.reserved[group.reservation_id]
        if group.session is not None:
            group.session.groups.pop(group.reservation_id, None)  # gone already where the session has ended
        group.session, group.reservation_id = None, ""

    def shrink(self, slots: Slots) -> None:
        """Rows are about to go."""
        if not self._groups:
            return
        numbers = self._rows["group"][slots]
        found, gone = np.unique(numbers[numbers > 0], return_counts=True)
        for number, rows in zip(found.tolist(), gone.tolist(), strict=True):
            group = self._groups[number]
            group.size -= rows
            if not group.size:
                self._forget(group)

    def _forget(self, group: Group) -> None:
        if group.reservation_id:
            self.end_reservation(group)
        del self._groups[group.number]
        del self._number_of[group.group_id]
        self._unused.append(group.number)


class Groups:
    """The desk where groups are reserved, finished and rolled back."""

    def __init__(self, state: State, admission: Admission) -> None:
        self._state = state
        self._admission = admission

    @property
    def open(self) -> int:
        """Groups that are reserved and not finished."""
        return sum(len(partition.groups.reserved) for partition in self._state.partitions.values())

    def reserve(self, request: Reserve, now: float) -> Reserved:
        """Create the rows of a group, hidden. Refusal SAMPLE_EXISTS when one of them, or the group, is there."""
        answer = self._state.answers.recall(request.request_id, "reserve", now)
        if isinstance(answer, Reserved):
            return answer
        partition = self._state.partition(request.partition_id)
        session = self._state.sessions.find(request.session_id) if request.session_id else None
        self._check(request, partition)
        self._state.births.tell(now)
        slots = partition.create(request.sample_ids)
        reservation_id = f"{self._state.incarnation}-g{self._state.ticket()}"
        partition.groups.add(request, slots, reservation_id, session)
        self._note("reserved", partition, slots, now, who="" if session is None else session.client_name)
        result = Reserved(reservation_id, partition.rows.generations(slots))
        self._state.answers.remember(request.request_id, "reserve", result, now)
        return result

    def finish(self, request_id: str, reservation_id: str, weight_version: int | None, now: float) -> GroupFinished:
        """Show the rows of a group to every task; the caller then serves the claims that wait for them. Refusal
        GROUP_INCOMPLETE names the first row that has produced nothing.
        """
        answer = self._state.answers.recall(request_id, "finish_group", now)
        if isinstance(answer, GroupFinished):
            return answer
        partition, group = self._find(reservation_id)
        _check_complete(partition, group)
        who = _holder(group)
        slots = partition.groups.show(group, weight_version)
        partition.look = None
        for task in partition.tasks.values():
            task.produced(slots)
        self._note("ready", partition, slots, now, who=who)
        result = GroupFinished(len(slots))
        self._state.answers.remember(request_id, "finish_group", result, now)
        return result

    def abort(self, request_id: str, reservation_id: str, reason: str, now: float) -> GroupAborted:
        """Remove the rows of a reserved group."""
        answer = self._state.answers.recall(request_id, "abort_group", now)
        if isinstance(answer, GroupAborted):
            return answer
        check_reason(reason, self._state.limits)
        partition, group = self._find(reservation_id)
        result = GroupAborted(self._roll_back(partition, group, reason, now))
        self._state.answers.remember(request_id, "abort_group", result, now)
        self._admission.admit_waiting()
        return result

    def session_ended(self, session: Session, now: float) -> int:
        """Remove the rows of all groups that a session still holds; how many groups."""
        reservations = list(session.groups)
        for reservation_id in reservations:
            self._roll_back(*self._find(reservation_id), "the session ended", now)
        self._admission.admit_waiting()
        return len(reservations)

    def partition_id(self, reservation_id: str) -> str | None:
        """The partition of a reserved group; None when it is not reserved any more."""
        for partition in self._state.partitions.values():
            if reservation_id in partition.groups.reserved:
                return partition.partition_id
        return None

    # -- steps ---------------------------------------------------------------------------------------------------------

    def _check(self, request: Reserve, partition: Partition) -> None:
        limits = self._state.limits
        check_name("group id", request.group_id, limits)
        if not 1 <= len(request.sample_ids) <= limits.max_group_rows:
            message = (
                f"group {request.group_id!r} has {len(request.sample_ids)} rows; 1 to {limits.max_group_rows} can be"
            )
            raise Refusal(Reason.INVALID_REQUEST, message, group_id=request.group_id)
        check_sample_ids(request.sample_ids, limits)
        where = f"partition {partition.partition_id!r}"
        if request.group_id in partition.groups:
            message = f"{where} has a group {request.group_id!r} already"
            raise Refusal(Reason.SAMPLE_EXISTS, message, partition_id=partition.partition_id, group_id=request.group_id)
        there = np.flatnonzero(partition.rows.find_existing(request.sample_ids) >= 0)
        if there.size:
            first = request.sample_ids[int(there[0])]
            message = f"{where}: sample {first!r} of group {request.group_id!r} exists already"
            raise Refusal(Reason.SAMPLE_EXISTS, message, partition_id=partition.partition_id, sample_id=first)
        check_new_rows(self._state.total_rows, len(request.sample_ids), limits)

    def _find(self, reservation_id: str) -> tuple[Partition, Group]:
        partition_id = self.partition_id(reservation_id)
        if partition_id is None:
            raise fenced(reservation_id)
        partition = self._state.partition(partition_id)
        return partition, partition.groups.of_reservation(reservation_id)

    def _roll_back(self, partition: Partition, group: Group, reason: str, now: float) -> int:
        slots = partition.groups.members(group.number)
        self._note("rolled_back", partition, slots, now, who=_holder(group), reason=reason)
        partition.clear(slots, "rolled_back")
        return len(slots)

    def _note(self, what: str, partition: Partition, slots: Slots, now: float, *, who: str, reason: str = "") -> None:
        ids = partition.rows.ids(slots)
        self._state.journal.note(what, partition.partition_id, ids, now, who=who, reason=reason)


def fenced(reservation_id: str) -> Refusal:
    message = f"no group is reserved as {reservation_id[:256]!r}: it was finished or rolled back"
    return Refusal(Reason.GROUP_FENCED, message, reservation_id=reservation_id)


def _holder(group: Group) -> str:
    return "" if group.session is None else group.session.client_name


def _check_complete(partition: Partition, group: Group) -> None:
    slots = partition.groups.members(group.number)
    empty = slots[partition.rows["produced"][slots] == 0]
    if empty.size:
        first = partition.rows.ids(empty[:1])[0]
        message = (
            f"partition {partition.partition_id!r}: sample {first!r} of group {group.group_id!r} has produced no field "
            f"yet ({empty.size} of {group.size} rows have not); put it, clear it, or abort the group"
        )
        metadata = {"partition_id": partition.partition_id, "sample_id": first, "group_id": group.group_id}
        raise Refusal(Reason.GROUP_INCOMPLETE, message, **metadata)
