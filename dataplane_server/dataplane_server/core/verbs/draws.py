"""Draws: rows for off-policy training, which no claim holds afterwards.

A draw opens no claim and moves no cursor, so rows that others hold or have consumed are drawn as well. All that it
changes is the column "draws" of the rows. It looks at every row of the partition.
"""

from __future__ import annotations

import math
from functools import partial

import numpy as np

from dataplane_server.core.calls.answers import Drawn, Waiting
from dataplane_server.core.calls.filters import Filter, check_filter
from dataplane_server.core.calls.names import check_distinct
from dataplane_server.core.calls.refusal import Reason, Refusal
from dataplane_server.core.calls.requests import DrawSamples
from dataplane_server.core.calls.values import Slots
from dataplane_server.core.rows.drawing import MOST_DRAWS, Sieve, draw_weighted, is_priority, smallest, weights_of
from dataplane_server.core.rows.matching import absence_text, absent_tags, fitting
from dataplane_server.core.rows.row_table import RowTable
from dataplane_server.core.rows.tag_columns import Float64Array
from dataplane_server.core.state.partition import Partition
from dataplane_server.core.state.state import State
from dataplane_server.core.verbs.flow import Flow


class Draws:
    def __init__(self, state: State, flow: Flow) -> None:
        self._state = state
        self._flow = flow

    def draw(self, call: DrawSamples, now: float) -> Drawn | Waiting:
        self._check(call)
        ticket = self._flow.enter_draw(self._state.partition(call.partition_id), call)
        return self.make(call, now) if ticket is None else Waiting(ticket)

    def make(self, call: DrawSamples, now: float) -> Drawn:
        """Draw rows that the band has room for."""
        partition = self._state.partition(call.partition_id)
        rows, sieve = partition.rows, _sieve(partition, call, now)
        if len(sieve.slots) < call.min_size:
            raise _too_few(call, len(rows), sieve)
        slots, probabilities = _chosen(rows, call, sieve.slots)
        draws = rows["draws"]
        draws[slots] += draws[slots] < MOST_DRAWS
        partition.count_drawn(len(slots))
        return Drawn(
            tuple(rows.ids(slots)),
            rows["sequence_length"][slots].astype(np.int64),
            rows.tags_of(slots),
            rows.generations(slots),
            draws[slots].astype(np.int64),
            probabilities,
            rows.staleness(slots),
            rows.tags_bytes(slots),
        )

    def _check(self, call: DrawSamples) -> None:
        """Refuse what is malformed in any state of the partition."""
        most = self._state.limits.max_rows_per_call
        sizes = f"min_size {call.min_size} and batch_size {call.batch_size}"
        by_tag = call.strategy == "prioritized"
        tag_rule = "needs priority_tag" if by_tag else "has no priority_tag"
        for holds, rule in (
            (
                1 <= call.min_size <= call.batch_size <= most,
                f"needs 1 <= min_size <= batch_size <= {most}, got {sizes}",
            ),
            (by_tag == bool(call.priority_tag), f"that is {call.strategy} {tag_rule}, got {call.priority_tag!r}"),
            (
                math.isfinite(call.priority_exponent) and call.priority_exponent >= 0,
                f"needs a finite priority_exponent of at least 0, got {call.priority_exponent}",
            ),
            (
                0 <= call.max_times_sampled <= MOST_DRAWS,
                f"needs a max_times_sampled of 0 to {MOST_DRAWS}, got {call.max_times_sampled}",
            ),
        ):
            if not holds:
                message = f"partition {call.partition_id!r}: a draw {rule}"
                raise Refusal(Reason.INVALID_REQUEST, message, partition_id=call.partition_id)
        check_distinct("required field", call.required_fields)
        check_filter(call.where, with_age=True)


def _sieve(partition: Partition, call: DrawSamples, now: float) -> Sieve:
    """The rows that can be drawn, ascending by slot."""
    task = partition.task(call.task) if call.task else None
    fields = [partition.field(name) for name in call.required_fields]
    rows = partition.rows
    sieve = Sieve(np.flatnonzero(rows["alive"]))
    sieve.keep(~rows["hidden"][sieve.slots], "belong to groups that are still reserved")
    for field in fields:
        sieve.keep(field.holds(sieve.slots), f"lack field {field.name!r}")
    if task is not None:
        bound = f"are staler than max_staleness {task.policy.bound} of task {task.name!r}, or of an unknown version"
        sieve.keep(~task.is_stale(sieve.slots), bound)
        sieve.keep(~task.is_excluded(sieve.slots), f"do not fit the filter of task {task.name!r}")
    if call.max_times_sampled:
        often = f"were drawn {call.max_times_sampled} times (max_times_sampled)"
        sieve.keep(rows["draws"][sieve.slots] < call.max_times_sampled, often)
    if call.where:
        absence = partial(_absence, partition, call.where, sieve.slots)
        sieve.keep(fitting(rows, call.where, sieve.slots, now), "do not fit the filter (where)", absence)
    if call.priority_tag:
        priorities = rows.tag_numbers(call.priority_tag, sieve.slots)
        sieve.keep(is_priority(priorities), f"have no positive number in tag {call.priority_tag!r}")
    return sieve


def _chosen(rows: RowTable, call: DrawSamples, slots: Slots) -> tuple[Slots, Float64Array]:
    """The rows drawn among slots, and the probability of each in the first draw."""
    count = min(call.batch_size, len(slots))
    if call.strategy in ("fifo", "lifo"):
        arrived = rows.generations(slots)
        return slots[smallest(arrived if call.strategy == "fifo" else -arrived, count)], np.ones(count)
    weights = np.ones(len(slots))
    if call.strategy == "prioritized":
        weights = weights_of(rows.tag_numbers(call.priority_tag, slots), call.priority_exponent)
    places, probabilities = draw_weighted(weights, count, call.seed)
    return slots[places], probabilities


def _absence(partition: Partition, where: Filter, slots: Slots) -> str:
    return absence_text(absent_tags(partition.rows, where, slots), partition.definition.fields)


def _too_few(call: DrawSamples, resident: int, sieve: Sieve) -> Refusal:
    found = len(sieve.slots)
    message = (
        f"partition {call.partition_id!r}: a draw of at least {call.min_size} rows wanted; {found} of {resident} "
        "resident rows can be drawn" + "".join(f"; {why}" for why in sieve.why())
    )
    return Refusal(Reason.TOO_FEW_ROWS, message, partition_id=call.partition_id, rows=found)
