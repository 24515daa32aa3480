"""Objects of the core as bytes and back: what comes back as it was, what is one object afterwards, what is refused."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from typing import Any

import msgpack
import numpy as np
import pytest

from dataplane_server.core.calls.limits import Limits
from dataplane_server.core.calls.refusal import Reason, Refusal
from dataplane_server.core.rows.tags import PooledTags, TagPool
from dataplane_server.core.state.state import Changes
from dataplane_server.durability.graph import Graph, content_of, decode, encode

LONG = np.arange(100_000)


class Given:
    """The bytes of a graph."""

    def __init__(self, graph: Graph) -> None:
        self._pieces: Iterator[bytes] = iter(graph.pieces)
        self._arrays = iter([bytes(content_of(array)) for array in graph.arrays])

    def next(self) -> bytes:
        return next(self._pieces)

    def fill(self, content: memoryview) -> None:
        content[:] = next(self._arrays)


def again(value: object) -> Any:
    return decode(Given(encode({"root": value}, {})))["root"]


@pytest.mark.parametrize(
    "array",
    [
        np.zeros(0, np.int64),
        np.array([True, False]),
        np.array(7, np.uint16),
        np.array([[1, 2], [3, 4]], np.int32).T,
        np.frombuffer(b"12345678", np.uint32),
        LONG,
        LONG[::2],
        LONG.reshape(100, -1),
        np.zeros(100_000, np.bool_),
    ],
    ids=lambda array: f"{array.dtype}{array.shape}",
)
def test_an_array_comes_back_equal_and_can_grow(array: np.ndarray[Any, Any]) -> None:
    found = again([array])[0]
    assert (found.dtype, found.shape) == (array.dtype, array.shape)
    assert found.tobytes() == array.tobytes()
    found.resize(2 * array.size, refcheck=False)
    assert not found[array.size :].any()


def test_an_object_that_is_reachable_twice_is_one_object_afterwards() -> None:
    changes, column = Changes(), LONG.copy()
    changes.facts = [changes, {"rows": column}, [column, changes.tasks], (changes.tasks,)]  # type: ignore[list-item]
    found = again(changes)
    itself, rows, listed, tupled = found.facts
    assert itself is found
    assert rows["rows"] is listed[0]
    assert found.tasks is listed[1] is tupled[0]


def test_shared_tags_come_back_with_their_pool() -> None:
    pool = TagPool()
    rows = [pool.own({"step": 1, "kind": "math"})[0] for _ in range(3)]
    found_pool, found = again([pool, rows])
    assert [type(tags) for tags in found] == [PooledTags] * 3
    assert found[0] is found[2]
    assert (found[0], found[0].key, found[0].rows) == (rows[0], rows[0].key, 3)  # type: ignore[attr-defined]
    for tags in found:
        found_pool.release(tags)
    assert found_pool.size_bytes == pool.size_bytes - rows[0].size_bytes  # type: ignore[attr-defined]


def test_what_is_given_instead_of_an_attribute_is_stored_in_its_place() -> None:
    changes = Changes()
    changes.facts = [lambda: 0]  # type: ignore[list-item]
    found = decode(Given(encode({"root": changes}, {"facts": (1, "a")})))["root"]
    assert (found.facts, found.tasks) == ((1, "a"), {})


class Stranger:
    """Not of the core."""


class StrangeRefusal(Refusal):
    """Derived from a class of the core, and not of the core."""


@pytest.mark.parametrize(
    ("value", "what"),
    [
        (Stranger(), "Stranger"),
        (StrangeRefusal(Reason.DUPLICATE, ""), "StrangeRefusal"),
        (lambda: 0, "function"),
        (functools.partial(print), "partial"),
        (pytest, "module"),
        (Limits, "type"),
        (iter(()), "iterator"),
        (1 << 64, "64 bits"),
        ((1 << 70, 1), "64 bits"),
        (np.array([None]), "object"),
        (np.array([1], ">i8"), ">i8"),
        (frozenset({(1,)}), "frozenset"),
        ([].append, "builtin_function_or_method"),
        (TagPool().own, "method"),
        (math.inf.__class__.__add__, "wrapper"),
    ],
    ids=lambda value: str(value) if isinstance(value, str) else type(value).__name__,
)
def test_what_is_not_of_the_core_is_refused_with_the_path_to_it(value: object, what: str) -> None:
    changes = Changes()
    changes.facts = [("a", {"p": [0, value]})]  # type: ignore[list-item]
    with pytest.raises(TypeError, match=what) as caught:
        encode({"state": {"q": changes}}, {})
    path = str(caught.value).split()[0]
    assert path in ("state['q'].facts[0][1]['p']", "state['q'].facts[0][1]['p'][1]")


def index(layouts: object = (), kinds: object = (), values: int = 0, *, root: int = 0, pieces: int = 0) -> list[object]:
    return [["text"], layouts, kinds, values, [int(values > 0), pieces], {"root": root}]


REFUSED: dict[str, list[object]] = {
    "another index": [[1]],
    "a number of nothing": [index(root=5)],
    "a class of another module": [index([["os.system"]], [5])],
    "a class that the core does not have": [index([["calls.limits.Nothing"]], [5])],
    "a method as an attribute": [index([["calls.limits.Limits", "validate"]], [5])],
    "a special attribute": [index([["calls.limits.Limits", "__class__"]], [5])],
    "a class whose objects are not made of attributes": [index([["calls.refusal.Reason"]], [5])],
    "too few attributes": [index([["calls.limits.Limits", "max_rows"]], [5], pieces=1), [[0, []]]],
    "an item that does not exist": [index(kinds=[2], pieces=1), [[2, [77]]]],
    "too few nodes": [index(kinds=[2], pieces=1), []],
    "a record that is none": [index(values=1, root=-1), [[1, "calls.limits.Limits", 0, []]]],
    "an array of objects": [index(values=1, root=-1), [[3, "|O", [1], b"12345678"]]],
    "an array that is too short": [index(values=1, root=-1), [[3, "<i8", [2], b"12345678"]]],
    "an unknown member": [index(values=1, root=-1), [[6, "calls.refusal.Reason", "NOTHING"]]],
    "an unknown type": [index(values=1, root=-1), [[7, "object"]]],
    "an unknown kind of value": [index(kinds=[2], values=1, root=-1), [[8, 0, "append"]]],
}
"""Pieces that are not those of objects."""


@pytest.mark.parametrize(
    "pieces",
    [[b"\xc1"], *(list(map(msgpack.packb, pieces)) for pieces in REFUSED.values())],
    ids=["no MessagePack", *REFUSED],
)
def test_data_that_were_not_encoded_are_refused(pieces: list[bytes]) -> None:
    with pytest.raises(ValueError, match=r"\S"):
        decode(Given(Graph(pieces, [])))
