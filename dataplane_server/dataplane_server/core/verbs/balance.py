"""How the rows of a step are split between ranks: in order, or so that every rank has as many tokens as the others.

By tokens two methods make a split each, swaps of two rows even both out, and the better one is taken. In either the
numbers of rows differ by one at most.

- Longest first: each row goes to the shard with the least so far, until that has its number of rows.
- The balanced largest differencing method: the differencing of Karmarkar and Karp ("The differencing method of set
  partitioning", 1982), made to keep the numbers of rows equal by Michiels, Korst, Aarts and van Leeuwen ("Performance
  ratios for the differencing method applied to the balanced number partitioning problem", 2003). A partial solution
  says which rows each shard has: at first one row for each, rows of like length together. The two whose sums differ
  most are merged, the fullest shard of either with the emptiest of the other, until one is left. No merge widens the
  difference.

Even after the swaps either wins about as often as the other. Without them differencing is no method for rollouts: where
a few rows are far longer than the others, a shard that has one of them still takes a row out of every early solution,
and ends up to 40 % above the mean; longest first gives it the shortest rows instead.

Ties go by position everywhere: equal weights give equal splits. The work is bounded: 1 ms for 128 rows over 16 shards,
0.2 s for 65,536 over 64, under a second for any number of shards.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from itertools import pairwise
from operator import itemgetter

from dataplane_server.core.calls.values import Int64Array

Row = tuple[int, int]
"""Weight and position."""
Share = tuple[int, list[Row]]
"""What a shard has: the sum of the weights, and the rows."""

_SWAP_WORK = 16
_MOST_SWAP_WORK = 1 << 18
"""How many rows the search for swaps may look at: for each row that there is, and together."""
_sum_of: Callable[[Row | Share], int] = itemgetter(0)


def split_in_order(n: int, shards: int) -> list[list[int]]:
    """Positions 0 to n - 1 in order, in so many runs (at least 1) whose lengths differ by one at most, longer ones
    first.
    """
    short, longer = divmod(n, shards)
    ends = [shard * short + min(shard, longer) for shard in range(shards + 1)]
    return [list(range(begin, end)) for begin, end in pairwise(ends)]


def split_by_weight(weights: Int64Array, shards: int) -> list[list[int]]:
    """Positions of the weights in so many shards (at least 1): sums nearly equal, numbers at most one apart.

    A negative weight counts as none. Positions of a shard ascend, and shards stand in the order of their first
    positions, empty ones last.
    """
    rows = [(max(weight, 0), position) for position, weight in enumerate(weights.tolist())]
    rows.sort(key=_sum_of, reverse=True)
    best = _evened(_longest_first(rows, shards))
    if _unevenness(best)[0] > _least(rows, shards):
        best = min(best, _evened(_differencing(rows, shards)), key=_unevenness)
    split = sorted(sorted(position for _, position in share) for _, share in best if share)
    return split + [[] for _ in range(shards - len(split))]


def _unevenness(shares: Sequence[Share]) -> tuple[int, int]:
    """The fullest sum, and how much it is above the emptiest."""
    sums = [total for total, _ in shares]
    return max(sums), max(sums) - min(sums)


def _least(rows: Sequence[Row], shards: int) -> int:
    """What the fullest shard has at least: the mean, and the longest row with the shortest others."""
    others = max(len(rows) // shards - 1, 0)
    with_longest = sum(map(_sum_of, (*rows[:1], *rows[len(rows) - others :])))
    return max(-(-sum(map(_sum_of, rows)) // shards), with_longest)


def _longest_first(rows: Sequence[Row], shards: int) -> list[Share]:
    """Rows, which come by descending weight, each to the emptiest shard that may have one more."""
    short, longer = divmod(len(rows), shards)
    shares: list[list[Row]] = [[] for _ in range(shards)]
    line = [(0, shard) for shard in range(shards)]
    for row in rows:
        total, shard = heapq.heappop(line)
        while len(shares[shard]) == short and not longer:
            total, shard = heapq.heappop(line)
        longer -= len(shares[shard]) == short
        shares[shard].append(row)
        if len(shares[shard]) <= short:
            heapq.heappush(line, (total + row[0], shard))
    return [(sum(map(_sum_of, share)), share) for share in shares]


# -- differencing ------------------------------------------------------------------------------------------------------


def _differencing(rows: Sequence[Row], shards: int) -> list[Share]:
    """The balanced largest differencing method, on rows that come by descending weight."""
    dealt: list[Share] = [(row[0], [row]) for row in rows]
    dealt.extend((0, []) for _ in range(-len(rows) % shards))
    solutions = [dealt[begin : begin + shards][::-1] for begin in range(0, len(dealt), shards)]
    line = [(-_spread(solution), number) for number, solution in enumerate(solutions)]
    heapq.heapify(line)
    while len(line) > 1:
        first = heapq.heappop(line)[1]
        second = line[0][1]
        solutions[second] = _merge(solutions[first], solutions[second])
        heapq.heapreplace(line, (-_spread(solutions[second]), second))
    return solutions[line[0][1]]


def _spread(solution: Sequence[Share]) -> int:
    return solution[-1][0] - solution[0][0]


def _merge(one: Sequence[Share], other: Sequence[Share]) -> list[Share]:
    """One solution out of two; the shares of each ascend."""
    pairs = zip(one, reversed(other), strict=True)
    merged = [(total + more, _joined(share, others)) for (total, share), (more, others) in pairs]
    merged.sort(key=_sum_of)
    return merged


def _joined(one: list[Row], other: list[Row]) -> list[Row]:
    """The shorter list moves into the longer, so that a row moves a logarithmic number of times."""
    if len(one) < len(other):
        one, other = other, one
    one.extend(other)
    return one


# -- swaps -------------------------------------------------------------------------------------------------------------


def _evened(shares: Sequence[Share]) -> list[Share]:
    """Swap a row of the fullest shard for one of the emptiest with which that helps, until nothing helps."""
    sums = [total for total, _ in shares]
    held = [sorted(share) for _, share in shares]
    work = min(_SWAP_WORK * sum(map(len, held)), _MOST_SWAP_WORK)
    while work > 0:
        work -= len(held)
        full = max(range(len(sums)), key=sums.__getitem__)
        for empty in sorted(range(len(sums)), key=sums.__getitem__):
            gap = sums[full] - sums[empty]
            work -= len(held[full]) + len(held[empty])
            swap = _best_swap(held[full], held[empty], gap) if gap > 1 and work > 0 else None
            if swap is not None or gap <= 1 or work <= 0:
                break
        if swap is None:
            break
        moved = _swap(held[full], held[empty], *swap)
        sums[full] -= moved
        sums[empty] += moved
    return list(zip(sums, held, strict=True))


def _best_swap(full: Sequence[Row], empty: Sequence[Row], gap: int) -> tuple[int, int] | None:
    """Which two rows to swap to bring the sums closest together; None if no two bring them closer. Rows ascend."""
    best, swap, other = gap, None, 0
    for number, (weight, _) in enumerate(full):
        while other < len(empty) and 2 * (weight - empty[other][0]) > gap:
            other += 1
        for candidate in (other - 1, other):
            if 0 <= candidate < len(empty):
                left = abs(gap - 2 * (weight - empty[candidate][0]))
                if left < best:
                    best, swap = left, (number, candidate)
    return swap


def _swap(full: list[Row], empty: list[Row], number: int, other: int) -> int:
    """Swap two rows; how much weight that moved."""
    full[number], empty[other] = empty[other], full[number]
    moved = empty[other][0] - full[number][0]
    full.sort()
    empty.sort()
    return moved
