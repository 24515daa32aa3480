"""What all comparisons share: a table of steps, and goals on how many times as fast as a peer we are."""

from __future__ import annotations

from collections.abc import Mapping

from session import Goal, Session, in_ms, in_times
from timing import Series, Steps

SAME_HOST, GRPC = "ours, same host", "ours, gRPC"
TRANSFER_QUEUE = "TransferQueue"


def total(steps: Steps) -> Series:
    """The sum of all steps, round by round."""
    found, *others = steps.values()
    for other in others:
        found = found.plus(other)
    return found


def report(session: Session, name: str, title: str, measured: Mapping[str, Steps]) -> None:
    """Keep the series, and show each step and the total."""
    session.keep(f"exchange.{name}", measured)
    steps = list(next(iter(measured.values())))
    rows = [[system, *map(in_ms, found.values()), in_ms(total(found))] for system, found in measured.items()]
    session.show(f"{title}; ms, median (min..max)", ("system", *steps, "total"), rows)


def fastest(measured: Mapping[str, Steps]) -> Steps:
    """The system of which the total is least: a peer counts in its best form."""
    return min(measured.values(), key=lambda steps: total(steps).median)


def add_goal(session: Session, title: str, ours: Series, peer: Series, least: float = 1.0) -> None:
    """Add the goal that ours takes at most a `least`-th of the peer's time, by the median of the rounds' ratios."""
    ratio = peer.over(ours)
    text = f"{in_times(ratio)} x: {in_ms(ours)} against {in_ms(peer)} ms"
    session.goals.append(Goal(title, text, ratio.median >= least, ratio.median))
