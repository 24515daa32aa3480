"""The public face: every name it lists is there, and nothing else pretends to be."""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata

import dataplane_client
from dataplane_client import aio, errors


def test_every_listed_name_is_there_and_is_kept() -> None:
    for name in dataplane_client.__all__:
        value = getattr(dataplane_client, name)
        assert getattr(dataplane_client, name) is vars(dataplane_client)[name] is value
    for name in aio.__all__:
        assert getattr(aio, name).__module__.startswith("dataplane_client._verbs._async.")


def test_dir_shows_the_public_names_and_no_others() -> None:
    assert dir(dataplane_client) == sorted(dataplane_client.__all__)
    assert dir(aio) == sorted(aio.__all__)
    assert [name for name in dir(dataplane_client) if name.startswith("_")] == []


def test_the_version_is_that_of_the_distribution() -> None:
    assert dataplane_client.__version__ == metadata.version("rl-dataplane")


def test_every_exception_is_at_the_top() -> None:
    family = {name for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, Exception)}
    assert family == {name for name in dataplane_client.__all__ if name.endswith("Error")}


def test_listing_names_loads_nothing_and_completion_finds_a_module_that_was_not_imported() -> None:
    code = """
import sys
import dataplane_client as d
dir(d)
print(*(name for name in ("torch", "numpy", "grpc", "google.protobuf") if name in sys.modules))
print(d.errors.__name__, d.observe.__name__)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True)
    assert done.stdout == "\ndataplane_client.errors dataplane_client.observe\n"
