"""What a PromQL expression asks for: selectors, and the labels that it groups and joins by."""

from __future__ import annotations

from dataclasses import dataclass

import promql_parser as promql


@dataclass(frozen=True)
class Asked:
    """selectors: (metric, labels that its matchers name, its text). labels: of groupings and joins."""

    selectors: tuple[tuple[str, frozenset[str], str], ...]
    labels: frozenset[str]


def asked(expr: str) -> Asked:
    """Raises ValueError where it is not PromQL."""
    selectors: list[tuple[str, frozenset[str], str]] = []
    labels: set[str] = set()

    def visit(node: promql.Expr) -> None:
        if isinstance(node, promql.VectorSelector):
            matched = frozenset(matcher.name for matcher in node.matchers.matchers)
            selectors.append((node.name or "", matched, node.prettify()))
        elif isinstance(node, promql.AggregateExpr) and node.modifier is not None:
            labels.update(node.modifier.labels)
        elif isinstance(node, promql.BinaryExpr) and node.modifier is not None:
            labels.update(node.modifier.matching.labels if node.modifier.matching is not None else ())
            labels.update(node.modifier.group_labels or ())

    promql.walk(promql.parse(expr), visit)
    return Asked(tuple(selectors), frozenset(labels))
