"""Values that are put once: images that come again in every epoch take their memory once."""

from __future__ import annotations

import pytest
import torch
from tensordict import NonTensorStack
from torch import Tensor

from dataplane_client.client import DataPlaneClient
from dataplane_client.errors import InvalidArgumentError, UnsupportedTypeError

MIB = 1 << 20


@pytest.fixture
def flow(client: DataPlaneClient) -> DataPlaneClient:
    """Partition p with the fields image, boxes, and input_ids, which is per-token."""
    client.register_partition("p", ["image", "boxes", "input_ids"], 0, ["train"], per_token_fields=["input_ids"])
    return client


def images(count: int, pixels: int) -> Tensor:
    return torch.arange(count * pixels, dtype=torch.int32).view(torch.uint8).view(count, -1)


def used(client: DataPlaneClient) -> int:
    return client.server_status().memory_used_bytes


@pytest.mark.parametrize("pixels", [100, MIB // 2], ids=["at once", "hashed in a thread"])
def test_images_put_again_in_every_epoch_take_their_memory_once(flow: DataPlaneClient, pixels: int) -> None:
    pictures = images(4, pixels)
    for epoch in range(3):
        ids = [f"{epoch}-{row}" for row in range(8)]
        flow.put_samples(
            ids, "p", {"image": pictures.repeat(2, 1), "boxes": [[row] for row in range(8)]}, once=["image"]
        )
        flow.clear_samples([f"{epoch - 1}-{row}" for row in range(8)], "p")
        assert used(flow) == flow.partition("p").size_bytes == pictures.nbytes + 8 * 8
        assert torch.equal(flow.get_samples(ids, "p", ["image"])["image"], pictures.repeat(2, 1))
    assert flow.partition("p").deduplicated_bytes_total == 5 * pictures.nbytes
    flow.clear_samples(["2-0", "2-1", "2-2", "2-3"], "p")
    assert used(flow) == pictures.nbytes + 4 * 8
    flow.clear_samples(None, "p")
    assert used(flow) == 0


def test_rows_of_groups_share_objects_with_rows_of_other_groups(flow: DataPlaneClient) -> None:
    small, large = torch.zeros(4, 6, 3), torch.ones(8, 5, 3)
    for name in ("g", "h"):
        with flow.reserve_group("p", name, [f"{name}0"]) as group:
            group.put([f"{name}0"], {"image": NonTensorStack(small)}, once=["image"])
            group.add([f"{name}1", f"{name}2"], {"image": NonTensorStack(small, large)}, once=["image"])
    assert flow.partition("p").deduplicated_bytes_total > 0
    before = used(flow)
    flow.clear_samples(["g0", "g1", "g2"], "p")
    assert used(flow) == before
    rows = flow.get_samples(["h0", "h1", "h2"], "p", ["image"])
    for row, image in enumerate((small, small, large)):
        assert torch.equal(rows[row]["image"], image)


def test_what_cannot_be_kept_once_is_refused_by_name(flow: DataPlaneClient) -> None:
    fields = {"input_ids": [[1, 2]], "boxes": [[3]]}
    with pytest.raises(InvalidArgumentError, match="field 'input_ids' is per-token"):
        flow.put_samples(["a"], "p", fields, once=["boxes", "input_ids"])
    with pytest.raises(InvalidArgumentError, match="no column 'image'"):
        flow.put_samples(["a"], "p", fields, once=["image"])
    with pytest.raises(UnsupportedTypeError, match=r"write \['boxes'\]"):
        flow.put_samples(["a"], "p", fields, once="boxes")
    assert flow.partition("p").rows == 0
