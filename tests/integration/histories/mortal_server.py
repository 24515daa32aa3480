"""A server that is killed again and again, and starts again on what its former lives left."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from tests import commands

COMMAND = Path(sys.executable).parent / "dataplane-server"


class MortalServer:
    """A server process on a data directory. A context manager that kills it at its end."""

    def __init__(self, folder: Path, data: Path, *flags: str) -> None:
        self.address = f"unix://{folder}/dataplane.sock"
        self.kills = 0
        self.recoveries: list[dict[str, object]] = []
        self._log = folder / "server.log"
        self._flags = ["--listen", self.address, "--http", "", "--memory", "256MiB", "--data-dir", str(data), *flags]
        self._stopping = threading.Event()
        self._killer: threading.Thread | None = None
        self._process = self._start()

    def __enter__(self) -> MortalServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.spare()
        self._end()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def log(self) -> str:
        return self._log.read_text()

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
        self._end()
        self.kills += 1
        self._process = self._start()

    def _kill_often(self, dice: random.Random, shortest_s: float, longest_s: float, end: float) -> None:
        while time.monotonic() < end and not self._stopping.wait(dice.uniform(shortest_s, longest_s)):
            self.kill()

    def _start(self) -> commands.Forked:
        before = len(self.log) if self._log.exists() else 0
        with self._log.open("a") as stderr:
            process = commands.begin([COMMAND, *self._flags], stdout=subprocess.PIPE, stderr=stderr, encoding="utf-8")
        assert process.stdout is not None
        line = process.stdout.readline()
        assert '"event": "serving"' in line, self.log[before:]
        for entry in map(json.loads, self.log[before:].splitlines()):
            if entry["event"] == "recovered":
                self.recoveries.append(entry)
        return process

    def _end(self, by: signal.Signals = signal.SIGKILL) -> None:
        self._process.send_signal(by)
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
