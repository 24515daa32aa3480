"""Messages to the flow policy of a partition, and back."""

from __future__ import annotations

from dataplane_server.core.calls.flow import DrawBand, EvictFirst, FlowPolicy, WhenFull
from dataplane_server.core.calls.refusal import Reason, Refusal
from dataplane_server.service.translate_filters import filter_message, rows_that_fit
from rl_dataplane.v1 import data_plane_pb2 as pb

_FULL: dict[int, WhenFull] = {
    pb.WHEN_FULL_UNSPECIFIED: "block",
    pb.WHEN_FULL_BLOCK: "block",
    pb.WHEN_FULL_REJECT: "reject",
    pb.WHEN_FULL_EVICT: "evict",
}
_FULL_NUMBERS = {what: pb.WhenFull.ValueType(number) for number, what in _FULL.items()}
_FIRST: dict[int, EvictFirst] = {
    pb.EVICT_FIRST_UNSPECIFIED: "oldest",
    pb.EVICT_FIRST_OLDEST: "oldest",
    pb.EVICT_FIRST_OLDEST_VERSION: "oldest_version",
}
_FIRST_NUMBERS = {what: pb.EvictFirst.ValueType(number) for number, what in _FIRST.items()}


def flow(message: pb.FlowPolicy) -> FlowPolicy:
    for known, number, what in ((_FULL, message.when_full, "when_full"), (_FIRST, message.evict_first, "evict_first")):
        if number not in known:
            raise Refusal(Reason.INVALID_REQUEST, f"unknown {what}: {number}")
    band = message.band
    return FlowPolicy(
        max_rows=message.max_rows if message.HasField("max_rows") else None,
        max_bytes=message.max_bytes if message.HasField("max_bytes") else None,
        max_versions=message.max_versions if message.HasField("max_versions") else None,
        when_full=_FULL[message.when_full],
        evict_first=_FIRST[message.evict_first],
        evict_where=rows_that_fit(message.evict_where),
        band=DrawBand(band.samples_per_insert, band.least, band.most) if message.HasField("band") else None,
    )


def flow_message(policy: FlowPolicy) -> pb.FlowPolicy:
    band = policy.band
    return pb.FlowPolicy(
        max_rows=policy.max_rows,
        max_bytes=policy.max_bytes,
        max_versions=policy.max_versions,
        when_full=_FULL_NUMBERS[policy.when_full],
        evict_first=_FIRST_NUMBERS[policy.evict_first],
        evict_where=filter_message(policy.evict_where) if policy.evict_where else None,
        band=pb.DrawBand(samples_per_insert=band.samples_per_insert, least=band.least, most=band.most)
        if band
        else None,
    )
