"""One trace from a client's span to the server's, and links from a claim to the puts of its rows."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import SpanKind, StatusCode
from tests.integration.observe.conftest import Spans
from tests.waiting import eventually

from dataplane_client import observe
from dataplane_client.client import DataPlaneClient, connect, write_columns
from dataplane_client.errors import NotFoundError
from dataplane_client.options import TransportChoice
from dataplane_client.records.meta import Tag
from dataplane_server.testing import ServerThread

TRACER = trace.get_tracer("test")


@pytest.fixture
def traced(tracing_server: ServerThread, transport: TransportChoice, spans: Spans) -> Iterator[DataPlaneClient]:
    """A client that traces, of a server that traces, with partition p."""
    with connect(tracing_server.addresses[0], transport=transport, timeout_s=200.0) as client:
        client.register_partition("p", ["x", "y"], 4, ["train"])
        yield client


def put(client: DataPlaneClient, *ids: str, tokens: int = 1) -> None:
    client.put_samples(ids, "p", {"x": torch.zeros(len(ids), tokens)})


def context_of(span: ReadableSpan) -> tuple[int, int]:
    return span.context.trace_id, span.context.span_id


def parent_of(span: ReadableSpan) -> tuple[int, int]:
    assert span.parent is not None
    return span.parent.trace_id, span.parent.span_id


@pytest.mark.parametrize("verb", ["PutSamples", "ClaimSamples", "ReadColumns", "CommitClaim", "GetPartition"])
def test_the_server_continues_the_trace_of_the_caller(
    traced: DataPlaneClient, spans: Spans, transport: TransportChoice, verb: str
) -> None:
    with TRACER.start_as_current_span("caller") as caller:
        put(traced, "a", "b")
        with traced.claim("p", "train", ["x"], 2) as claim:
            traced.get_data(claim.meta)
        traced.partition("p")
    (client_span,), (server_span,) = spans(verb), spans(verb, SpanKind.SERVER)
    assert parent_of(client_span) == (caller.get_span_context().trace_id, caller.get_span_context().span_id)
    assert parent_of(server_span) == context_of(client_span)
    for span in (client_span, server_span):
        assert span.attributes is not None
        assert span.attributes["dataplane.transport"] == transport
        assert (span.attributes["rpc.service"], span.attributes["rpc.method"]) == (
            "rl_dataplane.v1.DataPlaneService",
            verb,
        )
        assert span.status.status_code is StatusCode.UNSET
    assert client_span.start_time is not None
    assert server_span.start_time is not None
    assert abs(server_span.start_time - client_span.start_time) < 60e9


def test_a_span_has_the_attributes_of_its_call(
    traced: DataPlaneClient, spans: Spans, transport: TransportChoice
) -> None:
    put(traced, "a", "b", tokens=10)
    traced.claim("p", "train", ["x"], 2)
    common = {
        "rpc.system": "grpc" if transport == "grpc" else "rl_dataplane_local",
        "rpc.service": "rl_dataplane.v1.DataPlaneService",
        "dataplane.server": traced.target,
        "dataplane.transport": transport,
        "dataplane.partition": "p",
        "dataplane.rows": 2,
    }
    (put_span,), (claim_span,) = spans("PutSamples"), spans("ClaimSamples")
    assert put_span.attributes == common | {"rpc.method": "PutSamples", "dataplane.bytes": 80}
    claimed = {"rpc.method": "ClaimSamples", "dataplane.task": "train", "dataplane.bytes": 0}
    assert claim_span.attributes == common | claimed


def test_a_put_through_shared_memory_is_one_client_span_and_two_server_spans(
    traced: DataPlaneClient, spans: Spans, transport: TransportChoice
) -> None:
    put(traced, "a", tokens=100_000)
    (client_span,) = spans("PutSamples")
    finishing = spans("FinishWrite", SpanKind.SERVER)
    assert len(finishing) == (transport == "shm")
    assert [parent_of(span) for span in finishing] == [context_of(client_span)] * len(finishing)


def test_a_refusal_is_an_error_in_the_client_span_only(traced: DataPlaneClient, spans: Spans) -> None:
    with pytest.raises(NotFoundError) as caught:
        traced.partition("nowhere")
    eventually(lambda: spans("GetPartition", SpanKind.SERVER))  # over gRPC it ends when the refusal is on its way
    (client_span,), (server_span,) = spans("GetPartition"), spans("GetPartition", SpanKind.SERVER)
    why = str(caught.value).replace("partition at", "GetPartition at")
    assert (client_span.status.status_code, client_span.status.description) == (StatusCode.ERROR, why)
    assert client_span.attributes is not None
    assert server_span.attributes is not None
    assert client_span.attributes["error.type"] == "NotFoundError"
    assert (server_span.status.status_code, server_span.attributes["rpc.grpc.status_code"]) == (StatusCode.UNSET, 5)


def linked(span: ReadableSpan) -> dict[tuple[int, int], object]:
    """The rows of each link, by its context."""
    return {
        (link.context.trace_id, link.context.span_id): (link.attributes or {})["dataplane.rows"] for link in span.links
    }


def test_a_claim_links_to_the_puts_of_its_rows(traced: DataPlaneClient, spans: Spans) -> None:
    put(traced, "a", "b", "c")
    put(traced, "d")
    claim = traced.claim("p", "train", ["x"], 4)
    first, second = spans("PutSamples")
    assert linked(*spans("ClaimSamples")) == {context_of(first): 3, context_of(second): 1}
    links = observe.producer_links(claim.meta)
    assert [link.context.span_id for link in links] == [context_of(first)[1], context_of(second)[1]]


def test_a_span_has_at_most_32_links(traced: DataPlaneClient, spans: Spans) -> None:
    for number in range(40):
        put(traced, f"s{number}")
    claim = traced.claim("p", "train", ["x"], 40)
    assert set(linked(*spans("ClaimSamples"))) == {context_of(span) for span in spans("PutSamples")[:32]}
    assert len(observe.producer_links(claim.meta)) == 32


def test_later_writes_do_not_change_the_linked_producer(traced: DataPlaneClient, spans: Spans) -> None:
    put(traced, "a", "b")
    claim = traced.claim("p", "train", ["x"], 2)
    claim.write({"y": torch.zeros(2)})
    write_columns(traced, claim.meta, {"y": torch.ones(2)})
    claim.release()
    traced.claim("p", "train", ["x", "y"], 2)
    producer, *writers = spans("PutSamples")
    assert len(writers) == 2
    assert linked(spans("ClaimSamples")[-1]) == {context_of(producer): 2}


def test_tags_of_the_caller_stay_including_its_own_traceparent(traced: DataPlaneClient, spans: Spans) -> None:
    mark = f"00-{'1' * 32}-{'2' * 16}-01"
    tags: list[dict[str, Tag]] = [{"weight_version": 7}, {"traceparent": mark}, {"traceparent": "not one"}]
    traced.put_samples(["a", "b", "c"], "p", {"x": torch.zeros(3)}, tags)
    claim = traced.claim("p", "train", ["x"], 3)
    assert claim.meta.tags is not None
    assert claim.meta.tags[0]["weight_version"] == 7
    assert claim.meta.tags[1:] == tags[1:]
    assert linked(*spans("ClaimSamples")) == {
        context_of(*spans("PutSamples")): 1,
        (int("1" * 32, 16), int("2" * 16, 16)): 1,
    }


def test_rows_of_an_untraced_client_have_no_mark_and_the_server_begins_the_trace(
    tracing_server: ServerThread, transport: TransportChoice, spans: Spans
) -> None:
    observe.remove(observe.trace_calls())
    with connect(tracing_server.addresses[0], transport=transport) as client:
        client.register_partition("p", ["x"], 1, ["train"])
        put(client, "a")
        claim = client.claim("p", "train", ["x"], 1)
        assert (claim.meta.tags, observe.producer_links(claim.meta)) == ([{}], [])
    assert spans("PutSamples") == []
    (server_span,) = spans("PutSamples", SpanKind.SERVER)
    assert server_span.parent is None


def test_an_untraced_server_serves_traced_clients(address: str, transport: TransportChoice, spans: Spans) -> None:
    with connect(address, transport=transport) as client:
        client.register_partition("p", ["x"], 1, ["train"])
        put(client, "a")
        client.claim("p", "train", ["x"], 1)
        assert client.transport == transport
    assert linked(*spans("ClaimSamples")) == {context_of(*spans("PutSamples")): 1}
    assert spans("PutSamples", SpanKind.SERVER) == []


def test_rows_of_an_unsampled_trace_are_not_marked(client: DataPlaneClient) -> None:
    tracer = observe.trace_calls(TracerProvider(sampler=ALWAYS_OFF))
    try:
        client.register_partition("p", ["x"], 1, ["train"])
        put(client, "a")
        assert client.claim("p", "train", ["x"], 1).meta.tags == [{}]
    finally:
        observe.remove(tracer)
