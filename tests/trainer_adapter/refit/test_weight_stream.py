"""Weights from a trainer to an engine on the same device, and the error on each side if the other fails."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.trainer_adapter.refit.refit_cases import CPU, mappings_of_weights
from tests.trainer_adapter.refit.streams import INFO, MODEL, assert_all_weights, both, broken, parameters, taking
from torch import Tensor

from trainer_adapter.refit import RefitInfo, WeightPublisher, receive_streamed_weights, stream_endpoint, stream_weights
from trainer_adapter.refit._channels import RequestChannel
from trainer_adapter.refit._endpoints import own_folder
from trainer_adapter.refit._shared_buffers import SharedBuffer


@pytest.fixture
def endpoint() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="refit") as folder:  # short, for the socket in it
        yield stream_endpoint(CPU, 0, folder)
        assert not list(Path(folder).iterdir())
    assert mappings_of_weights() == 0


def sending(endpoint: str, items: Any = None, timeout_s: float = 10, buffer_bytes: int = 1000) -> Callable[[], None]:
    def send() -> None:
        weights = parameters() if items is None else iter(items)
        stream_weights(endpoint, INFO, weights, device=CPU, buffer_size_bytes=buffer_bytes, timeout_s=timeout_s)

    return send


@pytest.mark.parametrize("buffer_bytes", [1, 1000, 3000, 10_000_000])
def test_weights_arrive_bit_by_bit_whatever_the_size_of_the_buffers(endpoint: str, buffer_bytes: int) -> None:
    got: dict[str, Tensor] = {}
    outcome = both(sending(endpoint, buffer_bytes=buffer_bytes), taking(endpoint, got))
    assert outcome == ("done", "done")
    assert_all_weights(got)


def test_an_endpoint_serves_again_at_once_also_after_an_engine_that_refused(endpoint: str) -> None:
    engines: tuple[RefitInfo, ...] = (INFO, {}, INFO, INFO) * 10
    outcomes = [both(sending(endpoint), taking(endpoint, {}, info))[0][:12] for info in engines]
    assert outcomes == ["done", "RuntimeError", "done", "done"] * 10


def failing(endpoint: str, after: int) -> Callable[[], None]:
    def take() -> None:
        with receive_streamed_weights(endpoint, INFO, CPU, 10) as weights:
            for _ in range(after):
                next(weights)
            raise ValueError("no room for it")

    return take


@pytest.mark.parametrize("after", [0, 1, len(INFO) // 2, len(INFO)])
def test_an_error_of_the_engine_is_raised_on_the_trainer_whenever_it_comes(endpoint: str, after: int) -> None:
    trainer, engine = both(sending(endpoint), failing(endpoint, after))
    assert trainer == f"RuntimeError: the engine at {endpoint} refused the weights: ValueError: no room for it"
    assert engine == "ValueError: no room for it"


STEPS = INFO["steps"]


@pytest.mark.parametrize(
    ("info", "text"),
    [
        ({name: INFO[name] for name in INFO if name != "steps"}, "'steps' was not announced, or was sent before"),
        ({**INFO, "steps": (STEPS[0], torch.int32)}, "'steps' is () torch.int64, but () torch.int32 was announced"),
        ({**INFO, "steps": ((2,), torch.int64)}, "'steps' is () torch.int64, but (2,) torch.int64 was announced"),
        ({**INFO, "another": STEPS}, "the trainer did not send another"),
    ],
)
def test_an_engine_that_expects_other_weights_refuses(endpoint: str, info: Any, text: str) -> None:
    trainer, engine = both(sending(endpoint), taking(endpoint, {}, info))
    assert trainer.startswith(f"RuntimeError: the engine at {endpoint} refused the weights: ValueError: ")
    assert trainer.endswith(text)
    assert engine.endswith(text)


@pytest.mark.parametrize(
    ("items", "error"),
    [
        (broken, "OSError: gathering failed"),
        (lambda: list(parameters())[:-1], "ValueError: the next weight is missing, but 'head.weight' (61, 8)"),
        (lambda: [*parameters(), ("more", torch.ones(1))], "ValueError: weight 'more' is sent but was not announced"),
    ],
    ids=["raises", "ends early", "goes on"],
)
def test_an_error_of_the_trainer_is_raised_on_the_engine(endpoint: str, items: Any, error: str) -> None:
    trainer, engine = both(sending(endpoint, items()), taking(endpoint, {}))
    assert trainer.startswith(error)
    assert engine.startswith(f"ConnectionError: the trainer failed: {error}")


def test_neither_side_waits_for_the_other_beyond_its_time(endpoint: str) -> None:
    for alone in (sending(endpoint, timeout_s=0.1), taking(endpoint, {}, timeout_s=0.1)):
        began = time.monotonic()
        with pytest.raises(TimeoutError, match=str(endpoint)):
            alone()
        assert time.monotonic() - began < 60


DYING = """if True:
    import os, sys, zmq
    socket = zmq.Context().socket(zmq.REP)
    socket.setsockopt(zmq.RCVTIMEO, 20_000)
    socket.connect(sys.argv[1])
    print("here", flush=True)
    socket.recv()
    os._exit(1)
"""


def test_a_trainer_whose_engine_is_killed_gives_up_in_time_and_serves_the_next_one(endpoint: str) -> None:
    with subprocess.Popen([sys.executable, "-c", DYING, endpoint], stdout=subprocess.PIPE) as engine:
        assert engine.stdout is not None
        engine.stdout.readline()
        with pytest.raises(TimeoutError):
            sending(endpoint, timeout_s=2)()
    assert both(sending(endpoint), taking(endpoint, {})) == ("done", "done")


ONE_WEIGHT = {"w": (torch.Size([4]), torch.float32)}
OTHER_FILE = {"handle": "of another file"}
"""As an engine finds it that sees other processes than the trainer in /proc, which have the same numbers."""


def asking(endpoint: str, *messages: dict[str, Any]) -> Callable[[], None]:
    """A trainer with messages of its own making, each the first of a stream of one weight but for what is said."""

    def ask() -> None:
        buffer, other = SharedBuffer(16, CPU), SharedBuffer(16, CPU)
        of_other = [*buffer.handle[:2], other.handle[2], *buffer.handle[3:]]
        well = {"stream": b"1", "index": 0, "handle": buffer.handle, "used_bytes": 16}
        with closing(RequestChannel(endpoint, 10)) as channel:
            for message in messages:
                given = {"handle": of_other} if message == OTHER_FILE else message
                channel.send({**well, "weights": [["w", "float32", [4], 0]], **given})
                channel.await_answer()

    return ask


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"index": 1}, "expected message 0 of this stream of weights, got message 1 of another one"),
        ({"weights": [["w", "float32", [4], 4]]}, "weight 'w' is outside the 16 bytes used"),
        ({"weights": [["w", "float32", [4], -4]]}, "weight 'w' is outside the 16 bytes used"),
        ({"weights": [["w", "object", [4], 0]]}, "dtype 'object' is not a known element type"),
        ({"used_bytes": 99, "weights": [["w", "float32", [4], 16]]}, "is outside the 16 bytes used"),
        ({"handle": ["cuda", 0, b""]}, "the trainer's memory is of kind 'cuda', which cannot be opened on cpu"),
        ({"handle": ["memory", os.getpid(), 99_999, 0]}, "the trainer's memory cannot be opened"),
        (OTHER_FILE, "the trainer's memory cannot be opened"),
    ],
)
def test_messages_that_make_no_sense_are_refused(endpoint: str, changes: dict[str, Any], text: str) -> None:
    trainer, engine = both(asking(endpoint, changes), taking(endpoint, {}, ONE_WEIGHT))
    assert text in trainer
    assert text in engine


def test_a_trainer_that_starts_anew_is_not_taken_for_the_one_that_broke_off(endpoint: str) -> None:
    send = asking(endpoint, {}, {"index": 1, "stream": b"2"})
    trainer, engine = both(send, taking(endpoint, {}, ONE_WEIGHT))
    assert "expected message 1 of this stream of weights" in trainer
    assert "expected message 1 of this stream of weights" in engine


def publisher_at(endpoint: str, timeout_s: float) -> WeightPublisher:
    folder = Path(endpoint.removeprefix("ipc://")).parent
    return WeightPublisher(MODEL, torch.bfloat16, CPU, 0, timeout_s=timeout_s, endpoint_folder=folder)


def test_engines_have_closed_the_trainers_memory_when_its_call_returns(endpoint: str) -> None:
    """On a GPU torch keeps freed memory for the first engine that opened it, and for none that came later."""
    publisher = publisher_at(endpoint, 10)
    opened, returned, alone = [], [], []

    def send() -> None:
        publisher.stream_weights_via_ipc_zmq(buffer_size_bytes=1000)
        returned.append(mappings_of_weights())

    def load() -> None:
        with receive_streamed_weights(endpoint, INFO, CPU, 10) as weights:
            assert_all_weights({name: weight.clone() for name, weight in weights})
            opened.append(mappings_of_weights())

    with closing(publisher):
        for _ in range(10):
            assert both(send, load) == ("done", "done")
            alone.append(mappings_of_weights())
    assert returned == alone == [alone[0]] * 10
    assert min(opened) > alone[0]


def test_refits_that_fail_add_no_memory_to_that_of_the_first(endpoint: str) -> None:
    """CUDA memory that was offered to an engine that never came is not freed before the trainer ends."""
    held = []
    with closing(publisher_at(endpoint, 0.05)) as publisher:
        for _ in range(4):
            with pytest.raises(TimeoutError):
                publisher.stream_weights_via_ipc_zmq(buffer_size_bytes=1000)
            held.append(mappings_of_weights())
    assert held == [held[0]] * 4 != [0] * 4


def test_the_folder_of_sockets_is_its_owners_alone(tmp_path: Path) -> None:
    folder = own_folder(tmp_path)
    assert own_folder(tmp_path) == folder
    assert folder.stat().st_mode & 0o777 == 0o700
    folder.chmod(0o755)
    with pytest.raises(PermissionError, match="0700"):
        own_folder(tmp_path)
