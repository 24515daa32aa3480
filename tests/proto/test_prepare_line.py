"""Connections notice in time that the host of their peer is gone, whether they wait or send."""

from __future__ import annotations

import socket

import pytest

from rl_dataplane.byte_streams import prepare_line


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="Linux only")
@pytest.mark.parametrize("within_s", [10, 35])
def test_the_last_probe_is_unanswered_in_time(within_s: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as line:
        prepare_line(line, within_s)
        idle_s, pause_s, probes, sending_ms = (
            line.getsockopt(socket.IPPROTO_TCP, option)
            for option in (
                socket.TCP_KEEPIDLE,
                socket.TCP_KEEPINTVL,
                socket.TCP_KEEPCNT,
                socket.TCP_USER_TIMEOUT,
            )
        )
        assert line.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    assert (idle_s + pause_s * probes, sending_ms) == (within_s, within_s * 1000)
    assert probes > 1, "one may be lost"
