"""Rows by key, in partitions that no caller registers.

- A partition is made by its first put, open to any field.
- Metas tell tags and fields of rows as they are after all puts. A put tells generations; a page of the listing that
  begins with a generation tells tags. The fields that all of some rows hold are found without reading a value: the
  server refuses a read that also asks for a field that no row has, and names the first field that a row lacks.
- Whether a field has shapes (see `_values`) never changes once it has values, so each process remembers it. Where the
  partition was made anew meanwhile, the server refuses a put of the other kind, and a read sees by what it got that
  the process must ask again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any

from tensordict import TensorDict

from dataplane_client.client import DataPlaneClient
from dataplane_client.errors import ConditionFailedError, InvalidArgumentError, NotFoundError
from dataplane_client.records.descriptions import PartitionDescription
from dataplane_client.records.listings import SamplePage
from dataplane_client.records.meta import KVBatchMeta as RowMeta
from dataplane_transfer_queue._values import SHAPE, are_entries, given_columns, stored_columns

TASK = "train"
"""The task with which partitions are made. `verl` samples by it."""

_NOTHING = SHAPE
"""A field that no row has, and a tag that no row has."""
_PAGE_ROWS = 1 << 16
_LAST = (1 << 63) - 1


class Rows:
    """The rows of one server. Any number of threads may use it; it can be pickled, as the client can."""

    def __init__(self, client: DataPlaneClient) -> None:
        self.client = client
        self._has_shapes: dict[str, dict[str, bool]] = {}

    # -- partitions ----------------------------------------------------------------------------------------------------

    def ensure(self, partition_id: str) -> None:
        """Make a partition unless it exists."""
        if partition_id not in self._has_shapes and self.known(partition_id) is None:
            self._make(partition_id, TASK)

    def ensure_task(self, partition_id: str, task: str) -> None:
        """Make a partition unless it exists, and declare a task unless it is."""
        described = self.known(partition_id)
        if described is None:
            self._make(partition_id, TASK, task)
        elif task not in described.task_names:
            self.client.extend_partition(partition_id, consumer_tasks=[task])

    def _make(self, partition_id: str, *tasks: str) -> None:
        self.client.register_partition(partition_id, [_NOTHING], 0, sorted(set(tasks)), open=True)
        self._has_shapes[partition_id] = {}

    def describe(self, partition_id: str) -> PartitionDescription:
        """Describe a partition as it is now. Raises NotFoundError."""
        described = self.client.partition(partition_id)
        held = [field.name for field in described.fields if field.kind is not None]
        known = {name: name + SHAPE in held for name in held if not name.endswith(SHAPE)}
        if partition_id not in self._has_shapes and _NOTHING not in [field.name for field in described.fields]:
            self.client.extend_partition(partition_id, fields=[_NOTHING])
        self._has_shapes[partition_id] = known
        return described

    def known(self, partition_id: str) -> PartitionDescription | None:
        """As describe; None for an unknown partition."""
        try:
            return self.describe(partition_id)
        except NotFoundError:
            return None

    def forget(self, partition_id: str | None = None) -> None:
        """What was known of a partition, or of all, may have changed."""
        for name in list(self._has_shapes) if partition_id is None else [partition_id]:
            self._has_shapes.pop(name, None)

    def _known(self, partition_id: str, names: Sequence[str]) -> Mapping[str, bool]:
        """Of fields that hold values, whether they have shapes."""
        known = self._has_shapes.get(partition_id, {})
        if any(name not in known for name in names):
            self.describe(partition_id)
            known = self._has_shapes.get(partition_id, {})
        return known

    # -- puts ----------------------------------------------------------------------------------------------------------

    def put(
        self,
        keys: Sequence[str],
        partition_id: str,
        fields: Mapping[str, Any] | None = None,
        tags: Sequence[Mapping[str, Any]] | None = None,
        generations: Sequence[int] | None = None,
    ) -> list[int]:
        """Write columns and tags of rows, atomically, and return their generations. generations: as in put_samples.

        Raises ValueError for a field that has rows of at most one dimension where this put has more, or the reverse,
        and the errors of put_samples.
        """
        columns = {} if fields is None else stored_columns(fields, len(keys))
        try:
            return self._put(keys, partition_id, columns, tags, generations)
        except NotFoundError as error:
            if error.reason != "PARTITION_NOT_FOUND" or generations is not None:
                raise
            self.forget(partition_id)  # another process has dropped it
            return self._put(keys, partition_id, columns, tags, generations)

    def _put(
        self,
        keys: Sequence[str],
        partition_id: str,
        columns: Mapping[str, object],
        tags: Sequence[Mapping[str, Any]] | None,
        generations: Sequence[int] | None,
    ) -> list[int]:
        if generations is None:
            self.ensure(partition_id)
        shaped = {name: name + SHAPE in columns for name in columns if not name.endswith(SHAPE)}
        known = self._known(partition_id, list(shaped))
        if any(known.get(name, is_shaped) != is_shaped for name, is_shaped in shaped.items()):
            self.forget(partition_id)  # another process may have made it anew
            known = self._known(partition_id, list(shaped))
        for name, is_shaped in shaped.items():
            if known.get(name, is_shaped) != is_shaped:
                here, there = ("more than", "at most") if is_shaped else ("at most", "more than")
                raise InvalidArgumentError(
                    f"partition {partition_id!r}, field {name!r}: rows of this put have {here} one dimension, those "
                    f"that the field holds have {there} one; put them into a field of another name"
                )
        meta = self.client.put_samples(keys, partition_id, columns, tags, generations=generations)
        return list(meta.generations or ())

    # -- reads ---------------------------------------------------------------------------------------------------------

    def get(
        self,
        keys: Sequence[str],
        partition_id: str,
        names: Sequence[str],
        generations: Sequence[int] | None = None,
    ) -> TensorDict:
        """Read fields of rows; a key may come twice. Errors as get_data."""
        place = {key: row for row, key in reversed(list(enumerate(keys)))}
        wanted = sorted(place, key=place.__getitem__)
        numbers = None
        if generations is not None:  # of a key with two of them the earlier one, which is not there any more
            oldest = dict(sorted(zip(keys, generations, strict=True), key=itemgetter(1), reverse=True))
            numbers = [oldest[key] for key in wanted]
        meta = RowMeta(partition_id, None, wanted, generations=numbers)
        shapes = self._shapes(partition_id, names)
        found: TensorDict | None = None
        with contextlib.suppress(NotFoundError):
            found = self.client.get_data(meta, [*names, *shapes], layout="auto")
        if found is None or any(are_entries(found.get(name)) for name in names if name + SHAPE not in shapes):
            self.forget(partition_id)  # another process may have made it anew
            shapes = self._shapes(partition_id, names)
            found = self.client.get_data(meta, [*names, *shapes], layout="auto")
        if len(wanted) == len(keys):
            return given_columns(found, names)
        at = {key: row for row, key in enumerate(wanted)}
        return given_columns(found, names, [at[key] for key in keys])

    def _shapes(self, partition_id: str, names: Sequence[str]) -> list[str]:
        """The fields of shapes of these fields."""
        known = self._known(partition_id, names)
        return [name + SHAPE for name in names if known.get(name)]

    def fields(self, keys: Sequence[str], partition_id: str) -> list[str]:
        """The fields that all of these rows hold, sorted. Raises NotFoundError for a missing partition; perhaps not for
        a missing row.
        """
        described = self.describe(partition_id)
        names = [field.name for field in described.fields if field.rows >= len(keys) and not field.name.endswith(SHAPE)]
        while names and (lacking := self._lacking(keys, partition_id, names)) != _NOTHING:
            names.remove(lacking)
        return sorted(names)

    def _lacking(self, keys: Sequence[str], partition_id: str, names: Sequence[str]) -> str:
        """The first field that some row lacks."""
        try:
            self.client.get_samples(keys, partition_id, [*names, _NOTHING])
        except NotFoundError as error:
            if error.reason != "FIELD_NOT_PRODUCED":
                raise
            return str(error.details["field"])
        return _NOTHING  # some row has it after all

    def find(self, keys: Sequence[str], partition_id: str) -> dict[str, int]:
        """The generations of the rows that exist. One put that changes nothing if all do, otherwise a listing."""
        try:
            meta = self.client.put_samples(keys, partition_id, tags=[{}] * len(keys), only_if={_NOTHING: None})
        except ConditionFailedError:
            there = {key: generation for generation, key, _ in self.listed(partition_id)}
            return {key: there[key] for key in keys if key in there}
        except NotFoundError:
            return {}
        return dict(zip(keys, meta.generations or (), strict=True))

    def named(self, generations: Sequence[int], partition_id: str) -> dict[int, tuple[str, dict[str, Any]]]:
        """Keys and tags of the rows of these generations, as far as they exist. Lists the rows from the least to the
        greatest of them.
        """
        wanted = set(generations)
        if not wanted:
            return {}
        found = self.listed(partition_id, min(wanted), max(wanted))
        return {generation: (key, tags) for generation, key, tags in found if generation in wanted}

    def listed(self, partition_id: str, first: int = 0, last: int = _LAST) -> Iterator[tuple[int, str, dict[str, Any]]]:
        """Generation, key and tags of the rows of these generations, in order."""
        for page in self.pages(partition_id, first, last):
            meta = page.meta
            for row in zip(meta.generations or (), meta.sample_ids, meta.tags or (), strict=True):
                if row[0] <= last:
                    yield row

    def pages(self, partition_id: str, first: int = 0, last: int = _LAST, **which: Any) -> Iterator[SamplePage]:
        """Pages of a listing that begins with one generation and ends with another, or some rows after it. which: as
        in list_samples.
        """
        start: int | None = first
        while start is not None and start <= last:
            size = min(last - start + 1, _PAGE_ROWS)
            page = self.client.list_samples(partition_id, page=start, page_size=size, **which)
            yield page
            start = page.next_page

    def tags(self, partition_id: str | None) -> dict[str, dict[str, dict[str, Any]]]:
        """Tags by partition and key (None: of all partitions); nothing for an unknown partition."""
        names = [each.partition_id for each in self.client.partitions()] if partition_id is None else [partition_id]
        found = {}
        for name in names:
            with contextlib.suppress(NotFoundError):  # another process may have dropped it since
                found[name] = {key: tags for _, key, tags in self.listed(name)}
        return found
