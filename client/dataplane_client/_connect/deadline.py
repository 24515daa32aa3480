"""One deadline for all attempts of a call, and the pauses between them."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from numbers import Real

from dataplane_client._connect.options import MAX_TIMEOUT_S, ClientOptions
from dataplane_client.errors import DataPlaneError, InvalidArgumentError, UnsupportedTypeError

ANSWER_MARGIN_S = 2.0
"""How much longer a call may take than its wait on the server, so that the server's answer ("too few rows are ready,
because ...") arrives instead of a bare DEADLINE_EXCEEDED."""


class Deadline:
    """The point in time `timeout_s` seconds after its creation."""

    def __init__(self, timeout_s: float) -> None:
        self._at = time.monotonic() + timeout_s

    @property
    def left_s(self) -> float:
        return max(0.0, self._at - time.monotonic())


def checked_timeout(timeout_s: float) -> float:
    """A caller's timeout, to which margins may be added."""
    given: object = timeout_s
    if not isinstance(given, Real):
        raise UnsupportedTypeError(f"timeout_s must be a number of seconds, got {timeout_s!r}")
    if not 0 <= timeout_s <= MAX_TIMEOUT_S:
        raise InvalidArgumentError(f"timeout_s must be 0 to {MAX_TIMEOUT_S:.0f} seconds, got {timeout_s}")
    return timeout_s


def unanswered(late: DataPlaneError, previous: DataPlaneError | None) -> DataPlaneError:
    """The error of a call whose last attempt got no answer in time: `late`, or why the attempt before it failed, which
    says more.
    """
    if previous is None:
        return late
    return type(previous)(
        f"{previous.message}; repeated without an answer until the deadline",
        reason=previous.reason,
        details=previous.details,
        retry_after_s=previous.retry_after_s,
    )


URGENT_VERBS = frozenset({"CommitClaim", "ReleaseClaim", "FinishGroup", "AbortGroup"})
"""Calls that end what others wait for: a server that refuses most calls, because it has too many, is asked more often
for these.
"""
WAITING_VERBS = frozenset({"ClaimSamples", "ClaimShard", "ReserveGroup", "DrawSamples"})
"""Calls that wait at the server for rows or for room, for as long as their callers say."""
_URGENT_PAUSE_S = 0.1


def backoff_pauses(options: ClientOptions, verb: str = "") -> Iterator[float]:
    """Seconds to pause after the first attempt of a call, the second, and so on, without end."""
    pause = options.first_backoff_s
    longest = min(_URGENT_PAUSE_S, options.max_backoff_s) if verb in URGENT_VERBS else options.max_backoff_s
    while True:
        yield pause * (0.5 + random.random() / 2)  # noqa: S311  # spreads load; needs no cryptographic randomness
        pause = min(2 * pause, longest)
