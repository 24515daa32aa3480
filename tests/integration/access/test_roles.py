"""Which role may use which verb where: every verb of the service, row by row, over gRPC with TLS."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.message_factory import GetMessageClass
from tests.integration.access.conftest import TOKENS, Pki, access, address_of, of
from tests.integration.wire.local_peer import Lifeline

from dataplane_client.client import connect
from dataplane_client.errors import AuthenticationError, PermissionDeniedError, PreconditionError
from dataplane_client.options import Credentials, TransportChoice
from dataplane_server.config import ServerConfig
from dataplane_server.core.calls.limits import Limits
from dataplane_server.testing import ServerThread
from rl_dataplane.v1 import data_plane_pb2 as pb
from rl_dataplane.v1 import local_pb2 as local_pb
from rl_dataplane.v1.frames import frame_prefix

ROLES = ("reader", "producer", "consumer", "admin")
TABLE = {
    "GetServerStatus": "reader producer consumer admin",
    "Session": "reader producer consumer admin",
    "GetPartition": "reader producer consumer admin",
    "ListPartitions": "reader producer consumer admin",
    "GetConsumptionStatus": "reader producer consumer admin",
    "ReadColumns": "reader consumer admin",
    "GetSample": "reader consumer admin",
    "ListSamples": "reader consumer admin",
    "ListClaims": "reader consumer admin",
    "ListGroups": "reader consumer admin",
    "ListDeadLetters": "reader consumer admin",
    "ExplainWaits": "reader consumer admin",
    "PutSamples": "producer admin",
    "ReserveGroup": "producer admin",
    "FinishGroup": "producer admin",
    "AbortGroup": "producer admin",
    "ClaimSamples": "consumer admin",
    "ClaimShard": "consumer admin",
    "CommitClaim": "consumer admin",
    "ReleaseClaim": "consumer admin",
    "AdoptClaim": "consumer admin",
    "DrawSamples": "consumer admin",
    "SetWeightVersion": "consumer admin",
    "RegisterPartition": "admin",
    "ExtendPartition": "admin",
    "ClosePartition": "admin",
    "DropPartition": "admin",
    "SetPolicies": "admin",
    "ClearSamples": "admin",
    "ResetTask": "admin",
    "ListSessions": "",  # of the whole server: a role with the prefix ""
    "CreateSnapshot": "",
    "RestoreSnapshot": "",
    "ListSnapshots": "",
}
SERVICE = pb.DESCRIPTOR.services_by_name["DataPlaneService"]
DENIED = grpc.StatusCode.PERMISSION_DENIED


@pytest.fixture
def channel(secured: ServerThread, pki: Pki) -> Iterator[grpc.Channel]:
    credentials = grpc.ssl_channel_credentials(pki.ca.read_bytes())
    with grpc.secure_channel(address_of(secured), credentials) as channel:
        yield channel


@pytest.fixture
def held(secured: ServerThread, pki: Pki) -> Iterator[dict[str, str]]:
    """The ids of a claim and of a reserved group in train-1, which an admin holds."""
    with connect(address_of(secured), credentials=of(pki, "everywhere")) as client:
        for partition_id in ("train-1", "eval-1"):
            client.register_partition(partition_id, ["x"], 0, ["t"])
        client.put_samples(["a"], "train-1", {"x": [1]})
        claim = client.claim("train-1", "t", ["x"], 1)
        group = client.reserve_group("train-1", "g", ["b"])
        yield {"claim_id": claim.claim_id, "reservation_id": group.reservation_id}


def code_of(channel: grpc.Channel, role: str, verb: str, **values: object) -> grpc.StatusCode:
    """The status of a call that names a partition, and nothing else that a server could serve."""
    method = SERVICE.methods_by_name[verb]
    path, metadata = f"/{SERVICE.full_name}/{verb}", (("authorization", f"Bearer {TOKENS[role]}"),)
    call: Any
    if verb in ("PutSamples", "CommitClaim"):
        header = {"PutSamples": pb.PutSamplesHeader, "CommitClaim": pb.CommitClaimHeader}[verb](**values)
        call = channel.stream_unary(path)
        sent: Any = iter([frame_prefix(header.SerializeToString(), 0, 0)])
    elif verb == "Session":
        call = channel.stream_stream(path)
        sent = iter([pb.SessionRequest(open=pb.OpenSession(**values)).SerializeToString()])  # type: ignore[arg-type]
    else:
        call = channel.unary_stream(path) if method.server_streaming else channel.unary_unary(path)
        sent = GetMessageClass(method.input_type)(**values).SerializeToString()
    try:
        answer = call(sent, metadata=metadata, timeout=120)
        if not isinstance(answer, bytes):
            next(answer)
            answer.cancel()
    except grpc.RpcError as error:
        return error.code()
    except StopIteration:
        pass
    return grpc.StatusCode.OK


def values_for(verb: str, partition_id: str, held: dict[str, str]) -> dict[str, Any]:
    fields = SERVICE.methods_by_name[verb].input_type.fields_by_name
    if verb == "CommitClaim":
        return {"claim_id": held["claim_id"]}
    if verb == "RegisterPartition":
        return {"partition_id": partition_id, "replace": True}  # what is there already, more roles may repeat
    if verb == "PutSamples" or "partition_id" in fields:
        return {"partition_id": partition_id}
    return {name: held[name] for name in held if name in fields}


def test_the_table_has_every_verb() -> None:
    assert sorted(TABLE) == sorted(SERVICE.methods_by_name)


def test_each_role_may_do_what_the_table_says(channel: grpc.Channel, held: dict[str, str]) -> None:
    unlike = {}
    for verb, allowed in TABLE.items():
        for role in ROLES:
            code = code_of(channel, role, verb, **values_for(verb, "train-1", held))
            if (code is not DENIED) is not (role in allowed.split()):
                unlike[verb, role] = code
    assert unlike == {}


@pytest.mark.parametrize("partition_id", ["eval-1", "pretrain-1", "trai"])
def test_a_role_ends_with_its_prefix(channel: grpc.Channel, held: dict[str, str], partition_id: str) -> None:
    there = [verb for verb in TABLE if "partition_id" in values_for(verb, partition_id, held)]
    codes = {verb: code_of(channel, "admin", verb, partition_id=partition_id) for verb in there}
    for name in held:  # what nobody holds opens no other partition
        codes[name] = code_of(channel, "admin", "PutSamples", partition_id=partition_id, **{name: "of nobody"})
    assert set(codes.values()) == {DENIED}, codes
    assert code_of(channel, "everywhere", "ListSessions") is grpc.StatusCode.OK


def test_callers_see_the_partitions_that_they_may_look_at(
    secured: ServerThread, pki: Pki, held: dict[str, str]
) -> None:
    seen = {}
    for caller in ("reader", "everywhere"):
        with connect(address_of(secured), credentials=of(pki, caller)) as client:
            seen[caller] = [partition.partition_id for partition in client.partitions()]
    assert seen == {"reader": ["train-1"], "everywhere": ["eval-1", "train-1"]}


def test_a_refusal_says_who_may_not_do_what_where_and_which_role_may(
    secured: ServerThread, pki: Pki, held: dict[str, str]
) -> None:
    text = "producer needs role 'admin' for DropPartition in partition 'train-1'"
    with connect(address_of(secured), credentials=of(pki, "producer")) as client:
        with pytest.raises(PermissionDeniedError, match=text) as refused:
            client.drop_partition("train-1")
        assert (refused.value.reason, refused.value.details["verb"]) == ("PERMISSION_DENIED", "DropPartition")
        assert client.partition("train-1").rows == 2


def test_a_samples_history_names_who_did_what(secured: ServerThread, pki: Pki, held: dict[str, str]) -> None:
    with connect(address_of(secured), credentials=of(pki, "producer"), client_name="engine-3") as client:
        client.put_samples(["c"], "train-1", {"x": [1]})
    with connect(address_of(secured), credentials=of(pki, "admin"), client_name="rank-0") as client:
        client.claim("train-1", "t", ["x"], 1).commit()
        events = [(event.what, event.who) for event in client.sample("train-1", "c").events]
    assert events == [("put", "producer: engine-3"), ("claimed", "admin: rank-0"), ("committed", "admin: rank-0")]


def test_a_session_of_another_caller_cannot_be_guessed(secured: ServerThread, pki: Pki) -> None:
    with connect(address_of(secured), credentials=of(pki, "everywhere")) as client:
        client.register_partition("train-1", ["x"], 0, ["t"])
        client.put_samples(["a", "b"], "train-1", {"x": [1, 2]})
        first, second = (client.claim("train-1", "t", ["x"], 1) for _ in range(2))
        server, code, number = first.claim_id.split("-")
        assert second.claim_id.split("-")[0] == server
        assert second.claim_id.split("-")[1] != code
        assert (len(bytes.fromhex(code)), second.fence > first.fence == int(number)) == (8, True)


# -- what belongs to a caller ------------------------------------------------------------------------------------------


def asked(channel: grpc.Channel, caller: str, verb: str, **values: object) -> Any:
    """The answer to a unary call."""
    method = SERVICE.methods_by_name[verb]
    metadata, request = (("authorization", f"Bearer {TOKENS[caller]}"),), GetMessageClass(method.input_type)(**values)
    answer: Any = GetMessageClass(method.output_type)
    call: Any = channel.unary_unary(f"/{SERVICE.full_name}/{verb}", None, answer.FromString)
    return call(request.SerializeToString(), metadata=metadata, timeout=120)


CLAIM: dict[str, Any] = {
    "partition_id": "p",
    "task": "t",
    "required_fields": ["x"],
    "batch_size": 1,
    "min_size": 1,
    "mode": pb.CLAIM_MODE_ACKNOWLEDGED,
}
NAMES_A_SESSION = [
    name for name, verb in SERVICE.methods_by_name.items() if "session_id" in verb.input_type.fields_by_name
]


@pytest.mark.parametrize("verb", ["Session", *NAMES_A_SESSION])
def test_a_session_is_of_use_to_the_caller_who_opened_it_alone(
    secured: ServerThread, pki: Pki, channel: grpc.Channel, held: dict[str, str], verb: str
) -> None:
    with connect(address_of(secured), credentials=of(pki, "everywhere")) as owner:
        owner.put_samples(["c"], "train-1", {"x": [1]})
    with connect(address_of(secured), credentials=of(pki, "consumer"), client_name="rank-0") as client:
        claim = client.claim("train-1", "t", ["x"], 1)
        listed = asked(channel, "everywhere", "ListSessions").sessions
        session_id = next(one.session_id for one in listed if one.client_name == "consumer: rank-0")
        partition = {"partition_id": "train-1"} if verb not in ("Session", "AdoptClaim") else {}
        values = {"session_id": session_id, **partition}
        codes = {caller: code_of(channel, caller, verb, **values) for caller in TOKENS}
        allowed = {caller for caller, code in codes.items() if code is not DENIED}
        assert allowed - {"consumer"} == {"everywhere"}, codes
        assert claim.commit() is not None


def test_a_session_stays_its_callers_over_a_restart(start: Any, pki: Pki, access_file: Path, tmp_path: Path) -> None:
    tls, folder = pki.issue("server", "127.0.0.1"), tmp_path / "data"
    limits = Limits(memory_bytes=4 << 20)
    first = ServerThread(
        ServerConfig(
            listen=("127.0.0.1:0",), limits=limits, tls=tls, access=access_file, data_dir=folder, durability="process"
        )
    )
    with connect(first.addresses[0], credentials=of(pki, "everywhere")) as client:
        client.register_partition("train-1", ["x"], 0, ["t"])
        client.put_samples(["a"], "train-1", {"x": [1]})
    client = connect(first.addresses[0], credentials=of(pki, "consumer"))
    claim = client.claim("train-1", "t", ["x"], 1)
    first.stop()
    listen = tuple(first.addresses)
    second = start(listen=listen, tls=tls, access=access_file, data_dir=folder, durability="process")
    credentials = grpc.ssl_channel_credentials(pki.ca.read_bytes())
    with client, grpc.secure_channel(second.addresses[0], credentials) as channel:
        (session,) = asked(channel, "everywhere", "ListSessions").sessions
        assert code_of(channel, "producer", "Session", session_id=session.session_id) is DENIED
        assert claim.commit() is not None


def test_a_registration_that_changes_nothing_needs_no_admin(secured: ServerThread, pki: Pki) -> None:
    """Every program of a pipeline registers its partition; the first of them declares it."""
    as_admin, as_producer, as_consumer = (
        connect(address_of(secured), credentials=of(pki, name)) for name in ("admin", "producer", "consumer")
    )
    with as_admin, as_producer, as_consumer:
        with pytest.raises(PermissionDeniedError, match=r"producer .*'admin'"):
            as_producer.register_partition("train-1", ["x"], 0, ["t"])
        as_admin.register_partition("train-1", ["x", "y"], 8, ["t"], max_deliveries=3)
        before = as_admin.partition("train-1")
        as_producer.register_partition("train-1", ["x", "y"], 8, ["t"], max_deliveries=3)
        as_consumer.register_partition("train-1", ["y"], 0, ["t"], max_deliveries=3)
        for more in ({"fields": ["z"]}, {"consumer_tasks": ["u"]}, {"num_samples": 9}, {"replace": True}):
            given: Any = {"fields": ["x"], "num_samples": 0, "consumer_tasks": ["t"], "max_deliveries": 3, **more}
            with pytest.raises(PermissionDeniedError, match="'admin'"):
                as_producer.register_partition("train-1", **given)
        with pytest.raises(PreconditionError, match="max_deliveries"):
            as_producer.register_partition("train-1", ["x"], 0, ["t"], max_deliveries=4)
        with pytest.raises(PermissionDeniedError):
            as_producer.register_partition("eval-1", ["x"], 0, ["t"])
        assert as_admin.partition("train-1") == before


def test_those_who_only_read_see_sessions_by_names_that_no_call_takes(
    secured: ServerThread, pki: Pki, channel: grpc.Channel, held: dict[str, str]
) -> None:
    (whole,) = asked(channel, "everywhere", "ListSessions").sessions
    (seen,) = asked(channel, "watcher", "ListSessions").sessions
    server, code, number = whole.session_id.split("-")
    assert (seen.session_id, seen.client_name) == (f"{server}-{number}", whole.client_name)
    for caller, expected in (("everywhere", whole.session_id), ("reader", seen.session_id)):
        (claim,) = asked(channel, caller, "ListClaims", partition_id="train-1").claims
        assert claim.session_ids == [expected]
    assert code not in str(asked(channel, "reader", "ListClaims", partition_id="train-1"))


def test_a_request_id_gets_no_answer_of_another_caller(channel: grpc.Channel, held: dict[str, str]) -> None:
    new = {"partition_id": "train-1", "task": "t", "batch_size": 1, "min_size": 1, "mode": 1}
    header = pb.PutSamplesHeader(request_id="put", partition_id="train-1", sample_ids=["c", "d"]).SerializeToString()
    metadata: Any = (("authorization", f"Bearer {TOKENS['admin']}"),)
    put: Any = channel.stream_unary(f"/{SERVICE.full_name}/PutSamples")
    assert put(iter([frame_prefix(header, 0, 0)]), metadata=metadata, timeout=120)
    mine, others, again = (
        asked(channel, caller, "ClaimSamples", request_id="same", **new) for caller in ("consumer", "admin", "consumer")
    )
    assert (again, others.claim_id != mine.claim_id) == (mine, True)
    released = asked(
        channel, "admin", "ReleaseClaim", request_id="release", claim_request_id="same", reason="", claim_id=""
    )
    assert released.released_rows == 1  # its own
    assert asked(channel, "consumer", "ReleaseClaim", request_id="release", claim_id=mine.claim_id).released_rows == 1
    for caller in ("producer", "admin"):
        group = {"partition_id": "train-1", "group_id": f"of {caller}", "sample_ids": [caller]}
        asked(channel, caller, "ReserveGroup", request_id="group", **group)
    given_up = {"reserve_request_id": "group", "reservation_id": ""}
    assert asked(channel, "producer", "AbortGroup", request_id="abort", **given_up).removed_rows == 1
    left = [group.group_id for group in asked(channel, "admin", "ListGroups", partition_id="train-1").groups]
    assert ("of producer" in left, "of admin" in left) == (False, True)


def test_roles_at_unix_sockets_are_those_of_the_access_file(
    start: Any, tmp_path: Path, access_file: Path, pki: Pki
) -> None:
    access_file.write_text(json.dumps(access(unix_sockets={"producer": ["train"]})))
    server = start(listen=(f"unix://{tmp_path}/s",), access=access_file)
    everywhere = of(pki, "everywhere")
    for transport in ("grpc", "shm"):
        with (
            connect(server.addresses[0], transport=transport) as client,
            pytest.raises(PermissionDeniedError, match="'admin'"),
        ):
            client.register_partition("train-1", ["x"], 0, ["t"])
    with connect(server.addresses[0], transport="grpc", credentials=everywhere) as client:
        client.register_partition("train-1", ["x"], 0, ["t"])
    with connect(server.addresses[0], transport="shm") as client:
        assert client.put_samples(["a"], "train-1", {"x": [1]}) is not None
    with pytest.raises(AuthenticationError):
        connect(server.addresses[0], transport="grpc", credentials=Credentials(token=TOKENS["admin"] * 2))


@pytest.mark.parametrize("token", [None, TOKENS["everywhere"]])
def test_what_a_client_asked_for_at_a_local_socket_is_undone_over_grpc(
    start: Any, tmp_path: Path, access_file: Path, token: str | None
) -> None:
    """As a claim is whose caller was cancelled before it had the answer."""
    address = f"unix://{tmp_path}/s"
    start(listen=(address,), access=access_file)
    credentials = None if token is None else Credentials(token=token)
    metadata = () if token is None else (("authorization", f"Bearer {token}"),)
    with (
        connect(address, transport="shm", credentials=credentials) as client,
        grpc.insecure_channel(address) as channel,
    ):
        client.register_partition("p", ["x"], 0, ["t"])
        client.put_samples(["a", "b"], "p", {"x": [1, 2]})
        client.claim("p", "t", ["x"], 1)  # opens the session
        (session,) = client.sessions()
        lifeline = Lifeline(f"{tmp_path}/s.local")
        claim = pb.ClaimSamplesRequest(request_id="cancelled", session_id=session.session_id, **CLAIM)
        assert lifeline.call(local_pb.LOCAL_METHOD_CLAIM_SAMPLES, claim, pb.ClaimSamplesResponse).claim_id
        release: Any = channel.unary_unary(
            f"/{SERVICE.full_name}/ReleaseClaim", None, pb.ReleaseClaimResponse.FromString
        )
        undo = pb.ReleaseClaimRequest(request_id="undo", claim_request_id="cancelled").SerializeToString()
        assert release(undo, metadata=metadata, timeout=120).released_rows == 1
        lifeline.close()


@pytest.mark.parametrize("token", [None, TOKENS["everywhere"]])
def test_a_put_through_shared_memory_is_the_same_over_grpc_and_another_for_another_caller(
    start: Any, tmp_path: Path, access_file: Path, token: str | None
) -> None:
    """As one whose local connection broke before it had the answer."""
    address = start(listen=(f"unix://{tmp_path}/s",), access=access_file).addresses[0]

    def put(transport: TransportChoice, token: str | None, sample_id: str) -> None:
        credentials = None if token is None else Credentials(token=token)
        with connect(address, transport=transport, credentials=credentials) as client:
            client.register_partition("train-1", ["x"], 0, ["t"])
            client.put_samples([sample_id], "train-1", {"x": [1]}, request_id="same")

    put("shm", token, "mine")
    put("grpc", token, "mine")
    with pytest.raises(PreconditionError, match="same"):
        put("grpc", token, "other")
    put("shm", TOKENS["admin"], "theirs")


def test_the_log_names_who_changed_what(secured: ServerThread, pki: Pki, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "dataplane_server")
    with connect(address_of(secured), credentials=of(pki, "admin")) as client:
        client.register_partition("train-1", ["x"], 0, ["t"])
        client.drop_partition("train-1")
    told = [json.loads(record.getMessage()) for record in caplog.records if "changed_by" in record.getMessage()]
    assert [(event["caller"], event["verb"], event["partition_id"]) for event in told] == [
        ("admin", "RegisterPartition", "train-1"),
        ("admin", "DropPartition", "train-1"),
    ]


def test_a_long_name_of_a_client_is_cut_and_not_refused(secured: ServerThread, pki: Pki) -> None:
    with connect(address_of(secured), credentials=of(pki, "admin"), client_name="n" * 256) as client:
        client.register_partition("train-1", ["x"], 0, ["t"])
        client.put_samples(["a"], "train-1", {"x": [1]})
        client.claim("train-1", "t", ["x"], 1).commit()
        assert {event.who for event in client.sample("train-1", "a").events} == {f"admin: {'n' * 249}"}
