"""Frames of the same-host path that carry a trace context."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from opentelemetry.trace import SpanKind
from tests.integration.observe.conftest import Spans
from tests.integration.wire.local_peer import Peer

from dataplane_server.testing import ServerThread
from rl_dataplane.v1 import data_plane_pb2 as plane_pb
from rl_dataplane.v1 import local_pb2 as pb
from rl_dataplane.v1.local_frames import FILE_SUFFIX, TRACED

LIST = pb.LOCAL_METHOD_LIST_PARTITIONS
RESPONSE = plane_pb.ListPartitionsResponse


@pytest.fixture
def way() -> str:
    return "shm"


@pytest.fixture
def peer(tracing_server: ServerThread) -> Iterator[Peer]:
    """A peer that is attached to a server that traces."""
    peer = Peer(tracing_server.addresses[0].removeprefix("unix://") + FILE_SUFFIX)
    assert peer.call(pb.LOCAL_METHOD_ATTACH, b"", pb.AttachResponse).traces
    yield peer
    peer.close()


def test_a_server_that_does_not_trace_says_so(address: str) -> None:
    peer = Peer(address.removeprefix("unix://") + FILE_SUFFIX)
    assert not peer.call(pb.LOCAL_METHOD_ATTACH, b"", pb.AttachResponse).traces
    peer.close()


def test_the_trace_context_precedes_the_message(peer: Peer, spans: Spans) -> None:
    peer.call(LIST | TRACED, f"00-{'a' * 32}-{'b' * 16}-01".encode(), RESPONSE)
    (span,) = spans("ListPartitions", SpanKind.SERVER)
    assert span.parent is not None
    assert (span.parent.trace_id, span.parent.span_id) == (int("a" * 32, 16), int("b" * 16, 16))


@pytest.mark.parametrize("junk", [b"\xff" * 55, b"0" * 55, f"00-{'0' * 32}-{'b' * 16}-01".encode()])
def test_an_invalid_trace_context_begins_a_new_trace(peer: Peer, spans: Spans, junk: bytes) -> None:
    peer.call(LIST | TRACED, junk, RESPONSE)
    (span,) = spans("ListPartitions", SpanKind.SERVER)
    assert span.parent is None


def test_a_body_that_is_shorter_than_a_trace_context_is_refused(peer: Peer, spans: Spans) -> None:
    assert peer.refused(LIST | TRACED) == ("INVALID_REQUEST", "unknown method")
    assert peer.refused(LIST | TRACED, b"0" * 54)[0] == "INVALID_REQUEST"
    peer.call(LIST, b"", RESPONSE)
