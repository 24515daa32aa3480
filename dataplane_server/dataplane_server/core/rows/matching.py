"""Which rows fit a filter: whole arrays at a time, a term after the other.

See `calls.filters` for what filters mean. Tags come from `RowTable.tag_values`; a tag that several terms name is looked
up once.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection
from typing import Any

import numpy as np
import numpy.typing as npt

from dataplane_server.core.calls.filters import Filter, Term
from dataplane_server.core.calls.refusal import Reason, Refusal
from dataplane_server.core.calls.values import BoolArray, Slots
from dataplane_server.core.rows.row_table import RowTable
from dataplane_server.core.rows.tag_columns import Float64Array, TagValues

_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def fitting(rows: RowTable, where: Filter, slots: Slots, now: float | None, *, keep: bool = True) -> BoolArray:
    """Which of the rows fit a filter that was checked, as they are at now (monotonic, s; None if no term may ask for
    age_s). keep: see `RowTable.tag_values`; False in queries, which must change nothing.
    """
    known: dict[tuple[str, bool], TagValues] = {}
    results: list[BoolArray] = []
    for term in where:
        if term.operator == "not":
            results[-1] = ~results[-1]
        elif term.operator in ("and", "or"):
            last = results.pop()
            results[-1] = results[-1] & last if term.operator == "and" else results[-1] | last
        else:
            subject = (term.subject, term.of_row)
            if subject not in known:
                fact = _fact(rows, term.subject, slots, now) if term.of_row else None
                known[subject] = rows.tag_values(term.subject, slots, keep=keep) if fact is None else fact
            results.append(_compared(term, known[subject]))
    return results.pop() if results else np.ones(len(slots), np.bool_)


def absent_tags(rows: RowTable, where: Filter, slots: Slots) -> list[str]:
    """Tags that a filter compares and none of the rows has: misspelt ones, or names of fields."""
    compared = {term.subject for term in where if term.subject and not term.of_row and term.operator != "is null"}
    nulls = {tag: fitting(rows, (Term("is null", tag),), slots, None, keep=False) for tag in compared}
    return sorted(tag for tag, is_null in nulls.items() if is_null.all())


def absence_text(absent: Collection[str], fields: Collection[str]) -> str:
    """A part of a sentence about rows that do not fit a filter. fields: of the partition."""
    named = [tag for tag in absent if tag in fields]
    absence = f"; none has the tag {' or '.join(map(repr, absent))}" if absent else ""
    return f"{absence} (a filter sees tags, and {' and '.join(map(repr, named))} is a field)" if named else absence


def check_sees_tags(rows: RowTable, fields: Collection[str], where: Filter) -> None:
    """Refuse a filter that compares a field as if it were a tag. A tag of a row may have the name of a field."""
    slots, named = np.flatnonzero(rows["alive"]), tuple([term for term in where if term.subject in fields])
    for tag in absent_tags(rows, named, slots) if len(slots) else ():
        message = f"a filter sees tags: {tag!r} is a field, and none of the {len(slots)} rows has a tag of that name"
        raise Refusal(Reason.INVALID_REQUEST, message)


def _fact(rows: RowTable, name: str, slots: Slots, now: float | None) -> TagValues:
    numbers = np.full(len(slots), np.nan)
    if name == "sequence_length":
        numbers = _known(rows["sequence_length"][slots])
    elif name == "staleness":
        numbers = _known(rows.staleness(slots))
    elif name == "age_s" and now is not None:
        numbers = rows.ages(slots, now)
    return TagValues(numbers, np.zeros(len(slots), np.int32), {})


def _known(numbers: npt.NDArray[np.signedinteger[Any]]) -> Float64Array:
    """NaN for what is unknown, which is -1."""
    return np.where(numbers < 0, np.nan, numbers)


def _compared(term: Term, values: TagValues) -> BoolArray:
    if term.operator == "is null":
        return np.asarray(np.isnan(values.numbers) & (values.codes == 0))
    if term.operator == "in":
        codes = [values.code_of.get(value, -1) for value in term.values if isinstance(value, str)]
        numbers = [float(value) for value in term.values if not isinstance(value, str)]
        return np.isin(values.numbers, numbers) | np.isin(values.codes, codes)
    compare, (value,) = _COMPARE[term.operator], term.values
    if isinstance(value, str):
        return _fits_by_code(term.operator, value, values)[values.codes]
    fits: BoolArray = compare(values.numbers, float(value))
    return fits & ~np.isnan(values.numbers) if term.operator == "!=" else fits


def _fits_by_code(name: str, value: str, values: TagValues) -> BoolArray:
    """Whether each string fits, by its code; no row without a string does."""
    code_of, compare = values.code_of, _COMPARE[name]
    fits = np.zeros(len(code_of) + 1, np.bool_)
    if name == "==":
        fits[code_of.get(value, 0)] = True
        fits[0] = False
    else:
        fits[1:] = [compare(text, value) for text in code_of]
    return fits
