"""The settings of a loader, checked once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dataplane_client._common.arguments import checked_choice, checked_count, checked_number, optional_count
from dataplane_client._connect.channel import checked_target
from dataplane_client._connect.options import MAX_TIMEOUT_S, ClientOptions
from dataplane_client._requests.claim_requests import claim_request
from dataplane_client._values.columns_layout import Layout
from dataplane_client._values.dtypes import parsed_device
from dataplane_client.errors import InvalidArgumentError, UnsupportedTypeError
from dataplane_client.records.tasks import BatchUnit, Selection
from rl_dataplane.v1 import data_plane_pb2 as pb

_MOST = (1 << 63) - 1


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
        checked_choice("layout", self.layout, Layout, "ClaimLoader")
        claim_request(
            self.partition_id,
            self.task_name,
            self.required_fields,
            self.batch_size,
            mode=pb.CLAIM_MODE_ACKNOWLEDGED,
            min_size=self.min_size,
            whole_groups=self.whole_groups,
            max_tokens=self.max_tokens,
            unit=self.unit,
            selection=self.selection,
        )
        checked_count("prefetch", self.prefetch, "ClaimLoader", least=1, most=_MOST)
        checked_count("pad_to_seqlen", self.pad_to_seqlen, "ClaimLoader", least=0, most=_MOST)
        optional_count("max_batches", self.max_batches, "ClaimLoader", least=1, most=_MOST)
        if unknown := sorted(self.pad_value_dict.keys() - {*self.fields, *self.required_fields}):
            raise InvalidArgumentError(f"ClaimLoader: pad_value_dict names {unknown[0]!r}, which is not in fields")
        if not 0 < checked_number("idle_timeout_s", self.idle_timeout_s, "ClaimLoader") <= MAX_TIMEOUT_S:
            most = f"positive and at most {MAX_TIMEOUT_S:.0f}"
            raise InvalidArgumentError(f"idle_timeout_s must be {most}, got {self.idle_timeout_s}")
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
