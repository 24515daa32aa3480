"""Filters as terms of the core. What their terms may hold is the core's to check."""

from __future__ import annotations

import msgpack

from dataplane_server.core.calls.filters import Filter, FilterOperator, RowFact, Term
from dataplane_server.core.calls.refusal import Reason, Refusal
from rl_dataplane.v1 import data_plane_pb2 as pb

_OPERATORS: dict[int, FilterOperator] = {
    pb.FILTER_OPERATOR_EQUAL: "==",
    pb.FILTER_OPERATOR_NOT_EQUAL: "!=",
    pb.FILTER_OPERATOR_LESS: "<",
    pb.FILTER_OPERATOR_LESS_EQUAL: "<=",
    pb.FILTER_OPERATOR_GREATER: ">",
    pb.FILTER_OPERATOR_GREATER_EQUAL: ">=",
    pb.FILTER_OPERATOR_IN: "in",
    pb.FILTER_OPERATOR_IS_NULL: "is null",
    pb.FILTER_OPERATOR_AND: "and",
    pb.FILTER_OPERATOR_OR: "or",
    pb.FILTER_OPERATOR_NOT: "not",
}
_OPERATOR_NUMBERS = {name: pb.FilterOperator.ValueType(number) for number, name in _OPERATORS.items()}
_FACTS: dict[int, RowFact] = {
    pb.ROW_FACT_SEQUENCE_LENGTH: "sequence_length",
    pb.ROW_FACT_STALENESS: "staleness",
    pb.ROW_FACT_AGE_S: "age_s",
}
_FACT_NUMBERS: dict[str, pb.RowFact.ValueType] = {name: pb.RowFact.ValueType(n) for n, name in _FACTS.items()}


def filter_message(terms: Filter) -> pb.Filter:
    return pb.Filter(
        terms=[
            pb.FilterTerm(
                operator=_OPERATOR_NUMBERS[term.operator],
                tag="" if term.of_row else term.subject,
                fact=_FACT_NUMBERS[term.subject] if term.of_row else pb.ROW_FACT_UNSPECIFIED,
                values=msgpack.packb(term.values) if term.values else b"",
            )
            for term in terms
        ]
    )


def rows_that_fit(message: pb.Filter) -> Filter:
    """The terms of a filter. Refusal INVALID_REQUEST names the first term that this server does not understand."""
    return tuple([_term(number, term) for number, term in enumerate(message.terms, 1)])


def _term(number: int, term: pb.FilterTerm) -> Term:
    if term.operator not in _OPERATORS:
        known = ", ".join(map(str, _OPERATORS))
        raise _refusal(number, f"operator {term.operator} is unknown to this server; it knows {known}")
    if term.fact and term.fact not in _FACTS:
        raise _refusal(number, f"fact {term.fact} is unknown to this server; it knows {', '.join(map(str, _FACTS))}")
    if term.fact and term.tag:
        raise _refusal(number, f"it names a fact and the tag {term.tag[:40]!r}; the subject is one of them")
    subject = _FACTS[term.fact] if term.fact else term.tag
    return Term(_OPERATORS[term.operator], subject, bool(term.fact), _values(number, term.values))


def _values(number: int, packed: bytes) -> tuple[int | float | str, ...]:
    try:
        values = msgpack.unpackb(packed, use_list=False, max_ext_len=0) if packed else ()
    except (ValueError, msgpack.UnpackException) as error:
        raise _refusal(number, f"its values are not valid msgpack: {error}") from None
    if not isinstance(values, tuple):
        raise _refusal(number, f"its values must be a msgpack array, got {type(values).__name__}")
    if any(isinstance(value, (tuple, dict)) for value in values):  # msgpack could not pack all that it unpacks
        raise _refusal(number, "a value is a number of at most 64 bits or a string, got an array or a map")
    return values


def _refusal(number: int, rule: str) -> Refusal:
    return Refusal(Reason.INVALID_REQUEST, f"filter, term {number}: {rule}")
