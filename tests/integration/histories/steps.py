"""Which step each data-parallel rank is at, kept in files, since those who know it are killed."""

from __future__ import annotations

import os
from pathlib import Path

from tests.integration.histories.settings import DP_WORLD

_MOST_AHEAD = 20
_TAIL_BYTES = 1024


class StepBook:
    """The step that a rank works on; several processes do, and each may be the one to end it.

    A file for each rank names the steps that were ended, one a line, and some of them twice. It only grows, so a
    process that was stopped and writes late takes nothing back.
    """

    def __init__(self, folder: Path, rank: int) -> None:
        self.rank = rank
        self._paths = [folder / f"steps-of-rank-{number}" for number in range(DP_WORLD)]

    @property
    def step(self) -> int:
        return _next(self._paths[self.rank])

    @property
    def is_far_ahead(self) -> bool:
        """Whether this rank should wait for the others, since the server forgets steps that are long past."""
        return self.step > min(map(_next, self._paths)) + _MOST_AHEAD

    def finish(self, step: int) -> None:
        """Go on to the next step, unless others did."""
        file = os.open(self._paths[self.rank], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(file, f"{step}\n".encode())
        finally:
            os.close(file)


def _next(path: Path) -> int:
    if not path.exists():
        return 0
    return max((int(line) + 1 for line in path.read_bytes()[-_TAIL_BYTES:].split()), default=0)
