"""Requests of unary calls that arrive slowly, or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from dataplane_server.core.calls.refusal import Reason, Refusal
from dataplane_server.service.grpc.incoming import IncomingRequests


async def stream(*messages: bytes, after_s: float = 0.0) -> AsyncIterator[bytes]:
    await asyncio.sleep(after_s)
    for message in messages:
        yield message


@pytest.mark.parametrize(
    ("sent", "text"), [(stream(), "without a request"), (stream(b"x", after_s=60.0), "did not arrive within 0.05 s")]
)
async def test_a_request_that_does_not_come_is_refused(sent: AsyncIterator[bytes], text: str) -> None:
    with pytest.raises(Refusal, match=text) as caught:
        await IncomingRequests(timeout_s=0.05).request(sent)
    assert caught.value.reason is Reason.INVALID_REQUEST


async def test_slow_requests_are_ended_when_there_are_too_many_whether_or_not_others_come() -> None:
    requests = IncomingRequests(most=2)
    slow = [asyncio.create_task(requests.request(stream(b"x", after_s=60.0))) for _ in range(5)]
    await asyncio.sleep(0.1)
    assert await requests.request(stream(b"x")) == b"x"
    assert not any(call.done() for call in slow)
    refusals = await asyncio.gather(*slow[:3], return_exceptions=True)
    assert [getattr(refusal, "metadata", None) for refusal in refusals] == [{"max_half_sent": "2"}] * 3
    for call in slow[3:]:
        assert not call.done()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
