"""Partitions of as many fields as may be, of very many rows, and of rows with very many entries."""

from __future__ import annotations

from collections.abc import Callable

from tests.core.caller import Caller

from dataplane_server.core.calls.answers import ClearResult, Granted
from dataplane_server.core.calls.filters import Term
from dataplane_server.core.calls.requests import ClearSamples, EndRead, MergeFreeRanges, PutSamples


def test_a_partition_may_have_64_fields_and_a_claim_may_require_them_all(caller: Caller) -> None:
    fields = [f"f{i}" for i in range(64)]
    caller.register(fields, partition_id="wide")
    caller.put_rows(["s1"], *fields[:63], partition_id="wide")
    caller.wait(caller.claim_call(*fields, partition_id="wide"))
    caller.put_rows(["s1"], fields[63], partition_id="wide")
    assert caller.effect(Granted).grant.sample_ids == ("s1",)


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


def test_rows_of_very_many_entries_live_beside_others(new_caller: Callable[..., Caller]) -> None:
    caller = new_caller(memory_bytes=1 << 60)  # two bits are left for entries
    caller.register()
    caller.put_rows(["s1", "s2"], "a", size=1)
    caller.put_rows(["s3"], "a", "b", size=1 << 30)
    caller.put_rows(["s1"], "a", size=7)
    caller.put_rows([f"more{row}" for row in range(2000)], "b", size=2)
    caller.extend(fields=("c", "d"))
    plan = caller.read(["s3", "s1", "s2"], "a")
    assert plan.columns[0].entries.tolist() == [1 << 30, 7, 1]
    caller.apply(EndRead(plan.ticket))
    caller.clear(["s3", "s1"])
    assert caller.used == 1 + 4000


def test_a_page_of_rows_that_fit_a_filter_ends_after_65536_rows(new_caller: Callable[..., Caller]) -> None:
    caller = new_caller()
    caller.register()
    ids = [f"s{row}" for row in range(65_536)]
    caller.put(PutSamples(caller.request_id(), "p", ids))
    caller.put(PutSamples(caller.request_id(), "p", ["last"], tags=[{"std": 1}]))
    where = (Term("==", "std", values=(1,)),)
    first = caller.plane.list_samples("p", "", [], where, 10, 0)
    assert (first.sample_ids, first.next_page_token > 0) == ((), True)
    second = caller.plane.list_samples("p", "", [], where, 10, first.next_page_token)
    assert (second.sample_ids, second.next_page_token) == (("last",), 0)
