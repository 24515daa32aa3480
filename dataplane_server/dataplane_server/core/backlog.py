"""What of a task's rows has waited longest: the oldest untaken row, and the oldest weight version among them.

Nobody needs this while rows come and go, only who looks at the server; so changes are noted, and the answer is worked
out when it is asked for, with a few array operations over the partition. It stands until the next change.
"""

from __future__ import annotations

import numpy as np

from dataplane_server.core.rows import UNKNOWN_VERSION, RowTable
from dataplane_server.core.task_states import UNTAKEN

_NONE = np.iinfo(np.int64).max


class Backlog:
    """The untaken rows of one task, whose states lie in a column of the rows."""

    def __init__(self, rows: RowTable, state_column: str) -> None:
        self._rows = rows
        self._column = state_column
        self._stands = False
        self._birth: int | None = None
        self._version: int | None = None

    def changed(self) -> None:
        """Rows came or went, or their states or weight versions changed."""
        self._stands = False

    @property
    def oldest_birth(self) -> int | None:
        """The first birth of an untaken row; None when there is none."""
        self._look()
        return self._birth

    @property
    def oldest_weight_version(self) -> int | None:
        """The least weight version of an untaken row; None when none names one."""
        self._look()
        return self._version

    def _look(self) -> None:
        if self._stands:
            return
        rows = self._rows
        untaken = rows[self._column] == UNTAKEN
        untaken &= rows["alive"]
        birth = int(np.minimum.reduce(rows["birth"], where=untaken, initial=_NONE))
        self._birth = None if birth == _NONE else birth
        self._version = None
        if rows.newest_weight_version is not None:
            version = int(np.minimum.reduce(rows["weight_version"], where=untaken, initial=UNKNOWN_VERSION))
            self._version = None if version == UNKNOWN_VERSION else version
        self._stands = True
