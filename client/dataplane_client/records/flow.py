"""When a partition takes new rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dataplane_client._common.arguments import checked_choice, checked_count, checked_number
from dataplane_client.errors import InvalidArgumentError
from dataplane_client.records.filters import Where, filter_message
from rl_dataplane.v1 import data_plane_pb2 as pb

WhenFull = Literal["block", "reject", "evict"]
EvictFirst = Literal["oldest", "oldest_version"]

_FULL_PREFIX, _FIRST_PREFIX = "WHEN_FULL_", "EVICT_FIRST_"
_MOST = (1 << 62) - 1


@dataclass(frozen=True)
class DrawBand:
    """How far draw_samples may be from puts, as in a rate limiter of a replay buffer. The surplus is
    `samples_per_insert * rows put - rows drawn`, both since the band was set; rows that failed or were rolled back
    count as not put. A surplus above 0 ends when the last row leaves, unless that was evicted: no draw could use it up.
    New rows wait while they would raise it above `most`, and draws while they would lower it below `least`; in a closed
    partition such draws are refused. The band must be at least 1 + samples_per_insert wide; a call whose rows are wider
    than the band is refused.
    """

    samples_per_insert: float
    least: float
    most: float


@dataclass(frozen=True)
class FlowPolicy:
    """When a partition takes new rows: puts that create some, and groups that are reserved. Writes to rows that exist,
    write-backs, commits and puts to reserved groups are never held up, so that rows can be consumed and cleared.

    Budgets, None for none. max_rows: resident rows, with those of puts under way. max_bytes: bytes of their values.
    max_versions: how many weight versions they may span, up to the partition's. What a group receives beyond the rows
    that were named when it was reserved may exceed a budget.

    when_full: "block": new rows wait until there is room, first come first served, until the timeout of their call;
    then PartitionFullError. "reject": PartitionFullError at once. "evict": other rows are removed with their whole
    groups, as few as are enough, and are counted in removed_rows["evicted"]. Rows that a claim holds and rows of
    reserved groups stay; if the others are too few, none is evicted, and the new rows wait.

    evict_first: "oldest" (put first) or "oldest_version" (rows without a weight version last). evict_where: only rows
    that fit this filter are evicted. band: None for none.
    """

    max_rows: int | None = None
    max_bytes: int | None = None
    max_versions: int | None = None
    when_full: WhenFull = "block"
    evict_first: EvictFirst = "oldest"
    evict_where: Where | None = None
    band: DrawBand | None = None

    def __post_init__(self) -> None:
        flow_message(self, "FlowPolicy")  # refuses what is wrong where it is written, not at set_policies


def flow_message(flow: FlowPolicy, where: str) -> pb.FlowPolicy:
    if not isinstance(flow, FlowPolicy):
        raise InvalidArgumentError(f"{where}: flow must be a FlowPolicy, got {flow!r}")
    when_full = checked_choice("when_full", flow.when_full, WhenFull, where)
    evict_first = checked_choice("evict_first", flow.evict_first, EvictFirst, where)
    return pb.FlowPolicy(
        max_rows=_budget("max_rows", flow.max_rows, where),
        max_bytes=_budget("max_bytes", flow.max_bytes, where),
        max_versions=_budget("max_versions", flow.max_versions, where),
        when_full=pb.WhenFull.Value(_FULL_PREFIX + when_full.upper()),
        evict_first=pb.EvictFirst.Value(_FIRST_PREFIX + evict_first.upper()),
        evict_where=filter_message(flow.evict_where, where),
        band=None if flow.band is None else _band_message(flow.band, where),
    )


def _band_message(band: DrawBand, where: str) -> pb.DrawBand:
    if not isinstance(band, DrawBand):
        raise InvalidArgumentError(f"{where}: band must be a DrawBand, got {band!r}")
    return pb.DrawBand(**{name: checked_number(name, value, where) for name, value in vars(band).items()})


def _budget(name: str, value: int | None, where: str) -> int | None:
    return None if value is None else checked_count(name, value, where, least=1, most=_MOST)
