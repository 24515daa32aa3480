"""Random calls over a small world, so that they meet: few partitions, samples, fields and tasks, little memory."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import strategies as st

from dataplane_server.core.calls import ClaimSamples, Definition, PutSamples
from dataplane_server.core.calls.columns import ColumnSpec, Shape
from dataplane_server.core.calls.limits import Limits

LIMITS = Limits(
    memory_bytes=1500,
    max_rows=12,
    max_tags_per_row=3,
    max_waiting_claims=6,
    max_waiting_puts=3,
    remember_s=30.0,
)
PARTITIONS = ("p", "q")
TASKS = ("score", "train")
SAMPLES = tuple(f"s{i}" for i in range(8))
SHAPES = {  # of each field; most puts agree with one another, some widen, some contradict
    "a": [Shape("jagged", "int16", (9,))] * 4 + [Shape("dense", "int16", (3, 9)), Shape("dense", "int16", (5, 9))],
    "b": [Shape("dense", "uint8", (3, 33))] * 3 + [Shape("jagged", "uint8", (33,)), Shape("jagged", "uint8", (2, 33))],
    "c": [Shape("dense", "float32", ())] * 8 + [Shape("jagged", "float32", ())],
    "o": [Shape("object", "", ())],
}
FIELDS = tuple(SHAPES)
PER_TOKEN = frozenset("ab")

partition_ids = st.sampled_from(("p", "q", "p", "q", "p", "nowhere", "p", "q", "p", "q", "p"))
sample_ids = st.lists(st.sampled_from(SAMPLES), min_size=1, max_size=5, unique=True)
some_fields = st.lists(st.sampled_from(FIELDS), max_size=3, unique=True)
_put_fields = st.sampled_from([("a",), ("a", "b"), ("b", "a", "o"), ("a", "o"), ()]) | some_fields.map(tuple)
_lengths = st.sampled_from([3, 3, 3, 0, 1, 5, 5, 20])
_tags = st.dictionaries(st.sampled_from("wxyz"), st.sampled_from([None, True, 3, 0.5, "v"]), max_size=2)


@st.composite
def definitions(draw: st.DrawFn) -> Definition:
    fields: tuple[str, ...] = FIELDS
    tasks: tuple[str, ...] = TASKS
    if draw(st.integers(0, 3)) == 0:
        fields = tuple(draw(some_fields)) or ("a",)
        tasks = draw(st.sampled_from([TASKS, TASKS[::-1], TASKS[:1], TASKS[1:], ()]))
    per_token = PER_TOKEN & set(fields) if draw(st.booleans()) else frozenset()
    return Definition(draw(st.sampled_from(PARTITIONS)), fields, tasks, draw(st.integers(0, 12)), per_token)


@st.composite
def columns(draw: st.DrawFn, n_rows: int, names: Sequence[str]) -> list[ColumnSpec]:
    return _columns(draw, names, draw(st.lists(_lengths, min_size=n_rows, max_size=n_rows)))


@st.composite
def puts(draw: st.DrawFn) -> PutSamples:
    """Without request_id."""
    ids = draw(sample_ids)
    lengths = draw(st.lists(_lengths, min_size=len(ids), max_size=len(ids)))
    specs = _columns(draw, draw(_put_fields), lengths)
    tags = draw(st.none() | st.lists(_tags, min_size=len(ids), max_size=len(ids)))
    given = draw(st.sampled_from([None, None, lengths, [-1] * len(ids), [7] * len(ids)]))
    return PutSamples("", draw(partition_ids), ids, specs, tags, None if given is None else np.array(given, np.int64))


@st.composite
def claim_requests(draw: st.DrawFn) -> ClaimSamples:
    """Without request_id."""
    batch_size = draw(st.integers(1, 4))
    min_size = draw(st.integers(1, batch_size))
    task = draw(st.sampled_from(TASKS * 4 + ("nobody",) + TASKS * 4))
    fields = draw(st.sampled_from([("a",), (), ("a", "b"), ("b", "a"), ("b",), ("o",), ("c",)]))
    return ClaimSamples("", draw(partition_ids), task, fields, batch_size, min_size, draw(st.integers(0, 3)) == 0)


def _columns(draw: st.DrawFn, names: Sequence[str], lengths: Sequence[int]) -> list[ColumnSpec]:
    """Rows of the same length in all columns that are not dense."""
    specs = []
    for name in names:
        shape = draw(st.sampled_from(SHAPES[name]))
        specs.append(ColumnSpec(name, shape, None if shape.kind == "dense" else np.array(lengths, np.int64)))
    return specs
