"""RolloutRows: rollouts as columns that the trainer reads, and the one way in which every converter makes them.

A rollout is a list of segments: a prompt and a response, or the messages of a conversation. Its tokens are theirs, one
after the other; its mask is true on the sampled ones; its logprobs are 0 on the others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from dataplane_client.errors import InvalidArgumentError
from dataplane_client.records.meta import KVBatchMeta, Tag
from dataplane_common.number_array import number_array

if TYPE_CHECKING:
    from dataplane_client.client import DataPlaneClient

PER_TOKEN_FIELDS: Final = ("input_ids", "token_mask", "generation_logprobs", "routed_experts")
"""The fields with one entry for each token, for `register_partition`."""

Array = npt.NDArray[Any]


@dataclass
class RolloutRows:
    """N rollouts. All lists have N entries; columns may be added, changed and removed before the put.

    sample_ids: `{group id}_g{number in the group}`. group_ids: of each row; those of a prompt are equal.
    columns, with T tokens in a row:

    - input_ids: T int64; token_mask: T bool, true on sampled tokens; generation_logprobs: T float32, 0 on other tokens
    - input_lengths: T; sample_mask: 1.0
    - response: the text, if the generator returns it
    - routed_experts: (T, layers, top_k), if the generator returns them
    - turn_lengths: the tokens of each message, of message logs only

    tags: what else the generator returns: finish_reason, stop_reason, request_id, cached_tokens.
    """

    sample_ids: list[str]
    group_ids: list[str]
    columns: dict[str, list[Any] | Array]
    tags: list[dict[str, Tag]]

    def put(
        self,
        client: DataPlaneClient,
        partition_id: str,
        *,
        weight_version: int | None = None,
        grouped: bool = True,
        timeout_s: float | None = None,
    ) -> KVBatchMeta:
        """Put the rows. Returns their meta, in the order of their groups.

        grouped: put the rows of each prompt as a group; each group is there whole or not at all, and a failure leaves
        those before it. Otherwise all rows are one put. weight_version: of the weights that sampled them. timeout_s:
        of each call to the server. Blocks and raises as reserve_group, or put_samples with create_only: no row that
        exists is replaced.
        """
        self._check()
        if not self.sample_ids:
            return KVBatchMeta(partition_id, None, [])
        if not grouped:
            version = {} if weight_version is None else {"weight_version": weight_version}
            tags = [{**version, **tags} for tags in self.tags]
            return client.put_samples(
                self.sample_ids, partition_id, self.columns, tags, create_only=True, timeout_s=timeout_s
            )
        metas = []
        of_one_type = {name: _of_one_type(column) for name, column in self.columns.items()}
        for group_id, rows in self._groups().items():
            ids, tags = [self.sample_ids[row] for row in rows], [self.tags[row] for row in rows]
            columns = {name: [column[row] for row in rows] for name, column in of_one_type.items()}
            reserved = client.reserve_group(
                partition_id, group_id, ids, weight_version=weight_version, timeout_s=timeout_s
            )
            with reserved as group:
                metas.append(group.put(ids, columns, tags, timeout_s=timeout_s))
        return KVBatchMeta.joined(metas)

    def _check(self) -> None:
        rows = len(self.sample_ids)
        for name, column in self.columns.items():
            if len(column) != rows:
                raise InvalidArgumentError(f"column {name!r} has {len(column)} entries for {rows} rows")

    def _groups(self) -> dict[str, list[int]]:
        """The positions of each group's rows."""
        groups: dict[str, list[int]] = {}
        for row, group_id in enumerate(self.group_ids):
            groups.setdefault(group_id, []).append(row)
        return groups


def _of_one_type(column: list[Any] | Array) -> list[Any] | Array:
    """Integers beside floats become floats, as in one put: otherwise a group of integers alone has another type."""
    kinds = set(map(type, column))
    return list(map(float, column)) if kinds == {int, float} else column


class Segment(NamedTuple):
    """Adjacent tokens of a rollout. logprobs: of sampled tokens, None if the generator has not told them."""

    token_ids: object
    sampled: bool = False
    logprobs: object = None


class Rollout(NamedTuple):
    """One row before it is part of a batch. where: its name in errors."""

    where: str
    group_id: str
    columns: dict[str, Any]
    tags: dict[str, Tag]


def make_rollout(
    where: str,
    group_id: str,
    segments: Iterable[Segment],
    *,
    logprobs: bool,
    columns: Mapping[str, object] | None = None,
    tags: Mapping[str, Tag] | None = None,
) -> Rollout:
    """A rollout of segments. logprobs: whether it must have them; otherwise it has no generation_logprobs.

    columns, tags: what else the row has; entries that are None are left out. InvalidArgumentError, which names the
    rollout, for token ids that are no integers, and for logprobs that are missing, no numbers, or too few or many.
    """
    ids, mask, values = [], [], []
    for segment in segments:
        ids.append(number_array(f"{where}: token ids", segment.token_ids, "iu", np.int64))
        mask.append(np.full(len(ids[-1]), segment.sampled))
        values.append(_logprobs(where, segment, len(ids[-1])) if logprobs else np.zeros(0, np.float32))
    own = {"input_ids": np.concatenate(ids), "token_mask": np.concatenate(mask)}
    if logprobs:
        own["generation_logprobs"] = np.concatenate(values)
    given = {name: value for name, value in (columns or {}).items() if value is not None}
    return Rollout(where, group_id, {**own, **given}, {k: tag for k, tag in (tags or {}).items() if tag is not None})


def collect(rollouts: Sequence[Rollout]) -> RolloutRows:
    """The batch of rollouts, in their order. InvalidArgumentError for one that lacks a column of another."""
    names = {name: rollout.where for rollout in rollouts for name in rollout.columns}
    for rollout in rollouts:
        if missing := names.keys() - rollout.columns.keys():
            name = min(missing)
            raise InvalidArgumentError(f"{rollout.where} has no {name}, but {names[name]} has")
    sizes = np.array([len(rollout.columns["input_ids"]) for rollout in rollouts], np.int64)
    columns: dict[str, list[Any] | Array] = {name: [row.columns[name] for row in rollouts] for name in names}
    columns |= {"input_lengths": sizes, "sample_mask": np.ones(len(rollouts), np.float32)}
    counts: Counter[str] = Counter()
    sample_ids = []
    for rollout in rollouts:
        sample_ids.append(f"{rollout.group_id}_g{counts[rollout.group_id]}")
        counts[rollout.group_id] += 1
    return RolloutRows(
        sample_ids,
        [rollout.group_id for rollout in rollouts],
        columns,
        [rollout.tags for rollout in rollouts],
    )


def names_of(what: str, given: Sequence[str] | None, natural: Sequence[object]) -> list[str]:
    """The group ids of prompts: those given, otherwise what the generator calls them. what: a name of the prompts."""
    names = list(natural if given is None else given)
    if len(names) != len(natural):
        raise InvalidArgumentError(f"{len(names)} group_ids for {len(natural)} {what}; give one for each")
    wrong = next((number for number, name in enumerate(names) if not isinstance(name, str) or not name), None)
    if wrong is not None:
        raise InvalidArgumentError(f"{what} {wrong}: the group id must be a text, got {names[wrong]!r}; give group_ids")
    return [str(name) for name in names]


def _logprobs(where: str, segment: Segment, tokens: int) -> Array:
    if not segment.sampled:
        return np.zeros(tokens, np.float32)
    if segment.logprobs is None:
        raise InvalidArgumentError(
            f"{where} has no logprobs; ask the generator for them, or pass logprobs=False to put rows without them"
        )
    values = number_array(f"{where}: logprobs", segment.logprobs, "fiu", np.float32)
    if len(values) != tokens:
        raise InvalidArgumentError(f"{where} has {len(values)} logprobs for {tokens} tokens")
    return values
