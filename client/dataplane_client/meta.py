"""KVBatchMeta: the rows of a call, without their values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeVar

Tag = str | int | float | bool | None
T = TypeVar("T")


class _Pick(Protocol):
    def __call__(self, column: list[T]) -> list[T]: ...


@dataclass(frozen=True)
class _At:
    indices: list[int]

    def __call__(self, column: list[T]) -> list[T]:
        return [column[index] for index in self.indices]


@dataclass(frozen=True)
class _Between:
    start: int
    end: int

    def __call__(self, column: list[T]) -> list[T]:
        return column[self.start : self.end]


@dataclass(frozen=True)
class KVBatchMeta:
    """Rows of one partition, in order, as returned by a put or a claim.

    partition_id, sample_ids: the rows; the ids are distinct.
    task_name: the task that claimed them; None after a put.
    fields: the fields that were put or required, which get_data reads by default; None when not known.
    sequence_lengths: tokens of each row, or None when not known.
    extra_info: the caller's data for the batch; never sent to the server.
    tags: the tags of each row, or None when not known.
    generations: the generation of each row, or None when not known. A row that is cleared and put again under its id
        has a new generation, and calls with this meta refuse it. Ignored when metas are compared.

    Metas are values: every method returns a new one and does not change this one.
    """

    partition_id: str
    task_name: str | None
    sample_ids: list[str]
    fields: list[str] | None = None
    sequence_lengths: list[int] | None = None
    extra_info: dict[str, object] = field(default_factory=dict)
    tags: list[dict[str, Tag]] | None = None
    generations: list[int] | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        for name in ("sequence_lengths", "tags", "generations"):
            column = getattr(self, name)
            if column is not None and len(column) != self.size:
                raise ValueError(f"{name} must have one entry for each of {self.size} sample ids, got {len(column)}")

    @property
    def size(self) -> int:
        """Number of rows."""
        return len(self.sample_ids)

    def stamp_tags(self, tags: Mapping[str, Tag] | Sequence[Mapping[str, Tag]]) -> KVBatchMeta:
        """A meta with tags merged into those of each row. tags: one mapping for all rows, or one for each."""
        rows = [tags] * self.size if isinstance(tags, Mapping) else list(tags)
        if len(rows) != self.size:
            raise ValueError(f"tags for {len(rows)} rows, but the meta has {self.size}")
        held = self.tags if self.tags is not None else [{} for _ in rows]
        stamped = [{**old, **new} for old, new in zip(held, rows, strict=True)]
        return replace(self, tags=stamped, extra_info=dict(self.extra_info))

    def subset(self, indices: Iterable[int]) -> KVBatchMeta:
        """The rows at the given positions, in that order. Raises IndexError for a position outside 0 to size - 1."""
        chosen = list(indices)
        wrong = [index for index in chosen if not 0 <= index < self.size]
        if wrong:
            raise IndexError(f"row {wrong[0]} is outside a meta of {self.size} rows")
        return self._rows(_At(chosen))

    def slice(self, start: int, end: int) -> KVBatchMeta:
        """Rows start to end - 1. Bounds beyond the rows are clipped, as for a list."""
        return self._rows(_Between(start, end))

    def drop(self, sample_ids: Iterable[str]) -> KVBatchMeta:
        """The rows without the named ones. Ignores ids that the meta does not hold."""
        gone = set(sample_ids)
        return self.subset(index for index, sample_id in enumerate(self.sample_ids) if sample_id not in gone)

    def with_fields(self, fields: Sequence[str] | None) -> KVBatchMeta:
        """The same rows with other fields."""
        named = None if fields is None else list(fields)
        return replace(self, fields=named, extra_info=dict(self.extra_info))

    @staticmethod
    def concat(metas: Sequence[KVBatchMeta]) -> KVBatchMeta:
        """The rows of several metas, one after the other.

        All must be of one partition. task_name is kept if all agree; fields become the intersection, in the order of
        the first; sequence_lengths, tags and generations are kept if all have them. If several metas have a key of
        extra_info, the last one wins. Raises ValueError for no metas, several partitions, and duplicate rows.
        """
        if not metas:
            raise ValueError("concat needs at least one meta")
        first = metas[0]
        partitions = {meta.partition_id for meta in metas}
        if len(partitions) > 1:
            raise ValueError(f"metas to concat must be of one partition, got {', '.join(sorted(partitions))}")
        sample_ids = [sample_id for meta in metas for sample_id in meta.sample_ids]
        if len(set(sample_ids)) != len(sample_ids):
            duplicate = next(id_ for id_, count in Counter(sample_ids).items() if count > 1)
            raise ValueError(f"duplicate sample id {duplicate!r} in the metas to concat")
        return KVBatchMeta(
            partition_id=first.partition_id,
            task_name=first.task_name if len({meta.task_name for meta in metas}) == 1 else None,
            sample_ids=sample_ids,
            fields=_common_fields([meta.fields for meta in metas]),
            sequence_lengths=_joined([meta.sequence_lengths for meta in metas]),
            extra_info={key: value for meta in metas for key, value in meta.extra_info.items()},
            tags=_joined([meta.tags for meta in metas]),
            generations=_joined([meta.generations for meta in metas]),
        )

    def _rows(self, pick: _Pick) -> KVBatchMeta:
        """A meta with the picked rows. extra_info is copied unchanged, even if it holds data for each row."""
        return replace(
            self,
            sample_ids=pick(self.sample_ids),
            sequence_lengths=None if self.sequence_lengths is None else pick(self.sequence_lengths),
            tags=None if self.tags is None else pick(self.tags),
            generations=None if self.generations is None else pick(self.generations),
            extra_info=dict(self.extra_info),
        )


def _joined(columns: Sequence[list[T] | None]) -> list[T] | None:
    known = [column for column in columns if column is not None]
    return [entry for column in known for entry in column] if len(known) == len(columns) else None


def _common_fields(lists: Sequence[list[str] | None]) -> list[str] | None:
    known = [names for names in lists if names is not None]
    if len(known) < len(lists):
        return None
    return [name for name in known[0] if all(name in names for names in known)]
