"""One report of what every data-parallel rank reports of training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def training_report(reports: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """reports: of the leaders, by data-parallel rank. `loss` and `grad_norm` are the first one's, since ranks report
    them summed over all; `all_mb_metrics` is the list of every metric, one rank's microbatches after the other's.
    """
    return {
        "loss": reports[0]["global_loss"],
        "grad_norm": reports[0]["grad_norm"],
        "all_mb_metrics": _joined([report["all_mb_metrics"] for report in reports]),
    }


def _joined(lists_of_ranks: Sequence[Mapping[str, Sequence[Any]]]) -> dict[str, list[Any]]:
    joined: dict[str, list[Any]] = {}
    for lists in lists_of_ranks:
        for name, values in lists.items():
            joined.setdefault(name, []).extend(values)
    return joined
