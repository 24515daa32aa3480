"""The settings of a loader, checked once."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, get_args

import torch

from dataplane_client.columns_layout import Layout
from dataplane_client.options import ClientOptions


@dataclass(frozen=True)
class LoaderSettings:
    """See ClaimLoader for their meaning. Raises ValueError for invalid settings."""

    address: str
    partition_id: str
    task_name: str
    fields: list[str]
    required_fields: list[str]
    batch_size: int
    min_size: int | None
    prefetch: int
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
            raise ValueError("fields is empty: name the fields to read")
        if self.layout not in get_args(Layout):
            raise ValueError(f"layout must be one of {get_args(Layout)}, got {self.layout!r}")
        for name in ("batch_size", "prefetch", "min_size", "max_tokens", "max_batches"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        if self.min_batch_size > self.batch_size:
            raise ValueError(f"min_size must be at most batch_size ({self.batch_size}), got {self.min_size}")
        if not 0 < self.idle_timeout_s < math.inf:
            raise ValueError(f"idle_timeout_s must be positive and finite, got {self.idle_timeout_s}")
        torch.device(self.device)
        ClientOptions(**self.client_options)

    @property
    def min_batch_size(self) -> int:
        """The least rows (with whole_groups: groups) of a batch while full batches can still come."""
        return self.batch_size if self.min_size is None else self.min_size
