"""Sessions of a server that is stopped for a while, or ended: nobody pays for the time in which it did not listen."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from tests.integration.command.conftest import Command, Start
from tests.integration.wire.session_peer import SessionPeer

from rl_dataplane.v1 import data_plane_pb2 as pb
from rl_dataplane.v1 import data_plane_pb2_grpc as pb_grpc

GRACE_S = 2.0


class Beating:
    """A session whose heartbeats come four times within its grace, and its claim of the row a."""

    def __init__(self, channel: grpc.Channel) -> None:
        self.peer = SessionPeer(channel)
        self.session_id = self.peer.open(grace_s=GRACE_S, client_name="trainer").session_id
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beat)
        self._thread.start()

    def _beat(self) -> None:
        while not self._ended.wait(GRACE_S / 4):
            self.peer.heartbeat()

    def end(self) -> None:
        self._ended.set()
        self._thread.join()


@pytest.fixture
def listen(tmp_path: Path) -> str:
    return f"unix://{tmp_path}/dataplane.sock"


@pytest.fixture
def command(start_command: Start, listen: str) -> Command:
    return start_command("--listen", listen, "--grace", "50")


@pytest.fixture
def channel(command: Command, listen: str) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(listen) as channel:
        yield channel


@pytest.fixture
def stub(channel: grpc.Channel) -> Any:
    """Partition p with the row a."""
    stub: Any = pb_grpc.DataPlaneServiceStub(channel)
    partition = pb.RegisterPartitionRequest(request_id="1", partition_id="p", fields=["x"], tasks=["train"])
    stub.RegisterPartition(partition, timeout=120)
    header = pb.PutSamplesHeader(request_id="2", partition_id="p", sample_ids=["a"])
    stub.PutSamples(iter([pb.PutSamplesRequest(header=header)]), timeout=120)
    return stub


@pytest.fixture
def beating(stub: Any, channel: grpc.Channel) -> Iterator[Beating]:
    session = Beating(channel)
    yield session
    session.end()


def claimed(stub: Any, request_id: str, session_id: str) -> Any:
    request = pb.ClaimSamplesRequest(request_id=request_id, partition_id="p", task="train", batch_size=1)
    request.mode, request.session_id = pb.CLAIM_MODE_ACKNOWLEDGED, session_id
    request.wait_timeout.FromSeconds(100)
    return stub.ClaimSamples(request, timeout=120)


def commit(stub: Any, claim_id: str) -> int:
    frames = [pb.CommitClaimRequest(header=pb.CommitClaimHeader(request_id="9", claim_id=claim_id))]
    return int(stub.CommitClaim(iter(frames), timeout=120).consumed_rows)


def stop_for(command: Command, seconds: float) -> None:
    command.process.send_signal(signal.SIGSTOP)
    time.sleep(seconds)
    command.process.send_signal(signal.SIGCONT)


def test_a_session_outlives_a_server_that_stood_still_for_three_times_its_grace(
    command: Command, stub: Any, beating: Beating
) -> None:
    claim = claimed(stub, "3", beating.session_id)
    stop_for(command, 3 * GRACE_S)
    assert commit(stub, claim.claim_id) == 1
    beating.end()
    assert beating.peer.ending() == (grpc.StatusCode.ABORTED, "SESSION_EXPIRED")
    assert command.log.count('"event": "session_expired"') == 1
