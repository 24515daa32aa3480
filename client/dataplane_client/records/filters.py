"""Filters: which rows a call means, as an expression over their tags, or as a mapping of tags.

    client.list_samples("p", where="std > 0.1 and source in ('math', 'code') and staleness <= 1")
    client.list_samples("p", where={"source": "math", "best": None})

A name is a tag; `tags["any name"]` is one whose name is no name of Python. `sequence_length` (tokens), `staleness`
(weight versions) and `age_s` (seconds) are facts that the server knows of a row; a tag of such a name is
`tags["age_s"]`. A mapping means rows that have all of these tags with these values; None means that it is null.

Python's parser reads an expression, and nothing evaluates it. An error quotes it, names the column, and says what would
be right. The command line imports this module, so it must load quickly.
"""

from __future__ import annotations

import ast
import keyword
import re
from collections.abc import Mapping, Sequence

from dataplane_client._common.arguments import checked_name
from dataplane_client.errors import InvalidArgumentError, UnsupportedTypeError
from dataplane_client.records.meta import Tag
from rl_dataplane.v1 import data_plane_pb2 as pb

Where = str | Mapping[str, Tag]
"""A filter as callers give it."""

_Value = int | float | str
_FACTS = {
    "sequence_length": pb.ROW_FACT_SEQUENCE_LENGTH,
    "staleness": pb.ROW_FACT_STALENESS,
    "age_s": pb.ROW_FACT_AGE_S,
}
_COMPARISONS: dict[type[ast.cmpop], pb.FilterOperator.ValueType] = {
    ast.Eq: pb.FILTER_OPERATOR_EQUAL,
    ast.NotEq: pb.FILTER_OPERATOR_NOT_EQUAL,
    ast.Lt: pb.FILTER_OPERATOR_LESS,
    ast.LtE: pb.FILTER_OPERATOR_LESS_EQUAL,
    ast.Gt: pb.FILTER_OPERATOR_GREATER,
    ast.GtE: pb.FILTER_OPERATOR_GREATER_EQUAL,
}
_MIRRORED: dict[type[ast.cmpop], type[ast.cmpop]] = {ast.Lt: ast.Gt, ast.LtE: ast.GtE, ast.Gt: ast.Lt, ast.GtE: ast.LtE}
_AND, _OR, _NOT = (
    pb.FilterTerm(operator=operator)
    for operator in (pb.FILTER_OPERATOR_AND, pb.FILTER_OPERATOR_OR, pb.FILTER_OPERATOR_NOT)
)
_SYMBOLS = {
    pb.FILTER_OPERATOR_EQUAL: "==",
    pb.FILTER_OPERATOR_NOT_EQUAL: "!=",
    pb.FILTER_OPERATOR_LESS: "<",
    pb.FILTER_OPERATOR_LESS_EQUAL: "<=",
    pb.FILTER_OPERATOR_GREATER: ">",
    pb.FILTER_OPERATOR_GREATER_EQUAL: ">=",
    pb.FILTER_OPERATOR_IN: "in",
}
_OR_RANK, _AND_RANK, _NOT_RANK, _COMPARISON_RANK = range(4)
"""How strongly the parts of an expression bind."""
_NUMBERS = range(-(1 << 63), 1 << 64)
_SHOWN = 300
"""Characters of an expression that an error quotes."""


def filter_message(where: Where | None, call: str) -> pb.Filter | None:
    """The message of a filter; None for None. call: begins the message of every error. Raises InvalidArgumentError for
    an expression that is no filter, UnsupportedTypeError for a mapping of anything but tags.
    """
    if where is None:
        return None
    if isinstance(where, str):
        return pb.Filter(terms=_Expression(where.strip(), call).terms())
    given: object = where
    if not isinstance(given, Mapping):
        kind = type(given).__name__
        raise UnsupportedTypeError(f"{call}: a filter must be an expression (str) or a mapping of tags, got {kind}")
    terms = [term for tag, value in given.items() for term in (_tag_equals(tag, value, call), _AND)]
    return pb.Filter(terms=[*terms[:1], *terms[2:]])


def filter_text(message: pb.Filter) -> str | None:
    """The expression of a filter that a server tells; None for one without terms, which fits all rows."""
    parts: list[tuple[int, str]] = []

    def part(least: int) -> str:
        rank, text = parts.pop()
        return text if rank >= least else f"({text})"

    for term in message.terms:
        if term.operator == pb.FILTER_OPERATOR_NOT:
            parts.append((_NOT_RANK, f"not {part(_NOT_RANK)}"))
        elif term.operator in (pb.FILTER_OPERATOR_AND, pb.FILTER_OPERATOR_OR):
            rank, word = (_AND_RANK, "and") if term.operator == pb.FILTER_OPERATOR_AND else (_OR_RANK, "or")
            right = part(rank)
            parts.append((rank, f"{part(rank)} {word} {right}"))
        else:
            parts.append((_COMPARISON_RANK, _comparison_text(term)))
    return parts.pop()[1] if parts else None


def _comparison_text(term: pb.FilterTerm) -> str:
    import msgpack

    facts = {number: name for name, number in _FACTS.items()}
    is_name = term.tag.isidentifier() and not keyword.iskeyword(term.tag) and term.tag not in (*_FACTS, "tags")
    subject = facts[term.fact] if term.fact else term.tag if is_name else f"tags[{term.tag!r}]"
    if term.operator == pb.FILTER_OPERATOR_IS_NULL:
        return f"{subject} is null"
    values = msgpack.unpackb(term.values, use_list=False)
    shown = [str(value).replace("inf", "1e999") if isinstance(value, float) else repr(value) for value in values]
    of_term = f"[{', '.join(shown)}]" if term.operator == pb.FILTER_OPERATOR_IN else shown[0]
    return f"{subject} {_SYMBOLS[term.operator]} {of_term}"


def both(first: pb.Filter, second: pb.Filter) -> pb.Filter:
    """The filter of rows that fit both. A filter without terms fits all rows."""
    if not first.terms or not second.terms:
        return first if first.terms else second
    return pb.Filter(terms=[*first.terms, *second.terms, _AND])


def _tag_equals(tag: object, value: object, call: str) -> pb.FilterTerm:
    if not isinstance(value, str) and getattr(value, "ndim", None) == 0:
        value = value.item()  # type: ignore[attr-defined]  # a NumPy scalar or 0-d tensor
    if not isinstance(tag, str) or not (value is None or isinstance(value, (int, float, str))):
        raise UnsupportedTypeError(
            f"{call}: tag {tag!r} of the filter is {type(value).__name__}; a tag must be a str with a value None, "
            "bool, int, float or str"
        )
    for text in (tag, value):
        if isinstance(text, str):
            checked_name("tag of a filter", text, call)
    if value is None:
        return pb.FilterTerm(operator=pb.FILTER_OPERATOR_IS_NULL, tag=tag)
    if isinstance(value, int) and value not in _NUMBERS:
        raise InvalidArgumentError(f"{call}: tag {tag!r} of the filter: an int has at most 64 bits, got {value}")
    return pb.FilterTerm(operator=pb.FILTER_OPERATOR_EQUAL, tag=tag, values=_packed([value]))


def _packed(values: Sequence[_Value]) -> bytes:
    import msgpack

    packed: bytes = msgpack.packb(values)
    return packed


class _Expression:
    """Reads one expression."""

    def __init__(self, text: str, call: str) -> None:
        self._text = text
        self._call = call

    def terms(self) -> list[pb.FilterTerm]:
        """The terms in postfix order."""
        try:
            return self._read(self._parsed())
        except (RecursionError, MemoryError):
            raise self._error(1, 1, "it is nested too deeply") from None

    def _parsed(self) -> ast.expr:
        try:
            return ast.parse(self._text, mode="eval").body
        except SyntaxError as error:
            rule = f"{error.msg}; write comparisons, joined by and, or, not, such as: std > 0.1 and source == 'math'"
            raise self._error(error.lineno or 1, error.offset or 1, rule) from None
        except ValueError as error:  # characters that no source may have
            raise self._error(1, 1, str(error)) from None

    def _error(self, line: int, column: int, rule: str) -> InvalidArgumentError:
        text = self._text if len(self._text) <= _SHOWN else f"{self._text[:_SHOWN]}..."
        place = f"column {column}" if line == 1 else f"line {line}, column {column}"
        return InvalidArgumentError(f"{self._call}: filter {text!r}, {place}: {rule}")

    def _refusal(self, node: ast.expr, rule: str) -> InvalidArgumentError:
        return self._error(node.lineno, len(self._line_of(node)[: node.col_offset].decode()) + 1, rule)

    def _line_of(self, node: ast.expr) -> bytes:
        return re.split("\r\n|\r|\n", self._text)[node.lineno - 1].encode()

    def _read(self, node: ast.expr) -> list[pb.FilterTerm]:
        if isinstance(node, ast.BoolOp):
            first, *others = (self._read(value) for value in node.values)
            joined = _AND if isinstance(node.op, ast.And) else _OR
            return [*first, *(term for other in others for term in (*other, joined))]
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return [*self._read(node.operand), _NOT]
        if isinstance(node, ast.Compare):
            return self._comparisons(node)
        if isinstance(node, ast.Name):
            raise self._refusal(
                node, f"{node.id!r} alone is no comparison; write {node.id} == True, or {node.id} is not null"
            )
        raise self._refusal(
            node, "a comparison is expected here, such as std > 0.1; arithmetic and calls are not allowed"
        )

    def _comparisons(self, node: ast.Compare) -> list[pb.FilterTerm]:
        """A comparison, or a chain of them, each with the one before."""
        left, terms = node.left, list[pb.FilterTerm]()
        for operator, right in zip(node.ops, node.comparators, strict=True):
            terms += [*self._comparison(left, operator, right), *([_AND] if terms else [])]
            left = right
        return terms

    def _comparison(self, left: ast.expr, operator: ast.cmpop, right: ast.expr) -> list[pb.FilterTerm]:
        negated = [_NOT] if isinstance(operator, (ast.NotIn, ast.IsNot)) else []
        if isinstance(operator, (ast.In, ast.NotIn)):
            if not isinstance(right, (ast.Tuple, ast.List)):
                raise self._refusal(right, "`in` takes a list, such as: source in ('math', 'code')")
            values = [self._literal(element) for element in right.elts]
            return [self._term(left, pb.FILTER_OPERATOR_IN, values), *negated]
        if isinstance(operator, (ast.Is, ast.IsNot)):
            if not (_is_none(right) or (isinstance(right, ast.Name) and right.id == "null")):
                raise self._refusal(right, "`is` takes null only; compare values with ==")
            return [self._term(left, pb.FILTER_OPERATOR_IS_NULL, []), *negated]
        kind = type(operator)
        if isinstance(left, (ast.Constant, ast.UnaryOp)) and not isinstance(right, (ast.Constant, ast.UnaryOp)):
            left, kind, right = right, _MIRRORED.get(kind, kind), left
        return [self._term(left, _COMPARISONS[kind], [self._literal(right)])]

    def _term(
        self, subject: ast.expr, operator: pb.FilterOperator.ValueType, values: Sequence[_Value]
    ) -> pb.FilterTerm:
        packed = _packed(values) if operator != pb.FILTER_OPERATOR_IS_NULL else b""
        if isinstance(subject, ast.Name) and subject.id in _FACTS:
            return pb.FilterTerm(operator=operator, fact=_FACTS[subject.id], values=packed)
        return pb.FilterTerm(operator=operator, tag=self._tag(subject), values=packed)

    def _tag(self, node: ast.expr) -> str:
        if isinstance(node, ast.Name) and node.id != "tags":  # the parser has normalized the id
            return self._line_of(node)[node.col_offset : node.end_col_offset].decode()
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node.value.id == "tags":
            if isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, str):
                return self._text_of(node.slice, node.slice.value)
            raise self._refusal(
                node.slice, "tags[...] takes the name of a tag in quotes, such as: tags['mean reward'] > 0"
            )
        raise self._refusal(
            node, f"a tag or fact is expected here: a name such as std, tags['any name'], or one of {', '.join(_FACTS)}"
        )

    def _literal(self, node: ast.expr) -> _Value:
        minus = isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub)
        constant = node.operand if isinstance(node, ast.UnaryOp) and minus else node
        value = constant.value if isinstance(constant, ast.Constant) else None
        if isinstance(value, str) and not minus:
            return self._text_of(node, value)
        if isinstance(value, (int, float)) and not (minus and isinstance(value, bool)):
            number = -value if minus else value
            if isinstance(number, int) and number not in _NUMBERS:
                raise self._refusal(node, "an int has at most 64 bits")
            return number
        if _is_none(node):
            raise self._refusal(node, "write `is null` or `is not null`")
        if isinstance(node, ast.Name):
            raise self._refusal(node, f"a number or string is expected here; a string has quotes: {node.id!r}")
        raise self._refusal(node, "a number or string is expected here, such as 0.5, -1, True or 'math'")

    def _text_of(self, node: ast.expr, text: str) -> str:
        try:
            text.encode()
        except UnicodeEncodeError:
            raise self._refusal(node, "the string cannot be encoded as UTF-8") from None
        return text


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None
