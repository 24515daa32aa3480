"""Objects of types that are registered by name: PIL's images, which always are, and classes of the caller's."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pytest
from tests.forked import forking

from dataplane_client import DataPlaneClient, UnsupportedTypeError, connect, register_type
from dataplane_client.errors import InternalError
from dataplane_server.testing import running_server

PIXELS = np.random.default_rng(0).integers(0, 256, (3, 5, 4), np.uint8)
MODES = ["L", "LA", "RGB", "RGBA", "CMYK", "YCbCr", "HSV", "LAB", "I", "F", "I;16"]


@dataclass(frozen=True)
class Mesh:
    faces: int


class DenseMesh(Mesh):
    pass


class Edge(NamedTuple):
    begin: int


register_type("tests.Mesh", Mesh, lambda mesh: str(mesh.faces).encode(), lambda data: Mesh(int(data)))
register_type("tests.Edge", Edge, lambda edge: str(edge.begin).encode(), lambda data: Edge(int(data)))


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with running_server() as address:
        yield address


@pytest.fixture(scope="module")
def client(address: str) -> Iterator[DataPlaneClient]:
    with connect(address) as connected:
        connected.register_partition("objects", ["o"], 0, ["t"])
        yield connected


def back(client: DataPlaneClient, values: list[object]) -> list[object]:
    ids = [f"s{number}" for number in range(len(values))]
    client.put_samples(ids, "objects", {"o": values})
    return list(client.get_samples(ids, "objects", ["o"])["o"])


@pytest.mark.parametrize("mode", MODES)
def test_an_image_comes_back_with_its_mode_size_and_pixels(client: DataPlaneClient, mode: str) -> None:
    image = pytest.importorskip("PIL.Image")
    size = image.new(mode, (1, 1)).tobytes()
    sent = image.frombytes(mode, (5, 3), PIXELS.tobytes()[: 15 * len(size)])
    (got,) = back(client, [{"turns": [("user", sent)]}])
    (_, received), *_ = got["turns"]  # type: ignore[index]
    assert type(received) is image.Image
    assert (received.mode, received.size, received.tobytes()) == (mode, (5, 3), sent.tobytes())


def test_images_need_no_nesting_and_a_mode_without_all_its_pixels_in_rows_is_refused(client: DataPlaneClient) -> None:
    image = pytest.importorskip("PIL.Image")
    images = [image.new("RGB", (width, 2), "red") for width in (1, 4, 0)]
    assert [got.size for got in back(client, list(images))] == [(1, 2), (4, 2), (0, 2)]  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match=r"'o', row 1 .*mode 'P'.*RGB"):
        back(client, ["text", images[0].convert("P")])


def test_a_value_of_a_registered_class_comes_back_and_one_of_a_subclass_as_decode_returns_it(
    client: DataPlaneClient,
) -> None:
    sent: list[object] = [{"mesh": Mesh(7)}, [Mesh(1), DenseMesh(2)], Edge(3)]
    got = back(client, sent)
    assert got == [{"mesh": Mesh(7)}, [Mesh(1), Mesh(2)], Edge(3)]
    assert type(got[2]) is Edge


class Foreign(Mesh):
    pass


def put_foreign(address: str) -> None:
    register_type("theirs.Foreign", Foreign, lambda value: b"", lambda data: Foreign(0))
    with connect(address) as client:
        client.put_samples(["x", "y"], "objects", {"o": ["text", [Foreign(3)]]})


def test_a_reader_that_has_not_registered_the_type_is_refused_by_field_row_and_type(
    address: str, client: DataPlaneClient
) -> None:
    writer = forking().Process(target=put_foreign, args=(address,))
    writer.start()
    writer.join(60)
    assert writer.exitcode == 0
    with pytest.raises(UnsupportedTypeError, match=r"'o', row 1: type 'theirs.Foreign'.*register_type"):
        client.get_samples(["x", "y"], "objects", ["o"])
    assert list(client.get_samples(["x"], "objects", ["o"])["o"]) == ["text"]


class Odd:
    def __init__(self, sends: object) -> None:
        self.sends = sends


def odd_from(data: bytes) -> Odd:
    if data == b"key":
        raise KeyError(data)
    return data  # type: ignore[return-value]


register_type("tests.Odd", Odd, lambda odd: odd.sends, odd_from)  # type: ignore[arg-type, return-value]


def test_an_encode_that_returns_no_bytes_and_a_decode_that_fails_are_named(client: DataPlaneClient) -> None:
    with pytest.raises(UnsupportedTypeError, match=r"'o', row 0 .*'tests.Odd'.*str"):
        back(client, [Odd("text")])
    for sends, what in ((b"key", "KeyError"), (b"other", "returned bytes")):
        with pytest.raises(InternalError, match=rf"'o', row 0.*'tests.Odd'.*{what}"):
            back(client, [Odd(sends)])


@pytest.mark.parametrize(
    ("name", "kind", "rule"),
    [
        ("", Foreign, "0 bytes"),
        ("n" * 257, Foreign, "257 bytes"),
        ("tests.Mesh", Foreign, "'tests.Mesh' is registered already"),
        ("tests.Other", Mesh, "'tests.Mesh' is registered already"),
        ("tests.Dict", dict, "kind is dict"),
        ("tests.Array", np.ndarray, "kind is ndarray"),
        ("tests.Number", np.float32, "kind is float32"),
    ],
)
def test_a_registration_that_contradicts_is_refused(name: str, kind: type, rule: str) -> None:
    with pytest.raises(ValueError, match=re.escape(rule)):
        register_type(name, kind, lambda value: b"", lambda data: None)
