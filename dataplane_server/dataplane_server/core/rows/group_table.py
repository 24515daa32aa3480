"""The groups of one partition: the rows of each prompt, which become visible to claims all at once or not at all.

The rows of a reserved group exist but are hidden: no view has them. Until the reservation ends, rows can join; then the
rows become visible, or are removed. What remains is membership: claims can take whole groups. Rows that are cleared
leave their group; a group that has lost its last row is gone, and its id is free again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from dataplane_server.core.calls.answers import GroupPart
from dataplane_server.core.calls.names import VERSION_TAG
from dataplane_server.core.calls.refusal import Reason, Refusal
from dataplane_server.core.calls.values import BoolArray, Slots
from dataplane_server.core.rows.bookkeeping import GROUP_BYTES, NAME_BYTES, text_bytes
from dataplane_server.core.rows.row_table import RowTable

END_VERSION_TAG = "end_weight_version"
MISSING_ROWS_TAG = "missing_rows"
"""How many rows of the group failed or were not complete at its deadline; on its other rows, if there are any."""
_REMEMBERED_ATTEMPTS = 4096
_ATTEMPT_BYTES = 256


@dataclass(frozen=True, slots=True)
class Terms:
    """On which a group is reserved; see ReserveGroup."""

    min_rows: int = 0
    complete_fields: tuple[str, ...] = ()
    max_regenerations: int | None = None


@dataclass(slots=True, eq=False)
class Group:
    """The rows of one prompt. slots: its rows in order of arrival, of which `size` are left; these have `number` in the
    column "group". reservation_id: empty once the reservation has ended. session_id: the session that holds the
    reservation; empty if none does. shared: while it is reserved, offset, entries and digest (0 if there is none) of
    the values that its rows share, by field. since: when it was reserved. deadline: None for none; both monotonic, s.
    failed: rows that failed. terms: on which it was reserved.
    """

    number: int
    group_id: str
    slots: Slots
    size: int
    reservation_id: str
    session_id: str
    start_weight_version: int | None
    end_weight_version: int | None = None
    shared: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    since: float = 0.0
    deadline: float | None = None
    failed: int = 0
    terms: Terms = field(default_factory=Terms)


@dataclass(slots=True)
class Attempts:
    """How often a group was rolled back, and why it was last. most: how often it may be."""

    number: int
    most: int
    reason: str


def _kept_bytes(group: Group) -> int:
    return GROUP_BYTES + text_bytes(group.group_id) + group.slots.nbytes + NAME_BYTES * len(group.shared)


def _attempt_bytes(group_id: str) -> int:
    return _ATTEMPT_BYTES + text_bytes(group_id)


def with_groups(groups: npt.NDArray[np.signedinteger[Any]], marked: BoolArray) -> BoolArray:
    """The rows that are marked, and all rows of their groups. groups: the number of each row's group, 0 for none."""
    return np.asarray(marked | ((groups > 0) & np.isin(groups, groups[marked])))


class GroupTable:
    """The groups of one partition. `reserved` are those that are not finished, by reservation."""

    def __init__(self, rows: RowTable) -> None:
        self.reserved: dict[str, Group] = {}
        self._rows = rows
        self._groups: dict[int, Group] = {}  # by number
        self._number_of: dict[str, int] = {}  # by id
        self._unused: list[int] = []  # numbers of groups that are gone
        self.attempts: dict[str, Attempts] = {}  # by group id, those that failed last at the end

    def __len__(self) -> int:
        return len(self._groups)

    def __iter__(self) -> Iterator[Group]:
        return iter(self._groups.values())

    def find(self, group_id: str) -> Group | None:
        """The group of this id, reserved or finished."""
        return self._groups.get(self._number_of.get(group_id, 0))

    @property
    def kept_bytes(self) -> int:
        return sum(map(_kept_bytes, self)) + sum(_attempt_bytes(group_id) for group_id in self.attempts)

    def note_failure(self, group: Group, reason: str) -> None:
        """A reserved group with a bound of regenerations is rolled back. Forgets the oldest of too many."""
        most = group.terms.max_regenerations
        if most is None:
            return
        before = self._forget_attempts(group.group_id)
        self.attempts[group.group_id] = Attempts(1 + (before.number if before else 0), most, reason)
        self._rows.keep(_attempt_bytes(group.group_id))
        if len(self.attempts) > _REMEMBERED_ATTEMPTS:
            self._forget_attempts(next(iter(self.attempts)))

    def _forget_attempts(self, group_id: str) -> Attempts | None:
        before = self.attempts.pop(group_id, None)
        if before is not None:
            self._rows.keep(-_attempt_bytes(group_id))
        return before

    def complete(self, group: Group, fields: Mapping[str, int]) -> BoolArray:
        """Which of a group's members, in order of arrival, are complete. fields: the bit of each field."""
        produced, named = self._rows["produced"][self.members(group.number)], group.terms.complete_fields
        if named:
            missing = [name for name in named if name not in fields]
            wanted = np.bitwise_or.reduce([fields[name] for name in named if name in fields] or [np.uint64(0)])
            return np.asarray(((produced & wanted) == wanted) & (not missing))
        shared = np.bitwise_or.reduce([fields[name] for name in group.shared] or [np.uint64(0)])
        return np.asarray((produced & ~shared) != 0)

    def add(
        self, group_id: str, slots: Slots, reservation_id: str, session_id: str, weight_version: int | None
    ) -> Group:
        """Make a reserved group of rows, which may be none."""
        number = self._unused.pop() if self._unused else len(self._groups) + 1
        group = Group(number, group_id, slots[:0], 0, reservation_id, session_id, weight_version)
        self._groups[number] = self.reserved[reservation_id] = group
        self._rows.keep(_kept_bytes(group))
        self._number_of[group_id] = number
        self.join(group, slots)
        return group

    def join(self, group: Group, slots: Slots) -> None:
        """New rows become rows of a reserved group, and are hidden."""
        before = _kept_bytes(group)
        group.slots = np.concatenate([self.members(group.number), slots])  # a slot of a row that is gone may come again
        self._rows.keep(_kept_bytes(group) - before)
        group.size = len(group.slots)
        self._rows["group"][slots] = group.number
        self._rows["hidden"][slots] = True
        self.tag_version(slots, VERSION_TAG, group.start_weight_version)

    def tag_version(self, slots: Slots, tag: str, number: int | None) -> None:
        """Tag rows of a group with a number of it, such as its weight version (None: no tag), so that claims see it."""
        for slot in slots.tolist() if number is not None else ():
            self._rows.merge_tags(slot, {tag: number})

    def check_members(self, group: Group, slots: Slots) -> None:
        """Refusal INVALID_REQUEST for a row outside of the group."""
        strange = slots[self._rows["group"][slots] != group.number]
        if strange.size:
            first = self._rows.ids(strange[:1])[0]
            message = f"sample {first!r} exists, but is not one of the {group.size} rows of group {group.group_id!r}"
            raise Refusal(Reason.INVALID_REQUEST, message, sample_id=first, group_id=group.group_id)

    def check_free(self, slots: Slots) -> None:
        """Refusal ROW_RESERVED for a row of a reserved group."""
        reserved = slots[self._rows["hidden"][slots]]
        if reserved.size:
            first = self._rows.ids(reserved[:1])[0]
            group_id = self.id_of(int(reserved[0]))
            message = (
                f"sample {first!r} belongs to the reserved group {group_id!r}; the put must name the reservation, "
                "as Group.put does in the client that reserved it"
            )
            raise Refusal(Reason.ROW_RESERVED, message, sample_id=first, group_id=group_id)

    def members(self, number: int) -> Slots:
        """The rows that are left of a group, in order of arrival."""
        slots = self._groups[number].slots
        members: Slots = slots[self._rows["group"][slots] == number]
        return members

    def size(self, number: int) -> int:
        """The number of rows left of a group; 0 if it is gone."""
        group = self._groups.get(number)
        return 0 if group is None else group.size

    def id_of(self, slot: int) -> str:
        """The id of a row's group; empty if it has none."""
        number = int(self._rows["group"][slot])
        return self._groups[number].group_id if number else ""

    def parts(self, slots: Slots) -> tuple[GroupPart, ...]:
        """The groups of rows; rows of one group must be adjacent."""
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
        """End a reservation by making its rows visible. Returns the rows."""
        slots = self.members(group.number)
        self._rows["hidden"][slots] = False
        group.end_weight_version = weight_version
        self._forget_attempts(group.group_id)
        self.tag_version(slots, END_VERSION_TAG, weight_version)
        if weight_version is not None:
            self._rows.see_weight_version(weight_version)
        self.end_reservation(group)
        return slots

    def end_reservation(self, group: Group) -> None:
        """From now on calls that name the reservation are refused."""
        del self.reserved[group.reservation_id]
        group.session_id = group.reservation_id = ""

    def shrink(self, slots: Slots) -> list[Group]:
        """Rows are about to be removed. Returns the groups that have no row left; the caller forgets them."""
        if not self._groups:
            return []
        numbers = self._rows["group"][slots]
        found, gone = np.unique(numbers[numbers > 0], return_counts=True)
        groups = [self._groups[number] for number in found.tolist()]
        for group, rows in zip(groups, gone.tolist(), strict=True):
            group.size -= rows
        return [group for group in groups if not group.size]

    def forget(self, group: Group) -> None:
        """A group without rows is gone."""
        if group.reservation_id:
            self.end_reservation(group)
        del self._groups[group.number]
        self._rows.keep(-_kept_bytes(group))
        del self._number_of[group.group_id]
        self._unused.append(group.number)
