"""Lists of rows, claims and sessions as messages."""

from __future__ import annotations

from collections.abc import Iterable

from dataplane_server.core.calls.listings import ClaimInfo, OpenSessionInfo, SamplePage, WaitInfo
from dataplane_server.service.translate import duration, int64_bytes, packed_tags
from rl_dataplane.v1 import data_plane_pb2 as pb


def samples(page: SamplePage) -> pb.ListSamplesResponse:
    return pb.ListSamplesResponse(
        sample_ids=page.sample_ids,
        generations=int64_bytes(page.generations),
        sequence_lengths=int64_bytes(page.sequence_lengths),
        row_tags=map(packed_tags, page.tags),
        states=b"" if page.states is None else page.states.tobytes(),
        next_page_token=page.next_page,
    )


def claims(open_claims: Iterable[ClaimInfo], waits: Iterable[WaitInfo]) -> pb.ListClaimsResponse:
    return pb.ListClaimsResponse(claims=map(_claim, open_claims), waiting=map(_wait, waits))


def _claim(claim: ClaimInfo) -> pb.OpenClaim:
    return pb.OpenClaim(
        claim_id=claim.claim_id,
        partition_id=claim.partition_id,
        task=claim.task,
        rows=claim.rows,
        age=duration(claim.age_s),
        session_ids=claim.session_ids,
        client_names=claim.client_names,
        step=claim.step,
        dp_rank=claim.dp_rank,
    )


def _wait(wait: WaitInfo) -> pb.WaitingClaim:
    return pb.WaitingClaim(
        partition_id=wait.partition_id,
        task=wait.task,
        required_fields=wait.required_fields,
        min_size=wait.min_size,
        age=duration(wait.age_s),
        client_name=wait.client_name,
        ready=wait.ready,
        lacking_rows=wait.lacking,
    )


def sessions(infos: Iterable[OpenSessionInfo]) -> pb.ListSessionsResponse:
    return pb.ListSessionsResponse(
        sessions=[
            pb.OpenSessionStatus(
                session_id=info.session_id,
                client_name=info.client_name,
                grace=duration(info.grace_s),
                silence=duration(info.silent_s),
                claims=info.claims,
                claimed_rows=info.rows,
                open_groups=info.groups,
            )
            for info in infos
        ]
    )
