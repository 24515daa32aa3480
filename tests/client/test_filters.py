"""Expressions and mappings become filters as messages; what is no filter is refused by its place."""

from __future__ import annotations

from collections.abc import Mapping

import msgpack
import numpy as np
import pytest
import torch

from dataplane_client.errors import InvalidArgumentError, UnsupportedTypeError
from dataplane_client.records.filters import both, filter_message, filter_text
from dataplane_client.records.meta import Tag
from rl_dataplane.v1 import data_plane_pb2 as pb


def told(message: pb.Filter | None) -> list[str]:
    """The terms, each as its operator, its subject, and its values."""
    assert message is not None
    return [" ".join(filter(None, map(str, _parts(term)))) for term in message.terms]


def _parts(term: pb.FilterTerm) -> tuple[object, ...]:
    operator = pb.FilterOperator.Name(term.operator).removeprefix("FILTER_OPERATOR_")
    fact = pb.RowFact.Name(term.fact).removeprefix("ROW_") if term.fact else ""
    return operator, fact, repr(term.tag) if term.tag else "", msgpack.unpackb(term.values) if term.values else ""


@pytest.mark.parametrize(
    ("expression", "terms"),
    [
        ("std > 0.1", ["GREATER 'std' [0.1]"]),
        ("  0.1 < std", ["GREATER 'std' [0.1]"]),
        ("0.1 <= std", ["GREATER_EQUAL 'std' [0.1]"]),
        ("-1 >= std", ["LESS_EQUAL 'std' [-1]"]),
        ("'math' == source", ["EQUAL 'source' ['math']"]),
        ("best != True", ["NOT_EQUAL 'best' [True]"]),
        ("1 < std <= 3", ["GREATER 'std' [1]", "LESS_EQUAL 'std' [3]", "AND"]),
        ("source in ('math', 'code')", ["IN 'source' ['math', 'code']"]),
        ("source not in ['a', -1]", ["IN 'source' ['a', -1]", "NOT"]),
        ("source in ()", ["IN 'source' []"]),
        ("std is null", ["IS_NULL 'std'"]),
        ("std is not None", ["IS_NULL 'std'", "NOT"]),
        ("not std < 1", ["LESS 'std' [1]", "NOT"]),
        (
            "a == 1 and b == 2 or not (c == 3 or d == 4)",
            ["EQUAL 'a' [1]", "EQUAL 'b' [2]", "AND", "EQUAL 'c' [3]", "EQUAL 'd' [4]", "OR", "NOT", "OR"],
        ),
        ("a == 1 or b == 2 or c == 3", ["EQUAL 'a' [1]", "EQUAL 'b' [2]", "OR", "EQUAL 'c' [3]", "OR"]),
        ("staleness <= 1", ["LESS_EQUAL FACT_STALENESS [1]"]),
        ("sequence_length is null", ["IS_NULL FACT_SEQUENCE_LENGTH"]),
        ("age_s > 60 and tags['age_s'] > 60", ["GREATER FACT_AGE_S [60]", "GREATER 'age_s' [60]", "AND"]),
        ('tags["mean reward/\u00e9"] == "\u00e9"', ["EQUAL 'mean reward/\u00e9' ['\u00e9']"]),
        ("(a == 1 and\n b == 2)", ["EQUAL 'a' [1]", "EQUAL 'b' [2]", "AND"]),
        ("(\u00e9 > 1 and\n \u00b5 > 2)", ["GREATER '\u00e9' [1]", "GREATER '\u00b5' [2]", "AND"]),
    ],
)
def test_an_expression_becomes_terms_in_postfix_order(expression: str, terms: list[str]) -> None:
    assert told(filter_message(expression, "list")) == terms


@pytest.mark.parametrize(
    ("expression", "column", "rule"),
    [
        ("", None, "write comparisons, joined by and, or, not"),
        ("std = 1", None, "write comparisons, joined by and, or, not"),
        ("a > 1 && b > 2", None, "write comparisons, joined by and, or, not"),
        ("std", 1, "'std' alone is no comparison; write std == True, or std is not null"),
        ("a > 1 and b", 11, "'b' alone is no comparison"),
        ("a > b", 5, "a number or string is expected here; a string has quotes: 'b'"),
        ("'\u00e9' != \u00e9 and b == math", 19, "a string has quotes: 'math'"),
        ("1 < 2", 1, "such as std, tags['any name'], or one of sequence_length, staleness, age_s"),
        ("a + 1 > 2", 1, "a tag or fact is expected here"),
        ("a > 2 ** 3", 5, "a number or string is expected here, such as 0.5"),
        ("a > 1j", 5, "a number or string is expected here, such as 0.5"),
        ("a == b'x'", 6, "a number or string is expected here, such as 0.5"),
        ("a == -True", 6, "a number or string is expected here, such as 0.5"),
        ("a > 18446744073709551616", 5, "an int has at most 64 bits"),
        ("a == '\\ud800'", 6, "the string cannot be encoded as UTF-8"),
        ("a == None", 6, "write `is null` or `is not null`"),
        ("a is True", 6, "`is` takes null only; compare values with =="),
        ("a in 'math'", 6, "`in` takes a list, such as: source in ('math', 'code')"),
        ("1 in a", 6, "`in` takes a list"),
        ("tags > 1", 1, "a tag or fact is expected here"),
        ("tags[0] > 1", 6, "tags[...] takes the name of a tag in quotes"),
        ("open('x') == 1", 1, "a tag or fact is expected here"),
        ("exit()", 1, "a comparison is expected here, such as std > 0.1; arithmetic and calls are not allowed"),
        ("a.b == 1", 1, "a tag or fact is expected here"),
        ("not " * 4000 + "a > 1", 1, "it is nested too deeply"),
        ("a > 1\0", None, "null bytes"),
    ],
)
def test_what_is_no_filter_is_refused_with_its_column_and_what_would_be_right(
    expression: str, column: int | None, rule: str
) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        filter_message(expression, "list_samples of 'p'")
    quoted = expression if len(expression) < 300 else f"{expression[:300]}..."
    text = str(caught.value)
    place = "" if column is None else f"{column}: "  # the parser's places differ between versions of Python
    assert text.startswith(f"list_samples of 'p': filter {quoted!r}, column {place}")
    assert rule in text


@pytest.mark.parametrize(
    ("tags", "terms"),
    [
        ({}, []),
        ({"std": 0.5}, ["EQUAL 'std' [0.5]"]),
        (
            {"a b": "x", "best": None, "n": True},
            ["EQUAL 'a b' ['x']", "IS_NULL 'best'", "AND", "EQUAL 'n' [True]", "AND"],
        ),
        ({"n": np.int64(3), "t": torch.tensor(0.5)}, ["EQUAL 'n' [3]", "EQUAL 't' [0.5]", "AND"]),
    ],
)
def test_a_mapping_means_rows_that_have_all_of_these_tags(tags: Mapping[str, Tag], terms: list[str]) -> None:
    assert told(filter_message(tags, "list")) == terms


@pytest.mark.parametrize(
    ("where", "error", "rule"),
    [
        ({"n": [1]}, UnsupportedTypeError, "tag 'n' of the filter is list"),
        ({1: 1}, UnsupportedTypeError, "tag 1 of the filter"),
        ({"n": "\ud800"}, InvalidArgumentError, "tag of a filter '\\ud800' cannot be encoded as UTF-8"),
        ({"\ud800": 1}, InvalidArgumentError, "tag of a filter '\\ud800' cannot be encoded as UTF-8"),
        ({"n": 1 << 64}, InvalidArgumentError, "tag 'n' of the filter: an int has at most 64 bits"),
        (["std > 1"], UnsupportedTypeError, "a filter must be an expression (str) or a mapping of tags, got list"),
    ],
)
def test_what_is_neither_expression_nor_tags_is_refused(where: object, error: type[Exception], rule: str) -> None:
    with pytest.raises(error) as caught:
        filter_message(where, "list")  # type: ignore[arg-type]
    assert rule in str(caught.value)


def test_an_error_beyond_the_first_line_names_its_line() -> None:
    with pytest.raises(InvalidArgumentError, match="line 2, column 4"):
        filter_message("(a > 1 and\nb> c)", "list")


def test_two_filters_are_joined_and_one_that_fits_all_rows_adds_nothing() -> None:
    one, every = filter_message("a == 1 or b == 2", "list"), pb.Filter()
    assert one is not None
    assert told(both(one, one)) == [*told(one), *told(one), "AND"]
    assert both(one, every) == both(every, one) == one


@pytest.mark.parametrize(
    "expression",
    [
        "std > 0.1 and truncated is null",
        'a == 1 or b != "it\'s" and not c <= -2',
        "(a == True or b < 1e999) and source in ['inf', 1, 0.5]",
        "not (a >= 1 and b == 2)",
        "staleness <= 1 and tags['staleness'] == 1 and tags['mean reward'] > 0 and tags['not'] is null",
        "x in []",
    ],
)
def test_a_filter_that_a_server_tells_is_shown_as_an_expression_of_the_same_terms(expression: str) -> None:
    message = filter_message(expression, "")
    assert message is not None
    assert filter_text(message) == expression
    assert filter_text(pb.Filter()) is None
