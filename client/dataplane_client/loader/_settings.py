"""What a loader is told, checked once; plain values, so that they reach any process."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, get_args

import torch

from dataplane_client.columns_layout import Layout
from dataplane_client.options import ClientOptions


@dataclass(frozen=True)
class LoaderSettings:
    """See ClaimLoader for their meaning. Raises ValueError for settings that make no sense."""

    address: str
    partition_id: str
    task_name: str
    fields: list[str]
    required_fields: list[str]
    batch_size: int
    min_size: int | None
    prefetch: int
    num_workers: int
    layout: Layout
    pad_value_dict: dict[str, int | float]
    pad_to_seqlen: int
    device: str
    whole_groups: bool
    max_tokens: int | None
    max_batches: int | None
    until_consumed: bool
    idle_timeout_s: float
    client_options: dict[str, Any]

    def __post_init__(self) -> None:
        if not self.fields:
            raise ValueError("fields is empty; name the fields to read")
        if self.layout not in get_args(Layout):
            raise ValueError(f"layout must be one of {get_args(Layout)}, got {self.layout!r}")
        for name in ("batch_size", "prefetch", "min_size", "max_tokens", "max_batches"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        if self.least_size > self.batch_size:
            raise ValueError(f"min_size must be at most batch_size ({self.batch_size}), got {self.min_size}")
        if self.num_workers < 0:
            raise ValueError(f"num_workers must not be negative, got {self.num_workers}")
        if not 0 < self.idle_timeout_s < math.inf:
            raise ValueError(f"idle_timeout_s must be positive and finite, got {self.idle_timeout_s}")
        torch.device(self.device)
        ClientOptions(**self.client_options)

    @property
    def least_size(self) -> int:
        """Rows (or groups) of a batch at least, while rows are coming."""
        return self.batch_size if self.min_size is None else self.min_size

    @property
    def where(self) -> str:
        """The partition and task, for messages."""
        return f"partition {self.partition_id!r}, task {self.task_name!r}"

    def message(self) -> dict[str, Any]:
        """The settings as plain values."""
        return asdict(self)

    @classmethod
    def of_message(cls, message: Mapping[str, Any]) -> LoaderSettings:
        """The settings that made a message."""
        return cls(**{setting.name: message[setting.name] for setting in fields(cls)})
