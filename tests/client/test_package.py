"""The public face: every name it lists is there, and nothing else pretends to be."""

from __future__ import annotations

import subprocess
import sys

import pytest

import dataplane_client
from dataplane_client import aio, errors


@pytest.mark.parametrize("name", dataplane_client.__all__)
def test_a_listed_name_is_there_and_is_kept(name: str) -> None:
    value = getattr(dataplane_client, name)
    assert getattr(dataplane_client, name) is value
    assert vars(dataplane_client)[name] is value


@pytest.mark.parametrize("name", aio.__all__)
def test_a_listed_name_of_the_asynchronous_client_is_there(name: str) -> None:
    assert getattr(aio, name).__module__.startswith("dataplane_client._async.")


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'dataplane_client' has no attribute 'nope'"):
        dataplane_client.nope  # noqa: B018  # the access is the test


def test_dir_shows_the_public_names_and_no_others() -> None:
    assert dir(dataplane_client) == sorted(dataplane_client.__all__)
    assert dir(aio) == sorted(aio.__all__)
    assert [name for name in dir(dataplane_client) if name.startswith("_")] == []


def test_every_exception_is_at_the_top() -> None:
    family = {name for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, Exception)}
    assert family == {name for name in dataplane_client.__all__ if name.endswith("Error")}


@pytest.mark.parametrize(
    ("statement", "unwanted"),
    [
        ("import dataplane_client; dir(dataplane_client)", ["torch", "numpy", "grpc", "google.protobuf"]),
        ("from dataplane_client import DataPlaneError, errors, ClientOptions, KVBatchMeta", ["torch", "numpy", "grpc"]),
    ],
    ids=["the package", "errors"],
)
def test_importing_is_cheap(statement: str, unwanted: list[str]) -> None:
    code = f"import sys\n{statement}\nprint([name for name in {unwanted!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[]\n"


def test_completion_finds_a_module_that_was_not_imported() -> None:
    code = "import dataplane_client as d; print(d.aio.connect.__name__, d.observe.count_calls.__name__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=True)
    assert done.stdout == "connect count_calls\n"
