"""What a server is started with: good settings pass, bad ones are refused by name and rule."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dataplane_server.config import ServerConfig, TlsFiles, host_and_port, with_port
from dataplane_server.core.calls.limits import Limits


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"listen": ("unix:///run/dataplane.sock",)},
        {"listen": ("unix:/run/dataplane.sock", "localhost:0", "127.9.9.9:1", "[::1]:50051")},
        {"listen": ("0.0.0.0:50051",), "insecure": True},
        {"http": "0.0.0.0:9464"},
        {"health": "0.0.0.0:50052"},
        {"health": "[::]:50052"},
        {"direct": "127.0.0.1:0"},
        {"direct": "0.0.0.0:50053", "insecure": True},
        {"socket_mode": 0o600},
        {"socket_mode": 0o777},
        {"drain_grace_s": 0.0},
    ],
    ids=str,
)
def test_settings_are_accepted(settings: dict[str, Any]) -> None:
    ServerConfig(**settings).validate()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"listen": ()}, "listen: at least one address"),
        ({"listen": ("0.0.0.0:50051",)}, "'0.0.0.0:50051' can be reached from other hosts"),
        ({"listen": ("[::]:50051",)}, "can be reached from other hosts"),
        ({"listen": ("10.0.0.1:50051",)}, "can be reached from other hosts"),
        ({"listen": ("localhost.example:50051",)}, "can be reached from other hosts"),
        ({"listen": ("*:50051",)}, "can be reached from other hosts"),
        ({"listen": ("127.0.0.1:0", "0.0.0.0:0")}, "'0.0.0.0:0'"),
        ({"listen": ("127.0.0.1",)}, "listen: '127.0.0.1' is not host:port"),
        ({"listen": ("127.0.0.1:65536",)}, "is not host:port"),
        ({"listen": ("127.0.0.1:-1",)}, "is not host:port"),
        ({"listen": (":50051",)}, "is not host:port"),
        ({"listen": ("unix:relative.sock",)}, "needs an absolute path"),
        ({"listen": ("unix://",)}, "needs an absolute path"),
        ({"durability": "some"}, "durability must be one of .*, got 'some'"),
        ({"durability": "process"}, "durability 'process' needs a data_dir"),
        ({"durability": "memory", "data_dir": Path("d")}, "durability 'memory' needs no data_dir"),
        ({"http": "9464"}, "http: '9464' is not host:port"),
        ({"health": "50052"}, "health: '50052' is not host:port"),
        ({"health": "unix:///run/health.sock"}, "health: 'unix:///run/health.sock' is not host:port"),
        ({"direct": "50053"}, "direct: '50053' is not host:port"),
        ({"direct": "0.0.0.0:50053"}, "direct: '0.0.0.0:50053' can be reached from other hosts"),
        ({"direct": "127.0.0.1:0", "access": Path("a")}, "direct: that port knows neither TLS nor an access file"),
        ({"direct": "127.0.0.1:0", "tls": TlsFiles(Path("c"), Path("k"))}, "direct: that port knows neither TLS"),
        ({"socket_mode": 0}, "socket_mode must be 0600 to 0777, so that its owner may connect, got 0000"),
        ({"socket_mode": 0o577}, "socket_mode must be 0600 to 0777, so that its owner may connect, got 0577"),
        ({"socket_mode": 0o1660}, "socket_mode must be 0600 to 0777, so that its owner may connect, got 1660"),
        ({"drain_grace_s": -1.0}, "drain_grace_s must be finite and not negative, got -1.0"),
        ({"drain_grace_s": float("nan")}, "drain_grace_s must be finite"),
        ({"drain_grace_s": float("inf")}, "drain_grace_s must be finite"),
        ({"limits": Limits(memory_bytes=0)}, "memory_bytes must be positive"),
        ({"limits": Limits(max_rows=0)}, "max_rows must be at least 1"),
        ({"limits": Limits(max_fields=65)}, "max_fields must be 1 to 64"),
    ],
    ids=str,
)
def test_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message.replace("[", r"\[")):
        ServerConfig(**settings).validate()


@pytest.mark.parametrize(
    ("address", "host", "port"),
    [("localhost:1", "localhost", 1), ("[::1]:65535", "::1", 65535), ("1.2.3.4:0", "1.2.3.4", 0)],
)
def test_an_address_is_split_at_its_port(address: str, host: str, port: int) -> None:
    assert host_and_port("listen", address) == (host, port)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]"])
def test_an_address_keeps_its_host_when_the_system_has_chosen_the_port(host: str) -> None:
    assert with_port(f"{host}:0", 9465) == f"{host}:9465"


@pytest.mark.parametrize(("data_dir", "durability"), [(None, "memory"), (Path("d"), "process")])
def test_a_data_directory_alone_keeps_rows_over_the_death_of_the_process(
    data_dir: Path | None, durability: str
) -> None:
    config = ServerConfig(data_dir=data_dir)
    config.validate()
    assert config.durability == durability
