"""Partitions of as many fields as may be, and of very many rows."""

from __future__ import annotations

from collections.abc import Callable

from tests.core.caller import Caller

from dataplane_server.core.calls.answers import ClearResult, Granted, Waiting
from dataplane_server.core.calls.requests import ClearSamples, MergeFreeRanges


def test_a_partition_may_have_64_fields_and_a_claim_may_require_them_all(caller: Caller) -> None:
    fields = [f"f{i}" for i in range(64)]
    caller.register(fields, partition_id="wide")
    caller.put_rows(["s1"], *fields[:63], partition_id="wide")
    waiting = caller.apply(caller.claim_call(*fields, partition_id="wide"))
    assert isinstance(waiting, Waiting)
    caller.put_rows(["s1"], fields[63], partition_id="wide")
    (effect,) = caller.plane.take_effects()
    assert isinstance(effect, Granted)
    assert effect.grant.sample_ids == ("s1",)


def test_a_partition_of_very_many_rows_is_cleared_whole(new_caller: Callable[..., Caller]) -> None:
    caller = new_caller()
    caller.register(tasks=("train",))
    caller.put_rows([f"s{row}" for row in range(40_000)], "a", size=3)
    caller.take("a", batch_size=10)
    assert caller.clear() == ClearResult(40_000, 120_000)
    assert caller.used == 0
    caller.put_rows(["s1"], "a")
    assert caller.take("a").sample_ids == ("s1",)


def test_what_a_clear_puts_off_is_done_between_calls_and_changes_nothing(new_caller: Callable[..., Caller]) -> None:
    caller = new_caller(memory_bytes=1 << 20)
    caller.register()
    ids = [f"s{row}" for row in range(6000)]
    caller.put(caller.put_call(ids, {"a": [9] * 6000}))
    caller.apply(ClearSamples("clear", "p", ids[::2]))
    before, left = caller.state(), 0
    while caller.plane.has_deferred_frees:
        caller.apply(MergeFreeRanges())
        caller.plane.check_invariants()
        left += 1
    assert left == 12
    assert caller.state() == before
