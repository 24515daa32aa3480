"""Work on threads, and calls over a local connection: what a cancellation ends, and what it waits for.

White-box: answers break off at chosen bytes, and cancellations come at chosen turns.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from dataplane_client._verbs._async.runtime import LocalConnection, NoThreadError, _threads, run_in_thread
from dataplane_client._verbs._sync.runtime import LocalConnection as BlockingConnection
from rl_dataplane.v1.local_frames import HEAD

# -- work on threads ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fails", [False, True], ids=["works", "fails"])
@pytest.mark.parametrize("cancellations", [1, 2, 5])
async def test_a_cancellation_waits_until_work_is_done(cancellations: int, fails: bool) -> None:
    """Until then it writes to memory that is lent. Also if it fails then, it was cancelled."""
    begun, go_on, done = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        go_on.wait(200)
        done.set()
        if fails:
            raise ValueError

    task = asyncio.ensure_future(run_in_thread(work))
    await asyncio.to_thread(begun.wait, 200)
    for _ in range(cancellations):
        task.cancel()
        for _ in range(5):
            await asyncio.sleep(0)
        assert not task.done()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert done.is_set()


def test_a_loop_that_ends_waits_until_work_is_done() -> None:
    begun, done = threading.Event(), threading.Event()
    seen: list[bool] = []

    def work() -> None:
        begun.set()
        threading.Event().wait(0.05)
        done.set()

    async def caller() -> None:
        try:
            await run_in_thread(work)
        finally:
            seen.append(done.is_set())

    async def main() -> None:
        task = asyncio.ensure_future(caller())
        await asyncio.to_thread(begun.wait, 200)
        assert not task.done()

    asyncio.run(main())
    assert seen == [True]


async def test_work_begins_while_all_threads_of_the_loop_wait_for_it() -> None:
    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(1) as threads:
        loop.set_default_executor(threads)
        waiting = loop.run_in_executor(
            None, lambda: asyncio.run_coroutine_threadsafe(run_in_thread(lambda: 5), loop).result(200)
        )
        assert await waiting == 5


@contextlib.asynccontextmanager
async def no_free_thread() -> AsyncIterator[None]:
    """A block during which all threads are at work; all of them are free at its end."""
    go_on = threading.Event()
    busy = [_threads().submit(go_on.wait, 200) for _ in range(_threads()._max_workers)]
    yield
    assert not any(one.done() for one in busy)
    go_on.set()
    await run_in_thread(lambda: [one.result() for one in busy])


async def test_a_cancellation_drops_work_that_has_not_begun() -> None:
    begun = threading.Event()
    async with no_free_thread():
        task = asyncio.ensure_future(run_in_thread(begun.set))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert not begun.is_set()


async def test_work_for_which_no_thread_is_free_in_time_is_dropped() -> None:
    begun = threading.Event()
    async with no_free_thread():
        with pytest.raises(NoThreadError):
            await run_in_thread(begun.set, timeout_s=0.01)
    assert not begun.is_set()


async def test_work_that_has_begun_in_time_is_waited_for() -> None:
    """It keeps deadlines of its own, or writes to memory that is lent."""
    begun, go_on = threading.Event(), threading.Event()

    def work() -> bool:
        begun.set()
        return go_on.wait(200)

    task = asyncio.ensure_future(run_in_thread(work, timeout_s=0.0))
    await asyncio.sleep(0)
    assert begun.wait(200)  # the loop stands still meanwhile, and so does its clock for the task
    for _ in range(5):
        await asyncio.sleep(0.001)
    assert not task.done()
    go_on.set()
    assert await task


async def test_work_that_writes_to_no_lent_memory_is_left_to_itself() -> None:
    begun, go_on, done = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        go_on.wait(200)
        done.set()

    task = asyncio.ensure_future(run_in_thread(work, to_its_end=False))
    await asyncio.to_thread(begun.wait, 200)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not done.is_set()
    go_on.set()


def test_a_forked_child_has_threads_of_its_own() -> None:
    code = """
import asyncio, os, signal
from dataplane_client._verbs._async.runtime import run_in_thread
asyncio.run(run_in_thread(os.getpid))
child = os.fork()
signal.alarm(100)
assert asyncio.run(run_in_thread(os.getpid)) == os.getpid()
if not child:
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
"""
    subprocess.run([sys.executable, "-c", code], timeout=200, check=True)


# -- local connections -------------------------------------------------------------------------------------------------


@pytest.fixture
def pair() -> Iterator[Pair]:
    with contextlib.ExitStack() as sockets:
        ours, theirs = map(sockets.enter_context, socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM))
        yield ours, theirs


Pair = tuple[socket.socket, socket.socket]
KINDS = pytest.mark.parametrize("kind", [LocalConnection, BlockingConnection], ids=["asynchronous", "blocking"])
Kind = type[LocalConnection | BlockingConnection]


async def exchange(kind: Kind, ours: socket.socket, request: bytes, timeout_s: float) -> tuple[int, bytes]:
    if kind is BlockingConnection:
        return BlockingConnection(ours).exchange(request, timeout_s)
    ours.setblocking(False)
    return await LocalConnection(ours).exchange(request, timeout_s)


CLOSED, TOO_MUCH = "the server closed the connection", "a response of 20971521 bytes; the limit is 20971520"
ANSWERS = {
    "nothing": (b"", CLOSED),
    "half a head": (HEAD.pack(5, 0)[:4], CLOSED),
    "half a body": (HEAD.pack(5, 0) + b"abc", CLOSED),
    "too much": (HEAD.pack((20 << 20) + 1, 0), TOO_MUCH),
}


@KINDS
@pytest.mark.parametrize(("answer", "message"), ANSWERS.values(), ids=ANSWERS)
async def test_an_answer_that_breaks_off_is_an_error(pair: Pair, kind: Kind, answer: bytes, message: str) -> None:
    ours, theirs = pair
    theirs.sendall(answer)
    theirs.shutdown(socket.SHUT_WR)
    with pytest.raises(ConnectionError, match=message):
        await exchange(kind, ours, b"request", 20.0)


async def test_an_answer_that_comes_in_pieces_is_put_together(pair: Pair) -> None:
    ours, theirs = pair
    call = asyncio.ensure_future(exchange(LocalConnection, ours, b"request", 20.0))
    for byte in HEAD.pack(300, 1) + bytes(300):
        theirs.sendall(bytes([byte]))
        await asyncio.sleep(0)
    assert await call == (1, bytes(300))
    assert theirs.recv(100) == b"request"


@KINDS
@pytest.mark.parametrize(
    ("received", "request_bytes"),
    [(b"", 7), (HEAD.pack(5, 0) + b"abc", 7), (b"", 10 << 20)],
    ids=["no answer", "half an answer", "a request that is not taken in"],
)
async def test_what_does_not_happen_in_time_is_a_timeout(
    pair: Pair, kind: Kind, received: bytes, request_bytes: int
) -> None:
    ours, theirs = pair
    theirs.sendall(received)
    with pytest.raises(TimeoutError):
        await exchange(kind, ours, bytes(request_bytes), 0.05)


@pytest.mark.parametrize("turns", range(6))
async def test_a_cancellation_is_never_lost_to_an_answer_that_comes_at_once(pair: Pair, turns: int) -> None:
    ours, theirs = pair
    call = asyncio.ensure_future(exchange(LocalConnection, ours, b"request", 200.0))
    for _ in range(5):
        await asyncio.sleep(0)  # it waits for its answer
    theirs.sendall(HEAD.pack(0, 0))
    for _ in range(turns):
        await asyncio.sleep(0)
    if call.cancel():
        with pytest.raises(asyncio.CancelledError):
            await call
    else:
        assert turns > 0
        assert await call == (0, b"")


@KINDS
def test_a_connection_that_is_dropped_closes_its_socket(pair: Pair, kind: Kind) -> None:
    connection = kind(pair[0])
    del connection
    assert pair[0].fileno() == -1
