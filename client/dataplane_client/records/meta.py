"""KVBatchMeta: the rows of a call, without their values."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, field, replace
from types import NoneType
from typing import Any, Literal, TypeVar

from dataplane_client._common.arguments import checked_names
from dataplane_client._common.displays import HTML_ROWS, html_table, short_list
from dataplane_client.errors import UnsupportedTypeError

Tag = str | int | float | bool | None
PutOutcome = Literal["created", "replaced", "consumed"]
"""What a put did to a row: created it, or wrote to one that existed. "consumed": that row a task has consumed, and does
not get it again.
"""
PAD_TARGET_KEY = "global_forward_pad_seqlen"
"""Key of a meta's extra_info: the width in tokens to which every rank pads, so that all see tensors of one shape."""
_COLUMNS = ("sequence_lengths", "tags", "generations", "outcomes")
"""Attributes of a meta that have an entry for each row, or are None."""
T = TypeVar("T")


@dataclass(repr=False)
class KVBatchMeta:
    """Rows of one partition, in order, as returned by a put or a claim. `len(meta)` counts them; iterating gives ids.

    partition_id, sample_ids: the rows; the ids are distinct.
    task_name: the task that claimed them; None after a put.
    fields: the fields that were put or required, which get_data reads by default; None when not known.
    sequence_lengths: tokens of each row, or None when not known.
    extra_info: the caller's data for the batch; never sent to the server.
    tags: the tags of each row, or None when not known.
    generations: the generation of each row, or None when not known. A row that is cleared and put again under its id
        has a new generation, and calls with this meta refuse it. Ignored when metas are compared.
    outcomes: after put_samples, what it did to each row; otherwise None. Ignored when metas are compared.

    Methods return new metas, except stamp_tags, which changes this one.
    """

    partition_id: str
    task_name: str | None
    sample_ids: list[str]
    fields: list[str] | None = None
    sequence_lengths: list[int] | None = None
    extra_info: dict[str, object] = field(default_factory=dict)
    tags: list[dict[str, Tag]] | None = None
    generations: list[int] | None = field(default=None, compare=False)
    outcomes: list[PutOutcome] | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        n_rows = len(self.sample_ids)
        for name in _COLUMNS:
            column = getattr(self, name)
            rule = f"{name} must have one entry for each of {n_rows} sample ids, got"
            if not isinstance(column, (Sized, NoneType)):
                raise UnsupportedTypeError(f"{rule} {column!r:.100}")
            if column is not None and len(column) != n_rows:
                raise ValueError(f"{rule} {len(column)}")

    def __len__(self) -> int:
        return len(self.sample_ids)

    def __iter__(self) -> Iterator[str]:
        return iter(self.sample_ids)

    def __repr__(self) -> str:
        flow = self.partition_id if self.task_name is None else f"{self.partition_id}/{self.task_name}"
        ids = short_list(self.sample_ids[:22], 22)
        head = f"<KVBatchMeta {short_list([flow], 22)} {self.size} rows: {ids}"
        return f"{head}>" if self.fields is None else f"{head} with {short_list(self.fields, 93 - len(head))}>"

    def _repr_html_(self) -> str:
        """A table of the first rows, for notebooks."""
        count = range(min(self.size, HTML_ROWS))
        columns = {"sample": self.sample_ids, "tokens": self.sequence_lengths, "tags": self.tags}
        known = {heading: column for heading, column in columns.items() if column is not None}
        return html_table(repr(self), list(known), [[column[row] for column in known.values()] for row in count])

    @property
    def size(self) -> int:
        """Number of rows."""
        return len(self.sample_ids)

    def stamp_tags(self, scalars: Mapping[str, Sequence[Tag]]) -> None:
        """Set tags in place, by column: the value at position i goes to row i, over an older one of that name.

        Raises ValueError for a column of another length; nothing is changed.
        """
        for name, column in scalars.items():
            if isinstance(column, str) or len(column) != self.size:
                raise ValueError(f"tag {name!r} must have one value for each of {self.size} rows, got {column!r:.100}")
        held = self.tags if self.tags is not None else [{} for _ in self.sample_ids]
        self.tags = [{**old, **{name: column[row] for name, column in scalars.items()}} for row, old in enumerate(held)]

    def subset(self, indices: Iterable[int]) -> KVBatchMeta:
        """The rows at the given positions, in that order. Raises IndexError for a position outside 0 to size - 1, and
        TypeError for a mask.
        """
        return self._rows(self._positions("subset", indices))

    def slice(self, start: int, end: int) -> KVBatchMeta:
        """Rows start to end - 1. Bounds beyond the rows are clipped, as for a list."""
        return self._rows(range(self.size)[start:end])

    def drop(self, indices: Iterable[int]) -> KVBatchMeta | None:
        """The rows that are not at the given positions, in their order; None when no row is left.

        Raises as `subset`.
        """
        gone = set(self._positions("drop", indices))
        rest = [index for index in range(self.size) if index not in gone]
        return self.subset(rest) if rest else None

    def without(self, sample_ids: Iterable[str]) -> KVBatchMeta:
        """The rows without the named ones; perhaps none. Ignores ids that the meta does not hold."""
        gone = set(checked_names("sample id", sample_ids, "without"))
        return self.subset(index for index, sample_id in enumerate(self.sample_ids) if sample_id not in gone)

    def with_fields(self, fields: Iterable[str]) -> KVBatchMeta:
        """The same rows, with the fields merged into its own: those first, each once."""
        merged = list(dict.fromkeys([*(self.fields or []), *checked_names("field name", fields, "with_fields")]))
        return replace(self, fields=merged, extra_info=dict(self.extra_info))

    def concat(self, *others: KVBatchMeta) -> KVBatchMeta:
        """The rows of this meta and of others, one after the other. As `joined`."""
        return KVBatchMeta.joined([self, *others])

    @staticmethod
    def joined(metas: Sequence[KVBatchMeta]) -> KVBatchMeta:
        """The rows of several metas, one after the other.

        All must be of one partition. task_name is kept if all agree; fields become the intersection, in the order of
        the first; sequence_lengths, tags, generations and outcomes are kept if all have them. If several metas have a
        key of extra_info, the last one wins. Raises ValueError for no metas, several partitions, and duplicate rows.
        """
        if not metas:
            raise ValueError("there are no metas to join")
        first = metas[0]
        partitions = {meta.partition_id for meta in metas}
        if len(partitions) > 1:
            raise ValueError(f"metas to join must be of one partition, got {', '.join(sorted(partitions))}")
        sample_ids = [sample_id for meta in metas for sample_id in meta.sample_ids]
        if len(set(sample_ids)) != len(sample_ids):
            duplicate = next(id_ for id_, count in Counter(sample_ids).items() if count > 1)
            raise ValueError(f"duplicate sample id {duplicate!r} in the metas to join")
        return KVBatchMeta(
            partition_id=first.partition_id,
            task_name=first.task_name if len({meta.task_name for meta in metas}) == 1 else None,
            sample_ids=sample_ids,
            fields=_common_fields([meta.fields for meta in metas]),
            extra_info={key: value for meta in metas for key, value in meta.extra_info.items()},
            **{name: _joined([getattr(meta, name) for meta in metas]) for name in _COLUMNS},
        )

    def _positions(self, verb: str, indices: Iterable[int]) -> list[int]:
        given = list(indices)
        if any(isinstance(index, bool) or str(getattr(index, "dtype", "")).endswith("bool") for index in given):
            raise UnsupportedTypeError(f"{verb} takes the positions of rows, not a mask")
        chosen = [operator.index(index) for index in given]  # equal tensors are different members of a set
        wrong = [index for index in chosen if not 0 <= index < self.size]
        if wrong:
            raise IndexError(f"row {wrong[0]} is outside a meta of {self.size} rows")
        return chosen

    def _rows(self, places: Sequence[int]) -> KVBatchMeta:
        """A meta with the rows at these places. extra_info is copied unchanged, even if it holds data for each row."""
        columns = {name: getattr(self, name) for name in ("sample_ids", *_COLUMNS)}
        known = {name: column for name, column in columns.items() if column is not None}
        picked: dict[str, Any] = {name: [column[place] for place in places] for name, column in known.items()}
        return replace(self, extra_info=dict(self.extra_info), **picked)


def _joined(columns: Sequence[list[T] | None]) -> list[T] | None:
    known = [column for column in columns if column is not None]
    return [entry for column in known for entry in column] if len(known) == len(columns) else None


def _common_fields(lists: Sequence[list[str] | None]) -> list[str] | None:
    known = [names for names in lists if names is not None]
    if len(known) < len(lists):
        return None
    return [name for name in known[0] if all(name in names for names in known)]


def checked_meta(meta: object, where: str) -> KVBatchMeta:
    if not isinstance(meta, KVBatchMeta):
        own = "; pass its .meta" if isinstance(getattr(meta, "meta", None), KVBatchMeta) else ""
        raise UnsupportedTypeError(f"{where}: the meta must be a KVBatchMeta, got {type(meta).__name__}{own}")
    return meta
