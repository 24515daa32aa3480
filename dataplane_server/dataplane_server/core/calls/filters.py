"""Filters: which rows are meant, by their tags and by what the server knows of them.

A filter is a sequence of terms in postfix order: comparisons push a result, `and`, `or` and `not` replace results
before them, and one result is left. So it needs no recursion, whatever a caller sends. The empty filter fits all rows.

A comparison with a tag that a row does not have, that is null, or that has a value of another type is false; `not`
inverts that. Three-valued logic would be closer to SQL, and users who forget it would be wrong more often. Numbers are
compared as float64: bools are 0 and 1, ints beyond 2**53 lose their last digits, and a tag that is NaN counts as null.
Strings are ordered by their code points.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from dataplane_server.core.calls.refusal import Reason, Refusal

FilterOperator = Literal["==", "!=", "<", "<=", ">", ">=", "in", "is null", "and", "or", "not"]
RowFact = Literal["sequence_length", "staleness", "age_s"]

MAX_TERMS = 64
MAX_VALUES = 1024
MAX_TEXT_BYTES = 1 << 16
"""Of all strings in a filter together, in UTF-8."""
_TERM_BYTES = 400
_VALUE_BYTES = 90
_TAKES = {"and": 2, "or": 2, "not": 1}
_NUMBERS = range(-(1 << 63), 1 << 64)


@dataclass(frozen=True, slots=True)
class Term:
    """subject: a tag, or with of_row a RowFact; empty for `and`, `or` and `not`. values: numbers and strings."""

    operator: FilterOperator
    subject: str = ""
    of_row: bool = False
    values: tuple[int | float | str, ...] = ()


Filter = tuple[Term, ...]
ALL_ROWS: Filter = ()


def check_filter(terms: Filter, *, with_age: bool) -> int:
    """Refusal INVALID_REQUEST names the first term that is wrong, and the rule. with_age: whether age_s may be a
    subject. Returns its filter_bytes.
    """
    if not terms:
        return 0
    if len(terms) > MAX_TERMS:
        raise Refusal(Reason.INVALID_REQUEST, f"a filter has at most {MAX_TERMS} terms, got {len(terms)}")
    results = 0
    for number, term in enumerate(terms, 1):
        rule = _broken_rule(term, results, with_age=with_age)
        if rule:
            raise Refusal(Reason.INVALID_REQUEST, f"filter, term {number} ({_text(term)}): {rule}")
        results += 1 - _TAKES.get(term.operator, 0)
    if results != 1:
        message = f"a filter leaves one result, got {results}: combine its comparisons with `and` or `or`"
        raise Refusal(Reason.INVALID_REQUEST, message)
    text_bytes = _text_bytes(terms)
    if text_bytes > MAX_TEXT_BYTES:
        message = f"the strings of a filter have at most {MAX_TEXT_BYTES} bytes together, got {text_bytes}"
        raise Refusal(Reason.INVALID_REQUEST, message)
    return filter_bytes(terms)


def lacking(terms: Filter) -> Filter:
    """The filter of rows that lack a tag or fact which a filter names. It may have more than MAX_TERMS."""
    subjects = dict.fromkeys((term.subject, term.of_row) for term in terms if term.subject)
    unknown = [Term("is null", *subject) for subject in subjects]
    return (*unknown, *[Term("or")] * (len(unknown) - 1))


def asks(terms: Filter, fact: str) -> bool:
    """Whether other rows fit when a fact of rows changes: "staleness" with the weight version, "age_s" with time."""
    return any(term.of_row and term.subject == fact for term in terms)


def filter_bytes(terms: Filter) -> int:
    """An estimate of the memory of a filter, from above."""
    return 4 * _text_bytes(terms) + sum(_TERM_BYTES + _VALUE_BYTES * len(term.values) for term in terms)


def _text_bytes(terms: Filter) -> int:
    texts = [text for term in terms for text in (term.subject, *term.values) if isinstance(text, str)]
    return sum(len(text.encode()) for text in texts)


def _text(term: Term) -> str:
    return f"{term.operator!r} of {term.subject[:40]!r}" if term.subject else repr(term.operator)


def _broken_rule(term: Term, results: int, *, with_age: bool) -> str:
    takes = _TAKES.get(term.operator)
    if takes is None:
        return _broken_rule_of_comparison(term, with_age=with_age)
    if term.subject or term.values:
        return "it combines results, so it has neither a subject nor values"
    return f"it combines {takes} results, and there are {results} before it" if results < takes else ""


def _broken_rule_of_comparison(term: Term, *, with_age: bool) -> str:
    if not term.subject:
        return "it compares, so it names a tag or fact"
    if term.of_row and term.subject == "age_s" and not with_age:
        return "age changes without a call, so a claim cannot wait for it; list or clear rows by age instead"
    least, most = {"in": (0, MAX_VALUES), "is null": (0, 0)}.get(term.operator, (1, 1))
    if not least <= len(term.values) <= most:
        return f"it has {least if least == most else f'{least} to {most}'} values, got {len(term.values)}"
    wrong = [value for value in term.values if not _is_value(value)]  # None among them, which a message may have
    return f"a value is a number of at most 64 bits or a string, got {str(wrong[0])[:40]!r}" if wrong else ""


def _is_value(value: object) -> bool:
    if isinstance(value, float):
        return not math.isnan(value)
    return value in _NUMBERS if isinstance(value, int) else isinstance(value, str)
