"""The contract, the core, and the client's tables say the same: reasons, codes, element types, limits, methods."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import grpc

from dataplane_client._connect.error_table import BY_CODE
from dataplane_client.options import ClientOptions
from dataplane_server.core.calls.limits import Limits
from dataplane_server.core.calls.refusal import Reason
from dataplane_server.core.state.answers import MAX_REQUEST_ID_BYTES
from dataplane_server.service.error_table import ERROR_TABLE, RETRY_DELAY_S
from dataplane_server.service.grpc.servicer import DataPlaneServicer
from dataplane_server.service.messages.frames import MAX_CHUNK_BYTES, SENT_CHUNK_BYTES
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


def test_a_reason_has_the_code_that_the_contract_names_and_retry_info_where_it_says_so() -> None:
    named = {name: (text.partition(" ")[0].strip(".,:;"), "with RetryInfo" in text) for name, text in REASONS.items()}
    for reason in Reason:
        assert (ERROR_TABLE[reason].name, reason in RETRY_DELAY_S) == named[reason.name], reason


def test_the_client_knows_every_code_that_the_server_sends() -> None:
    assert set(ERROR_TABLE.values()) <= BY_CODE.keys()
    assert grpc.StatusCode.INTERNAL not in BY_CODE


# -- element types and kinds -------------------------------------------------------------------------------------------


def test_server_and_client_know_the_element_types_of_the_contract_and_their_sizes() -> None:
    names = {name.removeprefix("DATA_TYPE_").lower() for name, number in pb.DataType.items() if number}
    assert names == ITEM_SIZES.keys()


def test_an_element_has_the_size_that_the_contract_names() -> None:
    for name, size in ITEM_SIZES.items():
        assert re.match(rf"({size}|{'One' if size == 1 else size}) bytes?\b", TYPES[name.upper()]), name


def test_kinds_are_those_of_the_contract() -> None:
    assert [f"FIELD_KIND_{kind.upper()}" for kind in KINDS] == list(pb.FieldKind.keys())[1:]


# -- limits ------------------------------------------------------------------------------------------------------------


def test_the_head_of_the_contract_names_the_limits() -> None:
    limits = Limits()
    for text in (
        f"ids 1 to {limits.max_id_bytes} bytes of UTF-8",
        f"{limits.max_fields} fields and {limits.max_tasks} tasks a partition",
        f"{limits.max_rows_per_call:,} rows a call",
        f"{limits.max_tags_per_row} tags a row",
        f"{limits.max_dimensions} dimensions of a row's shape",
        f"request_id of the caller's choice (1 to {MAX_REQUEST_ID_BYTES} bytes",
        f"the last {limits.remembered_requests:,} of them for up to {limits.remember_s / 60:.0f} minutes",
        f"refused above {MAX_CHUNK_BYTES // MIB} MiB",
    ):
        assert text in HEAD


def test_both_sides_send_chunks_of_the_size_that_the_contract_promises() -> None:
    assert "at most 4 MiB when this project sends it" in HEAD
    assert SENT_CHUNK_BYTES <= 4 * MIB
    assert ClientOptions().chunk_bytes <= 4 * MIB
    assert ClientOptions(chunk_bytes=MAX_CHUNK_BYTES).chunk_bytes == MAX_CHUNK_BYTES


# -- methods -----------------------------------------------------------------------------------------------------------


def test_a_method_has_messages_of_its_own_and_is_served() -> None:
    for method in METHODS:
        messages = (method.input_type.name, method.output_type.name)
        assert messages == (f"{method.name}Request", f"{method.name}Response")
        assert inspect.getmodule(getattr(DataPlaneServicer, method.name)) is inspect.getmodule(DataPlaneServicer)


READ_ONLY = {
    "ExplainWaits",
    "GetConsumptionStatus",
    "GetPartition",
    "GetSample",
    "GetServerStatus",
    "ListClaims",
    "ListDeadLetters",
    "ListGroups",
    "ListPartitions",
    "ListSamples",
    "ListSessions",
    "ListSnapshots",
    "ReadColumns",
}
NOT_REPEATED = {"Session"}  # a session that was opened for nobody dies by itself


def test_a_method_that_changes_something_and_no_other_takes_a_request_id() -> None:
    for method in METHODS:
        header = method.input_type.fields_by_name.get("header")
        asked = method.input_type if header is None or header.message_type is None else header.message_type
        fields = asked.fields_by_name
        assert ("request_id" in fields) is (method.name not in READ_ONLY | NOT_REPEATED), method.name
        assert "request_id" not in fields or fields["request_id"].number == 1, method.name
