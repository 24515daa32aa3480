"""TransferQueue's names for rows: `KVBatchMeta` by keys, `BatchMeta` by numbers.

Both are columns with one entry a row. A row's number (its global index) is our generation, which no other row ever
has. So a meta that is kept across a clear is refused, and never reads or writes the row that has the key later.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Any, TypeVar

from dataplane_transfer_queue._not_served import absent_member

T = TypeVar("T")

_COLUMNS = ("global_indexes", "partition_ids", "production_status", "custom_meta", "keys")


@dataclass
class KVBatchMeta:
    """Rows of one partition by key. Raises ValueError for keys that come twice, or another number of tags.

    tags: of each row. fields: those that every row holds; None if not known. extra_info: the caller's.
    """

    keys: list[str] = field(default_factory=list)
    tags: list[dict[str, Any]] = field(default_factory=list)
    partition_id: str | None = None
    fields: list[str] | None = None
    extra_info: dict[str, Any] | None = field(default_factory=dict)

    def __post_init__(self) -> None:
        if len(self.keys) != len(self.tags):
            raise ValueError(f"KVBatchMeta: {len(self.keys)} keys, but tags for {len(self.tags)}")
        _check_distinct("key", self.keys)

    @property
    def size(self) -> int:
        """Number of rows."""
        return len(self.keys)

    def __len__(self) -> int:
        return len(self.keys)

    def select_keys(self, keys_to_select: Sequence[str]) -> KVBatchMeta:
        """The rows of these keys, in this order. Raises ValueError for a key that comes twice, RuntimeError for one
        that is not here.
        """
        _check_distinct("key", keys_to_select)
        at = {key: row for row, key in enumerate(self.keys)}
        if unknown := [key for key in keys_to_select if key not in at]:
            raise RuntimeError(f"KVBatchMeta: keys {unknown} are not among its {self.size} rows")
        return self._rows([at[key] for key in keys_to_select])

    def reorder(self, indexes: Sequence[int]) -> None:
        """Put row indexes[i] at place i, in place. Raises ValueError unless indexes has each row once."""
        _check_permutation(indexes, self.size)
        self.keys, self.tags = _at(self.keys, indexes), _at(self.tags, indexes)

    def chunk(self, chunks: int) -> list[KVBatchMeta]:
        """Parts of the rows in order; the first ones have one more if they do not divide."""
        return [self._rows(part) for part in _parts(self.size, chunks)]

    @classmethod
    def concat(cls, data: Sequence[KVBatchMeta]) -> KVBatchMeta:
        """The rows of several metas, one after the other; those without rows are left out. Raises ValueError for other
        partitions, fields, or values of extra_info, and for a key that comes twice.
        """
        metas = [meta for meta in data if meta.size]
        if not metas:
            return cls()
        first = metas[0]
        for meta in metas:
            if meta.partition_id != first.partition_id or set(meta.fields or ()) != set(first.fields or ()):
                mine, others = (first.partition_id, first.fields), (meta.partition_id, meta.fields)
                raise ValueError(f"KVBatchMeta.concat: partition and fields are {others}, but the first has {mine}")
        return cls(
            [key for meta in metas for key in meta.keys],
            [tags for meta in metas for tags in meta.tags],
            first.partition_id,
            first.fields,
            _merged_info("KVBatchMeta.concat", [meta.extra_info or {} for meta in metas]),
        )

    def _rows(self, rows: Sequence[int]) -> KVBatchMeta:
        info = copy.deepcopy(self.extra_info)
        return KVBatchMeta(_at(self.keys, rows), _at(self.tags, rows), self.partition_id, self.fields, info)


class BatchMeta:
    """Rows by number, perhaps of several partitions. Raises ValueError for columns of different lengths.

    global_indexes, partition_ids: of each row. field_schema: by the names of the fields, what the caller knows of them;
    or the names. production_status: of each row, 1 if it holds the fields. extra_info: the caller's. custom_meta: the
    tags of each row. keys: of each row; None if not known, then the first call that needs them asks the server.
    """

    def __init__(
        self,
        global_indexes: Sequence[int],
        partition_ids: Sequence[str],
        field_schema: Mapping[str, Mapping[str, Any]] | Iterable[str] = (),
        production_status: Iterable[int] | None = None,
        extra_info: Mapping[str, Any] | None = None,
        custom_meta: Sequence[Mapping[str, Any]] | None = None,
        *,
        keys: Sequence[str] | None = None,
    ) -> None:
        self.global_indexes = list(global_indexes)
        self.partition_ids = list(partition_ids)
        named = field_schema if isinstance(field_schema, Mapping) else {name: {} for name in field_schema or ()}
        self.field_schema = {name: dict(schema) for name, schema in named.items()}
        self.production_status = [0] * self.size if production_status is None else list(map(int, production_status))
        self.extra_info = dict(extra_info or {})
        self.custom_meta = [{} for _ in self.global_indexes] if custom_meta is None else list(map(dict, custom_meta))
        self.keys = None if keys is None else list(keys)
        for name in _COLUMNS:
            column = getattr(self, name)
            if column is not None and len(column) != self.size:
                raise ValueError(f"BatchMeta: {self.size} global_indexes, but {name} for {len(column)}")

    if not TYPE_CHECKING:  # a type checker would accept any name

        def __getattr__(self, name: str) -> Any:
            raise absent_member("BatchMeta", name)

    def __repr__(self) -> str:
        return f"BatchMeta(size={self.size}, field_names={self.field_names}, is_ready={self.is_ready})"

    def __len__(self) -> int:
        return self.size

    @property
    def size(self) -> int:
        """Number of rows."""
        return len(self.global_indexes)

    @property
    def field_names(self) -> list[str]:
        """The fields, sorted."""
        return sorted(self.field_schema)

    @property
    def is_ready(self) -> bool:
        """Whether there are rows, and each holds the fields."""
        return bool(self.size) and all(self.production_status)

    @classmethod
    def empty(cls, extra_info: Mapping[str, Any] | None = None) -> BatchMeta:
        """A meta without rows."""
        return cls([], [], extra_info=extra_info)

    def copy(self) -> BatchMeta:
        """A deep copy."""
        return copy.deepcopy(self)

    def get_extra_info(self, key: str, default: Any = None) -> Any:
        """One of extra_info."""
        return self.extra_info.get(key, default)

    def get_all_extra_info(self) -> dict[str, Any]:
        """A deep copy of extra_info."""
        return copy.deepcopy(self.extra_info)

    def has_extra_info(self, key: str) -> bool:
        """Whether extra_info has a key."""
        return key in self.extra_info

    def set_extra_info(self, key: str, value: Any) -> None:
        """Set one of extra_info."""
        self.extra_info[key] = value

    def update_extra_info(self, info_dict: Mapping[str, Any]) -> None:
        """Set several of extra_info."""
        self.extra_info.update(info_dict)

    def remove_extra_info(self, key: str) -> Any:
        """Remove one of extra_info, if it is there, and return it."""
        return self.extra_info.pop(key, None)

    def clear_extra_info(self) -> None:
        """Remove all extra_info."""
        self.extra_info.clear()

    def get_all_custom_meta(self) -> list[dict[str, Any]]:
        """A deep copy of the tags of each row."""
        return copy.deepcopy(self.custom_meta)

    def clear_custom_meta(self) -> None:
        """Forget the tags; those of the rows in the server stay."""
        self.custom_meta = [{} for _ in range(self.size)]

    def update_custom_meta(self, custom_meta: Sequence[Mapping[str, Any]]) -> None:
        """Merge tags into those of each row, in place. ValueError for another number of rows."""
        if len(custom_meta) != self.size:
            raise ValueError(f"BatchMeta: custom_meta for {len(custom_meta)} rows, but the batch has {self.size}")
        self.custom_meta = [{**old, **new} for old, new in zip(self.custom_meta, custom_meta, strict=True)]

    def select_samples(self, sample_indices: Sequence[int]) -> BatchMeta:
        """The rows at these places, in this order, also twice. ValueError for a place outside 0 to size - 1."""
        if wrong := [row for row in sample_indices if not 0 <= row < self.size]:
            raise ValueError(f"BatchMeta: row {wrong[0]} is not in 0 to {self.size - 1}")
        chosen = self.copy()
        _take(chosen, sample_indices)
        return chosen

    def select_fields(self, field_names: Iterable[str]) -> BatchMeta:
        """The same rows with these of the fields; names of others are left out."""
        chosen = self.copy()
        wanted = set(field_names)
        chosen.field_schema = {name: schema for name, schema in chosen.field_schema.items() if name in wanted}
        return chosen

    def reorder(self, indices: Sequence[int]) -> None:
        """Put row indices[i] at place i, in place. Raises ValueError unless indices has each row once."""
        _check_permutation(indices, self.size)
        _take(self, indices)

    def chunk(self, chunks: int) -> list[BatchMeta]:
        """Parts of the rows in order; the first ones have one more if they do not divide."""
        return [self.select_samples(part) for part in _parts(self.size, chunks)]

    def chunk_by_partition(self) -> list[BatchMeta]:
        """A part for each partition, in the order of its first row."""
        ids = list(dict.fromkeys(self.partition_ids))
        by_id = sorted(range(self.size), key=lambda row: ids.index(self.partition_ids[row]))
        return [self.select_samples(list(rows)) for _, rows in groupby(by_id, key=lambda row: self.partition_ids[row])]

    def union(self, other: BatchMeta) -> BatchMeta:
        """The fields of both, which must be of the same rows (ValueError); tags and extra_info of the other win. A meta
        without rows adds nothing.
        """
        if not self.size or not other.size:
            return (self if self.size else other).copy()
        for name in ("global_indexes", "partition_ids"):
            if getattr(self, name) != getattr(other, name):
                raise ValueError(f"BatchMeta.union: {name} are {getattr(self, name)} and {getattr(other, name)}")
        both = self.copy()
        both.field_schema |= copy.deepcopy(other.field_schema)
        both.extra_info |= copy.deepcopy(other.extra_info)
        both.custom_meta = copy.deepcopy(other.custom_meta)
        both.production_status = list(map(min, self.production_status, other.production_status))
        return both

    @classmethod
    def concat(cls, data: Sequence[BatchMeta], validate: bool = True) -> BatchMeta:
        """The rows of several metas, one after the other; those without rows are left out. validate: raise ValueError
        for other fields than the first has. Raises ValueError for other values of extra_info.
        """
        metas = [meta for meta in data if meta.size]
        if not metas:
            return cls.empty()
        for meta in metas:
            if validate and meta.field_names != metas[0].field_names:
                mine, others = metas[0].field_names, meta.field_names
                raise ValueError(f"BatchMeta.concat: a meta has the fields {others}, but the first has {mine}")
        known = [meta.keys for meta in metas if meta.keys is not None]
        return cls(
            [number for meta in metas for number in meta.global_indexes],
            [name for meta in metas for name in meta.partition_ids],
            metas[0].field_schema,
            [status for meta in metas for status in meta.production_status],
            _merged_info("BatchMeta.concat", [meta.extra_info for meta in metas]),
            [tags for meta in metas for tags in meta.custom_meta],
            keys=[key for keys in known for key in keys] if len(known) == len(metas) else None,
        )


def _take(meta: BatchMeta, rows: Sequence[int]) -> None:
    for name in _COLUMNS:
        column = getattr(meta, name)
        setattr(meta, name, None if column is None else _at(column, rows))


def _at(column: Sequence[T], rows: Sequence[int]) -> list[T]:
    return [column[row] for row in rows]


def _parts(size: int, chunks: int) -> list[range]:
    """Parts of one size, of which the first ones have one more."""
    if chunks < 1:
        raise ValueError(f"chunk: the number of parts must be at least 1, got {chunks}")
    each, more = divmod(size, chunks)
    ends = [part * each + min(part, more) for part in range(chunks + 1)]
    return [range(start, end) for start, end in pairwise(ends)]


def _check_distinct(what: str, names: Sequence[object]) -> None:
    if len(set(names)) != len(names):
        twice = next(name for place, name in enumerate(names) if name in names[:place])
        raise ValueError(f"{what} {twice!r} comes twice")


def _check_permutation(indexes: Sequence[int], size: int) -> None:
    if sorted(indexes) != list(range(size)):
        raise ValueError(f"to reorder {size} rows takes each of 0 to {size - 1} once, got {list(indexes)}")


def _merged_info(call: str, infos: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    for info in infos:
        for name, value in info.items():
            if name in merged and merged[name] != value:
                raise ValueError(f"{call}: extra_info {name!r} is {merged[name]!r} and {value!r}")
            merged[name] = value
    return merged
