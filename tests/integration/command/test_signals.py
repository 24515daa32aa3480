"""The end of a server: calls under way finish, waits end, nothing is left lying about."""

from __future__ import annotations

import contextlib
import queue
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
import torch
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from tests.integration.command.conftest import Command, Start
from tests.integration.command.held_put import SIZE, HeldPut
from tests.integration.wire.local_peer import Lifeline, Peer, put
from tests.waiting import eventually

from dataplane_client.client import DataPlaneClient, connect
from dataplane_client.errors import UnavailableError
from rl_dataplane.v1 import data_plane_pb2 as pb
from rl_dataplane.v1 import data_plane_pb2_grpc as pb_grpc
from rl_dataplane.v1 import local_pb2 as local_pb
from rl_dataplane.v1.local_frames import FILE_SUFFIX


@pytest.fixture
def listen(tmp_path: Path) -> str:
    return f"unix://{tmp_path}/dataplane.sock"


@pytest.fixture
def grace() -> str:
    return "10"


@pytest.fixture
def command(start_command: Start, listen: str, grace: str) -> Command:
    return start_command("--listen", listen, "--grace", grace)


@pytest.fixture
def flow(command: Command, listen: str) -> Iterator[DataPlaneClient]:
    with connect(listen, timeout_s=60.0) as client:
        client.register_partition("p", ["x"], 0, ["train"])
        yield client


def failures(command: Command) -> list[str]:
    """Lines of the log that tell of an error, or of a stack that leads through our code."""
    return [line for line in command.log.splitlines() if '"level": "error"' in line or "/dataplane_server/" in line]


@pytest.fixture
def held_put(flow: DataPlaneClient, listen: str) -> Iterator[HeldPut]:
    with grpc.insecure_channel(listen) as channel:
        put = HeldPut(channel)
        eventually(lambda: flow.server_status().memory_used_bytes == 2 * SIZE)
        yield put
        put.let_go.set()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_a_signal_ends_an_idle_server_at_once(
    command: Command, flow: DataPlaneClient, listen: str, number: signal.Signals
) -> None:
    assert command.end(number) == 0
    assert not Path(listen.removeprefix("unix://")).exists()
    assert '"event": "stopped"' in command.log


def test_a_successor_may_take_the_socket_while_the_old_server_drains(
    command: Command,
    held_put: HeldPut,
    listen: str,
    start_command: Start,
    threads: ThreadPoolExecutor,
) -> None:
    ended = threads.submit(command.end)
    eventually(lambda: not Path(listen.removeprefix("unix://")).exists())
    start_command("--listen", listen)
    held_put.let_go.set()
    assert held_put.call.result(120).created_rows == 1
    assert ended.result(120) == 0
    with connect(listen) as client:
        assert client.partitions() == []


@pytest.mark.parametrize("more", [(), ("--no-share-memory",)], ids=["shared", "not shared"])
def test_a_server_leaves_the_socket_files_of_another_server_alone(
    start_command: Start, tmp_path: Path, more: tuple[str, ...]
) -> None:
    listen = f"unix://{tmp_path}/taken.sock"
    former = start_command("--listen", listen, *more)
    for file in tmp_path.glob("taken.sock*"):
        file.unlink()
    start_command("--listen", listen, *more)
    files = {file.name: file.stat().st_ino for file in tmp_path.glob("taken.sock*")}
    assert former.end() == 0
    assert {file.name: file.stat().st_ino for file in tmp_path.glob("taken.sock*")} == files
    with connect(listen, transport="grpc" if more else "shm") as client:
        assert client.partitions() == []


def test_an_open_reflection_stream_does_not_hold_up_the_end(start_command: Start, tmp_path: Path) -> None:
    listen = f"unix://{tmp_path}/reflected.sock"
    command = start_command("--listen", listen, "--reflection", "--grace", "1000")
    asked: queue.SimpleQueue[Any] = queue.SimpleQueue()
    with grpc.insecure_channel(listen) as channel:
        stream = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(iter(asked.get, None))
        asked.put(reflection_pb2.ServerReflectionRequest(list_services=""))
        assert next(stream).list_services_response.service
        assert command.end() == 0
        with pytest.raises(grpc.RpcError) as ended:
            next(stream)
        assert ended.value.code() is grpc.StatusCode.UNAVAILABLE
        asked.put(None)
    assert not failures(command)


@pytest.mark.parametrize("grace", ["0.2"])
def test_a_call_that_outlasts_the_grace_is_cut_and_the_end_is_still_clean(command: Command, held_put: HeldPut) -> None:
    assert command.end() == 0
    held_put.let_go.set()
    assert isinstance(held_put.call.exception(120), grpc.RpcError)
    assert not failures(command)


@pytest.fixture
def lent(flow: DataPlaneClient, listen: str) -> Iterator[tuple[Lifeline, Peer]]:
    """A client of the memory that has room for one row lent to it, and has not filled it yet."""
    path = listen.removeprefix("unix://") + FILE_SUFFIX
    with contextlib.closing(Lifeline(path)) as lifeline, contextlib.closing(Peer(path)) as peer:
        peer.call(local_pb.LOCAL_METHOD_JOIN, local_pb.JoinRequest(session=lifeline.attached.session))
        peer.call(local_pb.LOCAL_METHOD_PUT, put(7, SIZE))
        yield lifeline, peer


FINISH = local_pb.FinishWriteRequest(handle=7)


def test_a_put_through_memory_that_is_under_way_finishes_after_sigterm(
    command: Command, lent: tuple[Lifeline, Peer], threads: ThreadPoolExecutor, listen: str
) -> None:
    ended = threads.submit(command.end)
    eventually(lambda: not Path(listen.removeprefix("unix://") + FILE_SUFFIX).exists())
    _, peer = lent
    assert peer.refused(local_pb.LOCAL_METHOD_PUT, put(8, SIZE)) == ("DRAINING", "the server is shutting down")
    assert not ended.done()
    written = peer.call(local_pb.LOCAL_METHOD_FINISH_WRITE, FINISH, local_pb.LocalWriteResponse)
    assert written.put.created_rows == 1
    assert ended.result(120) == 0


@pytest.mark.parametrize("grace", ["0.2"])
def test_a_put_through_memory_that_outlasts_the_grace_is_cut(command: Command, lent: tuple[Lifeline, Peer]) -> None:
    _, peer = lent
    assert command.end() == 0
    assert peer.ended
    assert not failures(command)


def test_claims_and_puts_that_wait_end_at_sigterm_with_a_word_of_why(
    command: Command, flow: DataPlaneClient, listen: str, threads: ThreadPoolExecutor
) -> None:
    flow.put_samples(["full"], "p", {"x": torch.zeros(1, 64 << 20, dtype=torch.uint8)}, timeout_s=120.0)
    with grpc.insecure_channel(listen) as channel:
        stub: Any = pb_grpc.DataPlaneServiceStub(channel)
        claim = pb.ClaimSamplesRequest(request_id="c", partition_id="p", task="train", batch_size=2)
        claim.mode = pb.CLAIM_MODE_ACKNOWLEDGED
        claim.wait_timeout.FromSeconds(60)
        column = pb.Column(name="x", kind=pb.FIELD_KIND_DENSE, data_type=pb.DATA_TYPE_UINT8, row_shape=[SIZE])
        put = pb.PutSamplesHeader(request_id="r", partition_id="p", sample_ids=["s"], columns=[column])
        put.wait_timeout.FromSeconds(60)
        waiting = [
            stub.ClaimSamples.future(claim, timeout=60),
            stub.PutSamples.future(iter([pb.PutSamplesRequest(header=put)]), timeout=60),
        ]
        eventually(lambda: flow.server_status().waiting_claims + flow.server_status().waiting_puts == 2)
        assert command.end() == 0
        for call in waiting:
            assert call.exception(120).code() is grpc.StatusCode.UNAVAILABLE
            assert "shutting down" in call.exception(120).details()


def test_a_client_whose_claim_waits_retries_and_then_says_unavailable(
    command: Command, flow: DataPlaneClient, threads: ThreadPoolExecutor
) -> None:
    claim = threads.submit(flow.claim, "p", "train", ["x"], 1, timeout_s=10.0)
    eventually(lambda: flow.server_status().waiting_claims == 1)
    assert command.end() == 0
    assert isinstance(claim.exception(120), UnavailableError)
