"""Filters row by row, over plain values: what the core's columns must agree with."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

from dataplane_server.core.calls.filters import Filter, Term

_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq,
    "in": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def fits(where: Filter, held: Callable[[Term], object]) -> bool:
    """Whether a row fits. held: its tag or fact of a term; None if it has none."""
    results: list[bool] = []
    for term in where:
        if term.operator == "not":
            results.append(not results.pop())
        elif term.operator in ("and", "or"):
            last, before = results.pop(), results.pop()
            results.append((last and before) if term.operator == "and" else (last or before))
        else:
            results.append(_is_so(term, held(term)))
    return results.pop() if results else True


def _is_so(term: Term, held: object) -> bool:
    missing = held is None or (isinstance(held, float) and math.isnan(held))
    if missing or term.operator == "is null":
        return missing and term.operator == "is null"
    alike = [value for value in term.values if isinstance(value, str) == isinstance(held, str)]
    return any(_COMPARE[term.operator](_plain(held), _plain(value)) for value in alike)


def _plain(value: Any) -> str | float:
    return value if isinstance(value, str) else float(value)
