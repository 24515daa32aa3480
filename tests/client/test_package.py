"""The public face: every name it lists is there, and nothing else pretends to be."""

from __future__ import annotations

import pytest

import dataplane_client
from dataplane_client import aio


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
