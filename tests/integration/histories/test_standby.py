"""A standby takes over within a second of the server's death, and nothing that was acknowledged is lost or doubled. So
it does if the server is stopped, as for a rolling change.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests import commands
from tests.integration.histories.campaign import judged, run, table
from tests.integration.histories.mortal_server import MortalServer
from tests.integration.histories.settings import Settings
from tests.waiting import eventually

_LONGEST_S = 1.0


class GuardedServer(MortalServer):
    """A server with a standby, which serves when the server is ended, by a signal, and gets a standby itself.
    takeovers: seconds from each signal until the standby serves.
    """

    def __init__(self, folder: Path, data: Path, ends_by: signal.Signals) -> None:
        self.takeovers: list[float] = []
        self._ends_by = ends_by
        super().__init__(folder, data)
        self._command[self._command.index("--data-dir")] = "--standby"
        self._standby = self._begin()

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        self._process = self._standby
        self.end()

    def kill(self) -> None:
        eventually(lambda: self.log.count('"standing_by"') > self.kills)
        began = time.monotonic()
        self.end(self._ends_by)
        self.kills += 1
        self._process = self._standby
        assert self._process.stdout is not None
        assert '"event": "serving"' in self._process.stdout.readline(), self.log
        self.takeovers.append(time.monotonic() - began)
        self._standby = self._begin()

    def _begin(self) -> commands.Forked:
        with self._log.open("a") as stderr:
            return commands.begin(self._command, stdout=subprocess.PIPE, stderr=stderr, text=True)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("seconds", "ends_by"),
    [
        pytest.param(6.0, signal.SIGKILL, marks=pytest.mark.long),
        pytest.param(6.0, signal.SIGTERM, marks=pytest.mark.long),
        pytest.param(240.0, signal.SIGKILL, marks=pytest.mark.soak),
    ],
    ids=["short", "rolling", "long"],
)
def test_a_standby_takes_over_at_once_and_nothing_is_lost(
    tmp_path: Path, seconds: float, ends_by: signal.Signals
) -> None:
    with GuardedServer(tmp_path, tmp_path / "data", ends_by) as server:
        settings = Settings.chosen(server.address, tmp_path / "histories", 8, seconds)
        server.kill_often(settings.seed, 0.5, 1.5, settings.seconds)
        history = run(settings)
        server.spare()
        found, counts = judged(history, settings, server.log)
    counts |= {"takeovers": server.kills, "the slowest, ms": round(max(server.takeovers) * 1e3)}
    sys.stdout.write(table(counts, settings))
    assert found == []
    assert '"level": "error"' not in server.log
    assert server.takeovers
    if settings.seconds > 60:  # a short run shares its cores with other tests
        assert max(server.takeovers) < _LONGEST_S
