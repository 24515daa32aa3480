"""Networks that lose, delay or repeat bytes without a word: every call ends in time, and is carried out once or not."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import pytest
import torch
from tests.integration.faults.proxy import BOTH, Direction, FaultProxy
from tests.integration.faults.verbs import VERBS, prepare
from tests.waiting import eventually

from dataplane_client.client import DataPlaneClient, connect
from dataplane_client.errors import ClaimNotFoundError, DataPlaneError, DeadlineError, UnavailableError

MIB = 1 << 20
GRACE_S = 2.0
TIMEOUT_S = 0.4
ENOUGH_S = 4.0
"""For requests to arrive, of which the server carries out none whose caller no longer waits."""
FOREVER_S = 10_000.0


@dataclass(frozen=True)
class Fault:
    """set_on: a proxy. errors: with which a call may end. succeeds: whether it may also succeed. effects: how often the
    server may carry it out, if its effect lasts when the caller gets no answer. timeout_s: of the calls.
    """

    set_on: Callable[[FaultProxy], None]
    errors: tuple[type[DataPlaneError], ...] = (DeadlineError,)
    succeeds: bool = False
    effects: tuple[int, ...] = (0,)
    timeout_s: float = TIMEOUT_S


def swallow(direction: Direction) -> Callable[[FaultProxy], None]:
    return lambda proxy: proxy.swallow.add(direction)


def slow_down(proxy: FaultProxy) -> None:
    proxy.bytes_per_s = dict.fromkeys(BOTH, 1000)


def repeat(direction: Direction) -> Callable[[FaultProxy], None]:
    def always(proxy: FaultProxy) -> None:
        proxy.repeat_after, proxy.repeats_left = {direction: 0}, 1_000_000

    return always


FAULTS = {
    "black hole of requests": Fault(swallow("requests")),
    "black hole of answers": Fault(swallow("answers"), effects=(1,), timeout_s=ENOUGH_S),
    "server side closed, client not told": Fault(lambda proxy: proxy.close_silently("server")),
    "1 KB/s": Fault(slow_down, succeeds=True, effects=(0, 1)),
    "requests twice": Fault(repeat("requests"), (UnavailableError, DeadlineError), succeeds=True, effects=(0, 1)),
    "answers twice": Fault(repeat("answers"), (UnavailableError, DeadlineError), succeeds=True, effects=(0, 1)),
}


@dataclass
class Ended:
    """How a call ended."""

    error: DataPlaneError | None
    answer: object


def ended(call: Callable[..., object], *arguments: object) -> Ended:
    answer, error = None, None
    try:
        answer = call(*arguments)
    except DataPlaneError as raised:
        error = raised
    return Ended(error, answer)


def carried_out(client: DataPlaneClient, verb: str, times: tuple[int, ...]) -> bool:
    return VERBS[verb].effects(client, verb) in times


@pytest.fixture
def shaky_clients(proxy: FaultProxy) -> Iterator[dict[str, DataPlaneClient]]:
    """A client for each verb."""
    with contextlib.ExitStack() as open_clients:
        yield {
            verb: open_clients.enter_context(connect(proxy.address, timeout_s=FOREVER_S, transport="grpc"))
            for verb in VERBS
        }


@pytest.mark.parametrize("name", FAULTS)
def test_a_call_ends_in_time_and_is_carried_out_at_most_once(
    client: DataPlaneClient,
    shaky_clients: dict[str, DataPlaneClient],
    proxy: FaultProxy,
    threads: ThreadPoolExecutor,
    name: str,
) -> None:
    fault, calls = FAULTS[name], {}
    for verb in VERBS:
        prepare(client, verb)
    states = {verb: VERBS[verb].before(shaky, verb) for verb, shaky in shaky_clients.items()}
    fault.set_on(proxy)
    for verb, shaky in shaky_clients.items():
        calls[verb] = threads.submit(ended, VERBS[verb].call, shaky, verb, states[verb], fault.timeout_s)
    ends = {verb: call.result() for verb, call in calls.items()}
    proxy.bytes_per_s, proxy.repeats_left = {}, 0
    proxy.reset_connections()
    for verb, end in ends.items():
        assert isinstance(end.error, fault.errors) or (fault.succeeds and end.error is None), (verb, end.error)
        allowed = (1,) if end.error is None else (0,) if VERBS[verb].undone else fault.effects
        eventually(partial(carried_out, client, verb, allowed))
    for shaky in shaky_clients.values():
        assert sum(described.size_bytes for described in shaky.partitions()) == shaky.server_status().memory_used_bytes


@pytest.mark.parametrize("direction", BOTH)
@pytest.mark.parametrize("after", [0, 300, 70_000, 3 * MIB])
def test_bytes_that_come_twice_change_no_row(
    client: DataPlaneClient, shaky: DataPlaneClient, proxy: FaultProxy, direction: Direction, after: int
) -> None:
    ids, rows = list("wxyz"), (torch.arange(MIB) * torch.tensor([[3], [5], [7], [11]]) >> 3).to(torch.uint8)
    client.register_partition("p", ["a"], 0, ["train"])
    proxy.repeat_after, proxy.repeats_left = {direction: after}, 3
    shaky.put_samples(ids, "p", {"a": rows})
    assert torch.equal(client.get_samples(ids, "p", ["a"])["a"], rows)
    assert torch.equal(shaky.get_samples(ids, "p", ["a"])["a"], rows)
    assert (client.partition("p").rows_put_total, client.server_status().memory_used_bytes) == (4, 4 * MIB)


@pytest.fixture
def holder(client: DataPlaneClient, proxy: FaultProxy) -> Iterator[DataPlaneClient]:
    """A client through the proxy, of a short grace, for the row of partition p."""
    prepare(client, "p")
    with connect(proxy.address, timeout_s=120.0, transport="grpc", session_grace_s=GRACE_S) as holder:
        yield holder


def test_a_client_whose_end_the_server_does_not_see_keeps_its_claim(
    client: DataPlaneClient, holder: DataPlaneClient, proxy: FaultProxy
) -> None:
    claim = holder.claim("p", "train", ["tokens"], 1)
    proxy.close_silently("client")
    time.sleep(2 * GRACE_S)  # the law is about time: a session that is not resumed is over by now
    assert claim.commit() == 1
    assert client.partition("p").task("train").consumed_rows_total == 1


def test_rows_of_a_client_that_the_server_cannot_hear_go_to_another_one_after_its_grace(
    client: DataPlaneClient, holder: DataPlaneClient, proxy: FaultProxy
) -> None:
    began = time.monotonic()
    claim = holder.claim("p", "train", ["tokens"], 1)
    proxy.swallow = {"requests"}
    again = client.claim("p", "train", ["tokens"], 1, timeout_s=FOREVER_S)
    assert time.monotonic() - began > GRACE_S * 0.9
    proxy.reset_connections()
    with pytest.raises(ClaimNotFoundError):
        claim.commit()
    assert again.commit() == 1


@pytest.mark.soak
def test_a_client_finds_out_within_half_a_minute_that_the_server_does_not_hear_it(
    shaky: DataPlaneClient, proxy: FaultProxy
) -> None:
    shaky.server_status()
    proxy.close_silently("server")
    began = time.monotonic()
    assert shaky.server_status(timeout_s=60.0).rows == 0
    assert 10.0 < time.monotonic() - began < 40.0
