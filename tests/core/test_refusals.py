"""Every reason to refuse a call: named by reason, told with partition, sample, field and rule, and nothing changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
from tests.core.caller import BYTES, Caller, int64

from dataplane_server.core.calls.answers import Reservation, Waiting
from dataplane_server.core.calls.columns import ColumnSpec, Shape
from dataplane_server.core.calls.filters import Term
from dataplane_server.core.calls.refusal import Reason, Refusal
from dataplane_server.core.calls.requests import BeginRead, ClearSamples, CloseSession, Drain, PutSamples
from dataplane_server.core.rows.space import ALIGNMENT

LONG = "x" * 100_000


@dataclass(frozen=True)
class World:
    """Partition p with tasks train and score, fields a, b (both per-token) and c; rows s1 and s2 hold a and b.

    There is room for 4 KiB, 2 partitions, 3 rows, one waiting put and one waiting claim. claim_id is open on s1.
    """

    caller: Caller
    claim_id: str

    def put(self, lengths: dict[str, list[int]], *sample_ids: str, partition_id: str = "p") -> None:
        self.caller.apply(self.caller.put_call(sample_ids, lengths, partition_id=partition_id))

    def put_call(self, *columns: ColumnSpec, sample_ids: tuple[str, ...] = ("s1",), **more: object) -> None:
        put = PutSamples(self.caller.request_id(), "p", sample_ids, columns, **more)  # type: ignore[arg-type]
        self.caller.apply(put)

    def claim(self, *required_fields: str, **more: object) -> None:
        self.caller.apply(self.caller.claim_call(*required_fields, **more))  # type: ignore[arg-type]

    def commit(self, lengths: dict[str, list[int]]) -> None:
        self.caller.apply(self.caller.commit_call(self.claim_id, lengths))

    def fill(self) -> None:
        """Take what columns a and b, which begin at aligned offsets, have left of the memory."""
        put = self.caller.put_call(["s2"], {"c": [4096 - 2 * ALIGNMENT]})
        assert isinstance(self.caller.apply(put), Reservation)


@pytest.fixture
def world(new_caller: Callable[..., Caller]) -> Iterator[World]:
    caller = new_caller(memory_bytes=4096, max_partitions=2, max_rows=3, max_waiting_puts=1, max_waiting_claims=1)
    caller.register(("a", "b", "c"), ("train", "score"), per_token_fields=frozenset("ab"))
    caller.put(caller.put_call(["s1", "s2"], {"a": [3, 4], "b": [3, 4]}))
    yield World(caller, caller.take("a").claim_id)
    caller.plane.check_invariants()


def objects_in_a_per_token_field(world: World) -> None:
    world.caller.register(("a",), partition_id="q", per_token_fields=frozenset("a"))
    with world.caller.refuses(Reason.FIELD_MISMATCH, "'q'", "'a'", "objects"):
        columns = [ColumnSpec("a", Shape("object", "", ()), int64([3]))]
        world.caller.apply(PutSamples(world.caller.request_id(), "q", ["s"], columns))


def larger_than_the_memory_with_alignment(world: World) -> None:
    world.caller.register(("x", "y"), partition_id="q")
    with world.caller.refuses(Reason.PUT_TOO_LARGE, " 4 KiB", f"{(ALIGNMENT + 4095) / 1024:.4g} KiB"):
        world.put({"x": [1], "y": [4095]}, "s", partition_id="q")


def commit_after_clear(world: World) -> None:
    commit = world.caller.commit_call(world.claim_id, {"c": [1]})
    world.caller.clear(["s1"])
    with world.caller.refuses(Reason.SAMPLE_NOT_FOUND, "'p'", "'s1'", world.claim_id, "was cleared"):
        world.caller.apply(commit)


def per_token_declared_late(world: World) -> None:
    world.caller.put_rows(["s1"], "c", size=9)
    with world.caller.refuses(Reason.FIELD_HOLDS_VALUES, "'p'", "'c'", "per-token"):
        world.caller.register(("a", "b", "c"), ("train", "score"), per_token_fields=frozenset("abc"))


def shard_that_was_committed_before_the_session(world: World) -> None:
    asked: dict[str, object] = {"dp_world": 1, "batch_size": 1, "step": 4}
    world.caller.commit(world.caller.take_shard("a", **asked).claim_id)
    session_id = world.caller.open_session()
    with world.caller.refuses(Reason.SHARD_COMMITTED, "'p'", "'train'", "step 4, dp_rank 0 of 1", "claim step 5"):
        world.caller.take_shard("a", **asked, session_id=session_id)


def partitions_over_the_bound(world: World) -> None:
    world.caller.register(partition_id="q")
    with world.caller.refuses(Reason.LIMIT_REACHED, "2 partitions"):
        world.caller.register(partition_id="r")


def new_rows_over_a_budget(world: World) -> None:
    world.caller.set_flow(max_rows=2, when_full="reject")
    with world.caller.refuses(Reason.PARTITION_FULL, "'p'", "2 of max_rows 2"):
        world.put({"c": [1]}, "s3")


def claims_over_the_bound(world: World) -> None:
    assert isinstance(world.caller.apply(world.caller.claim_call("c")), Waiting)
    with world.caller.refuses(Reason.LIMIT_REACHED, "1 claims"):
        world.caller.apply(world.caller.claim_call("c"))


def puts_over_the_bound(world: World) -> None:
    world.fill()
    assert isinstance(world.caller.apply(world.caller.put_call(["s1"], {"c": [100]})), Waiting)
    with world.caller.refuses(Reason.LIMIT_REACHED, "1 puts wait"):
        world.put({"c": [100]}, "s1")


def wait_for_rows_of_a_draining_server(world: World) -> None:
    world.caller.apply(Drain())
    with world.caller.refuses(Reason.DRAINING, "shutting down"):
        world.caller.apply(world.caller.claim_call("c"))


def wait_for_room_of_a_draining_server(world: World) -> None:
    world.fill()
    world.caller.apply(Drain())
    with world.caller.refuses(Reason.DRAINING, "shutting down"):
        world.put({"c": [100]}, "s1")


def write_back_after_a_reset(world: World) -> None:
    put = world.caller.put_call(["s1"], {"c": [1]}, claim_id=world.claim_id)
    world.caller.reset()
    with world.caller.refuses(Reason.CLAIM_FENCED, world.claim_id):
        world.caller.apply(put)


def reserve_in_a_session_that_is_closed(world: World) -> None:
    session_id = world.caller.open_session()
    world.caller.apply(CloseSession(session_id))
    with world.caller.refuses(Reason.SESSION_EXPIRED, session_id):
        world.caller.reserve("g", ["s3"], session_id)


def finish_of_a_group_that_was_aborted(world: World) -> None:
    reservation_id = world.caller.reserve("g", ["s3"]).reservation_id
    world.caller.abort_group(reservation_id)
    with world.caller.refuses(Reason.GROUP_FENCED, reservation_id):
        world.caller.finish_group(reservation_id)


def finish_of_a_group_with_an_empty_row(world: World) -> None:
    reservation_id = world.caller.reserve("g", ["s3"]).reservation_id
    with world.caller.refuses(Reason.GROUP_INCOMPLETE, "'p'", "'s3'", "'g'", "1 of 1"):
        world.caller.finish_group(reservation_id)


def read_of_a_row_that_was_replaced(world: World) -> None:
    generations = world.caller.put_rows(["s2"], "c").generations
    world.caller.clear(["s2"])
    world.caller.put_rows(["s2"], "c")
    with world.caller.refuses(Reason.ROW_REPLACED, "'p'", "'s2'"):
        world.caller.apply(BeginRead("p", ["s2"], ["c"], generations))


def put_to_a_row_that_others_reserved(world: World) -> None:
    world.caller.reserve("g", ["s3"])
    with world.caller.refuses(Reason.ROW_RESERVED, "'s3'", "'g'"):
        world.put({"c": [1]}, "s3")


def put_to_a_closed_partition(world: World) -> None:
    world.caller.close()
    with world.caller.refuses(Reason.PARTITION_CLOSED, "'p'", "'s3'", "1 more"):
        world.put({"c": [1, 1, 1]}, "s1", "s3", "s4")


def claim_of_more_than_is_left(world: World) -> None:
    world.caller.close()
    with world.caller.refuses(Reason.END_OF_DATA, "'p'", "'train'", "2 rows", "min_size 3", "min_size=2"):
        world.caller.apply(world.caller.claim_call("c", batch_size=3))


def append_to_a_row_that_was_put_meanwhile(world: World) -> None:
    caller = world.caller
    caller.register(("t",), partition_id="q", per_token_fields=frozenset("t"))
    begun = caller.apply(caller.put_call(["s1"], {"t": [1]}, partition_id="q", append=True))
    assert isinstance(begun, Reservation)
    caller.put_rows(["s1"], "t", partition_id="q")
    with pytest.raises(Refusal, match="partition 'q': the per-token values of sample 's1' were changed") as caught:
        caller.finish(begun.ticket)
    assert caught.value.reason is Reason.APPEND_CONFLICT
    assert caller.plane.partition_info("q").size_bytes == 1


R = Reason
REFUSED: dict[Reason, list[tuple[str, Callable[[World], object], str]]] = {
    R.INVALID_REQUEST: [
        ("malformed", lambda w: w.put({"a": [3]}, ""), "sample id | 1 to 256 bytes"),
        ("too many tags", lambda w: w.put_call(tags=[{f"key{i}": 1 for i in range(65)}]), "'s1' | 64 tags"),
        ("tag of no scalar", lambda w: w.put_call(tags=[{"key": [1]}]), "'s1' | 'key'"),
        ("length out of range", lambda w: w.put_call(ColumnSpec("a", BYTES, int64([-1]))), "'a' | row 0 | -1"),
        ("token count out of range", lambda w: w.put_call(sequence_lengths=int64([-2])), "'s1' | -2"),
        ("token count over 31 bits", lambda w: w.put_call(sequence_lengths=int64([1 << 31])), "'s1' | 2147483648"),
        ("batch of none", lambda w: w.claim("a", batch_size=0), "batch_size 0"),
        ("least over most", lambda w: w.claim("a", batch_size=1, min_size=2), "min_size 2 | batch_size 1"),
        ("least of none", lambda w: w.claim("a", batch_size=1, min_size=0), "min_size 0"),
        ("batch over the bound", lambda w: w.claim("a", batch_size=65_537, min_size=1), "batch_size 65537 | 65536"),
        ("read of no field", lambda w: w.caller.read(["s1"]), "'p' | no field"),
        ("read of no sample", lambda w: w.caller.read([], "a"), "got 0"),
        ("clear of no sample", lambda w: w.caller.clear([]), "got 0"),
        ("consumption of no task", lambda w: w.caller.plane.consumption("p", []), "'p' | no task"),
        ("call without request id", lambda w: w.caller.apply(ClearSamples("", "p", None)), "request_id | got 0"),
        ("long request id", lambda w: w.caller.apply(ClearSamples("x" * 65, "p", None)), "request_id | got 65"),
    ],
    R.DUPLICATE: [
        ("sample twice", lambda w: w.put({"a": [3, 3]}, "s1", "s1"), "sample id 's1'"),
        (
            "field twice",
            lambda w: w.put_call(ColumnSpec("a", BYTES, int64([3])), ColumnSpec("a", BYTES, int64([3]))),
            "field 'a'",
        ),
        ("required field twice", lambda w: w.claim("a", "a"), "required field 'a'"),
        ("read field twice", lambda w: w.caller.read(["s1"], "a", "a"), "field 'a'"),
        ("read sample twice", lambda w: w.caller.read(["s1", "s1"], "a"), "sample id 's1'"),
        ("task twice", lambda w: w.caller.plane.consumption("p", ["train", "train"]), "task 'train'"),
    ],
    R.ROW_COUNT_MISMATCH: [
        ("lengths of another number of rows", lambda w: w.put({"a": [3, 3]}, "s1"), "'a' | 2 rows | 1 samples"),
        ("tags of another number of rows", lambda w: w.put_call(tags=[{}, {}]), "tags | 2 rows | 1 samples"),
        (
            "token counts of another number of rows",
            lambda w: w.put_call(sequence_lengths=int64([3, 3])),
            "sequence lengths | 2 rows | 1 samples",
        ),
        ("commit of another number of rows", lambda w: w.commit({"c": [1, 1]}), "'c' | 2 rows | 1 samples"),
    ],
    R.FIELD_NOT_DECLARED: [
        ("undeclared field put", lambda w: w.put({"z": [3]}, "s1"), "'p' | 'z' | a, b, c"),
        ("undeclared field claimed", lambda w: w.claim("z"), "'p' | 'z' | a, b, c"),
        ("undeclared field read", lambda w: w.caller.read(["s1"], "z"), "'p' | 'z' | a, b, c"),
        ("undeclared field committed", lambda w: w.commit({"z": [1]}), "'p' | 'z' | a, b, c"),
        (
            "undeclared per token field",
            lambda w: w.caller.register(("a", "b", "c"), partition_id="q", per_token_fields=frozenset("z")),
            "'q' | 'z' | per-token",
        ),
    ],
    R.FIELD_MISMATCH: [
        (
            "floats over bytes",
            lambda w: w.put_call(ColumnSpec("a", Shape("jagged", "float32", ()), int64([3]))),
            "'p' | 'a' | jagged float32 (*) | jagged uint8 (*)",
        ),
        (
            "objects over bytes",
            lambda w: w.put_call(ColumnSpec("a", Shape("object", "", ()), int64([3]))),
            "'p' | 'a' | object",
        ),
    ],
    R.LENGTH_MISMATCH: [
        (
            "lengths that differ",
            lambda w: w.put({"a": [3, 3], "b": [3, 5]}, "s1", "s2"),
            "'p' | 's2' | 'a' has 3 | 'b' has 5",
        ),
        (
            "length against what is stored",
            lambda w: w.put({"a": [3, 5]}, "s1", "s2"),
            "'p' | 's2' | 'a' has 5 | 'b' as stored has 4",
        ),
        (
            "token count against what is stored",
            lambda w: w.put_call(sequence_lengths=int64([5]), sample_ids=("s2",)),
            "'p' | 's2' | sequence_lengths has 5 | has 4",
        ),
    ],
    R.PUT_TOO_LARGE: [
        ("larger than the memory", lambda w: w.put({"c": [4097]}, "s1"), "4.001 KiB | 4 KiB"),
        (
            "too large to be counted in 64 bits",
            lambda w: w.put_call(ColumnSpec("c", Shape("jagged", "uint8", (1 << 20, 1 << 20)), int64([(1 << 31) - 1]))),
            "2.199e+12 GiB | 4 KiB",
        ),
    ],
    R.PARTITION_NOT_FOUND: [
        ("partition put to", lambda w: w.put({"a": [3]}, "s1", partition_id="nowhere"), "'nowhere'"),
        ("partition read", lambda w: w.caller.apply(BeginRead("nowhere", ["s1"], ["a"])), "'nowhere'"),
        ("partition claimed from", lambda w: w.claim("a", partition_id="nowhere"), "'nowhere'"),
        ("partition cleared", lambda w: w.caller.clear(partition_id="nowhere"), "'nowhere'"),
        ("partition described", lambda w: w.caller.plane.partition_info("nowhere"), "'nowhere'"),
        ("partition asked for consumption", lambda w: w.caller.plane.consumption("nowhere", ["train"]), "'nowhere'"),
    ],
    R.SAMPLE_NOT_FOUND: [("sample read", lambda w: w.caller.read(["s1", "s9", "s8"], "a"), "'p' | 's9' | 1 more")],
    R.FIELD_NOT_PRODUCED: [
        ("field read", lambda w: w.caller.read(["s1", "s2"], "a", "c"), "'p' | 's1' | 'c' | 1 more")
    ],
    R.TASK_NOT_REGISTERED: [
        ("task claimed for", lambda w: w.claim("a", task="nobody"), "'p' | 'nobody' | train, score"),
        (
            "task asked for consumption",
            lambda w: w.caller.plane.consumption("p", ["train", "nobody"]),
            "'p' | 'nobody' | train, score",
        ),
    ],
    R.CLAIM_NOT_FOUND: [
        ("claim committed", lambda w: w.caller.commit("claim-9"), "'claim-9'"),
        (
            "claim committed with columns",
            lambda w: w.caller.apply(w.caller.commit_call("claim-9", {"c": [1]})),
            "'claim-9'",
        ),
        ("claim released", lambda w: w.caller.release("claim-9"), "'claim-9'"),
    ],
    R.FIELD_HOLDS_VALUES: [
        (
            "field dropped",
            lambda w: w.caller.register(("a", "c"), ("train", "score")),
            "'p' | 2 rows | 'b' | clear them first",
        )
    ],
    R.PARTITION_DIFFERS: [
        (
            "another definition",
            lambda w: w.caller.register(("a", "c"), ("train",), per_token_fields=frozenset("c"), replace=False),
            "'p' | 'a' is per-token in the partition, not in the registration | 'c' is per-token | replace=True",
        )
    ],
    R.LIMIT_REACHED: [
        ("rows over the bound", lambda w: w.put({"c": [3, 3, 3]}, "s2", "s3", "s4"), "2 rows | at most 3")
    ],
    R.CONDITION_FAILED: [
        (
            "a condition that does not hold",
            lambda w: w.put_call(sample_ids=("s1", "s2"), only_if=(Term("<", "sequence_length", True, (4,)),)),
            "'p' | 's2' | only_if",
        )
    ],
    R.SAMPLE_EXISTS: [("reserved twice", lambda w: w.caller.reserve("g", ["s1"]), "'p' | 's1' | 'g'")],
    R.REQUEST_ID_USED: [
        ("a used request_id", lambda w: w.caller.apply(ClearSamples("request-1", "p", None)), "'request-1' | register")
    ],
    R.TOO_FEW_ROWS: [("draw of more than there is", lambda w: w.caller.draw(batch_size=3), "'p' | 2 of 2")],
    R.SUPERSEDED: [("finish of what is not under way", lambda w: w.caller.finish(1 << 40), "request_id")],
}
"""By reason: a name, the call, and what the message says."""
AFTER_A_CHANGE: list[tuple[Callable[[World], None], Reason]] = [
    (objects_in_a_per_token_field, R.FIELD_MISMATCH),
    (larger_than_the_memory_with_alignment, R.PUT_TOO_LARGE),
    (commit_after_clear, R.SAMPLE_NOT_FOUND),
    (per_token_declared_late, R.FIELD_HOLDS_VALUES),
    (partitions_over_the_bound, R.LIMIT_REACHED),
    (new_rows_over_a_budget, Reason.PARTITION_FULL),
    (claims_over_the_bound, R.LIMIT_REACHED),
    (puts_over_the_bound, R.LIMIT_REACHED),
    (wait_for_rows_of_a_draining_server, R.DRAINING),
    (wait_for_room_of_a_draining_server, R.DRAINING),
    (write_back_after_a_reset, R.CLAIM_FENCED),
    (reserve_in_a_session_that_is_closed, R.SESSION_EXPIRED),
    (finish_of_a_group_that_was_aborted, R.GROUP_FENCED),
    (finish_of_a_group_with_an_empty_row, R.GROUP_INCOMPLETE),
    (read_of_a_row_that_was_replaced, R.ROW_REPLACED),
    (put_to_a_row_that_others_reserved, R.ROW_RESERVED),
    (put_to_a_closed_partition, R.PARTITION_CLOSED),
    (claim_of_more_than_is_left, R.END_OF_DATA),
    (append_to_a_row_that_was_put_meanwhile, R.APPEND_CONFLICT),
    (shard_that_was_committed_before_the_session, R.SHARD_COMMITTED),
]
"""These change something first and assert in their own body that what then is refused changes nothing."""


@pytest.mark.parametrize(
    ("reason", "call", "words"),
    [pytest.param(reason, call, words, id=id_) for reason, cases in REFUSED.items() for id_, call, words in cases],
)
def test_a_refused_call_says_why_and_changes_nothing(
    world: World, reason: Reason, call: Callable[[World], object], words: str
) -> None:
    with world.caller.refuses(reason, *words.split(" | ")):
        call(world)


@pytest.mark.parametrize("case", [pytest.param(case, id=case.__name__.replace("_", " ")) for case, _ in AFTER_A_CHANGE])
def test_a_call_refused_after_a_change_says_why_and_changes_nothing(
    world: World, case: Callable[[World], None]
) -> None:
    case(world)


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(lambda c: c.plane.partition_info(LONG), id="partition"),
        pytest.param(lambda c: c.apply(c.claim_call("a", task=LONG)), id="task"),
        pytest.param(lambda c: c.apply(c.claim_call(LONG)), id="required field"),
        pytest.param(lambda c: c.read(["s1"], LONG), id="field"),
        pytest.param(lambda c: c.read(["s1"], LONG, LONG), id="field twice"),
        pytest.param(lambda c: c.commit(LONG), id="claim"),
        pytest.param(lambda c: c.put_rows([LONG], "a"), id="sample"),
        pytest.param(lambda c: c.reserve(LONG, ["s3"]), id="group"),
        pytest.param(lambda c: c.reserve("g", ["s3"], LONG), id="session"),
        pytest.param(lambda c: c.finish_group(LONG), id="reservation"),
        pytest.param(lambda c: c.put(c.put_call(["s1"], {"a": [3]}, caller=LONG)), id="caller"),
    ],
)
def test_a_refusal_is_short_however_long_the_name_it_tells(world: World, call: Callable[[Caller], object]) -> None:
    with pytest.raises(Refusal) as caught:
        call(world.caller)
    assert len(caught.value.message) < 1200
    assert all(len(value) <= 256 for value in caught.value.metadata.values())


def test_every_reason_of_the_core_is_tested_here() -> None:
    told_at_deadlines = {Reason.NO_SPACE, Reason.CLAIM_TIMEOUT}  # test_admission, test_claims
    of_frames_and_files = {Reason.MALFORMED_STREAM, Reason.SNAPSHOT_FAILED, Reason.OVERLOADED}
    not_of_the_core = of_frames_and_files | {Reason.UNAUTHENTICATED, Reason.PERMISSION_DENIED}
    of_nodes = {Reason.NODE_LOST}  # test_nodes
    tested = REFUSED.keys() | {reason for _, reason in AFTER_A_CHANGE}
    assert tested | told_at_deadlines | not_of_the_core | of_nodes == set(Reason)
