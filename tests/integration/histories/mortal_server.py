"""A server that is killed again and again, and starts again on what its former lives left."""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path

from tests.integration.failpoints.lives import Lives


class MortalServer(Lives):
    """Serves from the beginning to the end of its block."""

    def __init__(self, folder: Path, data: Path, *flags: str) -> None:
        super().__init__(folder, data, "--memory", "256MiB", *flags)
        self.kills = 0
        self._stopping = threading.Event()
        self._killer: threading.Thread | None = None
        self._serve()

    def __exit__(self, *error: object) -> None:
        self.spare()
        super().__exit__(*error)

    def kill_often(self, seed: int, shortest_s: float, longest_s: float, for_s: float) -> None:
        """Kill it after a time between these, start it again, and so on, until for_s seconds are over or `spare`. Each
        life gives every session its grace anew, so the dead are found out when the kills are over.
        """
        arguments = (random.Random(seed), shortest_s, longest_s, time.monotonic() + for_s)
        self._killer = threading.Thread(target=self._kill_often, args=arguments)
        self._killer.start()

    def spare(self) -> None:
        """Kill it no more."""
        self._stopping.set()
        if self._killer is not None:
            self._killer.join()
            self._killer = None

    def kill(self) -> None:
        """Kill it and start it again; returns when it serves."""
        self.end()
        self.kills += 1
        self._serve()

    def _kill_often(self, dice: random.Random, shortest_s: float, longest_s: float, end: float) -> None:
        while time.monotonic() < end and not self._stopping.wait(dice.uniform(shortest_s, longest_s)):
            self.kill()

    def _serve(self) -> None:
        assert self.begin() is None, self.log
