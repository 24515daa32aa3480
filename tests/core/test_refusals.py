"""Every reason to refuse a call: named by reason, told with partition, sample, field and rule, and nothing changed.

`tests/hostile/requests.py` has what no client of ours sends: malformed columns, tags, names and numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import pytest
from tests.core.caller import BYTES, Caller, int64

from dataplane_server.core.calls.columns import ColumnSpec, Shape
from dataplane_server.core.calls.filters import Term
from dataplane_server.core.calls.refusal import Reason, Refusal
from dataplane_server.core.calls.requests import BeginRead, ClearSamples, CloseSession, Drain, PutSamples
from dataplane_server.core.rows.space import ALIGNMENT

LONG = "x" * 100_000
OBJECT, FLOATS, SCALAR = Shape("object", "", ()), Shape("jagged", "float32", ()), Shape("dense", "int32", ())
HUGE = Shape("jagged", "uint8", (1 << 20, 1 << 20))
SHORT = (Term("<", "sequence_length", True, (4,)),)


@dataclass
class World:
    """Partition p with tasks train and score, fields a, b (both per-token) and c; rows s1 and s2 hold a and b.

    There is room for 4 KiB, 2 partitions, 3 rows, one waiting put and one waiting claim. claim_id is open on s1.
    named: what a case has made to name it in its call.
    """

    caller: Caller
    claim_id: str
    named: str = ""

    def put(self, lengths: dict[str, list[int]], *sample_ids: str, **more: object) -> None:
        self.caller.apply(self.caller.put_call(sample_ids, lengths, **more))  # type: ignore[arg-type]

    def put_call(self, *columns: ColumnSpec, sample_ids: tuple[str, ...] = ("s1",), **more: object) -> None:
        call = {"request_id": self.caller.request_id(), "partition_id": "p", "sample_ids": sample_ids}
        self.caller.apply(PutSamples(**{**call, "columns": columns, **more}))  # type: ignore[arg-type]

    def share(self, *columns: ColumnSpec, **more: object) -> None:
        """Put a value for all rows of the group, of field c unless columns are given."""
        of_group = {"sample_ids": (), "shared": True, "reservation_id": self.named, **more}
        self.put_call(*columns or [column("c", 3)], **of_group)  # type: ignore[arg-type]

    def add(self, **more: object) -> None:
        """Put a row that joins the group."""
        self.put_call(column("c", 3), **{"add_to_group": True, "reservation_id": self.named, **more})  # type: ignore[arg-type]

    def claim(self, *required_fields: str, **more: object) -> None:
        self.caller.apply(self.caller.claim_call(*required_fields, **more))  # type: ignore[arg-type]

    def commit(self, lengths: dict[str, list[int]], claim_id: str = "") -> None:
        self.caller.apply(self.caller.commit_call(claim_id or self.claim_id, lengths))

    def register_q(self, **more: object) -> None:
        self.caller.register(partition_id="q", **more)  # type: ignore[arg-type]

    def define(self, per_token: str, fields: str = "abc", *, replace: bool = True) -> None:
        tasks, of_tokens = ("train", "score"), frozenset(per_token)
        self.caller.register(tuple(fields), tasks, per_token_fields=of_tokens, replace=replace)


@pytest.fixture
def world(new_caller: Callable[..., Caller]) -> World:
    caller = new_caller(memory_bytes=4096, max_partitions=2, max_rows=3, max_waiting_puts=1, max_waiting_claims=1)
    caller.register(("a", "b", "c"), ("train", "score"), per_token_fields=frozenset("ab"))
    caller.put(caller.put_call(["s1", "s2"], {"a": [3, 4], "b": [3, 4]}))
    return World(caller, caller.take("a").claim_id)


def fill(w: World) -> None:
    """Take what columns a and b, which begin at aligned offsets, have left of the memory."""
    w.caller.begin(w.caller.put_call(["s2"], {"c": [4096 - 2 * ALIGNMENT]}))


def let_a_put_wait(w: World) -> None:
    fill(w)
    w.caller.wait(w.caller.put_call(["s1"], {"c": [100]}))


def drain_full(w: World) -> None:
    fill(w)
    w.caller.apply(Drain())


def open_session_after_a_commit(w: World) -> None:
    w.caller.commit(w.caller.take_shard("a", dp_world=1, batch_size=1, step=4).claim_id)
    w.named = w.caller.open_session()


def close_session(w: World) -> None:
    w.named = w.caller.open_session()
    w.caller.apply(CloseSession(w.named))


def reserve(w: World) -> None:
    w.named = w.caller.reserve("g", ["s3"]).reservation_id


def abort_group(w: World) -> None:
    reserve(w)
    w.caller.abort_group(w.named)


def give_up(w: World) -> None:
    w.caller.abort_group(w.caller.reserve("g", ["s3"], max_regenerations=0).reservation_id)


def replace_row(w: World) -> None:
    w.caller.clear(["s2"])
    w.caller.put_rows(["s2"], "c")


class Case(NamedTuple):
    """call: refused in a message that has the words. before: what is done first."""

    name: str
    call: Callable[[World], object]
    words: str
    before: Callable[[World], object] = lambda _: None


def column(name: str, *lengths: int, shape: Shape = BYTES) -> ColumnSpec:
    return ColumnSpec(name, shape, int64(lengths) if lengths else None)


def tokens_in_q(w: World) -> None:
    w.register_q(per_token_fields=frozenset("a"))


def append_more_than_64_bits_count(w: World) -> None:
    w.put_call(column("a", 1 << 30, shape=HUGE), partition_id="q", sample_ids=("x",), append=True)


def rows_in_q(w: World) -> None:
    tokens_in_q(w)
    w.caller.put_rows(["x"], "b", partition_id="q")


R = Reason
REFUSED: dict[Reason, list[Case]] = {
    R.INVALID_REQUEST: [
        Case("empty sample id", lambda w: w.put({"a": [3]}, ""), "sample id | 256"),
        Case("too many tags", lambda w: w.put_call(tags=[{f"key{i}": 1 for i in range(65)}]), "'s1' | 64"),
        Case("token count", lambda w: w.put_call(sequence_lengths=int64([1 << 31])), "'s1' | 2147483648"),
        Case("least over most", lambda w: w.claim("a", batch_size=1, min_size=2), "min_size 2 | batch_size 1"),
        Case("policy of a task", lambda w: w.caller.set_policy(order="lowest_tag"), "'p' | 'train' | order_tag"),
        Case("policy of a partition", lambda w: w.caller.set_flow(max_rows=0), "'p' | max_rows | got 0"),
        Case("read of no field", lambda w: w.caller.read(["s1"]), "'p' | field"),
        Case("read of no sample", lambda w: w.caller.read([], "a"), "got 0"),
        Case("consumption of no task", lambda w: w.caller.plane.consumption("p", []), "'p' | task"),
        Case("long delay", lambda w: w.caller.release(w.claim_id, delay_s=86_400.1), "86400"),
        Case("delay of no number", lambda w: w.caller.release(w.claim_id, delay_s=math.nan), "86400"),
        Case("deliveries over the bound", lambda w: w.register_q(max_deliveries=65_536), "65535 | 65536"),
        Case("create_only of a claim", lambda w: w.put_call(create_only=True, claim_id=w.claim_id), "create_only"),
        Case("create_only in a group", lambda w: w.put_call(create_only=True, reservation_id="g-1"), "create_only"),
        Case("create_only of rows", lambda w: w.put_call(create_only=True, generations=int64([1])), "create_only"),
        Case("existing and new", lambda w: w.put_call(create_only=True, existing_only=True), "existing_only"),
        Case("create_only on condition", lambda w: w.put_call(create_only=True, only_if=SHORT), "create_only"),
        Case("to clear without tasks", lambda w: w.register_q(tasks=(), clear_when_consumed=True), "'q' | task"),
        Case(
            "to lose what is cleared",
            lambda w: w.claim("a", partition_id="q", consume=True),
            "'q'",
            lambda w: w.register_q(clear_when_consumed=True),
        ),
        Case("too many fields", lambda w: w.caller.extend(fields=tuple(f"f{i}" for i in range(62))), "'p' | 64 | 65"),
        Case("shared per-token field", lambda w: w.share(column("a", 3)), "'p' | 'g' | 'a' | per-token", reserve),
        Case("shared by no group", lambda w: w.share(), "reservation"),
        Case("shared by rows", lambda w: w.share(sample_ids=("s3",)), "samples", reserve),
        Case("shared with tags", lambda w: w.share(tags=[]), "tags", reserve),
        Case("shared with lengths", lambda w: w.share(sequence_lengths=int64([])), "samples", reserve),
        Case("shared with generations", lambda w: w.share(generations=int64([])), "samples", reserve),
        Case("shared under a claim", lambda w: w.share(claim_id=w.claim_id), "claim", reserve),
        Case("shared on condition", lambda w: w.share(only_if=SHORT), "a shared put | only_if", reserve),
        Case("shared of no column", lambda w: w.share(columns=()), "column", reserve),
        Case("add to no group", lambda w: w.add(), "adds to a group"),
        Case("add under a claim", lambda w: w.add(claim_id=w.claim_id), "adds to a group", reserve),
        Case("add to generations", lambda w: w.add(generations=int64([1])), "adds to a group", reserve),
        Case("add of what is shared", lambda w: w.add(shared=True, sample_ids=()), "adds to a group", reserve),
    ],
    R.DUPLICATE: [
        Case("sample twice", lambda w: w.put({"a": [3, 3]}, "s1", "s1"), "'s1'"),
        Case("read sample twice", lambda w: w.caller.read(["s1", "s1"], "a"), "'s1'"),
        Case("task twice", lambda w: w.caller.plane.consumption("p", ["train", "train"]), "task 'train'"),
    ],
    R.ROW_COUNT_MISMATCH: [
        Case("lengths", lambda w: w.put({"a": [3, 3]}, "s1"), "'a' | 2 rows | 1 samples"),
    ],
    R.FIELD_NOT_DECLARED: [
        Case("put", lambda w: w.put({"z": [3]}, "s1"), "'p' | 'z' | a, b, c"),
        Case("read", lambda w: w.caller.read(["s1"], "z"), "'p' | 'z' | a, b, c"),
        Case("per-token", lambda w: w.register_q(per_token_fields=frozenset("z")), "'q' | 'z'"),
    ],
    R.FIELD_NOT_PRODUCED: [
        Case("read", lambda w: w.caller.read(["s1", "s2"], "a", "c"), "'p' | 's1' | 'c' | 1 more"),
    ],
    R.FIELD_MISMATCH: [
        Case("floats over bytes", lambda w: w.put_call(column("a", 3, shape=FLOATS)), "'p' | 'a' | float32 | uint8"),
        Case("with tags", lambda w: w.put_call(column("a", 3, shape=OBJECT), tags=[{"k": 1}]), "'p' | 'a' | object"),
        Case(
            "objects for tokens",
            lambda w: w.put_call(column("a", 3, shape=OBJECT), partition_id="q"),
            "'q' | 'a' | object",
            tokens_in_q,
        ),
        Case(
            "one value a row for tokens",
            lambda w: w.put_call(column("a", shape=SCALAR), partition_id="q"),
            "'q' | 'a' | token",
            tokens_in_q,
        ),
    ],
    R.FIELD_HOLDS_VALUES: [
        Case("field dropped", lambda w: w.define("a", "ac"), "'p' | 2 rows | 'b'"),
        Case("per-token now", lambda w: w.define("abc"), "'p' | 'c'", lambda w: w.caller.put_rows(["s1"], "c")),
    ],
    R.LENGTH_MISMATCH: [
        Case("in a put", lambda w: w.put({"a": [3, 3], "b": [3, 5]}, "s1", "s2"), "'p' | 's2' | 'a' has 3 | 'b' has 5"),
        Case("with stored", lambda w: w.put({"a": [3, 5]}, "s1", "s2"), "'p' | 's2' | 'a' has 5 | 'b' | 4"),
        Case(
            "with a token count",
            lambda w: w.put_call(sequence_lengths=int64([5]), sample_ids=("s2",)),
            "'p' | 's2' | sequence_lengths has 5 | has 4",
        ),
    ],
    R.PUT_TOO_LARGE: [
        Case("larger than the memory", lambda w: w.put({"c": [4097]}, "s1"), "4.001 KiB | 4 KiB"),
        Case("more than 64 bits count", lambda w: w.put_call(column("c", (1 << 31) - 1, shape=HUGE)), "GiB | 4 KiB"),
        Case("an append of more", append_more_than_64_bits_count, "GiB | 4 KiB", rows_in_q),
        Case(
            "with alignment",
            lambda w: w.put({"a": [1], "b": [4095]}, "s", partition_id="q"),
            f"4 KiB | {(ALIGNMENT + 4095) / 1024:.4g} KiB",
            lambda w: w.register_q(),
        ),
    ],
    R.LIMIT_REACHED: [
        Case("rows", lambda w: w.put({"c": [3, 3, 3]}, "s2", "s3", "s4"), "2 rows | 3"),
        Case("partitions", lambda w: w.caller.register(partition_id="r"), "2 partitions", lambda w: w.register_q()),
        Case("waiting claims", lambda w: w.claim("c"), "1 claims", lambda w: w.claim("c")),
        Case("waiting puts", lambda w: w.put({"c": [100]}, "s1"), "1 puts", let_a_put_wait),
    ],
    R.PARTITION_NOT_FOUND: [
        Case("put to", lambda w: w.put({"a": [3]}, "s1", partition_id="nowhere"), "'nowhere'"),
        Case("described", lambda w: w.caller.plane.partition_info("nowhere"), "'nowhere'"),
    ],
    R.PARTITION_DIFFERS: [
        Case("registered", lambda w: w.define("bc", replace=False), "'p' | 'a' | 'c' | per-token | replace=True"),
        Case("extended", lambda w: w.caller.extend(fields=("a",)), "'p' | 'a' | per-token"),
    ],
    R.PARTITION_CLOSED: [
        Case(
            "put", lambda w: w.put({"c": [1] * 3}, "s1", "s3", "s4"), "'p' | 's3' | 1 more", lambda w: w.caller.close()
        ),
        Case("group", lambda w: w.caller.reserve("g", ["s3"]), "'p' | 'g'", lambda w: w.caller.close()),
    ],
    R.PARTITION_FULL: [
        Case(
            "new rows over a budget",
            lambda w: w.put({"c": [1]}, "s3"),
            "'p' | max_rows 2",
            lambda w: w.caller.set_flow(max_rows=2, when_full="reject"),
        )
    ],
    R.END_OF_DATA: [
        Case(
            "claim of more than is left",
            lambda w: w.claim("c", batch_size=3),
            "'p' | 'train' | 2 rows | min_size 3 | min_size=2",
            lambda w: w.caller.close(),
        )
    ],
    R.SAMPLE_NOT_FOUND: [
        Case("read", lambda w: w.caller.read(["s1", "s9", "s8"], "a"), "'p' | 's9' | 1 more"),
        Case("committed", lambda w: w.commit({"c": [1]}), "'p' | 's1'", lambda w: w.caller.clear(["s1"])),
    ],
    R.SAMPLE_EXISTS: [Case("reserved", lambda w: w.caller.reserve("g", ["s1"]), "'p' | 's1' | 'g'")],
    R.ROW_REPLACED: [
        Case("read", lambda w: w.caller.apply(BeginRead("p", ["s2"], ["c"], int64([2]))), "'p' | 's2'", replace_row)
    ],
    R.ROW_RESERVED: [Case("put", lambda w: w.put({"c": [1]}, "s3"), "'s3' | 'g'", reserve)],
    R.CONDITION_FAILED: [
        Case("put", lambda w: w.put_call(sample_ids=("s1", "s2"), only_if=SHORT), "'p' | 's2' | only_if")
    ],
    R.TASK_NOT_REGISTERED: [
        Case("claimed for", lambda w: w.claim("a", task="nobody"), "'p' | 'nobody' | train, score"),
        Case("asked for dead letters", lambda w: w.caller.plane.dead_letters("p", "nobody"), "'p' | 'nobody'"),
    ],
    R.CLAIM_NOT_FOUND: [
        Case("committed", lambda w: w.caller.commit("claim-9"), "'claim-9'"),
    ],
    R.CLAIM_FENCED: [
        Case("put", lambda w: w.put_call(column("c", 1), claim_id=w.claim_id), "'c-", lambda w: w.caller.reset())
    ],
    R.SHARD_COMMITTED: [
        Case(
            "claimed in a later session",
            lambda w: w.caller.take_shard("a", dp_world=1, batch_size=1, step=4, session_id=w.named),
            "'p' | 'train' | step 4, dp_rank 0 of 1 | step 5",
            open_session_after_a_commit,
        )
    ],
    R.SESSION_EXPIRED: [Case("reserved", lambda w: w.caller.reserve("g", ["s3"], w.named), "'c-s", close_session)],
    R.GROUP_FENCED: [Case("finished", lambda w: w.caller.finish_group(w.named), "'c-g", abort_group)],
    R.GROUP_INCOMPLETE: [
        Case("finished", lambda w: w.caller.finish_group(w.named), "'p' | 's3' | 'g' | 1 of 1", reserve)
    ],
    R.GROUP_GIVEN_UP: [
        Case("reserved again", lambda w: w.caller.reserve("g", [], max_regenerations=0), "'p' | 'g' | 1 times", give_up)
    ],
    R.DRAINING: [
        Case("claim", lambda w: w.claim("c"), "", lambda w: w.caller.apply(Drain())),
        Case("put", lambda w: w.put({"c": [100]}, "s1"), "", drain_full),
    ],
    R.REQUEST_ID_USED: [
        Case("clear", lambda w: w.caller.apply(ClearSamples("request-1", "p", None)), "'request-1' | register")
    ],
    R.TOO_FEW_ROWS: [Case("draw", lambda w: w.caller.draw(batch_size=3), "'p' | 2 of 2")],
    R.SUPERSEDED: [Case("finish of what is not under way", lambda w: w.caller.finish(1 << 40), "request_id")],
}


@pytest.mark.parametrize(
    ("reason", "case"),
    [
        pytest.param(reason, case, id=f"{reason.name}: {case.name}")
        for reason, cases in REFUSED.items()
        for case in cases
    ],
)
def test_a_refused_call_says_why_and_changes_nothing(world: World, reason: Reason, case: Case) -> None:
    case.before(world)
    with world.caller.refuses(reason, *case.words.split(" | ")):
        case.call(world)


def test_an_append_to_a_row_that_was_put_meanwhile_is_refused_by_partition_and_sample(world: World) -> None:
    """It ends with its refusal: its bytes are free."""
    tokens_in_q(world)
    begun = world.caller.begin(world.caller.put_call(["s"], {"a": [1]}, partition_id="q", append=True))
    world.caller.put_rows(["s"], "a", partition_id="q")
    world.caller.fails(Reason.APPEND_CONFLICT, begun.ticket, "'q'", "'s'")
    assert world.caller.plane.partition_info("q").size_bytes == 1


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(lambda c: c.plane.partition_info(LONG), id="partition"),
        pytest.param(lambda c: c.apply(c.claim_call("a", task=LONG)), id="task"),
        pytest.param(lambda c: c.apply(c.claim_call(LONG)), id="required field"),
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
    elsewhere = {Reason.NODE_LOST, Reason.APPEND_CONFLICT}  # test_nodes, the test above
    elsewhere |= {Reason.DIGESTS_REQUIRED, Reason.DIGEST_MISMATCH}  # test_digests
    assert REFUSED.keys() | told_at_deadlines | not_of_the_core | elsewhere == set(Reason)
