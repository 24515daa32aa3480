"""White-box tests of the laws: a state that was tampered with is noticed, and the law that broke is named.

The laws are checked after every test and every step of the machine. A law that is never broken proves nothing, so each
of these breaks one from the inside, where no call can.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from tests.core.caller import Caller, figures_of, int64

from dataplane_server.core.calls.answers import Failed
from dataplane_server.core.calls.columns import make_columns
from dataplane_server.core.calls.refusal import Reason, Refusal
from dataplane_server.core.rows.group_table import Group
from dataplane_server.core.rows.row_table import RowTable
from dataplane_server.core.rows.space import Space
from dataplane_server.core.state.partition import Partition
from dataplane_server.core.state.state import State
from dataplane_server.core.tasks.group_view import GroupView
from dataplane_server.core.tasks.task import Task
from dataplane_server.core.tasks.task_states import CONSUMED, Amount, Waiter
from dataplane_server.core.verbs.admission import _Asked


class Inside:
    """Partition p with rows s1 (claimed), s2 and s3, and reserved group g of r1 and r2, which share a byte in b."""

    def __init__(self, caller: Caller) -> None:
        caller.register(("a", "b"), ("train",), per_token_fields=frozenset("a"))
        caller.put_rows(["s1", "s2", "s3"], "a", "b", size=5)
        caller.take("a")
        reservation_id = caller.reserve("g", ["r1", "r2"], caller.open_session()).reservation_id
        caller.share(reservation_id, b=1)
        self.caller = caller
        self.state: State = caller.plane._state
        assert isinstance(self.state.space, Space)
        self.space: Space = self.state.space
        self.partition: Partition = self.state.partitions["p"]
        self.rows: RowTable = self.partition.rows
        self.task: Task = self.partition.tasks["train"]
        self.group: Group = self.partition.groups.reserved[reservation_id]

    def set(self, column: str, sample_id: str, value: object) -> None:
        self.rows[column][self.rows.find([sample_id])] = value


@pytest.fixture
def inside(new_caller: Callable[..., Caller]) -> Inside:
    """Not of the data plane that the fixture checks again at the end."""
    found = Inside(Caller(new_caller().plane.limits))
    found.caller.plane.check_invariants()
    return found


def overlap(inside: Inside) -> None:
    places = inside.rows.places
    index = places.at(int64([0]), inside.rows.all_slots())
    places.store(index, index * 0, places.load(index)[1])


def part_free_ranges(inside: Inside) -> None:
    space = inside.space
    start, end = max(space.free_ranges())
    space._remove(start)
    space._add(start, start + 64)
    space._add(start + 64, end)


def hand_out_twice(inside: Inside) -> None:
    claims = inside.caller.plane._verbs.table._open
    claims["second"] = next(iter(claims.values()))


def let_a_put_wait_for_nothing(inside: Inside) -> None:
    inside.caller.clear()
    waiting = inside.caller.plane._verbs.admission._waiting
    waiting[99] = _Asked(make_columns([], 0, inside.caller.plane.limits), 0)


def bear_two_rows_at_once(inside: Inside) -> None:
    inside.caller.register(partition_id="q")
    inside.caller.put_rows(["s1"], "a", partition_id="q")
    inside.state.partitions["q"].rows["generation"][:] = inside.rows.generations(inside.rows.find(["s3"]))[0]


def miscount_a_view_of_groups(inside: Inside) -> None:
    inside.caller.finish_group(inside.group.reservation_id)
    inside.caller.take("b", whole_groups=True)
    [view] = [view for view in inside.task.views if isinstance(view, GroupView)]
    view.ready_rows += 1


def change_figures(counters: str) -> Callable[[Inside], None]:
    """Those that were told, and are kept to be told again."""

    def tamper(inside: Inside) -> None:
        figures_of(inside.caller.plane, 1.0)
        set_attribute(counters, 1)(inside)

    return tamper


def set_attribute(path: str, change: int) -> Callable[[Inside], None]:
    """Add to a counter."""
    *way, last = path.split(".")

    def tamper(inside: Inside) -> None:
        one: object = inside
        for name in way:
            one = one[name] if isinstance(one, dict) else getattr(one, name)
        setattr(one, last, getattr(one, last) + change)

    return tamper


LAWS: dict[str, Callable[[Inside], object]] = {
    "are the bytes in use": lambda i: i.space.allocate(10),
    "outside of a turn": lambda i: i.state.space.release(0, 5),
    "no two values overlap": overlap,
    "free ranges are disjoint and maximal": part_free_ranges,
    "rows that hold field 'b' are counted": set_attribute("partition.fields.b.rows", 1),
    "bytes of field 'b' are counted": set_attribute("partition.fields.b.size_bytes", 1),
    "rows that hold field 'a' are counted": lambda i: i.set("produced", "s3", np.uint64(2)),
    "every id has one live slot": lambda i: i.set("alive", "s3", False),
    "per-token field 'a' has its row's length": lambda i: i.set("sequence_length", "s3", 6),
    r"put = removed \+ resident": set_attribute("partition.rows_put_total", -1),
    r"delivered = claimed \+ ended": set_attribute("task.deliveries.total", 1),
    "no two rows have the same generation": bear_two_rows_at_once,
    "the next generation is new": lambda i: setattr(i.state.generations, "next", 1),
    "a row is claimed exactly while": lambda i: i.task.states.__setitem__(i.rows.find(["s1"]), CONSUMED),
    "no row is in two claims": hand_out_twice,
    "exactly the ready rows are queued": lambda i: next(iter(i.task.views))._queue.clear(),
    "ready rows are counted": miscount_a_view_of_groups,
    "no claim waits for rows that are ready": lambda i: next(iter(i.task.views)).waiters.update(
        {99: Waiter(99, Amount(1, 1))}
    ),
    "effects were taken": lambda i: i.state.effects.append(Failed(1, Refusal(Reason.DRAINING, ""))),
    "no put waits for an empty arena": let_a_put_wait_for_nothing,
    "a hidden row has a group": lambda i: i.set("hidden", "s3", True),
    "group 'g' is hidden or visible as a whole": lambda i: i.set("hidden", "r1", False),
    "the rows of group 'g' are counted": set_attribute("group.size", 1),
    "every group has rows": lambda i: i.rows["group"].__setitem__(i.group.slots, 0),
    "reserved groups are held by open sessions": lambda i: setattr(i.group, "session_id", "c-s99"),
    "owners of a payload are counted": lambda i: i.group.shared.clear(),
    "cached figures of 'p' are up to date": change_figures("partition.counters.puts"),
    "task 'train': cached figures are up to date": change_figures("task.counters.claims"),
    "a payload without owners and readers is freed": lambda i: i.rows.payloads.add(1 << 20, 5, 0),
}


@pytest.mark.parametrize(("law", "tamper"), LAWS.items(), ids=LAWS)
def test_a_broken_law_is_named(inside: Inside, law: str, tamper: Callable[[Inside], object]) -> None:
    tamper(inside)
    with pytest.raises(AssertionError, match=law):
        inside.caller.plane.check_invariants()
