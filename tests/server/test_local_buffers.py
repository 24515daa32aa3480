"""The bound over what all local connections hold: the one that has held some for longest goes first."""

from __future__ import annotations

from dataplane_server.service.local.local_buffers import LocalBuffers


class Connection:
    closed = False

    def close(self) -> None:
        self.closed = True


def test_the_connection_that_has_held_bytes_for_longest_is_closed() -> None:
    buffers, (first, second, third) = LocalBuffers(100), [Connection() for _ in range(3)]
    buffers.hold(first, 10)
    buffers.hold(second, 60)
    buffers.hold(first, 30)
    assert buffers.held_bytes == 90
    buffers.hold(third, 40)
    assert [first.closed, second.closed, third.closed] == [True, False, False]
    assert buffers.held_bytes == 100


def test_a_connection_that_held_nothing_for_a_moment_begins_anew() -> None:
    buffers, (first, second) = LocalBuffers(100), [Connection() for _ in range(2)]
    buffers.hold(first, 60)
    buffers.hold(second, 30)
    buffers.hold(first, 0)
    buffers.hold(first, 80)
    assert [first.closed, second.closed] == [False, True]


def test_no_connection_alone_may_hold_more() -> None:
    buffers, only = LocalBuffers(100), Connection()
    buffers.hold(only, 101)
    assert only.closed
    assert buffers.held_bytes == 0
