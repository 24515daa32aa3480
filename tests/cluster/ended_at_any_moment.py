"""Runs a cluster's command that is told to end at each moment of its wait in turn, without Ray: the cluster is none."""

from __future__ import annotations

import signal
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any
from unittest import mock

import ray

from dataplane_server.cluster import command
from dataplane_server.cluster.coordinator.starting import Cluster
from dataplane_server.config import ServerConfig

_MOMENTS = 20
_LATER_S = 0.1
"""When the signal comes at last, if the command's wait had fewer moments."""


class NoCluster(Cluster):
    def stop(self) -> None:
        print("stopped")  # noqa: T201  # what the test reads


class Moments:
    """From the line that says where the command serves, counts the calls of its thread. At the one with this number, a
    SIGTERM comes.
    """

    def __init__(self, number: int) -> None:
        self._left = number

    def count(self, frame: FrameType, event: str, _: Any) -> None:
        if event in ("call", "c_call"):
            self._left -= 1
            if self._left == 0:
                sys.setprofile(None)
                signal.raise_signal(signal.SIGTERM)


def main() -> None:
    for number in range(1, _MOMENTS):
        moments = Moments(number)
        later = threading.Timer(_LATER_S, signal.pthread_kill, (threading.main_thread().ident, signal.SIGTERM))

        def serving(*_: object, moments: Moments = moments, later: threading.Timer = later) -> str:
            later.start()
            sys.setprofile(moments.count)
            return "serving"

        cluster = NoCluster("none", {}, None)
        with (
            mock.patch.multiple(ray, is_initialized=lambda: True, shutdown=lambda: None),
            mock.patch.multiple(command, start=lambda *_, cluster=cluster, **__: cluster, _event=serving),
        ):
            command.serve_cluster(ServerConfig(data_dir=Path()), "none", "", None)
        sys.setprofile(None)
        later.cancel()
        later.join()


main()
