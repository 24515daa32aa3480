"""What objects show in a terminal and in a notebook: short, without values, with every name escaped."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.nested import nested_tensor_from_jagged

from dataplane_client.batched_data_dict import BatchedDataDict
from dataplane_client.batched_data_dict.packed_tensor import PackedTensor
from dataplane_client.client import connect, connect_later
from dataplane_client.loader import LoadedBatch
from dataplane_client.options import ClientOptions, Credentials
from dataplane_client.records.meta import KVBatchMeta
from dataplane_server.testing import running_server

HOSTILE = "<img src=x onerror=alert('1')>&"
ESCAPED = "&lt;img src=x onerror=alert(&#x27;1&#x27;)&gt;&amp;"


def test_batches_show_themselves_in_a_line() -> None:
    assert repr(BatchedDataDict()) == "<BatchedDataDict >"
    assert repr(batch().slice(0, 2)) == "<SlicedDataDict tokens int64 (2, 512)>"
    loaded = LoadedBatch(batch(), KVBatchMeta("p", "t", ["a"]), "c-1", 1, [1], (), None)
    assert repr(loaded).startswith("LoadedBatch(data=<BatchedDataDict tokens int64 (3, 512)>, meta=<KVBatchMeta p/t 1")


def batch(**more: object) -> BatchedDataDict[Any]:
    return BatchedDataDict({"tokens": torch.zeros(3, 512, dtype=torch.int64), **more})


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (torch.zeros(3, 2, dtype=torch.bfloat16), "bfloat16 (3, 2)"),
        (torch.tensor(1.0), "float32 ()"),
        (torch.zeros(3, device="meta"), "float32 on meta (3)"),
        (nested_tensor_from_jagged(torch.zeros(5, 4), torch.tensor([0, 2, 2, 5])), "float32 (3, *, 4)"),
        (np.empty(3, object), "object (3,)"),
        (["a", "b", "c"], "list (3)"),
        (PackedTensor([torch.zeros(1), None], 0), "PackedTensor (2)"),
        (7, "int ()"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_batch_shows_type_and_shape_of_each_column(value: object, shown: str) -> None:
    assert repr(batch(x=value)) == f"<BatchedDataDict tokens int64 (3, 512), x {shown}>"


def test_a_table_of_a_client_does_not_show_its_token() -> None:
    client = connect_later("127.0.0.1:1", ClientOptions(credentials=Credentials(ca="ca.pem", token="s3cret")))  # noqa: S106
    shown = client._repr_html_()
    assert ("ca.pem" in shown, "s3cret" in shown) == (True, False)


def test_tables_escape_every_name() -> None:
    with running_server() as address, connect(address, client_name=HOSTILE) as client:
        partition = client.register_partition(HOSTILE, [HOSTILE], 0, [HOSTILE])
        meta = client.put_samples([HOSTILE], HOSTILE, {HOSTILE: torch.zeros(1)}, [{HOSTILE: HOSTILE}])
        for thing in (client, partition, meta, client.read_columns(meta, [HOSTILE])):
            shown = thing._repr_html_()
            assert shown.startswith("<table><caption>")
            assert shown.endswith("</table>")
            assert ESCAPED in shown
            assert "<img" not in shown
