"""Draws: which rows can be drawn, in which order, how probable, how often, and that nothing else changes."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Mapping

import numpy as np
import pytest
from tests.core.caller import Caller
from tests.semantics.callers import Caller as AnyCaller
from tests.semantics.conftest import ON_ONE_WAY

from dataplane_client.client import DataPlaneClient
from dataplane_client.errors import InvalidArgumentError, NotFoundError, UnsupportedTypeError
from dataplane_server.core.calls.answers import Drawn
from dataplane_server.core.calls.filters import Filter, Term
from dataplane_server.core.calls.refusal import Reason
from dataplane_server.core.calls.values import DrawStrategy, Tags
from dataplane_server.core.plane import DataPlane
from dataplane_server.core.rows.drawing import MOST_DRAWS

NAMES = "vwxyz"
PRIORITIES = (0.5, 1.0, 2.0, 4.0, 8.0)
# Of chi-square, what random draws exceed once in a thousand times, by degrees of freedom.
MOST = {4: 18.47, 19: 43.82}
OLD: Filter = (Term(">=", "age_s", of_row=True, values=(50,)),)
MATH: Filter = (Term("==", "source", values=("math",)),)


def put(caller: Caller, names: str, tags: Tags | None = None) -> None:
    caller.put(caller.put_call(list(names), {"a": [1] * len(names)}, tags=[tags or {}] * len(names)))


def names_of(caller: Caller, *fields: str, strategy: DrawStrategy = "fifo", **more: object) -> str:
    """The rows that a draw of up to 9 finds."""
    return "".join(caller.draw(*fields, batch_size=9, min_size=1, strategy=strategy, **more).sample_ids)


# -- what can be drawn -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "wishes", "expected"),
    [
        ((), {}, "uvwxyz"),
        (("a",), {}, "uvwxyz"),
        (("a", "b"), {}, "z"),
        ((), {"task": "score"}, "uvwxyz"),
        ((), {"task": "train"}, "yz"),
        ((), {"where": MATH}, "wx"),
        ((), {"where": OLD}, "uv"),
        ((), {"strategy": "prioritized", "priority_tag": "p"}, "xyz"),
        ((), {"strategy": "prioritized", "priority_tag": "p", "where": MATH}, "x"),
    ],
)
def test_rows_are_drawn_that_fit_whatever_tasks_have_done_with_them(
    caller: Caller, fields: tuple[str, ...], wishes: Mapping[str, object], expected: str
) -> None:
    caller.set_policy(1)
    put(caller, "uv", {"p": -1.0, "weight_version": 2})
    caller.pass_time(100.0)
    put(caller, "w", {"source": "math", "p": float("inf"), "weight_version": 2})
    put(caller, "x", {"source": "math", "p": 3})
    put(caller, "y", {"p": True, "weight_version": 4})
    put(caller, "z", {"p": 1e-300, "weight_version": 5})
    caller.put_rows(["z"], "b")
    caller.reserve("g", ["hidden"])
    caller.take("a", task="score", batch_size=2)
    caller.commit(caller.take("a", task="score", batch_size=2).claim_id)
    before = caller.state()
    assert "".join(sorted(names_of(caller, *fields, **wishes))) == expected  # type: ignore[arg-type]
    assert caller.state() == before


@pytest.mark.parametrize(("when_stale", "expected"), [("withhold", "yz"), ("deliver", "xyz"), ("drop", "yz")])
def test_the_bound_of_the_named_task_holds_and_moves_with_the_version(
    caller: Caller, when_stale: str, expected: str
) -> None:
    caller.set_policy(1, when_stale=when_stale)
    caller.put_versions(x=1, y=2, z=3)
    assert names_of(caller, task="train") == expected
    caller.set_version(4)
    drawn = caller.draw(batch_size=9, min_size=1, strategy="lifo", task="train")
    assert (drawn.sample_ids[0], drawn.staleness[0]) == ("z", 1)
    assert ("y" in drawn.sample_ids) == (when_stale == "deliver")


def test_fifo_and_lifo_follow_the_arrival_of_rows_not_their_places(caller: Caller) -> None:
    put(caller, "abc")
    caller.clear(["a", "b"])
    put(caller, "dea")
    assert names_of(caller) == "cdea"
    assert caller.draw(batch_size=2, strategy="fifo").sample_ids == ("c", "d")
    assert caller.draw(batch_size=3, strategy="lifo").sample_ids == ("a", "e", "d")


def test_drawn_rows_are_told_as_claimed_ones_and_stay_for_their_tasks(via: AnyCaller) -> None:
    via.register(per_token_fields=["a"])
    for number, row in enumerate("uvwxyz"):
        via.put(row, "a", size=number + 1, version=number, tags={"n": number})
    drawn = via.draw("a", size=4)
    numbers = ["uvwxyz".index(row) for row in drawn.ids]
    assert len(set(drawn.ids)) == 4
    assert (drawn.draws, drawn.probabilities) == ([1] * 4, [1 / 6] * 4)
    assert drawn.staleness == [5 - number for number in numbers]
    assert drawn.sequence_lengths == [number + 1 for number in numbers]
    assert [tags["n"] for tags in drawn.tags] == numbers
    assert via.claim("a", size=6).ids == "uvwxyz"
    again = via.draw("a", size=6, strategy="lifo")
    assert again.ids == "zyxwvu"
    assert again.draws == [1 + (row in drawn.ids) for row in again.ids]
    assert again.generations == sorted(again.generations, reverse=True)


def test_draws_keep_to_what_they_name(via: AnyCaller) -> None:
    for number, row in enumerate("uvwxyz"):
        via.put(row, "a", version=number, tags={"p": 0.0 if row == "z" else 2.0**number})
    by_priority = {"strategy": "prioritized", "priority_tag": "p"}
    drawn = via.draw(size=9, least=1, **by_priority)
    expected = {row: 2.0**number / 31 for number, row in enumerate("uvwxy")}
    assert dict(zip(drawn.ids, drawn.probabilities, strict=True)) == pytest.approx(expected, rel=1e-6)
    via.put("uvwxyz", tags=[{"p": 1.0}] * 5 + [{"p": 16.0}])
    drawn = via.draw(size=6, priority_exponent=0.5, **by_priority)
    shown = dict(zip(drawn.ids, drawn.probabilities, strict=True))
    assert shown == pytest.approx({row: (4.0 if row == "z" else 1.0) / 9 for row in "uvwxyz"}, rel=1e-6)
    via.set_policy(max_staleness=2)
    assert via.draw(size=9, least=1, strategy="fifo", task="train").ids == "xyz"
    rest = via.draw(size=9, least=1, strategy="fifo", max_times_sampled=3, where="age_s < 3600")
    assert rest.ids == "uvwz"
    assert via.draw(size=3, seed=7).ids == via.draw(size=3, seed=7).ids


def test_a_draw_of_more_than_there_is_says_what_the_others_lack(via: AnyCaller) -> None:
    via.put("wx", "a")
    via.put("yz", "a", "b")
    via.reserve("g", "v")
    words = ("at least 3 rows wanted; 2 of 5 resident rows", "1 belong to groups that are", "2 lack field 'b'")
    with via.refuses("TOO_FEW_ROWS", *words):
        via.draw("a", "b", size=9, least=3)
    assert sorted(via.draw("b", size=9, least=2).ids) == ["y", "z"]


# -- how often ---------------------------------------------------------------------------------------------------------


def test_a_row_that_was_drawn_often_enough_is_not_drawn(caller: Caller) -> None:
    put(caller, "xyz")
    assert caller.draw(batch_size=2, strategy="fifo").draws.tolist() == [1, 1]
    assert caller.draw(batch_size=2, strategy="fifo", max_times_sampled=2).sample_ids == ("x", "y")
    assert names_of(caller, max_times_sampled=2) == "z"
    with caller.refuses(Reason.TOO_FEW_ROWS, "2 were drawn 2 times (max_times_sampled)"):
        caller.draw(batch_size=2, max_times_sampled=2)
    caller.put_rows(["x"], "b")
    assert caller.draw(strategy="fifo").draws.tolist() == [3]
    caller.clear(["x"])
    put(caller, "x")
    assert caller.draw(strategy="lifo").draws.tolist() == [1]


def test_a_repeated_request_gets_the_same_rows_which_count_once(caller: Caller) -> None:
    put(caller, "vwxyz")
    call = caller.draw_call(batch_size=3)
    first, again = caller.apply(call), caller.apply(call)
    assert repr(again) == repr(first)
    assert sorted(caller.draw(batch_size=5).draws.tolist()) == [1, 1, 2, 2, 2]


# -- chance ------------------------------------------------------------------------------------------------------------


def test_the_same_seed_draws_the_same_rows_and_others_draw_others(new_caller: Callable[..., Caller]) -> None:
    def draws(seed: int) -> Drawn:
        caller = new_caller()
        caller.register()
        caller.put_rows([f"s{i}" for i in range(100)], "a")
        return caller.draw(batch_size=10, seed=seed)

    assert repr(draws(7)) == repr(draws(7))
    assert len({draws(seed).sample_ids for seed in (0, 1, (1 << 64) - 1)}) == 3


@pytest.mark.parametrize(
    ("exponent", "strategy"), [(1.0, "uniform"), (0.0, "prioritized"), (0.6, "prioritized"), (1.0, "prioritized")]
)
def test_draws_are_as_probable_as_their_weights_say(exponent: float, strategy: DrawStrategy) -> None:
    caller = Caller(DataPlane().limits)
    caller.register()
    for name, priority in zip(NAMES, PRIORITIES, strict=True):
        put(caller, name, {"p": priority})
    call = caller.draw_call(batch_size=2, strategy=strategy, priority_tag="p" * (strategy == "prioritized"))
    firsts, pairs = Counter[str](), Counter[str]()
    for seed in range(trials := 2000):
        call = dataclasses.replace(call, request_id=f"r{seed}", seed=seed, priority_exponent=exponent)
        drawn = DataPlane.apply(caller.plane, call, 0.0)
        assert isinstance(drawn, Drawn)
        firsts[drawn.sample_ids[0]] += 1
        pairs["".join(drawn.sample_ids)] += 1
    weights = [priority**exponent if strategy == "prioritized" else 1.0 for priority in PRIORITIES]
    share = {name: weight / sum(weights) for name, weight in zip(NAMES, weights, strict=True)}
    last = caller.plane.apply(dataclasses.replace(call, request_id="last"), 0.0)
    assert isinstance(last, Drawn)
    shown = dict(zip(last.sample_ids, last.probabilities.tolist(), strict=True))
    assert shown == pytest.approx({name: share[name] for name in shown}, rel=1e-6)
    of_pairs = {one + two: share[one] * share[two] / (1 - share[one]) for one in NAMES for two in NAMES if one != two}
    for counts, expected in ((firsts, share), (pairs, of_pairs)):
        distance = sum((counts[each] - trials * part) ** 2 / (trials * part) for each, part in expected.items())
        assert distance < MOST[len(expected) - 1]


# -- refusals ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wishes", "words"),
    [
        ({"batch_size": 0}, "1 <= min_size <= batch_size <= 65536, got min_size 0"),
        ({"min_size": 2}, "got min_size 2 and batch_size 1"),
        ({"batch_size": 65_537}, "batch_size 65537"),
        ({"strategy": "prioritized"}, "that is prioritized needs priority_tag"),
        ({"priority_tag": "x"}, "that is uniform has no priority_tag, got 'x'"),
        ({"priority_exponent": -0.1}, "at least 0, got -0.1"),
        ({"priority_exponent": float("nan")}, "finite priority_exponent"),
        ({"max_times_sampled": MOST_DRAWS + 1}, "max_times_sampled of 0 to 4294967295"),
        ({"where": (Term("and"),)}, "filter, term 1"),
    ],
)
def test_a_malformed_draw_is_refused_by_name(caller: Caller, wishes: Mapping[str, object], words: str) -> None:
    put(caller, "x")
    with caller.refuses(Reason.INVALID_REQUEST, words):
        caller.draw(**wishes)


@ON_ONE_WAY
def test_what_is_wrong_in_a_draw_is_told_to_a_client(client: DataPlaneClient) -> None:
    client.register_partition("p", ["x"], 0, ["train"])
    for wrong, error, words in (
        ({"strategy": "best"}, InvalidArgumentError, "strategy must be one of"),
        ({"priority_exponent": "1"}, UnsupportedTypeError, "priority_exponent must be a number"),
        ({"max_times_sampled": 0}, InvalidArgumentError, "max_times_sampled must be 1 to"),
        ({"seed": -1}, InvalidArgumentError, "seed must be 0 to"),
        ({"task_name": "judge"}, NotFoundError, "no task 'judge'"),
    ):
        with pytest.raises(error, match=words):
            client.draw_samples("p", ["x"], 1, **wrong)


def test_remembered_draws_count_as_memory_of_answers(new_caller: Callable[..., Caller]) -> None:
    caller = new_caller(bookkeeping_bytes=1 << 20)
    caller.register()
    caller.put_rows([f"s{i}" for i in range(100)], "a")
    first = caller.draw_call(batch_size=100)
    caller.apply(first)
    for _ in range(20):
        caller.draw(batch_size=100)
    again = caller.apply(first)
    assert isinstance(again, Drawn)
    assert np.unique(again.draws).tolist() == [22]  # it was forgotten, so this is another draw
