"""Messages between a loader and its workers: whole or not at all, and the end of a process is the end of its stream."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import pytest

from dataplane_client.errors import ClaimTimeoutError, NotFoundError
from dataplane_client.loader import _wire


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    with_ends = _wire.socket_pair()
    yield with_ends
    for end in with_ends:
        end.close()


def test_messages_keep_their_boundaries(ends: tuple[socket.socket, socket.socket]) -> None:
    for body in (b"one", b"", b"three"):
        _wire.send(ends[0], _wire.TAKEN, body)
    assert [_wire.receive(ends[1]) for _ in range(3)] == [(b"T", body, None) for body in (b"one", b"", b"three")]


def test_a_descriptor_travels_and_does_not_outlive_an_exec(ends: tuple[socket.socket, socket.socket]) -> None:
    fd = os.memfd_create("test")
    os.write(fd, b"in memory")
    _wire.send(ends[0], _wire.BATCH, fd=fd)
    os.close(fd)
    message = _wire.receive(ends[1])
    assert message is not None
    assert message[2] is not None
    assert not os.get_inheritable(message[2])
    assert os.pread(message[2], 100, 0) == b"in memory"
    os.close(message[2])


def test_nothing_to_read_is_told_from_the_end(ends: tuple[socket.socket, socket.socket]) -> None:
    with pytest.raises(BlockingIOError):
        _wire.receive(ends[1], socket.MSG_DONTWAIT)
    ends[0].close()
    assert _wire.receive(ends[1], socket.MSG_DONTWAIT) is None


def test_what_a_process_said_is_read_also_when_it_died_without_having_read_everything(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    _wire.send(ends[1], _wire.PERMIT, b"unread")
    _wire.send(ends[0], _wire.END)
    ends[0].close()
    assert _wire.receive(ends[1]) == (_wire.END, b"", None)
    assert _wire.receive(ends[1]) is None


@pytest.mark.parametrize(
    "error",
    [
        NotFoundError("no task", reason="TASK_NOT_REGISTERED", details={"task": "x"}),
        ClaimTimeoutError("late"),
        ValueError("pad value"),
        TypeError("a type"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_is_raised_as_what_it_was(error: Exception) -> None:
    got = _wire.error_of_message(_wire.error_message(error))
    assert type(got) is type(error)
    assert str(got) == str(error)
    assert getattr(got, "details", None) == getattr(error, "details", None)


def test_an_error_of_another_type_names_it() -> None:
    got = _wire.error_of_message(_wire.error_message(ZeroDivisionError("x" * 100_000)))
    assert type(got) is RuntimeError
    assert str(got).startswith("ZeroDivisionError: xxx")


def test_an_error_does_not_name_a_class_that_is_no_error() -> None:
    class Mapping(Exception):  # the name of something that the errors' module happens to hold
        pass

    assert type(_wire.error_of_message(_wire.error_message(Mapping()))) is RuntimeError
