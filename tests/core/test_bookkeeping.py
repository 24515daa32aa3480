"""Whatever calls make the server keep beside values is bounded: refused by the name of its limit, or forgotten."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from tests.core.caller import Caller

from dataplane_server.core.calls.answers import Grant
from dataplane_server.core.calls.filters import Filter, Term
from dataplane_server.core.calls.flow import DrawBand
from dataplane_server.core.calls.limits import Limits
from dataplane_server.core.calls.refusal import Reason, Refusal
from dataplane_server.core.calls.requests import Call, EndRead
from dataplane_server.core.calls.values import Tags
from dataplane_server.core.state.answers import Answers
from dataplane_server.core.state.state import Fact
from dataplane_server.core.stats.history import History

KIB = 1 << 10
LONG: Filter = (Term("==", "text", values=("x" * 10_000,)),)


@pytest.fixture
def small(new_caller: Callable[..., Caller]) -> Caller:
    """A data plane with 512 KiB for bookkeeping, and room for all values."""
    caller = new_caller(memory_bytes=1 << 20, bookkeeping_bytes=512 * KIB, max_read_rows=200)
    caller.register(tasks=("train",))
    return caller


def put_rows(caller: Caller, call: int) -> None:
    caller.put_rows([f"{call}-{row}" for row in range(100)], "a", size=0)


def put_floats(caller: Caller, call: int) -> None:
    tags: Tags = {f"metric{number}": 0.5 + call for number in range(64)}
    caller.put(caller.put_call([f"{call}"], tags=[tags]))


def put_new_keys(caller: Caller, call: int) -> None:
    caller.put(caller.put_call(["one row"], tags=[{f"{call}-{'k' * 1000}": None}]))
    caller.clear(["one row"])


def begin_puts(caller: Caller, call: int, size: int = 1) -> None:
    caller.apply(caller.put_call([f"{call}-{row}" for row in range(100)], {"a": [size] * 100}))


def register_enums(caller: Caller, call: int) -> None:
    names = tuple(f"{call}-{number}-" + "x" * 200 for number in range(64))
    caller.register(tasks=(), partition_id=f"another {call}", enums={"a": names})


def until_refused(caller: Caller, grow: Callable[[Caller, int], object]) -> Refusal:
    """Make calls that change something until one is refused."""
    with pytest.raises(Refusal) as caught:
        deque(map(partial(grow, caller), range(2000)), maxlen=0)
    return caught.value


GROWING: dict[str, Callable[[Caller, int], object]] = {
    "rows": put_rows,
    "tags": put_floats,
    "long tags": lambda caller, call: caller.put(caller.put_call([f"{call}"], tags=[{"t": "x" * 1000 + str(call)}])),
    "keys": put_new_keys,
    "values once": lambda caller, call: caller.put_once(
        {f"{call}-{row}": b"%d %d" % (call, row) for row in range(100)}
    ),
    "puts": begin_puts,
    "puts that wait": lambda caller, call: begin_puts(caller, call, 10_000),
    "groups": lambda caller, call: caller.reserve(f"group {call}", [f"row of {call}"]),
    "partitions": lambda caller, call: caller.register(tasks=(), partition_id=f"another {call}"),
    "enums": register_enums,
}


@pytest.mark.parametrize("grow", GROWING.values(), ids=GROWING)
def test_what_grows_is_refused_by_the_name_of_the_limit_and_its_end_makes_room(
    small: Caller, grow: Callable[[Caller, int], object]
) -> None:
    refusal = until_refused(small, grow)
    assert (refusal.reason, refusal.metadata) == (Reason.LIMIT_REACHED, {"bookkeeping_bytes": "524288"})
    assert "393216" in refusal.message
    with small.refuses(Reason.LIMIT_REACHED, "--bookkeeping"):
        grow(small, 9999)


@pytest.mark.parametrize(("call", "most"), [(Caller.claim_call, "458752"), (Caller.draw_call, "393216")])
def test_calls_that_wait_with_long_filters_are_refused_by_the_name_of_the_limit(
    small: Caller, call: Callable[..., Call[object]], most: str
) -> None:
    small.set_flow(band=DrawBand(1.0, 0.0, 10.0))
    refusal = until_refused(small, lambda caller, _: caller.wait(call(caller, "a", where=LONG)))
    assert (refusal.reason, refusal.metadata) == (Reason.LIMIT_REACHED, {"bookkeeping_bytes": "524288"})
    assert most in refusal.message


@pytest.mark.parametrize(
    "grow",
    [
        lambda caller: caller.extend(tasks=tuple(f"task {number}" for number in range(20))),
        lambda caller: caller.extend(fields=tuple(f"field {number}" for number in range(20))),
        lambda caller: caller.put_rows(["0-0"], *(f"field {number}" for number in range(20))),
        lambda caller: caller.apply(caller.claim_call(*(f"field {number}" for number in range(20)))),
        lambda caller: caller.take_shard("a", batch_size=1000, min_size=2),
    ],
    ids=["tasks", "fields", "fields that a put declares", "fields that a claim declares", "a step"],
)
def test_what_is_kept_for_all_rows_is_refused_before_it_is_added(
    small: Caller, grow: Callable[[Caller], object]
) -> None:
    small.register(("a",), open=True)
    for call in range(10):
        put_rows(small, call)
    with small.refuses(Reason.LIMIT_REACHED, "--bookkeeping"):
        grow(small)


def test_a_queue_with_keys_is_refused_by_what_it_would_add(small: Caller) -> None:
    for call in range(5):
        put_rows(small, call)
    rows = small.plane.partitions["p"].rows
    kept = [rows.kept_bytes]

    def take_by_another_tag(caller: Caller, call: int) -> None:
        caller.release(caller.take("a", order="lowest_tag", order_tag=f"{call}").claim_id)
        kept.append(rows.kept_bytes)

    refusal = until_refused(small, take_by_another_tag)
    assert f"the call needs {kept[-1] - kept[-2]} bytes" in refusal.message


def test_the_memory_of_python_is_no_more_than_what_is_counted(new_caller: Callable[..., Caller]) -> None:
    """Of the worst rows: with tags of their own."""
    caller = new_caller(memory_bytes=1 << 20)
    caller.register(tasks=("train",))
    for call in range(50):
        put_floats(caller, call)
    rows = caller.plane.partitions["p"].rows
    tags = rows.tags_of(rows.all_slots())
    real = sum(sys.getsizeof(of_row) + sum(map(sys.getsizeof, of_row.values())) for of_row in tags)
    assert real < rows.tags_bytes(rows.all_slots()) < 3 * real


def test_equal_tags_are_counted_once_and_until_the_last_row_is_gone(small: Caller) -> None:
    before = small.plane.partitions["p"].rows.kept_bytes
    for row in range(50):
        small.put(small.put_call([str(row)], tags=[{"version": 7}]))
    of_rows = small.plane.partitions["p"].rows
    assert of_rows.tags_bytes(of_rows.all_slots()) < 1000
    small.clear([str(row) for row in range(49)])
    assert of_rows.tags_bytes(of_rows.all_slots()) > 0
    small.clear()
    small.plane.check_invariants()
    assert of_rows.kept_bytes - before < 64 * of_rows.slot_bytes + 1000


def test_a_full_server_is_emptied_by_claims_as_usual(small: Caller) -> None:
    put_rows(small, 0)
    until_refused(small, put_rows)
    claimed = small.take("a", batch_size=500)
    small.commit(claimed.claim_id)
    small.clear(claimed.sample_ids)
    put_rows(small, 0)


def test_claims_that_are_open_or_wait_are_bounded(new_caller: Callable[..., Caller]) -> None:
    caller = new_caller(max_claims=3)
    caller.register()
    caller.put_rows(["a", "b", "c"], "a")
    claim, _ = caller.take("a"), caller.take("a", batch_size=2)
    caller.wait(caller.claim_call("a"))
    with caller.refuses(Reason.LIMIT_REACHED, "3", "max_claims"):
        caller.apply(caller.claim_call("a"))
    caller.wait(caller.claim_call("a", consume=True))  # leaves no claim
    caller.release(claim.claim_id)
    assert (caller.plane.totals().open_claims, caller.plane.totals().waiting_claims) == (2, 1)


def test_claims_wait_for_so_many_sets_of_fields_and_no_more(new_caller: Callable[..., Caller]) -> None:
    caller = new_caller()
    fields = [f"f{number}" for number in range(40)]
    caller.register(fields)
    caller.put_rows(["a", "b", "c", "d"], "f33")
    shard = caller.take_shard("f33")
    for name in fields[:32]:
        caller.wait(caller.claim_call(name))
    assert caller.take_shard("f33") == shard  # which needs no set
    with caller.refuses(Reason.LIMIT_REACHED, "32", "max_views"):
        caller.apply(caller.claim_call("f32"))
    caller.wait(caller.claim_call("f31"))
    caller.set_policy(order="oldest_version")
    caller.register(fields)
    assert caller.plane.take_effects() == []  # those that wait do so under the former order


def test_rows_of_reads_are_bounded_together(small: Caller) -> None:
    small.put_rows(["a"], "a")
    reads = [small.read(["a"], "a") for _ in range(3)]
    with small.refuses(Reason.LIMIT_REACHED, "3 reads", "max_read_rows"):
        small.read(["a"], "a")
    small.apply(EndRead(reads[0].ticket))
    small.read(["a"], "a")


def test_delays_are_refused_when_there_is_no_room_and_plain_releases_are_not(small: Caller) -> None:
    put_rows(small, 0)
    put_rows(small, 1)
    claim_id = small.take("a", batch_size=200).claim_id
    until_refused(small, put_floats)
    with small.refuses(Reason.LIMIT_REACHED, "80000 bytes"):
        small.release(claim_id, delay_s=10.0)
    small.release(claim_id)


# -- what is forgotten -------------------------------------------------------------------------------------------------


def grant(claim: int, rows: int) -> Grant:
    ids = tuple([f"{claim:08}-{row:08}" for row in range(rows)])
    numbers = np.arange(rows)
    return Grant(f"c-{claim}", ids, numbers, ({},) * rows, numbers[::-1] + 5, numbers % 3)


def test_answers_are_kept_up_to_their_memory_and_the_oldest_are_forgotten() -> None:
    answers = Answers(Limits(bookkeeping_bytes=8 << 20))
    for claim in range(100):
        answers.remember(str(claim), "claim", grant(claim, 1000), 0.0)
        assert answers.size_bytes <= 1 << 20
    assert answers.recall("99", "claim", 0.0) is not None
    assert answers.recall("0", "claim", 0.0) is None
    assert 20 <= len(answers) < 100


def test_ids_of_claims_that_the_server_ended_are_kept_for_as_many_rows_as_the_history(
    new_caller: Callable[..., Caller],
) -> None:
    caller = new_caller(remembered_events=1000)
    caller.register(tasks=("train",))
    caller.put_rows([str(row) for row in range(400)], "a")
    claims = []
    for _ in range(5):
        claims.append(caller.take("a", batch_size=400).claim_id)
        caller.reset()
    kept = [len(ended.sample_ids) for ended in caller.plane._verbs.table._ended.values()]
    assert kept == [0, 0, 0, 400, 400]
    for claim_id in claims:
        with caller.refuses(Reason.CLAIM_FENCED, claim_id):
            caller.commit(claim_id)


def test_topics_of_the_history_are_bounded_by_their_memory() -> None:
    history = History(1 << 18)
    for number in range(30_000):
        fields = tuple([f"{number}-{field}" * 20 for field in range(16)])
        history.note(Fact("put", "p", ["s"], fields=fields), float(number))
    assert history._topic_bytes <= 64 << 20
    assert history.events("p", "s")[-1].at == 29_999.0
