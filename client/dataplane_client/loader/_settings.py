"""The settings of a loader, checked once."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, get_args

from dataplane_client._common.arguments import checked_number
from dataplane_client._connect.channel import checked_target
from dataplane_client._connect.options import ClientOptions
from dataplane_client._memory.read_batches import parsed_device
from dataplane_client._values.columns_layout import Layout
from dataplane_client.errors import InvalidArgumentError, UnsupportedTypeError
from dataplane_client.records.filters import filter_message
from dataplane_client.records.tasks import BatchUnit, Selection, order_number


@dataclass(frozen=True)
class LoaderSettings:
    """See ClaimLoader for their meaning. Raises ValueError or TypeError for invalid settings."""

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
    unit: BatchUnit | None
    max_tokens: int | None
    selection: Selection
    max_batches: int | None
    until_consumed: bool
    idle_timeout_s: float
    client_options: dict[str, Any]

    def __post_init__(self) -> None:
        address: object = self.address
        if not isinstance(address, str):
            got = type(address).__name__
            raise UnsupportedTypeError(f"ClaimLoader: the address must be a str, such as client.target; got {got}")
        checked_target(self.address)
        if not self.fields:
            raise InvalidArgumentError("fields is empty: name the fields to read")
        if self.layout not in get_args(Layout):
            raise InvalidArgumentError(f"layout must be one of {get_args(Layout)}, got {self.layout!r}")
        for name in ("batch_size", "prefetch", "min_size", "max_tokens", "max_batches"):
            value: object = getattr(self, name)
            if value is None and name not in ("batch_size", "prefetch"):
                continue
            if not isinstance(value, int):
                raise UnsupportedTypeError(f"ClaimLoader: {name} must be an int, got {value!r}")
            if value < 1:
                raise InvalidArgumentError(f"{name} must be at least 1, got {value}")
        if self.min_batch_size > self.batch_size:
            raise InvalidArgumentError(f"min_size must be at most batch_size ({self.batch_size}), got {self.min_size}")
        if not 0 < checked_number("idle_timeout_s", self.idle_timeout_s, "ClaimLoader") < math.inf:
            raise InvalidArgumentError(f"idle_timeout_s must be positive and finite, got {self.idle_timeout_s}")
        filter_message(self.selection.where, "ClaimLoader")
        order_number(self.selection.order, "ClaimLoader")
        parsed_device(self.device, "ClaimLoader")
        ClientOptions.named(self.client_options, "ClaimLoader: client_options")

    @property
    def counts_groups(self) -> bool:
        """Whether batch_size and min_size count groups."""
        return self.whole_groups and self.unit != "rows"

    @property
    def flow(self) -> str:
        """Partition and task, for texts."""
        return f"{self.partition_id}/{self.task_name}"

    @property
    def min_batch_size(self) -> int:
        """The least rows or groups of a batch while full batches can still come."""
        return self.batch_size if self.min_size is None else self.min_size
