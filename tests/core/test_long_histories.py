"""Long random histories against the model: what takes many calls to come about, such as a slot that is reused while
a reader still holds its former row. Not shrunk; the state machine finds the short stories.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Sequence
from typing import TypeVar

import pytest
from tests.core.caller import int64
from tests.core.drawn_calls import FIELDS, LIMITS, PARTITIONS, SAMPLES, SHAPES, TASKS
from tests.core.modelled_plane import ModelledPlane

from dataplane_server.core.calls import ClaimSamples, CommitClaim, Definition, PutSamples
from dataplane_server.core.calls.columns import ColumnSpec
from dataplane_server.core.calls.values import Tags

HISTORIES = 400 if os.environ.get("HYPOTHESIS_PROFILE") == "nightly" else 12
STEPS = 700

T = TypeVar("T")


class History:
    """One caller that does anything at random, likelier what leads further."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.world = ModelledPlane(LIMITS)
        self.actions: list[tuple[int, Callable[[], None]]] = [
            (30, self.put),
            (12, self.claim),
            (8, self.commit),
            (6, self.release),
            (8, self.clear),
            (10, self.begin_read),
            (9, self.end_read),
            (14, self.finish),
            (3, self.abort),
            (3, self.give_up),
            (4, self.begin_anew),
            (3, self.repeat),
            (2, self.register),
            (1, self.drop),
        ]

    def run(self, steps: int) -> None:
        weights = [weight for weight, _ in self.actions]
        for partition_id in PARTITIONS:
            self.world.register(Definition(partition_id, FIELDS, TASKS, 5, frozenset("a")))
        for _ in range(steps):
            _, action = self.dice.choices(self.actions, weights)[0]
            action()
            self.world.now += self.dice.choice((0, 0, 1, 5))
            self.world.check()
        self.world.drain()
        self.world.check()
        self.world.plane.check_replay()

    def chance(self, one_in: int) -> bool:
        return self.dice.randrange(one_in) == 0

    def some(self, items: Sequence[T], most: int) -> list[T]:
        return self.dice.sample(items, self.dice.randint(1, min(most, len(items))))

    def partition_id(self) -> str:
        return "nowhere" if self.chance(60) else self.dice.choice(PARTITIONS)

    # -- definitions ---------------------------------------------------------------------------------------------------

    def register(self) -> None:
        fields = tuple(self.some(FIELDS, 4)) if self.chance(3) else FIELDS
        tasks = tuple(self.some(TASKS, 2)) if self.chance(3) else TASKS
        per_token = frozenset(self.some("abc", 2)) & set(fields)
        self.world.register(Definition(self.dice.choice(PARTITIONS), fields, tasks, self.dice.randrange(9), per_token))

    def drop(self) -> None:
        self.world.drop(self.partition_id())
        for partition_id in set(PARTITIONS) - self.world.partitions.keys():
            if not self.chance(4):
                self.world.register(Definition(partition_id, FIELDS, TASKS, 5, frozenset("a")))

    # -- writes --------------------------------------------------------------------------------------------------------

    def columns(self, names: Sequence[str], n_rows: int) -> list[ColumnSpec]:
        lengths = int64([self.dice.choice((3, 3, 3, 0, 5, 20)) for _ in range(n_rows)])
        shapes = [SHAPES[name][0] if not self.chance(6) else self.dice.choice(SHAPES[name]) for name in names]
        return [
            ColumnSpec(name, shape, None if shape.kind == "dense" else lengths)
            for name, shape in zip(names, shapes, strict=True)
        ]

    def put(self) -> None:
        ids = self.some(SAMPLES, 4)
        names = self.dice.choice(("a", "ab", "bo", "abo", "c", "", "o"))
        tags: list[Tags] | None = [{self.dice.choice("wxyz"): 1} for _ in ids] if self.chance(3) else None
        given = int64([self.dice.choice((-1, 3, 5)) for _ in ids]) if self.chance(6) else None
        columns = self.columns(names, len(ids))
        ticket = self.world.begin(PutSamples(self.world.request_id(), self.partition_id(), ids, columns, tags, given))
        if ticket is not None and not self.chance(3):
            self.world.finish(ticket)

    def commit(self) -> None:
        if not self.world.claims:
            return
        claim_id = self.dice.choice([*self.world.claims, *self.world.claim_ids[-1:]])
        claim = self.world.claims.get(claim_id)
        if claim is None or self.chance(3):
            self.world.commit_alone(claim_id)
            return
        columns = self.columns(self.dice.choice(("c", "o", "ac")), len(claim.rows))
        ticket = self.world.begin(CommitClaim(self.world.request_id(), claim_id, columns))
        if ticket is not None and not self.chance(3):
            self.world.finish(ticket)

    def finish(self) -> None:
        if tickets := self.world.admitted():
            self.world.finish(self.dice.choice(tickets))

    def abort(self) -> None:
        if tickets := list(self.world.writes):
            self.world.abort(self.dice.choice(tickets))

    def give_up(self) -> None:
        if self.world.queue and self.chance(2):
            self.world.give_up_write(self.dice.choice(self.world.queue))
        elif tickets := list(self.world.waiting):
            end = self.world.give_up_claim if self.chance(2) else self.world.abandon_claim
            end(self.dice.choice(tickets))

    def begin_anew(self) -> None:
        writes, claims = list(self.world.writes.values()), list(self.world.waiting.values())
        if writes and self.chance(2):
            self.world.begin(self.dice.choice(writes).call)
        elif claims:
            self.world.claim(self.dice.choice(claims))

    def clear(self) -> None:
        self.world.clear(self.partition_id(), None if self.chance(8) else self.some(SAMPLES, 4))

    # -- reads and claims ----------------------------------------------------------------------------------------------

    def begin_read(self) -> None:
        partition = self.world.partitions.get(partition_id := self.partition_id())
        names = self.some(FIELDS, 2)
        rows = partition.rows.values() if partition else ()
        holding = [row.sample_id for row in rows if set(names) <= row.values.keys()]
        self.world.begin_read(partition_id, self.some(holding or SAMPLES, 4), names)

    def end_read(self) -> None:
        if self.world.reads:
            self.world.end_read(self.dice.choice(list(self.world.reads)))

    def claim(self) -> None:
        batch_size = self.dice.randint(1, 4)
        least = self.dice.randint(1, batch_size)
        fields = tuple(self.dice.choice(("a", "ab", "ba", "o", "", "b", "c")))
        task = "nobody" if self.chance(60) else self.dice.choice(TASKS)
        request_id, consume = self.world.request_id(), self.chance(4)
        self.world.claim(ClaimSamples(request_id, self.partition_id(), task, fields, batch_size, least, consume))

    def release(self) -> None:
        if self.world.claims:
            self.world.release(self.dice.choice([*self.world.claims, *self.world.claim_ids[-1:]]))

    def repeat(self) -> None:
        if answers := self.world.remembered():
            self.world.repeat(self.dice.choice(answers))


@pytest.mark.parametrize("seed", range(HISTORIES))
def test_a_long_history_goes_as_the_model_says(seed: int) -> None:
    History(seed).run(STEPS)
