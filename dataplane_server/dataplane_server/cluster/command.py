"""The command `dataplane-server --cluster ray`: starts the coordinator; stops the cluster on SIGTERM or SIGINT.

The command itself serves nothing. If it is killed, or stopped before the cluster serves, the actors go on, and the
command finds them when it runs again.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from types import FrameType

from dataplane_server.cluster.asking import last_line
from dataplane_server.cluster.coordinator.starting import Cluster, start
from dataplane_server.config import ServerConfig
from dataplane_server.log import event_line

_CONNECT_S = 5.0
_ENDS = (signal.SIGTERM, signal.SIGINT)


def serve_cluster(
    config: ServerConfig, name: str, ray_address: str, cache_bytes: int | None, *, mirrored: bool = False
) -> None:
    """Run a cluster until SIGTERM or SIGINT. Raises OSError if there is no Ray, or the cluster cannot start there."""
    import ray

    try:
        if not ray.is_initialized():
            _check_reachable(ray_address)
            ray.init(ray_address, namespace=None, log_to_driver=False, logging_level=logging.WARNING)
        # After Ray, which has handlers of its own, and takes exceptions of others for its own errors.
        _on_signals(lambda number, _: os._exit(128 + number))
        cluster = start(config, name=name, cache_bytes=cache_bytes, mirrored=mirrored)
    except (OSError, ValueError, ray.exceptions.RayError) as error:  # ValueError: of an address or a name
        raise OSError(f"the cluster cannot start: {last_line(error)}") from error
    with cluster, _told_to_end() as told:
        print(_banner(cluster) if sys.stdout.isatty() else _event(cluster), flush=True)  # noqa: T201  # a command's output
        while told.recv(1)[0] not in _ENDS:
            pass
    ray.shutdown()


@contextlib.contextmanager
def _told_to_end() -> Iterator[socket.socket]:
    """A socket that receives the number of each signal. Those that end the command do nothing else from now on.

    None is missed, as one might be with an Event: the handler that sets it may need the very lock that the waiter
    holds, and a signal that comes just before the wait does not end it.
    """
    told, wakeup = socket.socketpair()
    with told, wakeup:
        wakeup.setblocking(False)
        signal.set_wakeup_fd(wakeup.fileno(), warn_on_full_buffer=False)
        _on_signals(lambda *_: None)
        try:
            yield told
        finally:
            signal.set_wakeup_fd(-1)


def _on_signals(handle: Callable[[int, FrameType | None], object]) -> None:
    for number in _ENDS:
        signal.signal(number, handle)


def _check_reachable(ray_address: str) -> None:
    """OSError if nothing answers there. Ray itself finds that out after a minute."""
    host, separator, port = ray_address.rpartition(":")
    if separator and port.isdecimal():
        socket.create_connection((host, int(port)), _CONNECT_S).close()


def _event(cluster: Cluster) -> str:
    event = {"event": "serving", "cluster": cluster.address, **cluster.addresses}
    return event_line(event, "info", time.time())


def _banner(cluster: Cluster) -> str:
    return "\n".join(
        [
            f"RL Data Plane serves {cluster.address} in this Ray cluster, and gRPC on {cluster.addresses['listen'][0]}",
            "",
            "    from dataplane_client import connect",
            "",
            f'    with connect("{cluster.address}") as client:  # in a program that is connected to Ray',
            "        # registering again is safe",
            '        client.register_partition("train", fields=["input_ids"], num_samples=0, consumer_tasks=["train"])',
            "",
        ]
    )
