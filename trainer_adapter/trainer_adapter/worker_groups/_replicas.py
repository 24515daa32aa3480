"""Which ranks hold which shard."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_REPLICATED = ("cp_rank", "tp_rank")


@dataclass(frozen=True)
class Replicas:
    """dp_rank_of: of every rank its data-parallel rank. leaders: of every data-parallel rank the one rank that speaks
    for it, which is at coordinate 0 along all other dimensions.
    """

    dp_rank_of: tuple[int, ...]
    leaders: tuple[int, ...]

    @classmethod
    def from_layouts(cls, layouts: Sequence[Mapping[str, int]]) -> Replicas:
        """Of what the workers' `layout()` answered, by rank. ValueError where ranks contradict each other."""
        leaders: dict[int, int] = {}
        for rank, layout in enumerate(layouts):
            if layout["rank"] != rank:
                raise ValueError(f"the worker of rank {rank} takes itself for rank {layout['rank']}")
            if not any(layout.get(name, 0) for name in _REPLICATED):
                leaders.setdefault(layout["dp_rank"], rank)
        dp_rank_of = tuple(layout["dp_rank"] for layout in layouts)
        if sorted(leaders) != list(range(len(leaders))) or set(dp_rank_of) != set(leaders):
            raise ValueError(f"data-parallel ranks {dp_rank_of} with leaders {leaders} are no grid")
        return cls(dp_rank_of, tuple(leaders[dp_rank] for dp_rank in range(len(leaders))))
