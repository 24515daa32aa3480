"""White-box tests of the laws: a state that was tampered with is noticed, and the law that broke is named."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from tests.core.caller import Caller, int64

from dataplane_server.core.calls.answers import Failed
from dataplane_server.core.calls.columns import make_columns
from dataplane_server.core.calls.refusal import Reason, Refusal
from dataplane_server.core.rows.group_table import Group
from dataplane_server.core.rows.space import Space
from dataplane_server.core.state.partition import Partition
from dataplane_server.core.tasks.group_view import GroupView
from dataplane_server.core.tasks.task_states import CONSUMED, Amount, Waiter
from dataplane_server.core.tasks.view import View
from dataplane_server.core.verbs.admission import _Asked


@pytest.fixture
def caller(new_caller: Callable[..., Caller]) -> Caller:
    """A data plane with rows s1 (claimed), s2 and s3; not from the fixture that checks it again at the end."""
    one = Caller(new_caller().plane.limits)
    one.register(("a", "b"), ("train",), per_token_fields=frozenset("a"))
    one.put_rows(["s1", "s2", "s3"], "a", "b", size=5)
    one.take("a")
    one.plane.check_invariants()
    return one


def partition(caller: Caller) -> Partition:
    return caller.plane._state.partitions["p"]


def space(caller: Caller) -> Space:
    found = caller.plane._state.space
    assert isinstance(found, Space)
    return found


def leak_room(caller: Caller) -> None:
    space(caller).allocate(10)


def free_twice(caller: Caller) -> None:
    caller.plane._state.space.release(0, 5)
    caller.plane._state.space.freed = False


def free_outside_of_a_turn(caller: Caller) -> None:
    caller.plane._state.space.release(0, 5)


def overlap(caller: Caller) -> None:
    places = partition(caller).rows.places
    index = places.at(int64([0]), partition(caller).rows.all_slots())
    places.store(index, index * 0, places.load(index)[1])


def miscount_rows(caller: Caller) -> None:
    partition(caller).fields["b"].rows += 1


def miscount_bytes(caller: Caller) -> None:
    partition(caller).fields["b"].size_bytes += 1


def lose_a_put(caller: Caller) -> None:
    partition(caller).rows_put_total -= 1


def lose_a_row(caller: Caller) -> None:
    partition(caller).rows["alive"][partition(caller).rows.find(["s3"])] = False


def keep_a_place(caller: Caller) -> None:
    caller.put_rows(["s4"], "b")
    places = partition(caller).rows.places
    places.store(places.at(int64([0]), partition(caller).rows.find(["s4"])), int64([0])[None], int64([1])[None])


def change_a_length(caller: Caller) -> None:
    partition(caller).rows["sequence_length"][partition(caller).rows.find(["s3"])] = 6


def consume_behind_the_claim(caller: Caller) -> None:
    partition(caller).tasks["train"].states[partition(caller).rows.find(["s1"])] = CONSUMED


def hand_out_twice(caller: Caller) -> None:
    claims = caller.plane._verbs.table._open
    claims["second"] = next(iter(claims.values()))


def single(caller: Caller) -> View:
    """The only view there is, of single rows."""
    (view,) = partition(caller).tasks["train"].views
    assert isinstance(view, View)
    return view


def forget_in_line(caller: Caller) -> None:
    single(caller)._queue.clear()


def miscount_in_line(caller: Caller) -> None:
    single(caller).ready -= 1


def leave_waiting(caller: Caller) -> None:
    next(partition(caller).tasks["train"].views).waiters[99] = Waiter(99, Amount(1, 1))


def leave_effects(caller: Caller) -> None:
    caller.plane._state.effects.append(Failed(1, Refusal(Reason.DRAINING, "")))


def let_a_put_wait_for_nothing(caller: Caller) -> None:
    caller.clear()
    caller.plane._verbs.admission._waiting[99] = _Asked(make_columns([], 0, caller.plane.limits), 0)


def part_free_ranges(caller: Caller) -> None:
    free = space(caller)
    (start, end) = max(free.free_ranges())
    free._remove(start)
    free._add(start, start + 64)
    free._add(start + 64, end)


def produce_behind_the_view(caller: Caller) -> None:
    partition(caller).rows["produced"][partition(caller).rows.find(["s3"])] &= ~np.uint64(1)


def reserved(caller: Caller) -> Group:
    """A reserved group of rows r1 and r2, which share a byte in b, held by a session."""
    reservation_id = caller.reserve("g", ["r1", "r2"], caller.open_session()).reservation_id
    caller.put(caller.put_call([], {"b": [1]}, reservation_id=reservation_id, shared=True))
    return partition(caller).groups.of_reservation(reservation_id)


def show_a_row_of_a_group(caller: Caller) -> None:
    partition(caller).rows["hidden"][reserved(caller).slots[:1]] = False


def hide_a_single_row(caller: Caller) -> None:
    partition(caller).rows["hidden"][partition(caller).rows.find(["s3"])] = True


def miscount_a_group(caller: Caller) -> None:
    reserved(caller).size += 1


def lose_a_member(caller: Caller) -> None:
    group = reserved(caller)
    group.slots = group.slots[:1]


def lose_the_rows_of_a_group(caller: Caller) -> None:
    partition(caller).rows["group"][reserved(caller).slots] = 0


def keep_an_empty_group(caller: Caller) -> None:
    caller.reserve("g", [])
    (group,) = partition(caller).groups
    group.reservation_id = ""


def let_nobody_hold_a_group(caller: Caller) -> None:
    reserved(caller).session_id = "c-s99"


def put_a_hidden_row_in_line(caller: Caller) -> None:
    group = reserved(caller)
    caller.put(caller.put_call(["r1", "r2"], {"a": [5, 5]}, reservation_id=group.reservation_id))
    hidden = partition(caller).rows["hidden"]
    hidden[group.slots] = False
    next(partition(caller).tasks["train"].views).add(group.slots)
    hidden[group.slots] = True


def put_half_a_group_in_line(caller: Caller) -> None:
    group = reserved(caller)
    caller.finish_group(group.reservation_id)
    caller.take("b", whole_groups=True)
    (view,) = [view for view in partition(caller).tasks["train"].views if isinstance(view, GroupView)]
    view._queue.discard(next(iter(view._queue)))


def miscount_rows_in_line(caller: Caller) -> None:
    caller.finish_group(reserved(caller).reservation_id)
    caller.take("b", whole_groups=True)
    (view,) = [view for view in partition(caller).tasks["train"].views if isinstance(view, GroupView)]
    view.ready_rows += 1


def miscount_a_payload(caller: Caller) -> None:
    reserved(caller)
    next(iter(partition(caller).rows.payloads)).owners += 1


def miscount_a_payload_of_a_group(caller: Caller) -> None:
    reserved(caller).shared.clear()


def share_for_good(caller: Caller) -> None:
    group = reserved(caller)
    caller.finish_group(group.reservation_id)
    group.shared["a"] = (0, 0)


def share_what_was_not_produced(caller: Caller) -> None:
    partition(caller).rows["shared"][partition(caller).rows.find(["s3"])] = 4


def keep_a_payload_that_nobody_has(caller: Caller) -> None:
    partition(caller).rows.payloads.add(1 << 20, 5, 0)


def bear_two_rows_at_once(caller: Caller) -> None:
    caller.register(partition_id="q")
    caller.put_rows(["s1"], "a", partition_id="q")
    other = caller.plane._state.partitions["q"].rows
    other["generation"][:] = partition(caller).rows.generations(partition(caller).rows.find(["s3"]))[0]


def count_generations_anew(caller: Caller) -> None:
    caller.plane._state.generations.next = 1


def deliver_in_secret(caller: Caller) -> None:
    partition(caller).tasks["train"].deliveries.total += 1


def count_a_removal_twice(caller: Caller) -> None:
    partition(caller).removed["consumed"] += 1


@pytest.mark.parametrize(
    ("tamper", "law"),
    [
        (show_a_row_of_a_group, "group 'g' is hidden or visible as a whole"),
        (hide_a_single_row, "a hidden row has a group"),
        (miscount_a_group, "the rows of group 'g' are counted"),
        (lose_a_member, "the rows of group 'g' are its own"),
        (lose_the_rows_of_a_group, "every group has rows"),
        (keep_an_empty_group, "group 'g' without rows is reserved"),
        (let_nobody_hold_a_group, "reserved groups are held by open sessions"),
        (put_a_hidden_row_in_line, "exactly the ready rows are queued"),
        (put_half_a_group_in_line, "exactly the ready rows are queued"),
        (miscount_a_payload, "owners of a payload are counted"),
        (miscount_a_payload_of_a_group, "owners of a payload are counted"),
        (share_for_good, "group 'g' is finished and holds no value"),
        (share_what_was_not_produced, "rows have produced what they share"),
        (keep_a_payload_that_nobody_has, "a payload without owners and readers is freed"),
        (bear_two_rows_at_once, "no two rows have the same generation"),
        (count_generations_anew, "the next generation is new"),
        (deliver_in_secret, "delivered = claimed \\+ ended"),
        (count_a_removal_twice, "put = removed \\+ resident"),
        (leak_room, "are the bytes in use"),
        (free_twice, "are the bytes in use"),
        (free_outside_of_a_turn, "outside of a turn"),
        (overlap, "no two values overlap"),
        (miscount_rows, "rows that hold field 'b' are counted"),
        (miscount_bytes, "bytes of field 'b' are counted"),
        (lose_a_put, "put = removed \\+ resident"),
        (lose_a_row, "every id has one live slot"),
        (keep_a_place, "rows without field 'a' have no place for it"),
        (change_a_length, "per-token field 'a' has its row's length"),
        (consume_behind_the_claim, "a row is claimed exactly while a claim holds it"),
        (hand_out_twice, "no row is in two claims"),
        (forget_in_line, "exactly the ready rows are queued"),
        (miscount_in_line, "ready rows or groups are counted"),
        (miscount_rows_in_line, "ready rows are counted"),
        (leave_waiting, "no claim waits for rows that are ready"),
        (leave_effects, "effects were taken"),
        (let_a_put_wait_for_nothing, "no put waits for an empty arena"),
        (part_free_ranges, "free ranges are disjoint and maximal"),
        (produce_behind_the_view, "rows that hold field 'a' are counted"),
    ],
)
def test_a_broken_law_is_named(caller: Caller, tamper: Callable[[Caller], None], law: str) -> None:
    tamper(caller)
    with pytest.raises(AssertionError, match=law):
        caller.plane.check_invariants()
