"""Data planes whose laws are checked, and whose calls are replayed, when a test is over."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from dataplane_server.core.calls.limits import Limits

for _helper in ("caller", "replayed", "machine.arena", "machine.checked_plane"):
    pytest.register_assert_rewrite(f"tests.core.{_helper}")

from tests.core.caller import Caller  # noqa: E402 - after its assertions were registered to be told in full


@pytest.fixture
def new_caller() -> Iterator[Callable[..., Caller]]:
    """Opens data planes, with bounds as in Limits; the laws of each are checked when the test is over."""
    callers: list[Caller] = []

    def open_one(**bounds: float) -> Caller:
        callers.append(Caller(Limits(**bounds)))  # type: ignore[arg-type]
        return callers[-1]

    yield open_one
    for caller in callers:
        caller.plane.take_effects()
        caller.plane.check_invariants()
        caller.plane.check_replay()


@pytest.fixture
def caller(new_caller: Callable[..., Caller]) -> Caller:
    """A caller of a data plane of 4 KiB with partition p: fields a and b, tasks train and score."""
    one = new_caller(memory_bytes=4096)
    one.register(tasks=("train", "score"))
    return one
