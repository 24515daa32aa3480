"""Settings, pauses and addresses: what a client refuses before it opens a connection."""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import os
import re
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest

from dataplane_client import aio
from dataplane_client._connect.deadline import backoff_pauses
from dataplane_client._connect.secured import Secured
from dataplane_client.client import connect
from dataplane_client.errors import InvalidArgumentError, UnsupportedTypeError
from dataplane_client.options import ClientOptions, Credentials, TransportChoice
from dataplane_server.testing import running_server

WORDS = ("transport", "client_name", "credentials")
NUMBERS = [setting.name for setting in dataclasses.fields(ClientOptions) if setting.name not in WORDS]


@pytest.mark.parametrize("setting", NUMBERS)
def test_settings_must_be_positive_and_no_longer_than_clocks_hold(setting: str) -> None:
    for value in (0, -1, float("nan"), float("inf"), 1e12):
        with pytest.raises(ValueError, match=f"{setting} .* {value}"):
            ClientOptions(**{setting: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [1.5, (16 << 20) + 1], ids=str)
def test_chunks_are_whole_bytes_and_at_most_16_mib(value: float) -> None:
    with pytest.raises(ValueError, match=f"chunk_bytes .* 16777216, got {value}"):
        ClientOptions(chunk_bytes=value)  # type: ignore[arg-type]
    assert ClientOptions(chunk_bytes=16 << 20).chunk_bytes == 16 << 20


def test_values_travel_by_one_of_four_ways_and_another_is_refused_by_name() -> None:
    ways = get_args(TransportChoice)
    assert ways == ("auto", "shm", "direct", "grpc")
    assert [ClientOptions(transport=way).transport for way in ways] == [*ways]
    assert ClientOptions().transport == "auto"
    for other in ("", "SHM", "tcp", "unix", None, 1, True):
        with pytest.raises(ValueError, match=f"transport .*{re.escape(str(ways))}, got {other!r}"):
            ClientOptions(transport=other)  # type: ignore[arg-type]


def test_a_client_is_known_by_its_host_and_process_unless_it_has_a_name() -> None:
    assert ClientOptions().caller == f"{socket.gethostname()}:{os.getpid()}"
    assert ClientOptions(client_name="ä" * 128).caller == "ä" * 128
    with pytest.raises(ValueError, match=r"client_name .* 256 bytes, got 258: 'ä{40}'\.\.\.$"):
        ClientOptions(client_name="ä" * 129)


@pytest.mark.parametrize(
    ("name", "hint"),
    [("timeout", "did you mean 'timeout_s'?"), ("graces", "did you mean"), ("colour", "Its options are target,")],
)
@pytest.mark.parametrize("call", [connect, aio.connect], ids=["blocking", "asynchronous"])
def test_connect_refuses_an_unknown_option_and_names_the_nearest(
    call: Callable[..., object], name: str, hint: str
) -> None:
    with pytest.raises(UnsupportedTypeError, match=f"'{name}'") as caught:
        call("127.0.0.1:1", **{name: 1.0})
    assert hint in str(caught.value)
    assert "session_grace_s, client_name" in str(caught.value)


@pytest.mark.parametrize("call", [connect, aio.connect], ids=["blocking", "asynchronous"])
def test_the_options_of_connect_are_those_of_a_client(call: Callable[..., object]) -> None:
    options = dict(inspect.signature(call).parameters)
    assert options.pop("target").default is None
    assert {name: option.kind for name, option in options.items()} == dict.fromkeys(
        options, inspect.Parameter.KEYWORD_ONLY
    )
    assert {name: option.default for name, option in options.items()} == dataclasses.asdict(ClientOptions())
    documented = inspect.getdoc(call) or ""
    assert [name for name in options if f"{name}:" not in documented and f"{name}," not in documented] == []


def test_a_token_stays_while_its_file_has_none(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("first")
    secured = Secured(f"unix://{tmp_path}/s", Credentials(token_file=str(file)))
    assert secured.metadata() == (("authorization", "Bearer first"),)

    def after_a_second() -> object:
        time.sleep(1.1)  # a file is looked at once a second
        return secured.metadata()

    for none in ("", "two\nlines", "t\u00f6ken"):  # the first is what a writer leaves for a moment
        file.write_text(none)
        assert after_a_second() == (("authorization", "Bearer first"),)
        with pytest.raises(InvalidArgumentError, match=f"{file}.*printable ASCII"):
            Secured("unix:///s", Credentials(token_file=str(file))).metadata()
    file.unlink()
    file.mkdir()
    assert after_a_second() == (("authorization", "Bearer first"),)
    file.rmdir()
    file.write_text("second\n")
    assert after_a_second() == (("authorization", "Bearer second"),)


# -- pauses ------------------------------------------------------------------------------------------------------------


def test_pauses_double_up_to_the_maximum_less_a_random_half() -> None:
    options = ClientOptions(first_backoff_s=0.1, max_backoff_s=0.5)
    assert list(itertools.islice(backoff_pauses(options), 8)) != list(itertools.islice(backoff_pauses(options), 8))
    for full, pause in zip([0.1, 0.2, 0.4, 0.5, 0.5, 0.5], backoff_pauses(options), strict=False):
        assert full / 2 <= pause <= full


def test_calls_that_others_wait_for_are_repeated_more_often() -> None:
    options = ClientOptions(first_backoff_s=0.08, max_backoff_s=0.5)
    assert max(itertools.islice(backoff_pauses(options, "CommitClaim"), 8)) <= 0.1
    assert max(itertools.islice(backoff_pauses(options, "PutSamples"), 8)) > 0.2


# -- addresses ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["unix://{path}", "unix:{path}"])
def test_a_socket_file_is_an_address(tmp_path: Path, form: str) -> None:
    path = tmp_path / "a.sock"
    with running_server(listen=f"unix://{path}"), connect(form.format(path=path), transport="shm") as client:
        assert client.target == form.format(path=path)


def test_without_an_address_the_environment_names_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    with running_server() as address:
        monkeypatch.setenv("DATAPLANE_SERVER", address)
        with connect() as client:
            assert client.target == address


@pytest.mark.parametrize("variable", [None, ""], ids=["unset", "empty"])
@pytest.mark.parametrize("call", [lambda: connect(), lambda: connect(None)], ids=["no target", "None"])
def test_without_any_address_connect_says_how_to_give_one(
    monkeypatch: pytest.MonkeyPatch, call: Callable[[], object], variable: str | None
) -> None:
    monkeypatch.delenv("DATAPLANE_SERVER", raising=False)
    if variable is not None:
        monkeypatch.setenv("DATAPLANE_SERVER", variable)
    with pytest.raises(InvalidArgumentError, match="DATAPLANE_SERVER"):
        call()


NO_ADDRESS = "unix:///path or host:port"
ADDRESSES = ["", "dataplane", "host:", ":50051", "host:port", "http://host:1", "unix:relative", "unix://host", "unix:"]
REFUSED: list[tuple[object, dict[str, object], type[Exception], str]] = [
    *((address, {}, ValueError, NO_ADDRESS) for address in ADDRESSES),
    *((f"127.0.0.1:{n}", {}, InvalidArgumentError, "1 to 65535") for n in (0, 65536, 99999)),
    *((x, {}, UnsupportedTypeError, "address .* str") for x in (7, b"127.0.0.1:1", Path("/a"))),
    ("127.0.0.1:1", {"timeout_s": 0}, ValueError, "timeout_s"),
    ("127.0.0.1:1", {"timeout_s": "5"}, UnsupportedTypeError, "timeout_s"),
    ("127.0.0.1:1", {"timeout_s": True}, UnsupportedTypeError, "timeout_s"),
    ("127.0.0.1:1", {"client_name": 7}, UnsupportedTypeError, "client_name"),
    ("127.0.0.1:1", {"chunk_bytes": None}, UnsupportedTypeError, "chunk_bytes"),
]


@pytest.mark.parametrize(("target", "options", "error", "message"), REFUSED, ids=[f"{r[0]} {r[1]}" for r in REFUSED])
def test_connect_refuses_an_address_or_option_before_it_waits_for_the_server(
    target: Any, options: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        connect(target, **options)
