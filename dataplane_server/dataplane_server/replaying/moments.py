"""Moments: wall-clock times in seconds since 1970. They are written and read in UTC, to the millisecond."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import date, datetime, time, timedelta, timezone
from typing import Any

_BEFORE_THE_END = re.compile(r"-(\d+(?:\.\d+)?)s")


def moment_of(header: Mapping[str, Any], at: float) -> float:
    """When a call came. at: its time in the log, in seconds. header: of the segment that holds it."""
    return float(header["wall"] + at - header["at"])


def text_of(moment: float) -> str:
    """As in 2026-11-22T14:03:07.250Z."""
    return datetime.fromtimestamp(moment, timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def is_after(moment: float, until: float) -> bool:
    """Whether a moment is written as a later one. So what was printed with a time is not after that time."""
    return math.floor(moment * 1000) > until * 1000 + 0.001


def parse_moment(text: str, first: float, last: float) -> float:
    """A moment of a log that begins at `first` and ends at `last`: `-90s` before its end, `14:03:07.250` of its last
    day, or of the day before if the log has that moment, or a date and time. UTC unless it names another zone.
    ValueError for anything else.
    """
    try:
        if found := _BEFORE_THE_END.fullmatch(text):
            moment = last - float(found[1])
        elif re.match(r"\d\d:", text):
            moment = _of_last_days(time.fromisoformat(text), first, last)
        else:
            moment = _utc(datetime.fromisoformat(text.replace("Z", "+00:00"))).timestamp()
        text_of(moment)  # none before the year 1 or after 9999 in UTC
    except (ValueError, OverflowError):
        raise ValueError(
            f"{text!r} is not a time; write 14:03:07.250, 2026-11-22T14:03:07.250 or -90s (before the end), in UTC"
        ) from None
    return moment


def _of_last_days(clock: time, first: float, last: float) -> float:
    day: date = datetime.fromtimestamp(last, timezone.utc).date()
    found = [_utc(datetime.combine(day - timedelta(back), clock)).timestamp() for back in (0, 1)]
    return found[1] if is_after(found[0], last) and not is_after(first, found[1]) else found[0]


def _utc(moment: datetime) -> datetime:
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=timezone.utc)
