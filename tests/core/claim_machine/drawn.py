"""Random requests over a small world, so that they meet: few samples, groups, steps and sessions, whose ids come again.

A request is drawn from the world as it is, and may be sent when that world is gone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

import numpy as np
from hypothesis import strategies as st
from tests.core.claim_machine.checked_plane import CheckedPlane

from dataplane_server.core.calls import Balance, ClaimSamples, ClaimShard, Definition, PutSamples
from dataplane_server.core.calls.columns import ColumnSpec, Shape
from dataplane_server.core.calls.limits import Limits

LIMITS = Limits(memory_bytes=1 << 20, remember_s=60.0, remembered_steps=2, remembered_events=64)
PARTITIONS = ("p", "q")
TASKS = ("score", "train")
SAMPLES = tuple(f"s{i}" for i in range(7))
GROUPS = ("g", "h", "i")
FIELDS = ("a", "b")
BYTES = Shape("jagged", "uint8", ())
TICK = 2.0**-20
"""Added up in graces and delays, so that no two ever end at the same moment: who comes first is then a promise."""

T = TypeVar("T")
choices = st.integers(0, 1000)
seldom = st.sampled_from([False] * 5 + [True])
rarely = st.sampled_from([False] * 12 + [True])
partition_ids = st.sampled_from(["p"] * 6 + ["q"] * 3 + ["nowhere"])
tasks = st.sampled_from(["train"] * 6 + ["score"] * 3 + ["nobody"])
sample_ids = st.lists(st.sampled_from(SAMPLES), min_size=1, max_size=4, unique=True).map(tuple)
field_sets = st.sampled_from([("a",), ("a",), (), ("a", "b"), ("b", "a"), ("b",)])
sizes = st.integers(0, 6)


def pick(items: Iterable[T], choice: int) -> T:
    items = list(items)
    return items[choice % len(items)]


def recent(items: Sequence[T], choice: int, most: int = 12) -> T | None:
    """One of the last few."""
    return pick(items[-most:], choice) if items else None


@st.composite
def definitions(draw: st.DrawFn) -> Definition:
    names = draw(st.sampled_from([TASKS, TASKS, TASKS[::-1], TASKS[1:]]))
    most = draw(st.integers(0, 2))
    return Definition(draw(st.sampled_from(PARTITIONS)), FIELDS, names, 3, max_deliveries=most)


def columns(names: Sequence[str], lengths: Sequence[int]) -> list[ColumnSpec]:
    return [ColumnSpec(name, BYTES, np.array(lengths, np.int64)) for name in names]


@st.composite
def plain_puts(draw: st.DrawFn) -> PutSamples:
    """Without request_id."""
    ids = draw(sample_ids)
    names = draw(st.sampled_from([("a",), ("a",), ("b",), ("a", "b"), ("a", "b"), ()]))
    lengths = draw(st.lists(sizes, min_size=len(ids), max_size=len(ids)))
    tokens = draw(st.sampled_from([None, lengths, [-1] * len(ids), [3] * len(ids)]))
    given = None if tokens is None else np.array(tokens, np.int64)
    return PutSamples("", draw(partition_ids), ids, columns(names, lengths), None, given)


@st.composite
def claims(draw: st.DrawFn) -> ClaimSamples:
    """Without request_id and session_id."""
    batch_size = draw(st.integers(1, 4))
    return ClaimSamples(
        "",
        draw(partition_ids),
        draw(tasks),
        draw(field_sets),
        batch_size,
        draw(st.integers(1, batch_size)),
        draw(seldom),
        "",
        draw(st.sampled_from([False, False, True])),
        draw(st.sampled_from([0, 0, 0, 4, 9])),
    )


@st.composite
def shards(draw: st.DrawFn) -> ClaimShard:
    """Without request_id and session_id. Requests for one step mostly agree."""
    step = draw(st.integers(0, 4))
    balances: list[Balance] = ["rows", "tokens"]
    size, tokens = draw(st.sampled_from([(4, 0)] * 12 + [(3, 0), (4, 9)]))
    world = draw(st.sampled_from([2] * 15 + [1]))
    rank = draw(st.sampled_from([0] * 6 + [1] * 6 + [2]))
    fields = draw(st.sampled_from([("a",)] * 15 + [("a", "b"), ()]))
    whole = step == 1
    balance = balances[step % 2]
    at = (draw(partition_ids), draw(tasks), step)
    return ClaimShard("", *at, rank, world, fields, size, 2, balance, tokens if step < 3 else 5, whole)


def session_id(world: CheckedPlane, choice: int) -> str:
    """Mostly of a session that lives, sometimes of one that does not, or of nobody."""
    alive = [session.session_id for session in world.model.sessions]
    if choice % 5 == 0 or not world.history.sessions:
        return ""
    if choice % 17 == 1 or not alive:
        return recent(world.history.sessions, choice) or ""
    return pick(alive, choice // 5)


def claim_id(world: CheckedPlane, choice: int) -> str:
    """Mostly of an open claim, sometimes of one that has ended, or that never was."""
    claims = [claim.claim_id for claim in world.model.open_claims()]
    if choice % 4 == 0 or not claims:
        return recent([claim.claim_id for claim in world.model.claims], choice) or "c-0"
    return pick(claims, choice // 4)


def reservation_id(world: CheckedPlane, choice: int) -> str:
    groups = [group for group in world.model.groups if group.state == "reserved"]
    if choice % 6 == 0 or not groups:
        group = recent(world.model.groups, choice, 4)
        return "c-g0" if group is None else group.reservation_id
    return pick(groups, choice // 6).reservation_id
