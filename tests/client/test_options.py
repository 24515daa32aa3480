"""Settings, pauses and addresses: what a client refuses before it opens a connection."""

from __future__ import annotations

import dataclasses
import itertools
import os
import socket
from pathlib import Path
from typing import Literal

import pytest

from dataplane_client._deadline import backoff_pauses
from dataplane_client.client import connect
from dataplane_client.options import ClientOptions
from dataplane_server.testing import running_server

WORDS = ("transport", "client_name")
NUMBERS = [setting.name for setting in dataclasses.fields(ClientOptions) if setting.name not in WORDS]


@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf")], ids=str)
@pytest.mark.parametrize("setting", NUMBERS)
def test_settings_must_be_positive_and_finite(setting: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"{setting} must be positive and finite, got {value}"):
        ClientOptions(**{setting: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [1.5, (16 << 20) + 1], ids=str)
def test_chunks_are_whole_bytes_and_at_most_16_mib(value: float) -> None:
    with pytest.raises(ValueError, match=f"chunk_bytes must be an int of at most 16777216, got {value}"):
        ClientOptions(chunk_bytes=value)  # type: ignore[arg-type]
    assert ClientOptions(chunk_bytes=16 << 20).chunk_bytes == 16 << 20


@pytest.mark.parametrize("transport", ["auto", "shm", "grpc"])
def test_values_travel_by_one_of_three_ways(transport: Literal["auto", "shm", "grpc"]) -> None:
    assert ClientOptions(transport=transport).transport == transport


def test_values_travel_by_the_best_way_unless_told_otherwise() -> None:
    assert ClientOptions().transport == "auto"


@pytest.mark.parametrize("transport", ["", "SHM", "tcp", "unix", None, 1, True])
def test_another_way_is_refused_by_name(transport: object) -> None:
    with pytest.raises(ValueError, match=rf"transport must be one of \('auto', 'shm', 'grpc'\), got {transport!r}"):
        ClientOptions(transport=transport)  # type: ignore[arg-type]


def test_a_client_is_known_by_its_host_and_process_unless_it_has_a_name() -> None:
    assert ClientOptions().caller == f"{socket.gethostname()}:{os.getpid()}"
    assert ClientOptions(client_name="trainer-0").caller == "trainer-0"


def test_a_name_of_a_client_is_not_longer_than_the_server_takes() -> None:
    assert ClientOptions(client_name="ä" * 128).caller == "ä" * 128
    with pytest.raises(ValueError, match="client_name must have at most 256 bytes, got 'ä"):
        ClientOptions(client_name="ä" * 129)


def test_connect_refuses_a_bad_setting_before_it_waits_for_the_server() -> None:
    with pytest.raises(ValueError, match="timeout_s must be positive"):
        connect("127.0.0.1:1", timeout_s=0)


def test_connect_refuses_an_unknown_setting_by_name() -> None:
    with pytest.raises(TypeError, match="'timeout'"):
        connect("127.0.0.1:1", timeout=1.0)


# -- pauses ------------------------------------------------------------------------------------------------------------


def test_pauses_double_up_to_the_maximum_less_a_random_half() -> None:
    options = ClientOptions(first_backoff_s=0.1, max_backoff_s=0.5)
    for full, pause in zip([0.1, 0.2, 0.4, 0.5, 0.5, 0.5], backoff_pauses(options), strict=False):
        assert full / 2 <= pause <= full


def test_pauses_of_two_callers_differ() -> None:
    options = ClientOptions()
    assert list(itertools.islice(backoff_pauses(options), 8)) != list(itertools.islice(backoff_pauses(options), 8))


# -- addresses ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["unix://{path}", "unix:{path}"])
def test_a_socket_file_is_an_address(tmp_path: Path, form: str) -> None:
    path = tmp_path / "a.sock"
    with running_server(listen=f"unix://{path}"), connect(form.format(path=path)) as client:
        assert client.target == form.format(path=path)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_host_with_a_port_is_an_address(host: str) -> None:
    with running_server(listen="127.0.0.1:0") as address:
        port = address.rpartition(":")[2]
        with connect(f"{host}:{port}") as client:
            assert client.transport == "shm"


@pytest.mark.parametrize(
    "target",
    ["", "dataplane", "host:", ":50051", "host:port", "http://host:1", "unix:relative", "unix://host", "unix:"],
)
def test_an_address_is_refused(target: str) -> None:
    with pytest.raises(ValueError, match="is not an address: write unix:///path or host:port"):
        connect(target)
