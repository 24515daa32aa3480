"""Streams of values that stand still: so many are carried, as many wait, and others are refused at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from google.rpc import error_details_pb2
from tests.integration.wire.conftest import unpacked
from tests.integration.wire.test_put_streams import frame, header

from dataplane_client import aio
from dataplane_server.service.grpc.value_streams import MAX_STREAMS
from rl_dataplane.v1 import data_plane_pb2 as pb
from rl_dataplane.v1 import data_plane_pb2_grpc as pb_grpc


async def test_streams_beyond_the_bound_wait_then_are_refused_and_commits_go_on(
    address: str, async_client: aio.AsyncDataPlaneClient
) -> None:
    await async_client.register_partition("p", ["x", "y"], 0, ["train"])
    await async_client.put_samples(["a"], "p", {"x": [1]})
    go_on = asyncio.Event()

    async def halves(name: str) -> AsyncIterator[pb.PutSamplesRequest]:
        put = header(12, sample_ids=[name], partition_id="q", wait_timeout=Duration(seconds=10_000))
        yield frame(put, (0, b"x" * 4))
        await go_on.wait()
        yield frame(chunk=(4, b"x" * 8))

    await async_client.register_partition("q", ["x"], 0, ["train"])
    async with grpc.aio.insecure_channel(address) as channel:
        stub = pb_grpc.DataPlaneServiceStub(channel)
        puts: list[asyncio.Future[pb.PutSamplesResponse]] = []
        while len(puts) < 2 * MAX_STREAMS:
            puts += [asyncio.ensure_future(stub.PutSamples(halves(f"s{len(puts) + n}"))) for n in range(16)]
            while (await async_client.server_status()).memory_used_bytes < len(puts) * 12:  # noqa: ASYNC110  # it tells
                await asyncio.sleep(0.01)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.PutSamples(halves("one too many"))
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert f"{MAX_STREAMS} streams carry values already, and {MAX_STREAMS} wait" in str(refused.value.details())
        assert unpacked(refused.value, error_details_pb2.RetryInfo()).retry_delay.ToTimedelta().total_seconds() == 1
        async with await async_client.claim("p", "train", ["x"], 1) as claim:
            await claim.commit({"y": [2]})
        await async_client.put_samples(["small"], "p", {"x": [1]})
        go_on.set()
        assert [answer.created_rows for answer in await asyncio.gather(*puts)] == [1] * (2 * MAX_STREAMS)
