"""Claims of whole groups: complete ones only, in the order in which they became complete, their rows side by side."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from tests.core.caller import Caller
from tests.semantics.callers import Caller as AnyCaller
from tests.semantics.conftest import ON_ONE_WAY

from dataplane_client.client import DataPlaneClient
from dataplane_client.errors import InvalidArgumentError
from dataplane_server.core.calls.answers import Waiting
from dataplane_server.core.calls.requests import AbandonClaim


def whole(caller: Caller, batch_size: int = 1, *fields: str, **more: object) -> tuple[str, ...]:
    """Rows of whole groups that are there, or none."""
    sizes = {"batch_size": batch_size, "min_size": 1}
    request = caller.claim_call(*(fields or ("a",)), whole_groups=True, **sizes, **more)  # type: ignore[arg-type]
    answer = caller.apply(request)
    if isinstance(answer, Waiting):
        caller.apply(AbandonClaim(answer.ticket))
        return ()
    assert sum(part.rows for part in answer.groups) == len(answer.sample_ids)
    return answer.sample_ids


def waits(caller: Caller, batch_size: int, *fields: str) -> int:
    waiting = caller.apply(caller.claim_call(*(fields or ("a",)), batch_size=batch_size, whole_groups=True))
    assert isinstance(waiting, Waiting)
    return waiting.ticket


@pytest.fixture
def two(caller: Caller) -> Caller:
    """Groups g (rows g1, g2) and h (h1 to h3), with a in every row and b in h."""
    caller.put_group("g", ["g1", "g2"], "a")
    caller.put_group("h", ["h1", "h2", "h3"], "a", "b")
    return caller


def test_whole_groups_are_claimed_with_their_weight_versions_and_a_row_without_one_is_a_group(via: AnyCaller) -> None:
    via.put("s", "a")
    for group_id, ids, start, end in (("g", "xy", 3, 4), ("h", "z", 5, None)):
        group = via.reserve(group_id, ids, version=start)
        group.put(ids, "a", sequence_lengths=[10] * len(ids))
        group.finish(end)
    via.put("t", "a")
    claim = via.claim("a", size=4, whole_groups=True)
    assert claim.ids == "sxyzt"
    assert claim.groups == [("", 1, None, None), ("g", 2, 3, 4), ("h", 1, 5, None), ("", 1, None, None)]
    assert claim.deliveries == [1] * 5
    via.release(claim)
    assert via.claim("a", size=9, least=1, whole_groups=True, max_tokens=29).ids == "sxy"


# -- clear -------------------------------------------------------------------------------------------------------------


def test_groups_come_in_order_of_arrival_after_a_redefinition(two: Caller) -> None:
    two.take("a", whole_groups=True)
    two.put_group("i", ["i1"], "a")
    two.register(tasks=("train",))
    assert whole(two, 9) == ("g1", "g2", "h1", "h2", "h3", "i1")


def test_a_group_that_a_clear_completes_is_ordered_by_its_remaining_rows(caller: Caller) -> None:
    assert whole(caller, order="oldest_version") == ()
    caller.put_group("g", ["g1"], "a")
    reservation = caller.reserve("h", ["h1", "h2"]).reservation_id
    caller.put(caller.put_call(["h1", "h2"], {"b": [1, 1]}, reservation_id=reservation))
    caller.put(caller.put_call(["h2"], {"a": [1]}, tags=[{"weight_version": 0}], reservation_id=reservation))
    caller.finish_group(reservation)
    caller.clear(["h1"])
    assert whole(caller, 2, order="oldest_version") == ("h2", "g1")


# -- bounds ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("max_tokens", "expected"), [(0, 3), (1, 1), (14, 1), (15, 1), (16, 1), (30, 2), (31, 2), (45, 3), (1000, 3)]
)
def test_groups_are_taken_while_their_tokens_stay_within_the_bound_but_one_at_least(
    caller: Caller, max_tokens: int, expected: int
) -> None:
    for name in ("g", "h", "i"):
        ids = [f"{name}1", f"{name}2", f"{name}3"]
        reservation_id = caller.reserve(name, ids).reservation_id
        more = {"sequence_lengths": [5, 10, -1], "reservation_id": reservation_id}
        caller.put(caller.put_call(ids, {"a": [1, 1, 1]}, **more))  # type: ignore[arg-type]
        caller.finish_group(reservation_id)
    assert len(whole(caller, 3, max_tokens=max_tokens)) == 3 * expected
    assert len(whole(caller, 3)) == 3 * (3 - expected)


def test_no_claim_hands_out_more_rows_of_whole_groups_than_a_call_may_name(new_caller: Callable[..., Caller]) -> None:
    caller = new_caller()
    caller.register()
    ids = [[f"g{group}r{row}" for row in range(4096)] for group in range(17)]
    for group, of_group in enumerate(ids):
        reservation_id = caller.reserve(f"g{group}", of_group).reservation_id
        caller.put(caller.put_call([], {"a": [1]}, reservation_id=reservation_id, shared=True))
        caller.finish_group(reservation_id)
    assert len(whole(caller, 17)) == 65_536
    assert whole(caller, 17) == tuple(ids[16])


# -- counted by rows ---------------------------------------------------------------------------------------------------


def by_rows(caller: Caller, batch_size: int, min_size: int = 1, **more: object) -> tuple[str, ...] | int:
    """Rows of whole groups that are there, or the ticket of the claim that waits for them."""
    sizes = {"batch_size": batch_size, "min_size": min_size, "unit": "rows"}
    answer = caller.apply(caller.claim_call("a", whole_groups=True, **sizes, **more))  # type: ignore[arg-type]
    return answer.ticket if isinstance(answer, Waiting) else answer.sample_ids


@pytest.mark.parametrize(
    ("batch_size", "expected"),
    [
        (1, ("g1", "g2")),  # at least one group
        (2, ("g1", "g2")),
        (4, ("g1", "g2")),
        (5, ("g1", "g2", "h1", "h2", "h3")),
        (99, ("g1", "g2", "h1", "h2", "h3")),
    ],
)
def test_groups_are_taken_as_long_as_their_rows_fit_into_the_batch(
    two: Caller, batch_size: int, expected: tuple[str, ...]
) -> None:
    assert by_rows(two, batch_size) == expected


def test_rows_outside_of_groups_count_as_rows(two: Caller) -> None:
    two.put_rows(["s1", "s2"], "a")
    assert by_rows(two, 6, 6) == ("g1", "g2", "h1", "h2", "h3", "s1")


def test_a_claim_that_waits_for_rows_is_served_when_that_many_are_ready_in_whole_groups(via: AnyCaller) -> None:
    waiting = via.begin_claim("a", size=9, least=4, whole_groups=True, unit="rows")
    via.put_group("g", "uvw")
    group = via.reserve("h", "xy")
    group.put("xy", "a", sequence_lengths=[5, 5])
    assert via.waiting() == 1
    group.finish()
    assert waiting.answer().ids == "uvwxy"
    via.reset()
    assert via.claim("a", size=9, least=1, whole_groups=True, unit="rows", max_tokens=9).ids == "uvw"


@ON_ONE_WAY
def test_a_unit_that_makes_no_sense_is_refused(client: DataPlaneClient) -> None:
    client.register_partition("p", ["a"], 4, ["train"])
    wrong: dict[str, dict[str, Any]] = {
        "unit 'groups' needs whole_groups=True": {"unit": "groups"},
        "unit 'rows' needs whole_groups=True": {"unit": "rows"},
        r"unit must be one of \('rows', 'groups'\) or None": {"unit": "tokens"},
        "balance 'groups' needs whole_groups=True": {"balance": "groups"},
    }
    for words, call in wrong.items():
        with pytest.raises(InvalidArgumentError, match=words):
            client.claim_shard("p", "train", ["a"], 2, step=0, dp_rank=0, dp_world=2, **call)


# -- against a model ---------------------------------------------------------------------------------------------------


class Line:
    """Groups in line as callers are promised, looked up anew among all rows after every step."""

    def __init__(self) -> None:
        self.members: dict[str, list[str]] = {}  # rows that are left, by group
        self.group_of: dict[str, str] = {}  # by row, whether it is left or not
        self.ready: set[str] = set()
        self.order: list[str] = []

    def update(self, touched: Sequence[str], *, in_front: bool = False) -> None:
        """Groups that are no longer complete leave; those that are now join, in the order of the rows touched."""
        complete = {name for name, rows in self.members.items() if rows and self.ready.issuperset(rows)}
        self.order = [name for name in self.order if name in complete]
        groups = dict.fromkeys(self.group_of[row] for row in touched)
        new = [name for name in groups if name in complete and name not in self.order]
        self.order = new + self.order if in_front else self.order + new

    def first(self, count: int) -> list[str]:
        return [row for name in self.order[:count] for row in self.members[name]]


class History:
    """Random calls to a plane, and what its line of groups with a and b must be."""

    def __init__(self, caller: Caller, seed: int) -> None:
        self.caller = caller
        self.line = Line()
        self.steps = 0
        self._dice = random.Random(seed)
        self._claims: dict[str, list[str]] = {}
        self._produced: set[str] = set()
        self._taken: set[str] = set()

    def step(self) -> None:
        self.steps += 1
        call = self._dice.choice(
            [self.arrive, self.produce, self.produce, self.take, self.take_one, self.release, self.commit, self.clear]
        )
        call()

    def some_rows(self) -> list[str]:
        rows = [row for of_group in self.line.members.values() for row in of_group]
        return self._dice.sample(rows, min(len(rows), self._dice.randint(1, 4)))

    def arrive(self) -> None:
        name = f"g{self.steps}"
        rows = [f"{name}.{i}" for i in range(self._dice.randint(1, 4))]
        if len(rows) > 1:
            self.caller.put_group(name, rows, "a")
        else:
            self.caller.put_rows(rows, "a")
        self.line.members[name] = rows
        self.line.group_of.update(dict.fromkeys(rows, name))

    def produce(self) -> None:
        if rows := self.some_rows():
            self.caller.put_rows(rows, "b")
            self._produced |= set(rows)
            self.line.ready |= set(rows) - self._taken
            self.line.update(rows)

    def take(self) -> None:
        if self.line.order:
            count = min(2, len(self.line.order))
            self._take(self.line.first(count), batch_size=count, whole_groups=True)

    def take_one(self) -> None:
        if self.line.order:
            self._take(None, batch_size=1)

    def _take(self, expected: list[str] | None, **sizes: object) -> None:
        grant = self.caller.take("a", "b", **sizes)
        rows = list(grant.sample_ids)
        assert expected is None or rows == expected
        self._claims[grant.claim_id] = rows
        self._taken |= set(rows)
        self.line.ready -= set(rows)
        self.line.update([])

    def _end_claim(self) -> tuple[str, list[str]]:
        claim_id = self._dice.choice(list(self._claims))
        left = {row for of_group in self.line.members.values() for row in of_group}
        return claim_id, [row for row in self._claims.pop(claim_id) if row in left]

    def release(self) -> None:
        if self._claims:
            claim_id, rows = self._end_claim()
            self.caller.release(claim_id)
            self._taken -= set(rows)
            self.line.ready |= set(rows)
            self.line.update(rows, in_front=True)

    def commit(self) -> None:
        if self._claims:
            self.caller.commit(self._end_claim()[0])

    def clear(self) -> None:
        if rows := self.some_rows():
            self.caller.clear(rows)
            for of_group in self.line.members.values():
                of_group[:] = [row for row in of_group if row not in rows]
            self.line.update(rows)


@pytest.mark.parametrize("seed", range(12))
def test_a_history_of_groups_goes_as_the_model_says(caller: Caller, seed: int) -> None:
    assert whole(caller, 1, "a", "b") == (), "from here on there is a line"
    history = History(caller, seed)
    for _ in range(150):
        history.step()
    caller.plane.check_invariants()
    assert list(whole(caller, 1000, "a", "b")) == history.line.first(1000)
