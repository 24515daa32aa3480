"""Weights from a trainer to engines on other devices; ranks are threads, each with its own end of the group."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pytest
import torch
from tests.ranks import free_port
from tests.trainer_adapter.refit.refit_cases import CPU, TinyModel, told
from tests.trainer_adapter.refit.streams import INFO, assert_all_weights, broken, parameters, take
from torch import Tensor
from torch.overrides import TorchFunctionMode

from trainer_adapter.refit import WeightCollective, WeightPublisher

Rank = Callable[[WeightCollective], Any]


@pytest.fixture(autouse=True)
def over_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")


def play(*ranks: Rank, group_bytes: int = 700, timeout_s: float = 10, device: str = "cpu") -> list[str]:
    """How it went for each rank, rank 0 first; on GPUs each has the one of its number."""
    port = free_port()

    def one(rank: int) -> str:
        def join() -> None:
            # Engines ask for sizes of their own, but rank 0 decides.
            own = group_bytes + 50 * rank
            place = CPU if device == "cpu" else torch.device(device, rank)
            group = WeightCollective("127.0.0.1", port, len(ranks), rank, place, timeout_s, own)
            with closing(group):
                ranks[rank](group)

        return told(join)

    with ThreadPoolExecutor(len(ranks)) as pool:
        return list(pool.map(one, range(len(ranks))))


def send(group: WeightCollective) -> None:
    group.broadcast(INFO, parameters())


def taking(into: dict[str, Tensor], info: Any = INFO) -> Rank:
    return lambda group: take(group.receive(info), into)


@pytest.mark.parametrize("group_bytes", [1, 700, 10_000_000])
def test_every_engine_gets_all_weights_bit_by_bit_whatever_the_size_of_the_groups(group_bytes: int) -> None:
    got: list[dict[str, Tensor]] = [{}, {}]
    assert play(send, send, taking(got[0]), taking(got[1]), group_bytes=group_bytes) == ["done"] * 4
    for one in got:
        assert_all_weights(one)


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_an_engine_on_another_gpu_gets_all_weights_bit_by_bit() -> None:
    got: dict[str, Tensor] = {}
    assert play(send, taking(got), timeout_s=60, device="cuda") == ["done"] * 2
    assert {value.device for value in got.values()} == {torch.device("cuda", 1)}
    assert_all_weights({name: value.cpu() for name, value in got.items()})


ANOTHER = "RuntimeError: another rank of the group for weights failed; see that rank's error"
VALUE, WHAT, LAST = "ValueError: the", "names, shapes or dtypes than this rank's", len(INFO) - 1
SURPLUS = "ValueError: weight 'more' is sent but was not announced"
NO_BUFFERS, NO_COPY = (f"OutOfMemoryError: no memory for {name}" for name in ("empty", "clone"))
OTHER = {**INFO, "steps": (torch.Size([2]), torch.int64)}


def raising(group: WeightCollective) -> None:
    with group.receive(INFO) as weights:
        next(weights)
        raise ValueError("no room for it")


def stopping(group: WeightCollective) -> None:
    with group.receive(INFO) as weights:
        forwarded = (item for item in weights)
        next(forwarded)
        forwarded.close()


def send_broken(group: WeightCollective) -> None:
    group.broadcast(INFO, broken())


def send_more(group: WeightCollective) -> None:
    group.broadcast(INFO, iter([*parameters(), ("more", torch.ones(1))]))


class NoMemory(TorchFunctionMode):
    """In this thread, calls of one function find none."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name

    def __torch_function__(self, call: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if call.__name__ == self._name:
            raise torch.OutOfMemoryError(f"no memory for {self._name}")
        return call(*args, **(kwargs or {}))


def without(name: str, rank: Rank) -> Rank:
    def play_without(group: WeightCollective) -> None:
        with NoMemory(name):
            rank(group)

    return play_without


def reading(group: WeightCollective) -> None:
    with group.receive(INFO) as weights:
        deque(weights, maxlen=0)


@pytest.mark.parametrize(
    ("ranks", "outcomes"),
    [
        ((send, raising, taking({})), (ANOTHER, "ValueError: no room for it", ANOTHER)),
        ((send, taking({}), stopping), (ANOTHER, ANOTHER, f"{VALUE} engine stopped before the last {LAST} weights")),
        ((send, taking({}), taking({}, OTHER)), (ANOTHER, ANOTHER, f"{VALUE} weights of rank 0 have other {WHAT}")),
        ((send_broken, send, taking({})), ("OSError: gathering failed", ANOTHER, ANOTHER)),
        ((send, send_broken, taking({})), (ANOTHER, "OSError: gathering failed", ANOTHER)),
        ((send_more, taking({}), taking({})), (SURPLUS, ANOTHER, ANOTHER)),
        ((without("empty", send), send, taking({})), (NO_BUFFERS, ANOTHER, ANOTHER)),
        ((send, without("empty", reading), taking({})), (ANOTHER, NO_BUFFERS, ANOTHER)),
        ((send, without("clone", reading), taking({})), (ANOTHER, NO_COPY, ANOTHER)),
    ],
    ids=[
        "engine fails",
        "engine stops",
        "other weights",
        "rank 0 fails",
        "another trainer fails",
        "weight too many",
        "rank 0 has no buffers",
        "engine has no buffers",
        "engine has no room for a copy",
    ],
)
def test_a_failure_of_one_rank_reaches_all_and_the_group_goes_on(
    ranks: tuple[Rank, ...], outcomes: tuple[str, ...]
) -> None:
    is_trainer = [index == 0 or rank in (send, send_broken) for index, rank in enumerate(ranks)]
    got: list[dict[str, Tensor]] = [{} for _ in ranks]
    seen: list[str] = [""] * len(ranks)

    def failing_first(index: int) -> Rank:
        def play_both(group: WeightCollective) -> None:
            seen[index] = told(lambda: ranks[index](group))
            (send if is_trainer[index] else taking(got[index]))(group)

        return play_both

    assert play(*(failing_first(index) for index in range(len(ranks)))) == ["done"] * len(ranks)
    assert seen == list(outcomes)
    for engine, trains in zip(got, is_trainer, strict=True):
        assert trains or list(engine) == list(INFO)


def test_a_rank_that_leaves_ends_the_wait_of_the_others() -> None:
    outcomes = play(send, lambda _: None, taking({}))
    assert outcomes[1] == "done"
    assert all(outcome.startswith("ConnectionError: a rank of the group for weights at") for outcome in outcomes[::2])


def test_an_engine_that_joins_again_before_the_trainer_has_left_meets_the_next_group(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its first store is that of the group that it has left: rank 0 still has it."""
    port, timeout_s, met = free_port(), 200, threading.Event()

    class Store(torch.distributed.TCPStore):  # type: ignore[misc, name-defined]  # public, but not to type checkers
        def __init__(self, *arguments: Any, **keywords: Any) -> None:
            super().__init__(*arguments, **keywords)
            met.set()

    def join(rank: int) -> WeightCollective:
        return WeightCollective("127.0.0.1", port, 2, rank, CPU, timeout_s)

    got: dict[str, Tensor] = {}
    with ThreadPoolExecutor(1) as pool:
        joining = pool.submit(join, 1)
        trainer = join(0)
        joining.result().close()
        monkeypatch.setattr(torch.distributed, "TCPStore", Store)
        joining = pool.submit(join, 1)
        assert met.wait(timeout_s)
        trainer.close()
        with closing(join(0)) as again, closing(joining.result()) as engine:
            taken = pool.submit(take, engine.receive(INFO), got)
            send(again)
            taken.result()
    assert_all_weights(got)


def interrupted(group: WeightCollective) -> None:
    def weights() -> Iterator[tuple[str, Tensor]]:
        yield from list(parameters())[:2]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        group.broadcast(INFO, weights())
    group.broadcast(INFO, parameters())


def test_an_interrupted_trainer_closes_the_group_and_sends_no_weights_out_of_step() -> None:
    got: dict[str, Tensor] = {}
    outcomes = play(interrupted, taking(got), timeout_s=60)
    assert [outcome.partition(":")[0] for outcome in outcomes] == ["RuntimeError", "ConnectionError"]
    assert outcomes[0].endswith("is closed")


def test_ranks_that_do_not_join_are_not_waited_for_longer_than_configured() -> None:
    began = time.monotonic()
    with pytest.raises(TimeoutError):
        WeightCollective("127.0.0.1", free_port(), 2, 0, CPU, timeout_s=0.2)
    assert time.monotonic() - began < 60


@pytest.mark.parametrize(("rank", "trainers", "world"), [(2, 2, 3), (0, 2, 2), (0, 3, 2)])
def test_a_group_has_trainers_first_and_engines_after_them(rank: int, trainers: int, world: int) -> None:
    publisher = WeightPublisher(TinyModel(), torch.float32, CPU, rank)
    with pytest.raises(ValueError, match="ranks"):
        publisher.init_collective("127.0.0.1", 1, world, train_world_size=trainers)
