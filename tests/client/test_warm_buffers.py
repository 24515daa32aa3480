"""Buffers return when nobody can read them any more, and not before, whatever was made of them."""

import ctypes
import gc
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests import commands

from dataplane_client._common.arrays import ByteArray
from dataplane_client._values.warm_buffers import SMALLEST, WarmBuffers

MIB = 1 << 20
SIZES = st.sampled_from([96, 100, SMALLEST - 1, SMALLEST, SMALLEST + 8, 300_000, 524_288, 524_296])


@pytest.fixture(autouse=True, scope="module")
def quick_collections() -> Iterator[None]:
    """What torch and others hold for good need not be searched each time."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


class Cycle:
    """Only garbage collection frees what it holds."""

    def __init__(self, held: object) -> None:
        self.held, self.me = held, self


class Reader:
    """Reads what it holds once more when it is finalized, in a cycle too."""

    def __init__(self, held: ByteArray, expected: int, wrong: list[int]) -> None:
        self.held, self.expected, self.wrong, self.me = held, expected, wrong, self

    def __del__(self) -> None:
        if not (self.held == self.expected).all():
            self.wrong.append(self.expected)


HOLDERS: dict[str, Callable[[ByteArray], object]] = {
    "array": lambda buffer: buffer,
    "view of a view": lambda buffer: buffer[1:][:-1:3],
    "other dtype": lambda buffer: buffer[: len(buffer) // 8 * 8].view(np.float64),
    "memoryview": lambda buffer: buffer.data[2:],
    "frombuffer": lambda buffer: np.frombuffer(buffer.data, np.int8),
    "base": lambda buffer: buffer[1:].base,
    "tensor": torch.from_numpy,
    "tensor of other dtype and shape": lambda buffer: torch.from_numpy(buffer[:96]).view(torch.float32).reshape(4, 6),
    "row of a tensor": lambda buffer: torch.from_numpy(buffer[:96]).reshape(4, 24)[2],
    "array of a tensor": lambda buffer: torch.from_numpy(buffer)[5:].numpy(),
    "detached parameter": lambda buffer: torch.nn.Parameter(torch.from_numpy(buffer[:8]).view(torch.float32)).detach(),
    "storage": lambda buffer: torch.from_numpy(buffer).untyped_storage(),
    "dlpack": torch.utils.dlpack.from_dlpack,
    "address": lambda buffer: buffer.ctypes,
    "cycle": Cycle,
    "cycle through a tensor": lambda buffer: Cycle(torch.from_numpy(buffer)),
    "closure": lambda buffer: lambda: buffer,
}


@pytest.mark.parametrize("hold", HOLDERS.values(), ids=HOLDERS)
def test_memory_returns_when_the_last_holder_is_gone_in_any_thread(hold: Callable[[ByteArray], object]) -> None:
    pool = WarmBuffers(MIB)
    held = [hold(pool.take(SMALLEST))]
    gc.collect()
    assert pool.idle_bytes == 0
    thread = threading.Thread(target=held.clear)
    thread.start()
    thread.join(timeout=300)
    gc.collect()
    assert pool.idle_bytes == SMALLEST


@dataclass
class Life:
    """Buffers alive, each filled with a number of its own and held by one thing that was made of it."""

    pool: WarmBuffers
    alive: dict[int, tuple[ByteArray, object]] = field(default_factory=dict)
    taken: int = 0
    wrong: list[int] = field(default_factory=list)

    def take(self, nbytes: int, holder: str) -> None:
        buffer = self.pool.take(nbytes)
        assert buffer.shape == (nbytes,)
        self.taken += 1
        buffer[:] = self.taken % 251
        self.alive[self.taken] = (borrowed(buffer), HOLDERS[holder](buffer))

    def check(self) -> None:
        for number, (seen, _) in self.alive.items():
            assert (seen == number % 251).all()

    def drop(self, which: int) -> None:
        if self.alive:
            self.alive.pop(sorted(self.alive)[which % len(self.alive)])

    def drop_after_last_words(self, nbytes: int) -> None:
        buffer = self.pool.take(nbytes)
        buffer[:] = 255
        Reader(buffer, 255, self.wrong)


def borrowed(buffer: ByteArray) -> ByteArray:
    """The same memory, seen without holding it; not all of it, for speed."""
    memory = (ctypes.c_uint8 * len(buffer)).from_address(buffer.ctypes.data)
    return np.ctypeslib.as_array(memory)[::61]


STEPS = st.lists(
    st.tuples(st.just("take"), SIZES, st.sampled_from(sorted(HOLDERS)))
    | st.tuples(st.just("drop"), st.integers(0, 20))
    | st.tuples(st.just("drop_after_last_words"), SIZES)
    | st.tuples(st.just("collect")),
    max_size=30,
)


@settings(deadline=None)
@given(steps=STEPS, idle_bytes=st.sampled_from([0, SMALLEST, 2 * MIB]))
def test_what_somebody_holds_is_never_handed_out_again(steps: list[tuple[object, ...]], idle_bytes: int) -> None:
    life = Life(WarmBuffers(idle_bytes))
    for name, *arguments in steps:
        if name == "collect":
            gc.collect()
        else:
            getattr(life, str(name))(*arguments)
        assert life.pool.idle_bytes <= idle_bytes
        life.check()
    gc.collect()
    assert not life.wrong


def test_threads_that_take_and_drop_at_once_never_share_a_buffer() -> None:
    pool = WarmBuffers(4 * MIB)
    wrong: list[int] = []

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        life = Life(pool, taken=seed * 1000)
        for _ in range(60):
            life.take(int(rng.integers(SMALLEST, 2 * SMALLEST)), rng.choice(sorted(HOLDERS)))
            if len(life.alive) > 4:
                life.drop(int(rng.integers(5)))
                life.drop_after_last_words(SMALLEST)
            life.check()
        wrong.extend(life.wrong)
        done.append(seed)

    done: list[int] = []
    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=300)
    gc.collect()
    assert (sorted(done), wrong) == ([0, 1, 2, 3], [])
    assert pool.idle_bytes <= 4 * MIB


@given(nbytes=st.integers(SMALLEST, 64 * MIB))
def test_at_most_an_eighth_more_memory_than_asked_for_stands_behind_a_buffer(nbytes: int) -> None:
    pool = WarmBuffers(128 * MIB)
    pool.take(nbytes)
    assert nbytes <= pool.idle_bytes <= nbytes * 1.125


def test_the_memory_used_last_is_used_next_and_the_one_idle_longest_is_freed_first() -> None:
    pool = WarmBuffers(3 * SMALLEST)
    first, second, third, fourth = (pool.take(SMALLEST) for _ in range(4))
    addresses = [buffer.ctypes.data for buffer in (second, third, fourth)]
    del first, second, third, fourth
    assert pool.idle_bytes == 3 * SMALLEST
    taken = [pool.take(SMALLEST) for _ in range(3)]
    assert [buffer.ctypes.data for buffer in taken] == addresses[::-1]
    taken[0][:] = 7
    del taken[1:]
    pool.drop_idle()
    assert pool.idle_bytes == 0
    assert (taken[0] == 7).all()


def test_buffers_that_are_small_or_larger_than_all_that_may_be_idle_are_not_kept() -> None:
    pool = WarmBuffers(MIB)
    pool.take(SMALLEST - 1)
    assert (pool.take(0).shape, pool.idle_bytes) == ((0,), 0)
    pool.take(SMALLEST)
    pool.take(2 * MIB)
    assert pool.idle_bytes == SMALLEST


# Processes of their own: one to fork while it has no other thread, one to end with buffers in use, one to run out.
FORK = """
import os
from dataplane_client._values.warm_buffers import take, warm_buffers
held = take(1 << 20); held[:] = 1
take(1 << 20)[:] = 2
read, write = os.pipe()
if os.fork() == 0:
    assert warm_buffers.idle_bytes == 0 and (held == 1).all()
    held[:] = 3; take(1 << 20)[:] = 4; del held
    assert warm_buffers.idle_bytes == 2 << 20
    os.write(write, b"x"); os._exit(0)
assert os.wait()[1] == 0
assert warm_buffers.idle_bytes == 1 << 20 and (held == 1).all() and (take(1 << 20) == 2).all()
"""

EXIT = """
import threading, torch
from dataplane_client._values import warm_buffers
torch.held = torch.from_numpy(warm_buffers.take(1 << 20))
warm_buffers.itself = torch.from_numpy(warm_buffers.take(1 << 20))[1:]
class Late:
    def __init__(self): self.held, self.me = warm_buffers.take(1 << 20), self
    def __del__(self): self.held[:] = 1; warm_buffers.take(1 << 20)
late = Late()
threading.late = Late()
"""

OUT_OF_MEMORY = """
import resource
from dataplane_client._values.warm_buffers import take, warm_buffers
with open("/proc/self/statm") as statm:
    used = int(statm.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (40 << 20),) * 2)
for _ in range(3):
    take(24 << 20)
assert warm_buffers.idle_bytes == 24 << 20
take(32 << 20)
assert warm_buffers.idle_bytes == 32 << 20
try:
    take(64 << 20)
except MemoryError as error:
    assert "67108864 bytes" in str(error)
else:
    raise AssertionError
"""


@pytest.mark.parametrize("story", [FORK, EXIT, OUT_OF_MEMORY], ids=["fork", "exit", "out-of-memory"])
def test_a_process_keeps_the_law(story: str) -> None:
    done = commands.run([sys.executable, "-c", story])
    assert (done.returncode, done.stderr) == (0, "")
