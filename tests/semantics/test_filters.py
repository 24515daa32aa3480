"""Filters over rows: what fits, as a row-by-row evaluation says, in lists, clears and conditional puts."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from uuid import uuid4

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core.caller import Caller
from tests.core.row_filters import fits
from tests.semantics.callers import Caller as AnyCaller
from tests.semantics.callers import Refused
from tests.semantics.conftest import ON_ONE_WAY

from dataplane_client import aio
from dataplane_client.client import DataPlaneClient
from dataplane_client.errors import ConditionFailedError, InvalidArgumentError
from dataplane_server.core.calls.answers import Reservation
from dataplane_server.core.calls.filters import MAX_TERMS, MAX_TEXT_BYTES, Filter, Term
from dataplane_server.core.calls.limits import Limits
from dataplane_server.core.calls.refusal import Reason, Refusal
from dataplane_server.core.calls.requests import ClearSamples
from dataplane_server.core.calls.values import Tags
from rl_dataplane.v1 import data_plane_pb2 as pb

AND, OR, NOT = Term("and"), Term("or"), Term("not")


def listed(caller: Caller, where: Filter) -> list[str]:
    return list(caller.plane.list_samples("p", "", [], where, 1000, 0, caller.now).sample_ids)


def clear_where(caller: Caller, where: Filter, sample_ids: list[str] | None = None) -> int:
    return caller.apply(ClearSamples(caller.request_id(), "p", sample_ids, where=where)).cleared_rows


def put_tags(caller: Caller, rows: dict[str, Tags]) -> None:
    caller.put(caller.put_call(list(rows), tags=list(rows.values())))


# -- what fits ---------------------------------------------------------------------------------------------------------

NUMBERS = [-1, 0, 1, 2, 0.5, -0.0, True, False, math.inf, 2**53, -(2**63), 2**64 - 1]
TEXTS = ["", "a", "b", "math", "z\u00e4", "\U0001f600"]
HELD = st.sampled_from([*NUMBERS[:-1], *TEXTS, None, math.nan])
VALUE = st.sampled_from([*NUMBERS, *TEXTS])
SUBJECTS = [("std", False), ("source", False), ("other", False), ("weight_version", False)]
SUBJECT = st.sampled_from([*SUBJECTS, ("sequence_length", True), ("staleness", True), ("age_s", True)])
COMPARISON = st.one_of(
    st.builds(
        lambda of, op, value: (Term(op, of[0], of[1], (value,)),),
        SUBJECT,
        st.sampled_from(["==", "!=", "<", "<=", ">", ">="]),
        VALUE,
    ),
    st.builds(lambda of, values: (Term("in", of[0], of[1], tuple(values)),), SUBJECT, st.lists(VALUE, max_size=4)),
    st.builds(lambda of: (Term("is null", of[0], of[1]),), SUBJECT),
)
WHERE = st.recursive(
    COMPARISON,
    lambda inner: st.one_of(
        st.builds(lambda one: (*one, NOT), inner),
        st.builds(lambda one, other, how: (*one, *other, how), inner, inner, st.sampled_from([AND, OR])),
    ),
    max_leaves=6,
)
TAGS = st.fixed_dictionaries(
    {}, optional={"std": HELD, "source": HELD, "weight_version": st.sampled_from([0, 1, 3, None])}
)
IDS = [f"s{row}" for row in range(10)]
PUT = st.dictionaries(st.sampled_from(IDS), st.tuples(TAGS, st.sampled_from([-1, 0, 2])), min_size=2)
WHAT = st.sampled_from(["put", "put", "put", "clear", "clear where"])
STEP = st.tuples(WHAT, PUT, st.lists(WHERE, min_size=2, max_size=4), st.sampled_from([0, 1, 2, 40]))


class Known:
    """What rows should have."""

    def __init__(self) -> None:
        self.rows: dict[str, dict[str, object]] = {}
        self.newest: int | None = None

    def put(self, rows: dict[str, tuple[Tags, int]], now: float) -> None:
        for sample_id, (tags, length) in rows.items():
            row = self.rows.setdefault(sample_id, {"created": now})
            row.update(tags)
            if length >= 0:
                row["length"] = length
            if isinstance(version := tags.get("weight_version"), int):
                self.newest = max(version, self.newest or 0)

    def fitting(self, where: Filter, now: float) -> list[str]:
        return [sample_id for sample_id, row in self.rows.items() if fits(where, partial(self._held, row, now))]

    def _held(self, row: dict[str, object], now: float, term: Term) -> object:
        if not term.of_row:
            return row.get(term.subject)
        version, created = row.get("weight_version"), row["created"]
        assert isinstance(created, float)
        behind = None if not isinstance(version, int) or self.newest is None else self.newest - version
        return {"sequence_length": row.get("length"), "staleness": behind, "age_s": now - created}[term.subject]


@pytest.mark.timeout(1800)  # the nightly profile
@given(st.lists(STEP, min_size=3, max_size=10))
def test_filters_choose_the_rows_that_a_row_by_row_evaluation_chooses(
    steps: list[tuple[str, dict[str, tuple[Tags, int]], list[Filter], float]],
) -> None:
    """Also of rows whose tags change, that go, and whose slots others get, before and after their tags got columns."""
    caller, known = Caller(Limits(memory_bytes=4096)), Known()
    caller.register()
    for what, rows, filters, seconds in steps:
        caller.now += seconds
        gone: list[str] = []
        if what == "put":
            tags, lengths = [tags for tags, _ in rows.values()], [length for _, length in rows.values()]
            caller.put(caller.put_call(list(rows), tags=tags, sequence_lengths=lengths))
            known.put(rows, caller.now)
        elif what == "clear":
            gone = [sample_id for sample_id in rows if sample_id in known.rows]
            assert clear_where(caller, (), list(rows)) == len(gone)
        else:
            gone = known.fitting(filters[0], caller.now)
            assert clear_where(caller, filters[0]) == len(gone)
        for sample_id in gone:
            del known.rows[sample_id]
        for where in filters:
            assert listed(caller, where) == known.fitting(where, caller.now)
    caller.plane.check_invariants()
    caller.plane.check_replay()


def test_columns_follow_a_table_that_grows(caller: Caller) -> None:
    none = (Term("==", "n", values=(-1,)), Term("==", "text", values=("nothing",)), AND)
    for begin in range(0, 300, 10):
        put_tags(caller, {f"s{row}": {"n": row, "text": str(row % 3)} for row in range(begin, begin + 10)})
        put_tags(caller, {f"without {begin}": {}})
        assert clear_where(caller, none) == 0  # from the first time on, the tags have columns
    assert listed(caller, (Term(">", "n", values=(250,)),)) == [f"s{row}" for row in range(251, 300)]
    assert len(listed(caller, (Term("is null", "n"),))) == 30
    assert len(listed(caller, (Term("==", "text", values=("1",)),))) == 100


def test_more_tags_than_there_are_columns_are_filtered_as_well(caller: Caller) -> None:
    put_tags(caller, {f"s{row}": {f"tag{row}": 1} for row in range(40)})
    before = caller.plane.partitions["p"].rows.slot_bytes
    for row in range(40):
        where = (Term("==", f"tag{row}", values=(2,)), Term("==", f"tag{39 - row}", values=(1,)), AND)
        assert clear_where(caller, where) == 0
    assert caller.plane.partitions["p"].rows.slot_bytes - before == 16 * 12
    for row in range(40):
        assert listed(caller, (Term("==", f"tag{row}", values=(1,)),)) == [f"s{row}"]


@pytest.mark.long
def test_strings_that_no_row_has_any_more_are_forgotten(caller: Caller) -> None:
    put_tags(caller, {"s0": {"state": "kept", "note": ""}, "s1": {"state": ""}})
    clear_where(caller, (Term("==", "state", values=("nothing",)),))
    rows = caller.plane.partitions["p"].rows
    before = rows.kept_bytes
    for turn in range(2500):
        put_tags(caller, {"s1": {"state": f"{turn:04}"}})
    assert rows.kept_bytes - before < 1300 * 300
    assert listed(caller, (Term("==", "state", values=("kept",)),)) == ["s0"]
    assert listed(caller, (Term("==", "state", values=("2499",)),)) == ["s1"]
    caller.plane.check_invariants()


def test_a_server_without_memory_for_columns_filters_all_the_same(new_caller: Callable[..., Caller]) -> None:
    caller = new_caller(bookkeeping_bytes=300_000)
    caller.register()
    rows = caller.plane.partitions["p"].rows
    puts = ({f"s{row}": {"text": f"{row:0100}"}} for row in range(4000))
    with pytest.raises(Refusal, match="bookkeeping"):
        deque(map(partial(put_tags, caller), puts), maxlen=0)
    kept = rows.kept_bytes
    assert clear_where(caller, (Term("==", "text", values=("9",)),)) == 0
    assert rows.kept_bytes == kept
    assert clear_where(caller, (Term("==", "text", values=(f"{7:0100}",)),)) == 1


# -- what is refused ---------------------------------------------------------------------------------------------------

STD = Term(">", "std", values=(0,))


@pytest.mark.parametrize(
    ("where", "words"),
    [
        ((STD, AND), "term 2 ('and'): it combines 2 results, and there are 1 before it"),
        ((STD, STD), "leaves one result"),
        ((NOT,), "term 1 ('not'): it combines 1 results, and there are 0 before it"),
        ((STD, *[NOT] * MAX_TERMS), "a filter has at most 64 terms, got 65"),
        ((Term("=="),), "term 1 ('=='): it compares, so it names a tag or fact"),
        ((Term("==", "std"),), "term 1 ('==' of 'std'): it has 1 values, got 0"),
        ((STD, Term("<", "std", values=(1, 2)), AND), "term 2 ('<' of 'std'): it has 1 values, got 2"),
        ((Term("in", "std", values=(1,) * 1025),), "it has 0 to 1024 values, got 1025"),
        ((STD, Term("not", "std")), "term 2 ('not' of 'std'): it combines results, so it has neither a subject nor"),
        ((Term("==", "std", values=(math.nan,)),), "a number of at most 64 bits or a string, got 'nan'"),
        ((Term("in", "std", values=(1, None)),), "a number of at most 64 bits or a string, got 'None'"),  # type: ignore[arg-type]
        (
            (Term("==", "std", values=(1 << 64,)),),
            "a number of at most 64 bits or a string, got '18446744073709551616'",
        ),
        ((Term("==", "std", values=("x" * MAX_TEXT_BYTES,)),), "strings of a filter have at most 65536 bytes together"),
    ],
)
def test_a_wrong_filter_is_refused_by_the_place_of_its_term(caller: Caller, where: Filter, words: str) -> None:
    put_tags(caller, {"s1": {"std": 1}})
    for act in (
        lambda: clear_where(caller, where),
        lambda: listed(caller, where),
        lambda: caller.apply(caller.put_call(["s1"], only_if=where)),
        lambda: caller.set_policy(where=where),
    ):
        with caller.refuses(Reason.INVALID_REQUEST, words):
            act()


def test_a_filter_that_takes_a_field_for_a_tag_is_refused(via: AnyCaller) -> None:
    """While rows are there, and none of them has a tag of that name. A draw says it beside the rows that do not fit."""
    assert (via.listed("a > 0"), via.clear(where="a > 0")) == ("", 0)
    via.put("xy", tags={"std": 1})
    for act in (lambda: via.listed("std > 0 or a > 0"), lambda: via.clear("x", where="a > 0")):
        with via.refuses("INVALID_REQUEST", "'a' is a field", "none of the 2 rows"):
            act()
    assert (via.listed("a is null"), via.listed("c > 0")) == ("xy", "")
    with via.refuses("TOO_FEW_ROWS", "none has the tag 'a' or 'c' (a filter sees tags, and 'a' is a field)"):
        via.draw(where="a > 0 and c > 0")
    via.put("x", tags={"a": 1})
    assert via.listed("a > 0") == "x"


# -- clears and puts ---------------------------------------------------------------------------------------------------


WHERE_ROWS = {
    "std > 0.1": "wxy",
    "not std > 0.1": "uvz",
    "0.1 <= std < 0.3 or std is null": "vwz",
    "source == 'm' and staleness >= 1": "uw",
    "source != 'm'": "vx",
    "staleness is null or staleness == 0": "yz",
    "sequence_length in (2, 6, 'x')": "vz",
    "source not in ['m']": "vxz",
    "tags['source'] is null": "z",
    "age_s < 600 and weight_version == 1": "wx",
    "nothing == 1": "",
}
"""Which of the rows u to z fit."""


def test_rows_are_listed_and_cleared_as_an_expression_says(via: AnyCaller) -> None:
    sources = [{"source": source} for source in ("m", "c", "m", "c", "m", None)]
    tags = [{"weight_version": row // 2, "std": row / 10} for row in range(5)]

    def put() -> None:
        via.put("uvwxyz", tags=sources, sequence_lengths=[1, 2, 3, 4, 5, 6])
        via.put("uvwxy", tags=tags)

    put()
    assert {where: via.listed(where) for where in WHERE_ROWS} == WHERE_ROWS
    for where, fitting in WHERE_ROWS.items():
        assert via.clear("u", where=where) == ("u" in fitting)
        assert via.clear(where=where) == len(set(fitting) - {"u"})
        assert via.listed() == "".join(row for row in "uvwxyz" if row not in fitting)
        via.clear()
        put()


NEW = (Term("==", "state", values=("new",)),)


def take(caller: Caller, *sample_ids: str) -> Reservation:
    """Begin to change the state of rows, for which there is one who may."""
    taken: list[Tags] = [{"state": "taken"} for _ in sample_ids]
    return caller.begin(caller.put_call(sample_ids, {"a": [1] * len(sample_ids)}, tags=taken, only_if=NEW))


def test_of_two_that_take_a_row_at_once_one_is_refused_and_changes_nothing(caller: Caller) -> None:
    put_tags(caller, {"s1": {"state": "new"}, "s2": {"state": "new"}})
    first, second = take(caller, "s1"), take(caller, "s2", "s1")
    caller.finish(first.ticket)
    with pytest.raises(Refusal, match=r"'p': .*'s1' .*only_if") as caught:
        caller.finish(second.ticket)
    assert caught.value.reason is Reason.CONDITION_FAILED
    assert listed(caller, NEW) == ["s2"]
    assert caller.used == 1


def test_a_condition_on_the_age_of_rows_holds_when_the_put_takes_effect(caller: Caller) -> None:
    put_tags(caller, {"s1": {}})
    young = (Term("<", "age_s", of_row=True, values=(10,)),)
    begun = caller.begin(caller.put_call(["s1"], {"a": [1]}, only_if=young))
    caller.now += 100.0
    with pytest.raises(Refusal, match=r"'s1' does not fit only_if"):
        caller.finish(begun.ticket)


def test_a_put_of_rows_that_do_not_exist_or_do_not_fit_its_condition_is_refused_by_the_first(via: AnyCaller) -> None:
    via.put("x", tags={"state": "new"})
    via.put("y", tags={"state": "taken"})
    taken: dict[str, object] = {"tags": {"state": "taken"}, "only_if": "state == 'new'"}
    for only_if, unfit in ((taken["only_if"], "sample 'z' (and 1 more of the call)"), ({}, "sample 'z'")):
        with via.refuses("CONDITION_FAILED", f"{unfit} does not exist"):
            via.put("xzy", "a", only_if=only_if)
    with via.refuses("CONDITION_FAILED", "sample 'y' (and 1 more of the call) does not fit only_if; nothing was put"):
        via.put("xyz", "a", **taken)
    with pytest.raises(Refused) as caught:
        via.put("y", "a", **taken)
    assert dict(caught.value.details) == {"partition_id": "p", "sample_id": "y"}
    via.put("x", "a", **taken)
    assert via.listed("state == 'new'") == ""


def test_rows_of_a_group_are_put_under_a_condition_as_well(via: AnyCaller) -> None:
    group = via.reserve("g", "x", version=3)
    group.put("x", "a", only_if="weight_version == 3")
    with via.refuses("CONDITION_FAILED", "'x'"):
        group.put("x", tags={"std": 1}, only_if="std == 0")


@ON_ONE_WAY
def test_of_many_callers_that_take_a_row_one_does(client: DataPlaneClient, threads: ThreadPoolExecutor) -> None:
    client.register_partition("p", ["a"], 1, ["train"])
    client.put_samples(["s0"], "p", tags=[{"state": "new"}])

    def take(caller: int) -> bool:
        try:
            client.put_samples(["s0"], "p", tags=[{"state": "taken", "by": caller}], only_if="state == 'new'")
        except ConditionFailedError:
            return False
        return True

    took = list(threads.map(take, range(8)))
    assert took.count(True) == 1
    assert client.list_samples("p", where={"state": "taken", "by": took.index(True)}).meta.sample_ids == ["s0"]


EQUAL = pb.FILTER_OPERATOR_EQUAL


@ON_ONE_WAY
@pytest.mark.parametrize(
    ("term", "words"),
    [
        (pb.FilterTerm(tag="a"), "filter, term 1: operator 0 is unknown to this server; it knows 1, 2, "),
        (pb.FilterTerm(operator=99, tag="a"), "filter, term 1: operator 99 is unknown"),  # type: ignore[arg-type]
        (pb.FilterTerm(operator=EQUAL, fact=9), "fact 9 is unknown to this server; it knows 1, 2, 3"),  # type: ignore[arg-type]
        (pb.FilterTerm(operator=EQUAL, fact=1, tag="a"), "it names a fact and the tag 'a'"),  # type: ignore[arg-type]
        (pb.FilterTerm(operator=EQUAL, tag="a", values=b"\xc1"), "its values are not valid msgpack"),
        (pb.FilterTerm(operator=EQUAL, tag="a", values=msgpack.packb(1)), "must be a msgpack array, got int"),
        (pb.FilterTerm(operator=EQUAL, tag="a", values=msgpack.packb([[1]])), "a value is a number of at most 64 bits"),
        (pb.FilterTerm(operator=EQUAL, tag="a"), "term 1 ('==' of 'a'): it has 1 values, got 0"),
    ],
)
async def test_a_term_that_the_server_does_not_understand_is_refused_in_words(
    address: str, term: pb.FilterTerm, words: str
) -> None:
    request = pb.ClearSamplesRequest(
        request_id=uuid4().hex, partition_id="p", whole_partition=True, where=pb.Filter(terms=[term])
    )
    async with await aio.connect(address) as client:
        await client.register_partition("p", ["a"], 0, ["train"])
        with pytest.raises(InvalidArgumentError) as caught:
            await client._transport.unary("ClearSamples", request, None)
    assert words in str(caught.value)
