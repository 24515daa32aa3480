"""The mapping from ranks to shards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_REPLICATED = ("cp_rank", "tp_rank")


@dataclass(frozen=True)
class Replicas:
    """dp_rank_of: the data-parallel rank of every rank.
    leaders: for every data-parallel rank the one rank that returns its results, at coordinate 0 of all other
    dimensions.
    """

    dp_rank_of: tuple[int, ...]
    leaders: tuple[int, ...]

    @classmethod
    def from_layouts(cls, layouts: Sequence[Mapping[str, int]]) -> Replicas:
        """Build from the workers' `layout()` results, by rank. ValueError if ranks contradict each other."""
        leaders: dict[int, int] = {}
        for rank, layout in enumerate(layouts):
            if layout["rank"] != rank:
                raise ValueError(f"the worker of rank {rank} reports rank {layout['rank']}")
            if not any(layout.get(name, 0) for name in _REPLICATED):
                leaders.setdefault(layout["dp_rank"], rank)
        dp_rank_of = tuple(layout["dp_rank"] for layout in layouts)
        if sorted(leaders) != list(range(len(leaders))) or set(dp_rank_of) != set(leaders):
            raise ValueError(f"data-parallel ranks {dp_rank_of} with leaders {leaders} do not form a grid")
        return cls(dp_rank_of, tuple(leaders[dp_rank] for dp_rank in range(len(leaders))))
