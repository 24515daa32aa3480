"""Samples and a source of prompts as slime documents its own."""

from __future__ import annotations

import enum
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


class Status(enum.Enum):
    PENDING = "pending"
    COMPLETED = "completed"
    TRUNCATED = "truncated"
    ABORTED = "aborted"


@dataclass
class Sample:
    group_index: int | None = None
    index: int | None = None
    prompt: str = ""
    tokens: list[int] = field(default_factory=list)
    response: str = ""
    response_length: int = 0
    reward: float | dict[str, float] | None = None
    loss_mask: list[int] | None = None
    rollout_log_probs: list[float] | None = None
    rollout_routed_experts: Any = None
    weight_versions: list[str] = field(default_factory=list)
    status: Status = Status.PENDING
    remove_sample: bool = False
    metadata: dict[str, Any] = field(default_factory=dict)
    rollout_id: int | None = None

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "status": self.status.value}

    @staticmethod
    def from_dict(data: dict[str, Any]) -> Sample:
        return Sample(**{**data, "status": Status(data["status"])})


class Prompts:
    """Prompts "p0", "p1", ... without end, two samples of each; the cursor is saved in a folder."""

    def __init__(self, args: Any) -> None:
        self._folder = Path(args.save)
        self._next = 0

    def get_samples(self, num_samples: int) -> list[list[Sample]]:
        first, self._next = self._next, self._next + num_samples
        return [[Sample(g, 2 * g + i, f"p{g}") for i in range(2)] for g in range(first, self._next)]

    def save(self, rollout_id: int) -> None:
        (self._folder / f"cursor-{rollout_id}").write_text(json.dumps(self._next))

    def load(self, rollout_id: int | None) -> None:
        saved = self._folder / f"cursor-{rollout_id}"
        self._next = json.loads(saved.read_text()) if saved.exists() else 0

    def __len__(self) -> int:
        return 1000


def generated(group: list[Sample], version: int, status: Status = Status.COMPLETED) -> list[Sample]:
    """What generation makes of a group: two tokens more."""
    for sample in group:
        sample.tokens = [*sample.tokens, 7, 8]
        sample.rollout_log_probs = [*(sample.rollout_log_probs or []), -0.1, -1 / 3]
        sample.weight_versions = [*sample.weight_versions, str(version)]
        sample.response_length = len(sample.tokens)
        sample.status = status
    return group
