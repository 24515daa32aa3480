"""Random calls of many clients over a small world, so that they meet: few rows, groups, steps, sessions; little memory.

Clients die, come late, repeat themselves and overtake one another. A call is drawn from the world as it is, and may be
sent when that world is gone. Calls that lead further are drawn more often.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
from tests.core.machine.checked_plane import CheckedPlane
from tests.core.machine.things import Claim, Group, Row

from dataplane_server.core.calls.answers import Grant, Reservation, Reserved
from dataplane_server.core.calls.columns import ColumnSpec, Shape
from dataplane_server.core.calls.filters import Filter, FilterOperator, Term
from dataplane_server.core.calls.flow import DrawBand, EvictFirst, FlowPolicy, WhenFull
from dataplane_server.core.calls.limits import Limits
from dataplane_server.core.calls.policies import ClaimOrder, TaskPolicy, TaskPolicyOf, WhenExcluded, WhenStale
from dataplane_server.core.calls.requests import (
    AbandonRequest,
    AbortGroup,
    AdoptClaim,
    BeginRead,
    ClaimSamples,
    ClaimShard,
    ClearSamples,
    ClosePartition,
    CommitClaim,
    DrawSamples,
    DropPartition,
    ExtendPartition,
    FinishGroup,
    PutSamples,
    RegisterPartition,
    ReleaseClaim,
    RepeatableCall,
    ReserveGroup,
    ResetTask,
    SetPolicies,
    SetWeightVersion,
)
from dataplane_server.core.calls.values import Balance, BatchUnit, Definition, DrawStrategy, Int64Array, Tags

SCARCE = Limits(
    memory_bytes=2000,
    max_rows=14,
    max_fields=6,
    max_group_rows=5,
    max_tags_per_row=3,
    max_waiting_claims=6,
    max_waiting_puts=3,
    remember_s=30.0,
    remembered_steps=2,
    remembered_events=64,
)
AMPLE = replace(SCARCE, memory_bytes=1 << 14, max_rows=1000, max_group_rows=6, max_waiting_claims=1000, remember_s=60.0)
PARTITIONS = ("p", "p", "q")
TASKS = ("score", "train")
SAMPLES = tuple(f"s{i}" for i in range(8))
GROUPED = tuple(f"t{i}" for i in range(8))
SHAPES = {  # of each field; most puts agree with one another, some widen, some contradict
    "a": [Shape("jagged", "int16", (9,))] * 12 + [Shape("dense", "int16", (3, 9)), Shape("dense", "int16", (5, 9))],
    "b": [Shape("jagged", "uint8", (33,))] * 8 + [Shape("dense", "uint8", (3, 33)), Shape("jagged", "uint8", (2, 33))],
    "c": [Shape("dense", "float32", ())] * 8 + [Shape("jagged", "float32", ())],
    "o": [Shape("object", "", ())],
    "u": [Shape("jagged", "uint8", ())],  # these are declared by calls that name them, in open partitions
    "v": [Shape("dense", "int64", ())],
    "w": [Shape("object", "", ())],
}
FIELDS = ("a", "b", "c", "o")
TICK = 2.0**-20
"""Added up in graces and delays, so that no two ever end at the same moment: who comes first is then a promise."""

T = TypeVar("T")


class Clients:
    """Acts at random upon a plane beside its model."""

    def __init__(self, dice: random.Random) -> None:
        self.dice = dice
        self.world = CheckedPlane(dice.choice([SCARCE, AMPLE]))
        self.later: list[RepeatableCall[Any]] = []
        self.seen: list[Row] = []
        self._drawn = 0
        weights: dict[Callable[[], object], int] = {
            self.put: 18,
            self.put_once: 8,
            self.put_to_rows_once_seen: 2,
            self.put_if: 6,
            self.append: 9,
            self.write_back: 4,
            self.end_a_write: 6,
            self.read: 4,
            self.end_read: 3,
            self.claim: 8,
            self.claim_shard: 8,
            self.run_ahead: 2,
            self.stop_waiting: 2,
            self.abandon: 3,
            self.draw: 5,
            self.commit: 8,
            self.release: 5,
            self.adopt: 3,
            self.reset: 1,
            self.reserve: 4,
            self.put_group: 5,
            self.add_to_group: 5,
            self.put_shared: 3,
            self.finish_group: 4,
            self.give_back_a_group: 2,
            self.abort_group: 1,
            self.clear: 3,
            self.clear_what_is_consumed: 3,
            self.clear_rows_once_seen: 1,
            self.register: 2,
            self.extend: 1,
            self.close: 1,
            self.set_weight_version: 2,
            self.set_policies: 2,
            self.drop: 1,
            self.open_session: 3,
            self.heartbeat: 4,
            self.heartbeat_late: 2,
            self.close_session: 1,
            self.pass_time: 5,
            self.reach_next_due: 3,
            self.recover: 1,
            self.let_go: 1,
            self.send_late: 3,
            self.send_again: 5,
            self.send_another: 2,
        }
        self._actions = [action for action, weight in weights.items() for _ in range(weight)]

    def run(self, most: int, stop_one_in: int, whole_one_in: int = 1) -> None:
        """Act until chance or the number of steps ends it, then release all and replay. whole_one_in: how many steps
        there are to each whole comparison.
        """
        self.register_all()
        for partition_id in ("p", "q"):
            self.set_flow(partition_id)
        for _ in range(2):
            self.world.open_session("", 6 + self.tick())
        for step in range(most):
            if self.dice.randrange(stop_one_in) == 0:
                break
            self.world.whole = step % whole_one_in == 0
            self.act()
        self.world.whole = True
        if self.chance(3):
            self.world.drain()
            self.check()
            for _ in range(8):
                self.act()
        self.world.release_all()
        self.world.plane.check_replay()

    def register_all(self) -> None:
        per_token, most = self.dice.choice(["", "a", "ab", "ab"]), self.dice.choice([0, 0, 1, 2])
        clears = self.chance(3)
        for partition_id in ("p", "q"):
            definition = Definition(partition_id, FIELDS, TASKS, 3, frozenset(per_token), max_deliveries=most)
            self.go(RegisterPartition("", replace(definition, open=self.chance(3), clear_when_consumed=clears)))

    def act(self) -> None:
        self.dice.choice(self._actions)()
        self.check()
        partitions = self.world.model.partitions
        if (len(partitions) < 2 and self.chance(4)) or (self.chance(12) and any(p.closed for p in partitions.values())):
            self.register()

    def check(self) -> None:
        self.world.check()
        for partition in self.world.model.partitions.values():
            self.seen += [row for row in partition.rows if row not in self.seen[-40:]]

    # -- how calls are sent --------------------------------------------------------------------------------------------

    def tick(self) -> float:
        """A moment of its own."""
        self._drawn += 1
        return self._drawn * TICK

    def go(self, call: RepeatableCall[Any]) -> object:
        """Send a call, or keep it to be sent later."""
        self._drawn += 1
        call = replace(call, request_id=f"r{self._drawn}")  # type: ignore[type-var]  # all are dataclasses
        if not self._is_certain(call):
            return None
        if self.chance(8):
            self.later.append(call)
            return None
        return self.world.send(call)

    def go_with_bytes(self, call: PutSamples | CommitClaim) -> None:
        """Sometimes the last byte comes later."""
        if isinstance(self.go(call), Reservation) and not self.chance(5):
            self.world.finish(self.world.model.writes[-1])

    def send_late(self) -> None:
        if self.later:
            call = self.dice.choice(self.later)
            self.later.remove(call)
            self._send(call)

    def send_again(self) -> None:
        if call := self.recent(self.world.sent, 20):
            self._send(call)

    def send_another(self) -> None:
        """Send a call of a sort that was answered, under the request_id of that one."""
        first, call = self.recent(self.world.sent, 20), self.recent(self.world.sent, 60)
        if first and call and type(first) is type(call) and first.request_id in self.world.model.answers:
            self._send(replace(call, request_id=first.request_id))  # type: ignore[type-var]  # all are dataclasses

    def _send(self, call: RepeatableCall[Any]) -> None:
        if self._is_certain(call):
            self.world.send(call)

    def _is_certain(self, call: RepeatableCall[Any]) -> bool:
        """Whether the model can tell what a draw finds before it is told what another one of the same turn took."""
        partition = self.world.model.partitions.get(getattr(call, "partition_id", ""))
        banded = partition is not None and partition.flow.band is not None
        return not (isinstance(call, DrawSamples) and call.max_times_sampled and banded)

    # -- what is drawn -------------------------------------------------------------------------------------------------

    def chance(self, one_in: int) -> bool:
        return self.dice.randrange(one_in) == one_in - 1

    def recent(self, items: Sequence[T], most: int = 12) -> T | None:
        """One of the last few."""
        return self.dice.choice(items[-most:]) if items else None

    def partition_id(self) -> str:
        return "nowhere" if self.chance(40) else self.dice.choice(PARTITIONS)

    def task(self) -> str:
        return "nobody" if self.chance(40) else self.dice.choice(["score", "train", "train"])

    def sample_ids(self) -> list[str]:
        return self.dice.sample(SAMPLES, self.dice.randint(1, 4))

    def fields(self) -> tuple[str, ...]:
        return tuple(
            self.dice.choice(["a", "a", "a", "a", "a", "a", "", "", "ab", "ba", "b", "b", "o", "c", "u", "av"])
        )

    def columns(self, names: Iterable[str], rows: int) -> list[ColumnSpec]:
        """Columns whose rows have the same lengths where they are not dense."""
        lengths = np.array([self.dice.choice([3, 3, 3, 0, 1, 5, 5, 12]) for _ in range(rows)], np.int64)
        shapes = [(name, self.dice.choice(SHAPES[name])) for name in names]
        return [ColumnSpec(name, shape, None if shape.kind == "dense" else lengths) for name, shape in shapes]

    def session_id(self) -> str:
        """Mostly of an open session, sometimes of one that has ended, or of none."""
        sessions = [session.session_id for session in self.world.model.sessions]
        if self.chance(4):
            return ""
        return (
            self.dice.choice(sessions) if sessions and not self.chance(12) else self.recent(self.world.sessions) or ""
        )

    def some_claim(self) -> Claim:
        """Mostly an open claim, made if need be, sometimes one that has ended, or that never was."""
        model = self.world.model
        if not model.open_claims() and not self.chance(6):
            self.put()
            self.claim()
        claims = model.claims[-12:] if self.chance(8) or not model.open_claims() else model.open_claims()
        return self.dice.choice(claims or [Claim("p", "train", [], [], "c-0")])

    def some_group(self) -> Group:
        """Mostly a reserved group, made if need be, sometimes one that has ended, or that never was."""
        groups = self.world.model.groups
        if not any(group.state == "reserved" for group in groups) and not self.chance(6):
            self.reserve()
        reserved = [group for group in groups if group.state == "reserved"]
        groups = groups[-4:] if self.chance(8) or not reserved else reserved
        return self.dice.choice(groups or [Group("g", "p", [], None, reservation_id="c-g0")])

    def rows_once_seen(self) -> list[Row]:
        """Up to three rows of one partition, of different ids, that existed some time ago. Some have been replaced."""
        replaced = [row for row in self.seen[-40:] if not row.resident]
        last = self.recent(replaced if self.chance(2) else self.seen, 15)
        if last is None:
            return []
        others = [row for row in self.seen[-15:] if row.partition_id == last.partition_id]
        found = {row.sample_id: row for row in [*others[self.dice.randrange(3) :: 4], last]}
        return list(found.values())[-3:]

    # -- partitions ----------------------------------------------------------------------------------------------------

    def register(self) -> None:
        tasks = self.dice.choice([TASKS] * 6 + [TASKS[::-1], TASKS[1:], ()])
        fields = tuple(self.dice.choice(["abco"] * 6 + ["ocba", "aco", "ba", "abcou"]))
        per_token = frozenset(self.dice.choice(["", "a", "ab"])) & set(fields)
        most = self.dice.randrange(3)
        missing = sorted({"p", "q"} - self.world.model.partitions.keys())
        partition_id = self.dice.choice(missing or PARTITIONS)
        definition = Definition(partition_id, fields, tasks, 3, per_token, max_deliveries=most)
        definition = replace(definition, open=self.chance(3), clear_when_consumed=bool(tasks) and self.chance(3))
        held = self.world.model.partitions.get(partition_id)
        if held is not None and self.chance(2):  # compatible, or nearly so
            per_token = per_token if self.chance(4) else held.definition.per_token_fields & set(fields)
            definition = replace(held.definition, fields=fields, tasks=tasks or TASKS, per_token_fields=per_token)
        self.go(RegisterPartition("", definition, replace=self.chance(2)))

    def extend(self) -> None:
        tasks = self.dice.choice([(), (), TASKS, ("judge",)])
        fields = tuple(self.dice.choice(["", "ab", "u", "uv", "w"]))
        per_token = frozenset(self.dice.choice(["", "", "u", "a"])) & set(fields)
        self.go(ExtendPartition("", self.partition_id(), fields, per_token, tasks, self.dice.choice([0, 5])))

    def close(self) -> None:
        self.go(ClosePartition("", self.partition_id()))

    def set_weight_version(self) -> None:
        below = self.dice.choice([None, None, None, 1, 2, 3])
        self.go(SetWeightVersion("", self.partition_id(), self.dice.choice([0, 1, 2, 3, 3, 4, 5, -1]), below))

    def set_policies(self) -> None:
        tasks = self.dice.sample(TASKS, self.dice.randint(1, 2)) if not self.chance(20) else ["nobody"]
        policies = tuple(TaskPolicyOf(task, self._policy()) for task in tasks[self.chance(3) :])
        self.go(SetPolicies("", self.partition_id(), policies, self._flow() if self.chance(4) else None))

    def set_flow(self, partition_id: str) -> None:
        self.go(SetPolicies("", partition_id, (), self._flow()))

    def _flow(self) -> FlowPolicy:
        if self.chance(3):
            return FlowPolicy()
        full: list[WhenFull] = ["block", "reject", "evict", "evict"]
        first: list[EvictFirst] = ["oldest", "oldest_version"]
        what = self.dice.choice(full)
        return FlowPolicy(
            self.dice.choice([3, 5, 8] if what == "evict" else [None, 3, 5, 8]),
            self.dice.choice([None, None, 600, 1200]),
            self.dice.choice([None, None, 1, 2]),
            what,
            self.dice.choice(first),
            self._filter() if what == "evict" and self.chance(3) else (),
            self.dice.choice([None, None, None, DrawBand(1.0, -3.0, 5.0), DrawBand(0.5, -2.0, 3.0)]),
        )

    def _policy(self) -> TaskPolicy:
        bound = self.dice.choice([None, 0, 1, 1, 2])
        what: list[WhenStale] = ["withhold", "drop", "deliver"]
        excluded: list[WhenExcluded] = ["withhold", "drop"]
        where = self._filter() if self.chance(2) else ()
        pace = self.dice.choice([0, 0, 2, 4])
        return TaskPolicy(bound, self.dice.choice(what), *self._order(), where, self.dice.choice(excluded), pace)

    def _order(self) -> tuple[ClaimOrder, str]:
        orders: list[ClaimOrder] = ["ready", "ready", "oldest_version", "newest_version", "lowest_tag", "highest_tag"]
        order = self.dice.choice(orders)
        return order, self.dice.choice("xy") if (order.endswith("tag") != self.chance(30)) else ""

    def drop(self) -> None:
        if self.chance(2):
            self.go(DropPartition("", self.partition_id()))

    def clear(self) -> None:
        ids = None if self.chance(8) else self.sample_ids()
        self.go(ClearSamples("", self.partition_id(), ids, where=self._filter() if self.chance(2) else ()))

    def clear_what_is_consumed(self) -> None:
        for partition_id, partition in list(self.world.model.partitions.items()):
            used = [row for row in partition.rows if any(one.state == "consumed" for one in row.standings.values())]
            if used:
                self.go(ClearSamples("", partition_id, [row.sample_id for row in used]))

    def clear_rows_once_seen(self) -> None:
        if rows := self.rows_once_seen():
            self.go(ClearSamples("", rows[0].partition_id, [row.sample_id for row in rows], generations(rows)))

    # -- writes --------------------------------------------------------------------------------------------------------

    def put(self) -> None:
        ids = self.sample_ids()
        names = ["a", "a", "b", "ab", "ab", "", "abo", "c", "ao"] * 2 + ["au", "av", "uw"]
        columns = self.columns(self.dice.choice(names), len(ids))
        tags: list[Tags] | None = [self._tags() for _ in ids] if self.chance(3) else None
        of_columns = next((spec.lengths for spec in columns if spec.lengths is not None), None)
        given = self.dice.choice([None, None, of_columns, np.full(len(ids), -1), np.full(len(ids), 3)])
        put = PutSamples("", self.partition_id(), ids, columns, tags, given, create_only=self.chance(4))
        self.go_with_bytes(put)

    def put_once(self) -> None:
        ids, names = self.sample_ids(), self.dice.choice(["o", "o", "co", "c", "bo", "ow"])
        columns, once = self.columns(names, len(ids)), tuple(names[self.dice.randrange(2) :])
        self.go_with_bytes(PutSamples("", self.partition_id(), ids, columns, once=once))

    def _tags(self) -> Tags:
        keys = self.dice.sample("wxyz", self.dice.randrange(3))
        tags: Tags = {key: self.dice.choice([None, True, 3, 0.5, "v"]) for key in keys}
        return tags | {"weight_version": self.dice.choice([0, 1, 2, 3, 4] * 4 + [-1, 0.5])} if self.chance(2) else tags

    def _filter(self) -> Filter:
        tags, facts = ["w", "x", "weight_version"], ["staleness", "sequence_length"]
        subjects = [*((tag, False) for tag in tags), *((fact, True) for fact in facts)]
        operators: list[FilterOperator] = ["==", "!=", "<", ">=", "in"]
        values: list[float | str] = [1, 3, 0.5, "v", "u"]
        compared = Term(self.dice.choice(operators), *self.dice.choice(subjects), (self.dice.choice(values),))
        unless = Term("is null", *self.dice.choice(subjects))
        return (compared, unless, Term("or")) if self.chance(2) else (compared, Term("not"))

    def put_to_rows_once_seen(self) -> None:
        if rows := self.rows_once_seen():
            ids, columns = [row.sample_id for row in rows], self.columns(self.dice.choice(["ab", "b"]), len(rows))
            self.go_with_bytes(PutSamples("", rows[0].partition_id, ids, columns, generations=generations(rows)))

    def put_if(self) -> None:
        """Mostly of rows that are there."""
        partition_id = self.partition_id()
        partition = self.world.model.partitions.get(partition_id)
        there = [] if partition is None else [row.sample_id for row in partition.rows if not row.hidden]
        ids = self.sample_ids() if self.chance(6) or not there else self.dice.sample(there, min(len(there), 2))
        tags, columns = [self._tags() for _ in ids], self.columns(self.dice.choice(["", "ab"]), len(ids))
        self.go_with_bytes(PutSamples("", partition_id, ids, columns, tags, only_if=self._filter()))

    def append(self) -> None:
        """Mostly to rows that hold the per-token fields."""
        partition_id = self.partition_id()
        partition = self.world.model.partitions.get(partition_id)
        row = None if partition is None or self.chance(12) else self.recent(partition.rows, 4)
        if partition is None or row is None:
            ids, names, reservation_id = self.sample_ids(), self.dice.choice(["a", "ab", "c"]), ""
        else:
            rows = [one for one in partition.rows if (one.group, one.hidden) == (row.group, row.hidden)]
            ids = [one.sample_id for one in self.dice.sample(rows, min(len(rows), 2))]
            names = "".join(sorted(partition.definition.per_token_fields)) or "a"
            reservation_id = row.group.reservation_id if row.group is not None and row.hidden else ""
        lengths = np.array([self.dice.choice([0, 1, 1, 2, 3]) for _ in ids], np.int64)
        columns = [ColumnSpec(name, SHAPES[name][-1 if name == "c" else 0], lengths) for name in names]
        append = PutSamples("", partition_id, ids, columns, reservation_id=reservation_id, append=True)
        self.go_with_bytes(replace(append, existing_only=self.chance(3)))

    def write_back(self) -> None:
        claim = self.some_claim()
        own = [row.sample_id for row in claim.rows]
        ids = self.sample_ids() if self.chance(9) or not own else own[self.dice.randrange(2) :] or own
        columns = self.columns("b", len(ids))
        self.go_with_bytes(PutSamples("", claim.partition_id, ids, columns, claim_id=claim.claim_id))

    def end_a_write(self) -> None:
        if writes := self.world.model.writes:
            write = self.dice.choice(writes)
            if self.chance(6):
                self.world.abort_write(write)
            elif write.runs is not None:
                self.world.finish(write)
            elif self.chance(3):
                self.world.give_up_write(write)

    # -- reads ---------------------------------------------------------------------------------------------------------

    def read(self) -> None:
        names = self.dice.choice([("a",), ("a",), ("b", "a"), ("b",), ("o",), ("o",), ("c", "a"), ("u",)])
        kind, rows = self.dice.randrange(8), self.rows_once_seen()
        if kind == 0:
            self.world.begin_read(BeginRead(self.partition_id(), self.sample_ids(), names))
        elif kind < 3 and rows:
            ids = [row.sample_id for row in rows]
            self.world.begin_read(BeginRead(rows[0].partition_id, ids, names, generations(rows)))
        else:
            for partition in self.world.model.partitions.values():
                holding = [row.sample_id for row in partition.rows if row.values.keys() >= set(names)]
                if holding:
                    ids = self.dice.sample(holding, self.dice.randint(1, len(holding)))
                    read = BeginRead(partition.partition_id, ids, names)
                    self.world.begin_read(self.of_tokens(read) if self.chance(3) else read)

    def of_tokens(self, read: BeginRead) -> BeginRead:
        """A read of a range of tokens, the same for all rows or not."""
        count = self.dice.choice([1, len(read.sample_ids)])
        starts = np.array([self.dice.randrange(5) for _ in range(count)], np.int64)
        ends = starts + np.array([self.dice.randrange(9) for _ in range(count)], np.int64)
        return replace(read, token_starts=starts, token_ends=ends)

    def end_read(self) -> None:
        if self.world.model.reads:
            self.world.end_read(self.dice.choice(list(self.world.model.reads)))

    # -- groups --------------------------------------------------------------------------------------------------------

    def reserve(self) -> None:
        version = self.dice.choice([None, 1, 2])
        ids = (
            self.sample_ids()
            if self.chance(4)
            else [f"t{i}" for i in self.dice.sample(range(8), self.dice.randint(0, 3))]
        )
        group_id = self.dice.choice("ghijk")
        partition_id, seconds = self.partition_id(), self.dice.choice([0.0, 1.0, 3.0, 30.0])
        partition = self.world.model.partitions.get(partition_id)
        fields = tuple(self.dice.choice(["", "", "a", "ab"]))
        known = partition is not None and set(fields) <= set(partition.definition.fields)
        terms = (seconds, self.dice.choice([0, 1, 1, 2]), fields if known else (), self.dice.choice([None, None, 0, 2]))
        if not (seconds and terms[1]) and not self.chance(10):
            terms = (seconds, 0, (), terms[3])
        self.go(ReserveGroup("", partition_id, group_id, ids, self.session_id(), version, *terms))

    def put_group(self) -> None:
        group = self.some_group()
        own = [row.sample_id for row in group.rows] or ["s0"]
        ids = own[:1] if self.chance(4) else own
        columns = self.columns(self.dice.choice(["a", "ab", "b", "o"]), len(ids))
        once = ("o",) if columns[0].name == "o" else ()
        put = PutSamples("", group.partition_id, ids, columns, reservation_id=group.reservation_id, once=once)
        self.go_with_bytes(put)

    def add_to_group(self) -> None:
        """Mostly of rows that are not there yet."""
        group = self.some_group()
        ids = self.sample_ids() if self.chance(6) else self.dice.sample(GROUPED, self.dice.randint(1, 3))
        columns = self.columns(self.dice.choice(["a", "ab", "c", "o", ""]), len(ids))
        once = ("o",) if columns and columns[0].name == "o" else ()
        to_group = {"reservation_id": group.reservation_id, "add_to_group": True}
        put = PutSamples("", group.partition_id, ids, columns, once=once, **to_group)  # type: ignore[arg-type]
        self.go_with_bytes(put)

    def put_shared(self) -> None:
        group = self.some_group()
        columns = self.columns(self.dice.choice("abcou"), 1)
        put = PutSamples("", group.partition_id, (), columns, reservation_id=group.reservation_id, shared=True)
        self.go_with_bytes(put)

    def finish_group(self) -> None:
        self.go(FinishGroup("", self.some_group().reservation_id, self.dice.choice([None, 3])))

    def give_back_a_group(self) -> None:
        """Of a few whole groups the first one is taken and given back, so it is ahead of the others."""
        partition_id = self.partition_id()
        for group_id in self.dice.sample("ghijk", 2):
            ids = self.dice.sample(GROUPED, self.dice.randint(1, 2))
            outcome = self.go(ReserveGroup("", partition_id, group_id, ids))
            if isinstance(outcome, Reserved):
                reservation_id = outcome.reservation_id
                columns = self.columns("a", len(ids))
                self.go_with_bytes(PutSamples("", partition_id, ids, columns, reservation_id=reservation_id))
                self.go(FinishGroup("", reservation_id))
        claim = ClaimSamples("", partition_id, "train", ("a",), 1, 1, whole_groups=True)
        taken = self.go(claim)
        if isinstance(taken, Grant):
            self.go(ReleaseClaim("", taken.claim_id, reason=self.dice.choice(["", "bad"])))
            self.go(replace(claim, batch_size=2))

    def abort_group(self) -> None:
        group = self.some_group()
        own = [row.sample_id for row in group.rows]
        failed = self.dice.sample(own, self.dice.randint(0, len(own))) if self.chance(2) else []
        failed = [*failed, "s0"] if failed and self.chance(8) and "s0" not in failed else failed
        self.go(AbortGroup("", group.reservation_id, "why not", failed))

    # -- claims --------------------------------------------------------------------------------------------------------

    def claim(self) -> None:
        batch_size = self.dice.randint(1, 4)
        claim = ClaimSamples(
            "",
            self.partition_id(),
            self.task(),
            self.fields(),
            batch_size,
            self.dice.choice([1, self.dice.randint(1, batch_size)]),
            self.chance(6),
            self.session_id(),
            self.chance(3),
            self.dice.choice([0, 0, 0, 4, 9]),
            self.dice.choice([None, None, "rows", "groups"]),
        )
        order, tag = self._order() if self.chance(3) else (None, "")
        self.go(replace(claim, order=order, order_tag=tag))

    def claim_shard(self) -> None:
        """Calls for one step mostly agree."""
        step, rank = self.dice.randrange(5), 2 if self.chance(20) else self.dice.randrange(2)
        size, tokens = self.dice.choice([(4, 0)] * 12 + [(3, 0), (4, 9)])
        world = 1 if self.chance(20) else 2
        fields = self.dice.choice([("a",)] * 15 + [("a", "b"), ()])
        where = ("p", "train") if self.chance(2) else (self.partition_id(), self.task())
        at = (*where, step, rank, world, fields, size, 2)
        tokens, whole = tokens if step < 3 else 5, step < 2
        balances: list[Balance] = ["rows", "groups"] if step == 0 else ["tokens"] if step % 2 else ["rows"]
        units: list[BatchUnit | None] = ["rows", "groups"] if self.chance(20) else ["rows"] if step else [None]
        balance, unit = self.dice.choice(balances), self.dice.choice(units)
        self.go(ClaimShard("", *at, balance, tokens, whole, self.session_id(), unit, again=self.chance(3)))

    def run_ahead(self) -> None:
        """One of two ranks begins steps until the first of them is forgotten, with what is held for the other rank."""
        partition_id, first = self.partition_id(), 5 + self.dice.randrange(100)
        for step in range(first, first + 3):
            ids = self.dice.sample(SAMPLES, 3)
            self.go_with_bytes(PutSamples("", partition_id, ids, self.columns("a", len(ids))))
            self.go(ClaimShard("", partition_id, "train", step, 0, 2, ("a",), 2, 2, "rows"))

    def stop_waiting(self) -> None:
        if callers := self.world.model.callers():
            ticket, _ = self.dice.choice(callers)
            end = self.world.give_up_claim if self.chance(2) else self.world.abandon_claim
            end(ticket)
        if entrants := [one for one in self.world.model.entrants if one.write is None]:
            self.world.leave_entrance(self.dice.choice(entrants).ticket, late=self.chance(2))

    def draw(self) -> None:
        strategies: list[DrawStrategy] = ["uniform", "prioritized", "prioritized", "fifo", "lifo"]
        strategy, batch_size = self.dice.choice(strategies), self.dice.randint(1, 5)
        draw = DrawSamples(
            "",
            self.partition_id(),
            batch_size,
            self.dice.choice([1, 1, self.dice.randint(1, batch_size)]),
            self.dice.getrandbits(64),
            self.task() if self.chance(2) else "",
            self.fields() if self.chance(2) else (),
            strategy,
            self.dice.choice("wx") if (strategy == "prioritized") != self.chance(30) else "",
            self.dice.choice([0.0, 0.6, 1.0, 2.0]),
            self._filter() if self.chance(3) else (),
            self.dice.choice([0, 0, 1, 3]),
        )
        self.go(draw)

    def abandon(self) -> None:
        kinds = (ClaimSamples, ClaimShard, ReserveGroup)
        given_up = self.recent([one for one in [*self.world.sent[-30:], *self.later] if isinstance(one, kinds)], 10)
        if isinstance(given_up, ReserveGroup):
            self.go(AbortGroup("", "r" if self.chance(30) else "", "not taken", (), given_up.request_id))
        else:
            self.go(AbandonRequest("", "never sent" if given_up is None else given_up.request_id))

    def commit(self) -> None:
        claim = self.some_claim()
        if self.chance(2):
            self.go(CommitClaim("", claim.claim_id))
        else:
            columns = self.columns(self.dice.choice(["b", "o", "ac"]), len(claim.rows) + self.chance(11))
            self.go_with_bytes(CommitClaim("", claim.claim_id, columns))

    def release(self) -> None:
        delay_s = self.dice.choice([0, 0, 4, 15])
        reason = self.dice.choice(["", "", "bad", "worse"])
        self.go(ReleaseClaim("", self.some_claim().claim_id, delay_s + self.tick() if delay_s else 0.0, reason))

    def adopt(self) -> None:
        self.go(AdoptClaim("", self.some_claim().claim_id, self.session_id()))

    def reset(self) -> None:
        self.go(ResetTask("", self.partition_id(), self.task(), None if self.chance(6) else self.sample_ids()))

    # -- sessions and time ---------------------------------------------------------------------------------------------

    def open_session(self) -> None:
        """None with the grace of another, so that no two expire at one moment."""
        session_id = self.session_id() if self.chance(4) else ""
        if session_id or len(self.world.model.sessions) < 4:
            self.world.open_session(session_id, self.dice.choice([2, 6, 6, 20]) + self.tick())

    def recover(self) -> None:
        self.world.recover(held=self.chance(2))

    def let_go(self) -> None:
        self.world.let_go()

    def heartbeat(self) -> None:
        self.world.heartbeat(self.session_id())

    def heartbeat_late(self) -> None:
        """Long after it was sent; or when the grace is over, and the server has not noticed yet."""
        if self.world.model.sessions:
            session = self.dice.choice(self.world.model.sessions)
            if self.chance(2):
                self.world.heartbeat(session.session_id, sent_s_ago=self.dice.choice([1, 5]))
                self.world.pass_time(max(0.0, session.deadline - self.world.now - TICK / 2))  # it still lives
            else:
                self.world.pass_time(max(0.0, session.deadline - self.world.now))
                self.world.heartbeat(session.session_id)
            self.world.advance()

    def close_session(self) -> None:
        self.world.close_session(self.session_id())

    def pass_time(self) -> None:
        """Sometimes the server does not notice, sometimes it stands still."""
        if self.chance(12):
            stalled_s = self.dice.choice([5, 70, 2000])
            self.world.pass_time(stalled_s)
            self.world.advance(stalled_s)
            return
        self.world.pass_time(self.dice.choice([25, 1000, 100_000]) if self.chance(15) else self.dice.randrange(4))
        if not self.chance(4):
            self.world.advance()

    def reach_next_due(self) -> None:
        if (due := self.world.plane.next_due) is not None:
            self.world.pass_time(max(0.0, due - self.world.now))
            self.world.advance()


def generations(rows: Sequence[Row]) -> Int64Array:
    return np.array([row.generation for row in rows], np.int64)
