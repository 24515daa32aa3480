"""The callers that wait: what the core answers them is not lost, whenever it comes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

import numpy as np
import pytest
from tests.integration.wire import local_peer

from dataplane_server.core.calls.answers import Reservation, Waiting
from dataplane_server.core.calls.columns import ColumnSpec, Shape
from dataplane_server.core.calls.flow import FlowPolicy
from dataplane_server.core.calls.limits import Limits
from dataplane_server.core.calls.refusal import Refusal, server_ended
from dataplane_server.core.calls.requests import (
    AbortWrite,
    ClaimSamples,
    ClearSamples,
    FinishWrite,
    PutSamples,
    RegisterPartition,
    SetPolicies,
)
from dataplane_server.core.calls.values import Definition
from dataplane_server.core.plane import DataPlane
from dataplane_server.observe.metrics import Metrics
from dataplane_server.service import translate
from dataplane_server.service.local.local_calls import LocalCalls
from dataplane_server.service.local.local_session import LocalSession
from dataplane_server.service.shell import Shell
from dataplane_server.service.values import Values
from dataplane_server.storage.arena import Arena


def put(sample_id: str, size: int) -> PutSamples:
    column = ColumnSpec("a", Shape("jagged", "uint8", ()), np.array([size]))
    return PutSamples(f"put {sample_id}", "p", [sample_id], [column])


@pytest.fixture
def shell() -> Shell:
    plane = DataPlane(Limits(memory_bytes=64))
    return Shell(plane, Metrics(plane, lambda: True))


async def test_a_call_whose_deadline_comes_when_the_log_has_ended_is_refused(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell.apply(RegisterPartition("r", Definition("p", ("a",), ("train",))))
    begun = shell.apply(ClaimSamples("c", "p", "train", ("a",), 1, 1))
    assert isinstance(begun, Waiting)

    def ended(call: object, now: float) -> None:
        raise server_ended()

    monkeypatch.setattr(shell.plane, "apply", ended)
    with pytest.raises(Refusal, match="has ended"):
        await asyncio.wait_for(shell.answer(begun, 0.01), 50.0)


@pytest.mark.parametrize("wants", ["space", "room"])
async def test_what_comes_before_its_caller_waits_is_there_when_it_does(shell: Shell, wants: str) -> None:
    shell.apply(RegisterPartition("r", Definition("p", ("a",), ("train",))))
    if wants == "room":
        shell.apply(SetPolicies("s", "p", (), FlowPolicy(max_rows=1)))
    first = shell.apply(put("x", 64 if wants == "space" else 1))
    assert isinstance(first, Reservation)
    shell.apply(FinishWrite(first.ticket))
    begun = shell.apply(put("y", 64 if wants == "space" else 1))
    assert isinstance(begun, Waiting)
    shell.apply(ClearSamples("c", "p", None))
    reservation = await shell.reservation(begun, 5.0)
    assert reservation.ticket == begun.ticket
    shell.apply(AbortWrite(reservation.ticket))
    shell.drain()


async def test_values_of_a_put_whose_place_was_taken_before_its_caller_woke_up_overwrite_no_other_row(
    shell: Shell,
) -> None:
    shell.apply(RegisterPartition("r", Definition("p", ("x",), ("train",))))
    calls = LocalCalls(shell, Values(shell.plane, Arena(64)), Metrics(shell.plane, lambda: True))
    session = LocalSession(shell)
    calls.put(local_peer.put(0, 64, b"0" * 64), session)
    message = local_peer.put(1, 64, b"1" * 64)
    earlier = calls.put(message, session)
    assert isinstance(earlier, Awaitable)
    shell.apply(ClearSamples("c", "p", None))
    repeated = shell.apply(translate.rows.put(message.header))
    assert isinstance(repeated, Reservation)
    shell.apply(AbortWrite(repeated.ticket))
    calls.put(local_peer.put(2, 64, b"2" * 64, sample_ids=["other"]), session)
    with pytest.raises(Refusal, match="took over"):
        await earlier
    assert calls.read(local_peer.read(3, "other", inline_bytes=64), session).values == b"2" * 64
