"""Every input of the corpus, and others like them, are answered or refused as the targets say, at a bounded cost.

`make fuzz` looks for inputs that break this for as long as it is given; what it finds joins the corpus.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.hostile.fuzz.bounds import TooExpensiveError, bounded
from tests.hostile.fuzz.inputs import DELETE, INSERT, OVERWRITE, damaged, edit, joined, pieces
from tests.hostile.fuzz.targets import CORPUS, TARGETS, corpus

MOST_CORPUS_BYTES = 500_000


@pytest.mark.parametrize("name", TARGETS)
def test_an_input_of_the_corpus_shows_no_defect(name: str) -> None:
    for file, data in corpus(name).items():
        with told(f"{name}/{file}"):
            TARGETS[name](data)


@contextlib.contextmanager
def told(file: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise AssertionError(f"{file} shows {error!r}") from error


@st.composite
def inputs_of(draw: st.DrawFn, name: str) -> bytes:
    """Random bytes, or an input of the corpus after some edits, or several of its inputs in one."""
    known = st.sampled_from(list(corpus(name).values()))
    if draw(st.integers(0, 3)) == 0:
        return draw(st.binary(max_size=300))
    data = draw(known)
    if draw(st.booleans()):
        data = joined([*pieces(data), *pieces(draw(known))])
    places, sizes = st.integers(0, max(len(data), 1)), st.integers(0, 8)
    edits = st.builds(edit, st.integers(0, 4), places, sizes, st.binary(max_size=8))
    return damaged(data, b"".join(draw(st.lists(edits, max_size=4))))


@pytest.mark.parametrize("name", TARGETS)
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_an_input_like_those_of_the_corpus_shows_no_defect(name: str, data: st.DataObject) -> None:
    TARGETS[name](data.draw(inputs_of(name)))


def test_what_was_found_is_small_and_of_targets_that_there_are() -> None:
    assert {path.name for path in CORPUS.iterdir()} <= set(TARGETS)
    assert sum(path.stat().st_size for path in CORPUS.glob("*/*")) < MOST_CORPUS_BYTES


def test_an_input_that_costs_too_much_is_a_defect() -> None:
    target = bounded(lambda data: [None for _ in range(10 ** len(data))].clear(), cpu_s=0.001)
    target(b"1234567")
    target(b"1")
    with pytest.raises(TooExpensiveError, match="6 bytes cost"):
        target(b"123456")


def test_an_input_that_takes_too_much_memory_is_a_defect_also_after_one_that_took_more() -> None:
    target = bounded(lambda data: (bytearray(b"x") * (len(data) << 26)).clear())
    target(b"1234")
    target(b"1")
    with pytest.raises(TooExpensiveError, match="2 bytes cost"):
        target(b"12")


def test_edits_of_an_input_do_what_they_say() -> None:
    edits = edit(OVERWRITE, 1, content=b"XY") + edit(INSERT, 0, content=b">") + edit(DELETE, 4, 2)
    assert damaged(b"abcdef", edits) == b">aXYf"
    assert pieces(joined([b"a", b"", b"bc"])) == [b"a", b"", b"bc"]
