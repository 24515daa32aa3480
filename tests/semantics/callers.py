"""One caller of a data plane, told in few words, and what carries its calls: nothing (the core) or a client.

An example that uses a `Caller` holds for each of them. Rows are named by letters: "xy" are the rows x and y. Values are
bytes, jagged, and a caller that carries them checks that they come back as they were put.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import pytest

Tags = Mapping[str, Any]
A_co = TypeVar("A_co", covariant=True)


class Refused(Exception):
    """The call was refused. reason: the name of the contract's ErrorReason."""

    def __init__(self, reason: str, message: str, details: Mapping[str, str]) -> None:
        super().__init__(f"{reason}: {message}")
        self.reason = reason
        self.message = message
        self.details = details


@dataclass
class Rows:
    """Rows that a claim or a draw got, in their order. sequence_lengths, staleness: -1 where unknown. groups: id, rows
    and versions of start and end, for whole groups. draws, probabilities: of a draw.
    """

    ids: str
    claim_id: str = ""
    tags: list[Tags] = field(default_factory=list)
    generations: list[int] = field(default_factory=list)
    sequence_lengths: list[int] = field(default_factory=list)
    deliveries: list[int] = field(default_factory=list)
    staleness: list[int] = field(default_factory=list)
    groups: list[tuple[str, int, int | None, int | None]] = field(default_factory=list)
    draws: list[int] = field(default_factory=list)
    probabilities: list[float] = field(default_factory=list)
    held: Any = None
    """What the caller needs to end it."""


class Begun(Protocol[A_co]):
    """A call that was made, and may have to wait in the data plane."""

    def answer(self) -> A_co:
        """What it was answered. Raises Refused."""

    def in_vain(self) -> Refused:
        """How it was refused when its timeout was over."""


class Group(Protocol):
    """A reserved group."""

    def put(self, ids: str, *fields: str, add: bool = False, **more: Any) -> str:
        """Returns why its producer may stop, "" if it need not."""

    def append(self, ids: str, size: int = 1, *, field: str = "a", tags: Tags | None = None) -> None:
        """Add `size` entries to each of the rows."""

    def share(self, field: str, size: int) -> None:
        """One value for all rows."""

    def finish(self, version: int | None = None) -> int:
        """Returns its rows."""

    def abort(self) -> int:
        """Returns its rows."""


class Caller(Protocol):
    """One caller. Its partition is "p"; tasks are "train" if none is named, and claims and draws take a row if no size
    is. `where` and `only_if` are expressions as in docs/semantics.md.
    """

    def register(self, fields: str = "ab", tasks: Sequence[str] = ("train", "score"), **more: Any) -> None: ...

    def begin_put(self, ids: str, *fields: str, timeout_s: float | None = None, **more: Any) -> Begun[list[int]]:
        """Values of `size` bytes in each of the fields, if any. more: size, tags (one for all rows or one for each),
        version (of the weights), sequence_lengths, generations, only_if, create_only. The answer is the generations.
        """

    def append(self, ids: str, size: int = 1, *, field: str = "a", claim: Rows | None = None) -> None: ...

    def begin_claim(self, *fields: str, timeout_s: float | None = None, **more: Any) -> Begun[Rows]:
        """more: size, least, task, whole_groups, unit, max_tokens, where, order, order_tag."""

    def begin_draw(self, *fields: str, timeout_s: float | None = None, **more: Any) -> Begun[Rows]:
        """more: size, least, task, strategy, priority_tag, priority_exponent, max_times_sampled, seed, where."""

    def begin_reserve(
        self, group: str, ids: str = "", *, version: int | None = None, timeout_s: float | None = None
    ) -> Begun[Group]: ...

    def commit(self, claim: Rows, **sizes: int) -> int:
        """Values of so many bytes are written to the fields that are named. Returns the rows that were consumed."""

    def release(self, claim: Rows, *, delay_s: float = 0.0, reason: str = "") -> int: ...

    def reset(self, ids: str | None = None) -> int: ...

    def clear(
        self, ids: str | None = None, *, where: str | None = None, generations: Sequence[int] | None = None
    ) -> int: ...

    def set_policy(self, task: str = "train", **policy: Any) -> None: ...

    def set_flow(self, **flow: Any) -> None:
        """A band is (samples_per_insert, least, most)."""

    def set_version(self, version: int, retire_below: int | None = None) -> int:
        """Returns the rows that were retired."""

    def close(self) -> int:
        """The partition gets no more rows. Returns how many waiting claims that ended."""

    def drop(self) -> None: ...

    def listed(self, where: str | None = None) -> str:
        """The rows that fit."""

    def sizes(self, ids: str, field: str) -> Sequence[int]:
        """Read a field of the rows: the number of entries in each."""

    def partition(self) -> Any:
        """The description; its names are the same everywhere."""

    def used(self) -> int:
        """Bytes of memory in use."""

    def waiting(self) -> int:
        """How many calls wait in the data plane."""

    def put(self, ids: str, *fields: str, **more: Any) -> list[int]:
        return self.begin_put(ids, *fields, **more).answer()

    def claim(self, *fields: str, **more: Any) -> Rows:
        return self.begin_claim(*fields, **more).answer()

    def draw(self, *fields: str, **more: Any) -> Rows:
        return self.begin_draw(*fields, **more).answer()

    def reserve(self, group: str, ids: str = "", **more: Any) -> Group:
        return self.begin_reserve(group, ids, **more).answer()

    def put_group(self, group: str, ids: str, *fields: str, **more: Any) -> None:
        """A group that is finished."""
        reserved = self.reserve(group, ids)
        reserved.put(ids, *(fields or ("a",)), **more)
        reserved.finish()

    def task(self, name: str = "train") -> Any:
        return next(task for task in self.partition().tasks if task.task == name)

    @contextlib.contextmanager
    def refuses(self, reason: str, *words: str) -> Iterator[None]:
        """The block is refused for this reason, in a message with these words, and changes nothing."""
        before = self.partition(), self.used(), self.waiting()
        with pytest.raises(Refused) as caught:
            yield
        assert caught.value.reason == reason, caught.value
        assert [word for word in words if word not in caught.value.message] == [], caught.value.message
        assert (self.partition(), self.used(), self.waiting()) == before


def each(ids: str, tags: Tags | Sequence[Tags] | None, version: int | None) -> list[Tags] | None:
    """The tags of each row."""
    if tags is None and version is None:
        return None
    given = [tags or {}] * len(ids) if tags is None or isinstance(tags, Mapping) else list(tags)
    return given if version is None else [{**of_row, "weight_version": version} for of_row in given]
