"""What is put comes back bit for bit: every element type, layout and awkward shape, through a real server."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pytest
import torch
from tensordict import TensorDict
from tests.integration.conftest import DIRECT, TRANSPORTS, OpenServer, ways
from tests.tensors import jagged, objects, raw, some

from dataplane_client.client import DataPlaneClient, connect
from dataplane_client.codec import WIRE_DTYPES
from dataplane_client.options import TransportChoice

DTYPES = {entry.name: entry.torch_dtype for entry in WIRE_DTYPES}


@pytest.fixture(scope="module", params=ways("grpc", DIRECT, "shm"))
def shared_client(request: pytest.FixtureRequest, open_server: OpenServer) -> Iterator[DataPlaneClient]:
    """One client for the tests of this module; every test begins with a new partition."""
    with open_server(request.param) as address, connect(address, transport=TRANSPORTS[request.param]) as client:
        yield client


def lengths_of(rows: int) -> npt.NDArray[np.int64]:
    """Lengths from 0 to 4, differing."""
    return np.arange(rows, dtype=np.int64) * 7 % 5


def ragged(dtype: torch.dtype, lengths: npt.NDArray[np.int64], trailing: Sequence[int] = ()) -> torch.Tensor:
    return jagged(some(dtype, int(lengths.sum()), *trailing), lengths)


def every_second(dtype: torch.dtype, rows: int) -> torch.Tensor:
    """A strided view of (rows, 3), none of whose rows lie next to one another."""
    return some(dtype, 2 * rows, 3)[::2]


CASES: dict[str, tuple[int, Callable[[torch.dtype], tuple[torch.Tensor, torch.Tensor]]]] = {
    "empty rows": (6, lambda d: (some(d, 6, 0), ragged(d, np.array([0, 3, 0, 0, 2, 0])))),
    "only empty rows": (3, lambda d: (some(d, 3, 2, 0), ragged(d, np.zeros(3, np.int64)))),
    "one row": (1, lambda d: (some(d, 1, 3), ragged(d, np.array([4])))),
    "one entry a row": (4, lambda d: (some(d, 4), ragged(d, np.ones(4, np.int64)))),
    "5,000 rows": (5000, lambda d: (some(d, 5000, 2), ragged(d, lengths_of(5000)))),
    "every second row of a buffer": (10, lambda d: (every_second(d, 10), jagged(every_second(d, 20), lengths_of(10)))),
    "transposed buffer": (5, lambda d: (some(d, 3, 5).T, jagged(some(d, 2, 10).T, lengths_of(5)))),
    "3-D trailing shape": (7, lambda d: (some(d, 7, 2, 3, 2), ragged(d, lengths_of(7), (2, 3, 2)))),
}


def content(value: torch.Tensor) -> tuple[object, ...]:
    """Everything there is to know of a tensor: element type, kind, shape or lengths, and the bytes."""
    values, lengths = value, None
    if value.is_nested:
        values, lengths = value.values(), value.offsets().diff().tolist()  # type: ignore[attr-defined]  # nested only
    return value.dtype, lengths, tuple(values.shape), raw(values)


def assert_same(got: TensorDict, sent: Mapping[str, torch.Tensor]) -> None:
    for name, value in sent.items():
        assert content(got.get(name)) == content(value), name


@pytest.mark.parametrize("case", CASES)
def test_tensors_of_every_type_come_back_bit_for_bit(shared_client: DataPlaneClient, case: str) -> None:
    rows, make = CASES[case]
    sent: dict[str, torch.Tensor] = {}
    for name, dtype in DTYPES.items():
        sent[f"dense.{name}"], sent[f"jagged.{name}"] = make(dtype)
    ids = [f"s{row}" for row in range(rows)]
    shared_client.drop_partition("p")
    shared_client.register_partition("p", list(sent), rows, ["train"])
    shared_client.put_samples(ids, "p", sent)
    assert_same(shared_client.get_samples(ids, "p", list(sent)), sent)


def test_rows_come_back_in_the_order_of_the_request(shared_client: DataPlaneClient) -> None:
    values = {"x": torch.arange(300).reshape(100, 3), "y": ragged(torch.int32, lengths_of(100))}
    ids = [f"s{row}" for row in range(100)]
    shared_client.drop_partition("p")
    shared_client.register_partition("p", ["x", "y"], 100, ["train"])
    shared_client.put_samples(ids, "p", values)
    order = np.random.default_rng(0).permutation(100)[:60].tolist()
    got = shared_client.get_samples([ids[row] for row in order], "p", ["y", "x"])
    assert list(got.keys()) == ["y", "x"]
    assert torch.equal(got["x"], values["x"][order])
    assert [row.tolist() for row in got["y"].unbind()] == [values["y"].unbind()[row].tolist() for row in order]


@pytest.mark.parametrize("chunk_bytes", [1, 997, 1 << 16, 16 << 20], ids=lambda size: f"{size} bytes")
def test_the_size_of_chunks_does_not_show(address: str, transport: TransportChoice, chunk_bytes: int) -> None:
    rows = 2 if chunk_bytes == 1 else 300
    sent = {"x": some(torch.float32, rows, 50), "y": ragged(torch.bfloat16, lengths_of(rows), (9,))}
    ids = [f"s{row}" for row in range(rows)]
    with connect(address, chunk_bytes=chunk_bytes, transport=transport) as client:
        client.drop_partition("p")  # of `shared_client`, whose server this may be
        client.register_partition("p", ["x", "y"], rows, ["train"])
        client.put_samples(ids, "p", sent)
        assert_same(client.get_samples(ids, "p", ["x", "y"]), sent)


OBJECTS: dict[str, npt.NDArray[np.object_]] = {
    "empty values": objects(None, "", b"", [], {}),
    "one row": objects({"question": "1 + 1?", "answer": 2}),
    "5,000 rows": objects(*({"index": row, "text": "x" * (row % 11)} for row in range(5000))),
    "non-contiguous": objects(1, None, "two", None, b"three", None, [4], None, {"five": 5})[::2],
}


@pytest.mark.parametrize("case", OBJECTS)
def test_objects_come_back_equal_and_of_the_same_type(shared_client: DataPlaneClient, case: str) -> None:
    sent = OBJECTS[case]
    ids = [f"s{row}" for row in range(len(sent))]
    shared_client.drop_partition("p")
    shared_client.register_partition("p", ["o"], len(ids), ["train"])
    shared_client.put_samples(ids, "p", {"o": sent})
    got = shared_client.get_samples(ids, "p", ["o"]).get("o").tolist()
    assert [type(value) for value in got] == [type(value) for value in sent]
    assert repr(got) == repr(sent.tolist())
