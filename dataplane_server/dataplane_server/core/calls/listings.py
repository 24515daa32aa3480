"""What queries about many rows, claims or sessions answer with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from dataplane_server.core.calls.values import Int64Array, Tags


@dataclass(frozen=True, slots=True)
class GroupInfo:
    """A group. rows: how many are resident. reserved: not finished. client_name: of who holds the reservation."""

    group_id: str
    rows: int
    start_weight_version: int | None
    end_weight_version: int | None
    reserved: bool
    client_name: str


@dataclass(frozen=True, slots=True)
class ReservedGroup:
    """A group that is not finished. deadline_in_s: None if it has none. Incomplete ids are the first few."""

    group_id: str
    client: str
    age_s: float
    rows: int
    incomplete_rows: int
    incomplete_sample_ids: tuple[str, ...]
    failed_rows: int
    deadline_in_s: float | None
    min_rows: int
    start_weight_version: int | None


@dataclass(frozen=True, slots=True)
class GivenUpGroup:
    """A group that may not be reserved again. reason: of its last rollback."""

    group_id: str
    attempts: int
    reason: str


@dataclass(frozen=True, slots=True)
class GroupList:
    """groups: the oldest reserved ones. reserved: how many there are."""

    groups: tuple[ReservedGroup, ...]
    reserved: int
    given_up: tuple[GivenUpGroup, ...]


@dataclass(frozen=True, slots=True)
class SamplePage:
    """Rows in order of arrival, one entry a row in each attribute. states: of the task, as indexes of STATE_NAMES; None
    without a task. next_page_token: where the next page begins; 0 if there is none. group_ids: none if no row is in a
    group, else empty for rows outside. groups: those of the rows, each once.
    """

    sample_ids: tuple[str, ...]
    generations: Int64Array
    sequence_lengths: Int64Array
    tags: tuple[Tags, ...]
    states: npt.NDArray[np.uint8] | None
    next_page_token: int
    group_ids: tuple[str, ...] = ()
    groups: tuple[GroupInfo, ...] = ()


@dataclass(frozen=True, slots=True)
class ClaimInfo:
    """An open claim, with the sessions that hold it and the names of their clients. step, dp_rank: of a shard."""

    claim_id: str
    partition_id: str
    task: str
    rows: int
    age_s: float
    session_ids: tuple[str, ...]
    client_names: tuple[str, ...]
    step: int | None = None
    dp_rank: int | None = None


@dataclass(frozen=True, slots=True)
class WaitInfo:
    """A queued claim. ready: rows or groups, as min_size. lacking_rows: rows of the task that lack a required field, by
    field.
    """

    partition_id: str
    task: str
    required_fields: tuple[str, ...]
    min_size: int
    age_s: float
    client_name: str
    ready: int
    lacking_rows: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Holder:
    """What a client holds of the memory budget. lent: to its puts under way. leased: what it reads or views now, which
    rows may have, too. owed: of rows that it reads or views, what has been cleared or replaced meanwhile; what several
    clients read counts for each of them.
    """

    client_name: str
    lent_bytes: int = 0
    leased_bytes: int = 0
    owed_bytes: int = 0


@dataclass(frozen=True, slots=True)
class OpenSessionInfo:
    """An open session. silence_s: since its last heartbeat."""

    session_id: str
    client_name: str
    grace_s: float
    silence_s: float
    claims: int
    claimed_rows: int
    open_groups: int
