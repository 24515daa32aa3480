"""When a partition takes new rows: its budgets, what happens at their limit, and the band of its draws."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dataplane_server.core.calls.filters import ALL_ROWS, Filter, check_filter
from dataplane_server.core.calls.refusal import Reason, Refusal

WhenFull = Literal["block", "reject", "evict"]
"""What becomes of new rows that a budget has no room for; see FlowPolicy in data_plane.proto."""
EvictFirst = Literal["oldest", "oldest_version"]
"""Which rows are evicted first: those that arrived first, or those of the oldest weight version."""

_MOST = (1 << 62) - 1
_MOST_OF_BAND = 1e15
_LEAST_PER_INSERT = 1e-9
"""Within these a band's rows can be counted."""


@dataclass(frozen=True, slots=True)
class DrawBand:
    """How far draws may be from puts. The surplus is `samples_per_insert * rows put - rows drawn`, both since the band
    was set: a put waits if it would be above `most`, a draw if it would be below `least`.
    """

    samples_per_insert: float
    least: float
    most: float


@dataclass(frozen=True, slots=True)
class FlowPolicy:
    """Budgets, None for none: resident rows with those under way, bytes of their values, and how many weight versions
    they may span. evict_where: only rows that fit are evicted.
    """

    max_rows: int | None = None
    max_bytes: int | None = None
    max_versions: int | None = None
    when_full: WhenFull = "block"
    evict_first: EvictFirst = "oldest"
    evict_where: Filter = ALL_ROWS
    band: DrawBand | None = None


def check_flow(policy: FlowPolicy) -> int:
    """Refuse a policy that contradicts itself. Returns the memory of its filter in bytes."""
    for name in ("max_rows", "max_bytes", "max_versions"):
        budget = getattr(policy, name)
        if budget is not None and not 1 <= budget <= _MOST:
            raise Refusal(Reason.INVALID_REQUEST, f"{name} must be 1 to {_MOST}, got {budget}")
    if policy.evict_where and policy.when_full != "evict":
        message = f"evict_where needs when_full 'evict', got {policy.when_full!r}"
        raise Refusal(Reason.INVALID_REQUEST, message)
    if policy.when_full == "evict" and (policy.max_rows, policy.max_bytes, policy.max_versions) == (None, None, None):
        message = "when_full 'evict' needs a budget: max_rows, max_bytes or max_versions"
        raise Refusal(Reason.INVALID_REQUEST, message)
    if policy.band is not None:
        _check_band(policy.band)
    return check_filter(policy.evict_where, with_age=True)


def _check_band(band: DrawBand) -> None:
    numbers = (band.samples_per_insert, band.least, band.most)
    finite = all(abs(number) <= _MOST_OF_BAND for number in numbers)  # which NaN is not
    if not finite or band.samples_per_insert < _LEAST_PER_INSERT:
        message = (
            f"a band needs finite numbers up to {_MOST_OF_BAND:g} and samples_per_insert above 0, at least "
            f"{_LEAST_PER_INSERT:g}; got {numbers}"
        )
        raise Refusal(Reason.INVALID_REQUEST, message)
    width = band.most - band.least
    if width < 1 + band.samples_per_insert:
        message = (
            f"a band from {band.least:g} to {band.most:g} is too narrow for draws and puts of one row in turn; it must "
            f"be at least 1 + samples_per_insert = {1 + band.samples_per_insert:g} wide"
        )
        raise Refusal(Reason.INVALID_REQUEST, message)
