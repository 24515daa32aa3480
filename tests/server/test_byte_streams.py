"""What threads do with the bytes of the arena while their callers come and go."""

from __future__ import annotations

import asyncio
import gc
import logging
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from dataplane_server.arena_streams import in_thread
from rl_dataplane.byte_streams import Pace, receive_pieces, send_pieces


async def test_work_of_a_caller_that_is_cancelled_goes_on_to_its_end_and_its_error_is_not_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        go_on.wait(100)
        raise OSError("the connection is gone")

    with ThreadPoolExecutor(1) as threads:
        caller = asyncio.ensure_future(in_thread(threads, work))
        await asyncio.to_thread(begun.wait, 100)
        caller.cancel()
        assert not (await asyncio.wait([caller], timeout=0.05))[0]
        go_on.set()
        await asyncio.wait([caller], timeout=100)
    assert caller.cancelled()
    with caplog.at_level(logging.ERROR, "asyncio"):
        del caller
        gc.collect()
    assert not caplog.records


def test_bytes_that_keep_their_pace_leave_the_timeout_as_it_was() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        for line, move in ((ours, send_pieces), (theirs, receive_pieces)):
            line.settimeout(1000.0)
            move(line, [memoryview(bytearray(8))], Pace(1.0, 500.0))
            assert line.gettimeout() == 1000.0
