"""Splitting bins until their number suits the caller, e.g. the same number of microbatches for every rank.

Moving a sequence into an empty bin only ever lowers a load, so an adjusted packing is as valid as the packing before.
"""

from __future__ import annotations


def adjust_bin_count(bins: list[list[int]], *, at_least: int, multiple_of: int) -> list[list[int]]:
    """Bins followed by new one-sequence bins, so that there are max(len(bins), at_least) rounded up to multiple_of.

    The fullest bin by count (the later one on ties) gives up its last sequences first, down to a single one, then the
    next. Raises ValueError when there are not enough sequences to fill every bin.
    """
    target = -(-max(len(bins), at_least) // multiple_of) * multiple_of
    sequences = sum(map(len, bins))
    if sequences < target:
        raise ValueError(
            f"Cannot create {target} bins with only {sequences} sequences: "
            f"at least {at_least} bins and a multiple of {multiple_of} were asked for"
        )
    adjusted = [list(b) for b in bins]
    by_count = sorted(adjusted, key=len)  # stable, so that popping from the end takes the later bin on ties
    while len(adjusted) < target:
        while len(by_count[-1]) == 1:
            by_count.pop()
        adjusted.append([by_count[-1].pop()])
    return adjusted
