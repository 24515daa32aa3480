"""What becomes of rows that are put."""

from __future__ import annotations

import random

from dataplane_conformance.callers import FailedError
from dataplane_conformance.lab import QUIET_S, BrokenError, Lab, promise
from dataplane_conformance.system import RefusedError, Row, Value

_BUDGET = 2 << 20
_BITS = {
    "bfloat16": bytes.fromhex("c07f 0180 0000 80ff c1ff"),  # NaNs with payloads, a subnormal, zero, minus infinity
    "float32": bytes.fromhex("0100807f 00000080 ffff7f7f"),  # a signalling NaN, minus zero, the greatest
    "int64": bytes.fromhex("ffffffffffffffff 0000000000000080"),
    "uint8": b"\0\xff\n",
    "bool": b"\0\1",
}


@promise()
def acknowledged_rows_are_delivered_once_each(lab: Lab) -> None:
    space = lab.space()
    producer, consumer = lab.caller(space), lab.caller(space)
    for _ in range(8):
        lab.put(producer, lab.rows(8))
    lab.account(lab.drain(consumer))


@promise()
def values_come_back_bit_for_bit(lab: Lab) -> None:
    """Rows of every type, from no element to three times the longest above."""
    space = lab.space(fields=tuple(_BITS))
    caller = lab.caller(space)
    rows = [
        Row(f"bits-{times}", {name: Value(name, data * times) for name, data in _BITS.items()})
        for times in (1, 0, 3, 2, 0)
    ]
    rows = [row._replace(id=f"{row.id}-{number}") for number, row in enumerate(rows)]
    lab.put(caller, lab.tried(rows))
    lab.account(lab.drain(caller))


@promise()
def rows_come_in_the_order_in_which_they_were_put(lab: Lab) -> None:
    space = lab.space()
    caller = lab.caller(space)
    put = [row for _ in range(6) for row in lab.put(caller, lab.rows(5))]
    delivered = lab.drain(caller, n=7)
    lab.account(delivered)
    if delivered != put and sorted(delivered) == sorted(put):
        raise BrokenError(f"put {', '.join(put[:4])}, ...; delivered {', '.join(delivered[:4])}, ...")


@promise("whole puts")
def a_put_is_whole_or_not_there_if_its_client_is_killed(lab: Lab) -> None:
    space = lab.space()
    consumer, dice, puts = lab.caller(space), random.Random(1), []  # noqa: S311 - moments to kill at
    for _ in range(6):
        producer, rows = lab.caller(space), lab.rows(16, 256 << 10)
        producer("put", lab.rows(1))  # it is connected now
        lab.acknowledged(lab.outcome.tried[-1:])
        producer.begin("put", rows)
        try:
            producer.end(dice.uniform(0.0, 0.03))  # which kills it, if there is no answer by then
            lab.acknowledged(row.id for row in rows)
        except FailedError:
            puts.append({row.id for row in rows})
    delivered = lab.drain(consumer, for_s=QUIET_S)
    lab.account(delivered)
    parts = [put & set(delivered) for put in puts if 0 < len(put & set(delivered)) < len(put)]
    if parts:
        raise BrokenError(f"{len(parts)} puts are there in part, one with {len(parts[0])} of 16 rows")


@promise("ids")
def a_put_that_is_repeated_is_one_row_for_each_id(lab: Lab) -> None:
    space = lab.space()
    first, second = lab.caller(space), lab.caller(space)
    rows = lab.rows(8)
    lab.put(first, rows)
    for caller in (first, second):
        caller("put", rows)
    lab.account(lab.drain(second))


@promise("budget")
def a_full_plane_refuses_or_waits_and_loses_nothing(lab: Lab) -> None:
    """Puts go on until two were refused or ran into their deadline."""
    space = lab.space(max_bytes=_BUDGET, call_s=1.5)
    consumer, refused, kept = lab.caller(space), 0, 0
    producer = lab.caller(space)
    while refused < 2:
        if kept > 4 * _BUDGET:
            raise BrokenError(f"a plane of {_BUDGET} bytes took {kept} bytes")
        rows = lab.rows(4, 64 << 10)
        try:
            lab.put(producer, rows)
            kept += 4 * (64 << 10)
        except (RefusedError, FailedError):
            refused += 1
            producer = lab.caller(space)
    doubtful = set(lab.outcome.tried) - set(lab.outcome.acknowledged)
    delivered = lab.drain(consumer)
    lab.account([row for row in delivered if row not in doubtful])


@promise("budget", "remove")
def the_space_of_removed_rows_is_used_again(lab: Lab) -> None:
    space = lab.space(max_bytes=_BUDGET)
    caller = lab.caller(space)
    delivered: list[str] = []
    for _ in range(12):
        ids = lab.put(caller, lab.rows(8, 64 << 10))
        claim = lab.claim(caller, 8)
        lab.check(ids, caller("read", claim))
        caller("commit", claim)
        caller("remove", ids)
        delivered += ids
    lab.account(delivered)


@promise("counts", "abandon")
def every_row_is_accounted_for(lab: Lab) -> None:
    """Put is ready and claimed and committed, after some of each."""
    space = lab.space()
    caller, other = lab.caller(space), lab.caller(space)
    ids = [row for _ in range(4) for row in lab.put(caller, lab.rows(8))]
    delivered: list[str] = []
    for end in ("commit", "abandon", "commit", None):
        claimed = other("claim", "train", 5, 5.0, 1)
        if end is not None:
            other(end, claimed.name)
        delivered += claimed.ids if end == "commit" else []
    seen = caller("counts", "train")
    if sum(seen) != len(ids) or seen.committed != len(delivered):
        raise BrokenError(f"{len(ids)} rows were put and {len(delivered)} committed; the system counts {seen}")
