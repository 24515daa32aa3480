"""Which rows a draw may find, and what it must tell of those that it finds: which they are is the plane's choice."""

from __future__ import annotations

import pytest
from tests.core.machine.facts import Facts
from tests.core.machine.refusals import refuse_if
from tests.core.machine.things import Row

from dataplane_server.core.calls.answers import Drawn
from dataplane_server.core.calls.refusal import Reason
from dataplane_server.core.calls.requests import DrawSamples


class Draw:
    """A draw that is served. rows: those that can be drawn, in order of arrival."""

    def __init__(self, facts: Facts, call: DrawSamples) -> None:
        refuse_if(((call.strategy == "prioritized") != bool(call.priority_tag), Reason.INVALID_REQUEST))
        self._partition, self._call = facts.partition(call.partition_id), call
        definition = self._partition.definition
        unknown = not set(call.required_fields) <= set(definition.fields)
        refuse_if(
            (call.task not in ("", *definition.tasks), Reason.TASK_NOT_REGISTERED),
            (unknown, Reason.FIELD_NOT_PRODUCED if definition.open else Reason.FIELD_NOT_DECLARED),
        )
        self.rows = [row for row in self._partition.rows if self._fits(row)]
        self._by_id = {row.sample_id: row for row in self.rows}
        refuse_if((len(self.rows) < call.min_size, Reason.TOO_FEW_ROWS))

    def _fits(self, row: Row) -> bool:
        call = self._call
        return (
            not row.hidden
            and row.values.keys() >= set(call.required_fields)
            and not (call.task and self._partition.withholds(call.task, row))
            and not (call.max_times_sampled and row.draws >= call.max_times_sampled)
            and self._partition.fits(row, call.where)
            and self._weight(row) > 0
        )

    def _weight(self, row: Row) -> float:
        if not self._call.priority_tag:
            return 1.0
        priority = row.tags.get(self._call.priority_tag)
        numeric = isinstance(priority, (int, float)) and priority > 0
        return float(priority) ** self._call.priority_exponent if numeric else 0.0  # type: ignore[arg-type]

    def check(self, drawn: Drawn) -> None:
        """Distinct rows, as many as wanted, all of which can be drawn; each is counted."""
        rows, call = [self._by_id[sample_id] for sample_id in drawn.sample_ids], self._call
        assert len(set(rows)) == len(drawn.sample_ids) == min(call.batch_size, len(self.rows))
        assert set(rows) <= set(self.rows)
        for row in rows:
            row.draws += 1
        by_chance = call.strategy in ("uniform", "prioritized")
        if not by_chance:
            assert rows == (self.rows if call.strategy == "fifo" else self.rows[::-1])[: len(rows)]
        total = sum(map(self._weight, self.rows))
        expected = [self._weight(row) / total if by_chance else 1.0 for row in rows]
        assert drawn.probabilities.tolist() == pytest.approx(expected, rel=1e-6)
        assert drawn.draws.tolist() == [row.draws for row in rows]
        assert drawn.sequence_lengths.tolist() == [row.length for row in rows]
        assert drawn.generations.tolist() == [row.generation for row in rows]
        assert drawn.staleness.tolist() == [self._partition.staleness(row) for row in rows]
        assert drawn.tags == tuple(row.tags for row in rows)
