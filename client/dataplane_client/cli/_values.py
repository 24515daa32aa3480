"""`dataplane peek`, `export` and `import`: the values of rows. These commands load torch, unlike the others.

`_lines` and `_parquet` have the two formats of files.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from dataplane_client._connect.options import TransportChoice
from dataplane_client._values.dtypes import dtype_name
from dataplane_client._values.object_leaves import object_array
from dataplane_client.cli import _lines
from dataplane_client.cli._interrupts import catch_interrupts
from dataplane_client.cli._lines import PAGE_ROWS, Row, RowGroup
from dataplane_client.cli._listings import parsed_filter
from dataplane_client.cli._options import FileFormat
from dataplane_client.cli._output import Format, fail, print_json, print_text
from dataplane_client.cli._server import open_server
from dataplane_client.cli._text import plural, tags_text
from dataplane_client.client import DataPlaneClient, Group, connect
from dataplane_client.errors import DataPlaneError
from dataplane_client.records.descriptions import FieldDescription, PartitionDescription
from dataplane_client.records.listings import SampleGroup, SamplePage
from dataplane_client.records.meta import KVBatchMeta, Tag

_COMPRESSED = (".gz", ".zst", ".xz", ".bz2")
_SHOWN = 8
"""Entries of a value that a line shows, at its beginning and at its end."""
_TEXT_FIELDS = ("input_ids", "output_ids", "prompt_ids", "response_ids", "completion_ids")
Decode = Callable[[list[int]], str]


@dataclass(frozen=True)
class Chosen:
    """Which rows: these, or those that fit a filter, at most `most`. fields: none for all. finished: only rows that
    are in no reserved group.
    """

    partition_id: str
    sample_ids: Sequence[str] = ()
    where: str | None = None
    fields: Sequence[str] = ()
    most: int | None = None
    finished: bool = False

    def fields_of(self, partition: PartitionDescription) -> list[FieldDescription]:
        """Ends the command if the partition has not all of the fields."""
        if unknown := [name for name in self.fields if name not in [one.name for one in partition.fields]]:
            fail(f"partition {partition.partition_id!r} has no field {unknown[0]!r}")
        return [one for one in partition.fields if not self.fields or one.name in self.fields]


def peek(chosen: Chosen, tokenizer: str | None, address: str, output: Format, timeout_s: float) -> None:
    """Print rows with their values, shortened."""
    parsed_filter(chosen.where)
    decode = None if tokenizer is None else _decoder(tokenizer)
    with client_or_exit(address, timeout_s) as client:
        rows = list(_rows(client, chosen))
    if output == "json":
        print_json([{"sample_id": row.sample_id, "tags": row.tags, "fields": _shown(row, decode)} for row in rows])
        return
    for row in rows:
        tags = f"  {tags_text(row.tags)}" if row.tags else ""
        print_text(f"{row.sample_id}{tags}", *(f"  {name}  {text}" for name, text in _shown(row, decode).items()), "")
    if not rows:
        print_text("no samples")


def export(chosen: Chosen, path: str, file_format: FileFormat | None, address: str, timeout_s: float) -> None:
    """Write rows to a file; "-" for stdout. Rows of reserved groups are left out: claims do not see them either."""
    parsed_filter(chosen.where)
    with client_or_exit(address, timeout_s, path=path) as client:
        fields, rows = chosen.fields_of(client.partition(chosen.partition_id)), _rows(client, chosen)
        rows = itertools.chain([*itertools.islice(rows, 1)], rows)  # what is wrong shows before the file is emptied
        written = _format_of(path, file_format).write(path, fields, rows)
    print(f"{plural(written, 'row')} exported", file=sys.stderr)  # noqa: T201  # stdout may be the file


def import_rows(
    partition_id: str, path: str, file_format: FileFormat | None, address: str, timeout_s: float, *, replace: bool
) -> None:
    """Put the rows of a file, a page at a time: an error leaves the pages and groups before it. A row or group that
    exists is such an error; with replace it is cleared first.
    """
    put, cleared, form = 0, 0, _format_of(path, file_format)
    with client_or_exit(address, timeout_s, path=path) as client:
        groups = _Groups(client, partition_id, _members(client, partition_id) if replace else {})
        per_token = {one.name for one in client.partition(partition_id).fields if one.per_token}
        for rows, dense in form.read(path):
            if replace:
                cleared += client.clear_samples([row.sample_id for row in rows], partition_id)
            for alike in _alike(rows):
                columns: dict[str, Any] = {name: [row.fields[name] for row in alike] for name in alike[0].fields}
                for name, column in columns.items():
                    if name in dense and name not in per_token:  # entries of these are never padding
                        columns[name] = torch.stack(column)
                    elif not any(isinstance(value, torch.Tensor) for value in column):
                        columns[name] = object_array(name, column, len(column))  # in a list, numbers are no objects
                groups.put(alike, columns)
                put += len(alike)
        groups.finish()
    more = f", {cleared + groups.cleared:,} cleared before" if replace else ""
    print_text(f"{plural(put, 'row')} imported{more}")


class _Groups:
    """Puts rows, those of groups into groups that are committed once they have all their rows, at the latest by
    `finish`. members: rows of groups that exist, and their generations, by group; such a group is cleared when the
    first of its rows comes. cleared: rows cleared so.
    """

    def __init__(self, client: DataPlaneClient, partition_id: str, members: dict[str, dict[str, int]]) -> None:
        self._client = client
        self._partition_id = partition_id
        self._members = members
        self._reserved: dict[str, tuple[RowGroup, Group]] = {}
        self.cleared = 0

    def put(self, alike: Sequence[Row], columns: Mapping[str, Any]) -> None:
        """Rows of one group, or of none."""
        ids, tags, group = [row.sample_id for row in alike], [dict(row.tags) for row in alike], alike[0].group
        if group is None:
            self._client.put_samples(ids, self._partition_id, columns, tags, create_only=True)
            return
        if group.id not in self._reserved:
            self._reserve(group)
        first, reserved = self._reserved[group.id]  # a group may have shrunk while it was exported
        reserved.add(ids, columns, tags)
        if reserved.meta.size >= first.rows:
            del self._reserved[group.id]
            reserved.commit(first.end_weight_version)

    def _reserve(self, group: RowGroup) -> None:
        if former := self._members.pop(group.id, None):
            generations = list(former.values())  # a row may have come again since, in another group
            self.cleared += self._client.clear_samples(list(former), self._partition_id, generations=generations)
        version = group.start_weight_version
        reserved = self._client.reserve_group(self._partition_id, group.id, weight_version=version)
        self._reserved[group.id] = group, reserved

    def finish(self) -> None:
        """Commit groups of which the file has not all rows."""
        for group, reserved in self._reserved.values():
            reserved.commit(group.end_weight_version)
        self._reserved.clear()


def _members(client: DataPlaneClient, partition_id: str) -> dict[str, dict[str, int]]:
    """The rows of each group of a partition, with their generations."""
    members: dict[str, dict[str, int]] = {}
    for page in _pages(client, Chosen(partition_id)):
        for sample_id, generation, group in zip(page.meta, page.meta.generations or (), page.groups, strict=True):
            if group is not None:
                members.setdefault(group.group_id, {})[sample_id] = generation
    return members


# -- rows --------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def client_or_exit(
    address: str, timeout_s: float, transport: TransportChoice = "auto", path: str = ""
) -> Iterator[DataPlaneClient]:
    """A client; an error of the data plane, or of the file at the path, ends the command with exit code 1, and a
    malformed address with 2.
    """
    catch_interrupts()
    with open_server(address, timeout_s):
        pass  # it refuses a malformed address
    try:
        with connect(address, transport=transport, timeout_s=timeout_s, client_name="dataplane-command") as client:
            yield client
    except DataPlaneError as error:
        fail(str(error))
    except BrokenPipeError:
        raise  # who reads the output has seen enough: the command ends without words
    except OSError as error:
        fail(f"{path}: {os.strerror(error.errno) if error.errno else error}")


def _rows(client: DataPlaneClient, chosen: Chosen) -> Iterator[Row]:
    for page in _pages(client, chosen):
        described, meta = client.partition(chosen.partition_id), page.meta
        fields = chosen.fields_of(described)
        names = [one.name for one in fields]
        common = all(one.rows == described.rows for one in fields)
        pieces = [meta] if common else [meta.subset([place]) for place in range(len(meta.sample_ids))]
        rows = (row for piece in pieces for row in _read(client, piece, names, common=common))
        for row, group in zip(rows, page.groups, strict=True):
            yield row if group is None else replace(row, group=_row_group(group))


def _row_group(group: SampleGroup) -> RowGroup:
    return RowGroup(group.group_id, group.rows, group.start_weight_version, group.end_weight_version)


def _pages(client: DataPlaneClient, chosen: Chosen) -> Iterator[SamplePage]:
    """The chosen rows, a page at a time."""
    if chosen.sample_ids:
        meta = KVBatchMeta(chosen.partition_id, None, list(chosen.sample_ids))
        yield SamplePage(meta, None, None, [None] * meta.size)
        return
    page: int | None = None
    left = chosen.most
    while left is None or left:
        size = PAGE_ROWS if left is None else min(PAGE_ROWS, left)
        listed = client.list_samples(chosen.partition_id, where=chosen.where, page_size=size, page=page)
        shown = _finished(listed) if chosen.finished else listed
        if shown.meta.sample_ids:
            yield shown
        left = None if left is None else left - len(listed.meta.sample_ids)
        page = listed.next_page
        if page is None:
            return


def _finished(page: SamplePage) -> SamplePage:
    """The page without rows of reserved groups."""
    left = [place for place, group in enumerate(page.groups) if group is None or not group.reserved]
    return replace(page, meta=page.meta.subset(left), groups=[page.groups[place] for place in left])


def _read(client: DataPlaneClient, meta: KVBatchMeta, names: list[str], *, common: bool) -> Iterator[Row]:
    if not common or meta.tags is None:
        described = [client.sample(meta.partition_id, sample_id) for sample_id in meta.sample_ids]
        gone = [sample_id for sample_id, one in zip(meta.sample_ids, described, strict=True) if not one.resident]
        if gone:
            fail(f"partition {meta.partition_id!r} has no sample {gone[0]!r}")
        names = [name for name in names if all(name in one.fields for one in described)]
        tags: Sequence[Mapping[str, Tag]] = [one.tags for one in described]
    else:
        tags = meta.tags
    batch = client.read_columns(meta, names, layout="jagged") if names else {}
    columns = {name: _split(batch[name]) for name in names}
    for place, sample_id in enumerate(meta.sample_ids):
        yield Row(sample_id, tags[place], {name: column[place] for name, column in columns.items()})


def _split(column: Any) -> Sequence[Any]:
    return column.unbind() if isinstance(column, torch.Tensor) else column


# -- text --------------------------------------------------------------------------------------------------------------


def _shown(row: Row, decode: Decode | None) -> dict[str, str]:
    shown = {}
    for name, value in row.fields.items():
        shown[name] = _value_text(value)
        if decode is not None and name in _TEXT_FIELDS and isinstance(value, torch.Tensor) and value.dim() == 1:
            shown[f"{name} as text"] = repr(decode(value.tolist()))
    return shown


def _value_text(value: Any) -> str:
    if not isinstance(value, torch.Tensor):
        text = repr(value)
        return text if len(text) <= 200 else f"{text[:200]}... ({len(text):,} characters)"
    kind = f"{dtype_name(value.dtype)}{list(value.shape)}"
    flat = value.flatten()
    if len(flat) <= 2 * _SHOWN:
        return f"{kind}  {_numbers(flat)}"
    return f"{kind}  {_numbers(flat[:_SHOWN])} ... {_numbers(flat[-_SHOWN:])}"


def _numbers(flat: torch.Tensor) -> str:
    return " ".join(f"{number:.4g}" if isinstance(number, float) else str(number) for number in flat.tolist())


def _decoder(folder: str) -> Decode:
    """Of the tokenizer in a folder, as transformers save it."""
    try:
        from tokenizers import Tokenizer
    except ImportError:
        fail("--decode needs the package tokenizers")
    file = Path(folder) / "tokenizer.json"
    if not file.is_file():
        fail(f"there is no tokenizer.json in {folder}")
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # noqa: BLE001  # it raises no other
        fail(f"{file}: {error}")
    return lambda ids: str(tokenizer.decode(ids, skip_special_tokens=False))


# -- files -------------------------------------------------------------------------------------------------------------


def _format_of(path: str, file_format: FileFormat | None) -> ModuleType:
    """What reads and writes the file, as its name or the format says."""
    if path.endswith(_COMPRESSED):
        fail(f"{path}: files are not compressed: leave the suffix away, or pass - and a pipe", 2)
    if file_format == "jsonl" or (file_format is None and not path.endswith(".parquet")):
        return _lines
    if path == "-":
        fail("a Parquet file cannot be a pipe: name a file", 2)
    try:
        from dataplane_client.cli import _parquet
    except ImportError as error:
        fail(f"Parquet files need the extra parquet ({error}): pip install 'rl-dataplane[parquet]'")
    return _parquet


def _alike(rows: list[Row]) -> list[list[Row]]:
    """The rows, those with the same group and fields together."""
    found: dict[tuple[RowGroup | None, tuple[str, ...]], list[Row]] = {}
    for row in rows:
        found.setdefault((row.group, tuple(row.fields)), []).append(row)
    return list(found.values())
