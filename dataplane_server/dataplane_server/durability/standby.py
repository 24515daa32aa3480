"""A standby follows the log of the server that uses a directory, and takes over when that server has ended.

It has the state in memory by then, and reads only the last records. The arena's lock tells when: the kernel drops it
with the server's last descriptor, by whatever cause the server ended, and gives it to one standby only. A server that
is stopped, but not dead, keeps the lock, so there are never two. A standby that lags behind the removal of old records
begins again with the newest checkpoint.
"""

from __future__ import annotations

import errno
import gc
import threading
from collections.abc import Callable

from dataplane_server.durability.checkpoint import DamagedCheckpointError
from dataplane_server.durability.life import Life, RecoveryError, Terms, begin_life, check_limits
from dataplane_server.durability.log_reader import LogDamagedError, LogFormatError, RecordMissingError, segments
from dataplane_server.durability.replica import Replica, kept

_POLL_S = 0.02


def take_over(terms: Terms, stopping: threading.Event, waits: Callable[[], object]) -> Life | None:
    """Begin the next life as soon as no other server uses the directory. Blocks until then; returns None if `stopping`
    is set before. waits: called once if another server uses it, when this one has its state. Errors as `begin_life`,
    except for EBUSY.
    """
    standby, ready = None, False
    while not stopping.is_set():
        try:
            return begin_life(terms, None if standby is None else standby.replica)
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
        standby = standby or _Standby(terms)
        if standby.advance():
            continue
        if not ready:
            ready = True
            waits()
        stopping.wait(_POLL_S)
    return None


class _Standby:
    """replica: None until there is a log."""

    def __init__(self, terms: Terms) -> None:
        self._terms = terms
        self.replica: Replica | None = None

    def advance(self) -> int:
        """Apply some of the records that are there. Returns how many. RecoveryError if the log cannot be followed, or
        was made with other limits.
        """
        try:
            folder = self._terms.folder
            if self.replica is None and segments(folder):
                with kept(folder):
                    self.replica = Replica(folder)
                check_limits(self._terms, self.replica.header)  # not only when it has to take over
                gc.freeze()
            return 0 if self.replica is None else self.replica.advance()
        except RecordMissingError:
            self.replica = None
        except (DamagedCheckpointError, LogDamagedError, LogFormatError, ValueError) as error:
            raise RecoveryError(str(error)) from error
        gc.unfreeze()  # what the replica had is garbage
        gc.collect()
        return 1
