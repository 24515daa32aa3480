"""The contract, the core, and the client's tables say the same: reasons, codes, element types, limits, methods."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import grpc
import pytest

from dataplane_client._error_table import BY_CODE
from dataplane_client.options import ClientOptions
from dataplane_server.core.calls.limits import Limits
from dataplane_server.core.calls.refusal import Reason
from dataplane_server.core.state.answers import MAX_REQUEST_ID_BYTES
from dataplane_server.service.error_table import ERROR_TABLE, RETRY_DELAY_S
from dataplane_server.service.frames import MAX_CHUNK_BYTES, SENT_CHUNK_BYTES
from dataplane_server.service.servicer import DataPlaneServicer
from rl_dataplane.v1 import data_plane_pb2 as pb
from rl_dataplane.v1.element_types import ITEM_SIZES, KINDS

PROTO = (Path(__file__).resolve().parents[2] / "proto" / "rl_dataplane" / "v1" / "data_plane.proto").read_text()
HEAD = " ".join(line.lstrip("/ ") for line in PROTO[: PROTO.index("syntax")].splitlines())
METHODS = list(pb.DESCRIPTOR.services_by_name["DataPlaneService"].methods)
MIB = 1 << 20


def comments_of(prefix: str) -> dict[str, str]:
    """The comment of each value of an enum, by the value's name without its prefix."""
    found = re.findall(rf"((?:  //.*\n)+)  {prefix}(\w+) = \d+;", PROTO)
    return {name: " ".join(line.strip("/ ") for line in text.splitlines()) for text, name in found}


REASONS = comments_of("ERROR_REASON_")
TYPES = comments_of("DATA_TYPE_")


# -- errors ------------------------------------------------------------------------------------------------------------


def test_the_cores_reasons_are_those_of_the_contract() -> None:
    assert {reason.name for reason in Reason} == REASONS.keys() - {"UNSPECIFIED", "INTERNAL"}
    assert {f"ERROR_REASON_{name}" for name in REASONS} == set(pb.ErrorReason.keys())


@pytest.mark.parametrize("reason", Reason, ids=lambda reason: reason.name)
def test_a_reason_has_the_code_that_the_contract_names(reason: Reason) -> None:
    assert re.match(r"[A-Z_]+", REASONS[reason.name])[0] == ERROR_TABLE[reason].name  # type: ignore[index]


@pytest.mark.parametrize("reason", Reason, ids=lambda reason: reason.name)
def test_a_reason_carries_retry_info_where_the_contract_says_so(reason: Reason) -> None:
    assert (reason in RETRY_DELAY_S) is ("with RetryInfo" in REASONS[reason.name])


def test_the_client_knows_every_code_that_the_server_sends() -> None:
    assert set(ERROR_TABLE.values()) <= BY_CODE.keys()
    assert grpc.StatusCode.INTERNAL not in BY_CODE


# -- element types and kinds -------------------------------------------------------------------------------------------


def test_server_and_client_know_the_element_types_of_the_contract_and_their_sizes() -> None:
    names = {name.removeprefix("DATA_TYPE_").lower() for name, number in pb.DataType.items() if number}
    assert names == ITEM_SIZES.keys()


@pytest.mark.parametrize("name", ITEM_SIZES)
def test_an_element_has_the_size_that_the_contract_names(name: str) -> None:
    said = re.match(r"(\d+|One) bytes?\b", TYPES[name.upper()])
    assert said is not None
    assert {"One": "1"}.get(said[1], said[1]) == str(ITEM_SIZES[name])


def test_kinds_are_those_of_the_contract() -> None:
    assert [f"FIELD_KIND_{kind.upper()}" for kind in KINDS] == list(pb.FieldKind.keys())[1:]


# -- limits ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        f"ids 1 to {Limits().max_id_bytes} bytes of UTF-8",
        f"{Limits().max_fields} fields and {Limits().max_tasks} tasks a partition",
        f"{Limits().max_rows_per_call:,} rows a call",
        f"{Limits().max_tags_per_row} tags a row",
        f"{Limits().max_dimensions} dimensions of a row's shape",
        f"request_id of the caller's choice (1 to {MAX_REQUEST_ID_BYTES} bytes",
        f"the last {Limits().remembered_requests:,} of them for up to {Limits().remember_s / 60:.0f} minutes",
        f"refused above {MAX_CHUNK_BYTES // MIB} MiB",
    ],
)
def test_the_head_of_the_contract_names_the_limit(text: str) -> None:
    assert text in HEAD


def test_both_sides_send_chunks_of_the_size_that_the_contract_promises() -> None:
    assert "at most 4 MiB when this project sends it" in HEAD
    assert SENT_CHUNK_BYTES <= 4 * MIB
    assert ClientOptions().chunk_bytes <= 4 * MIB
    assert ClientOptions(chunk_bytes=MAX_CHUNK_BYTES).chunk_bytes == MAX_CHUNK_BYTES


# -- methods -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_a_method_has_messages_of_its_own_and_is_served(method: object) -> None:
    name = method.name  # type: ignore[attr-defined]
    assert method.input_type.name == f"{name}Request"  # type: ignore[attr-defined]
    assert method.output_type.name == f"{name}Response"  # type: ignore[attr-defined]
    assert inspect.getmodule(getattr(DataPlaneServicer, name)) is inspect.getmodule(DataPlaneServicer)


READ_ONLY = {
    "ExplainWaits",
    "GetConsumptionStatus",
    "GetPartition",
    "GetSample",
    "GetServerStatus",
    "ListClaims",
    "ListDeadLetters",
    "ListPartitions",
    "ListSamples",
    "ListSessions",
    "ReadColumns",
}
NOT_REPEATED = {"Session"}  # a session that was opened for nobody dies by itself


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_a_method_that_changes_something_and_no_other_takes_a_request_id(method: object) -> None:
    request = method.input_type  # type: ignore[attr-defined]
    first = request.fields_by_name.get("header")
    fields = (first.message_type if first is not None else request).fields_by_name
    assert ("request_id" in fields) is (method.name not in READ_ONLY | NOT_REPEATED)  # type: ignore[attr-defined]
    if "request_id" in fields:
        assert fields["request_id"].number == 1
