"""What a server is started with: good settings pass, bad ones are refused by name and rule."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dataplane_server.config import ServerConfig, TlsFiles, host_and_port, with_port
from dataplane_server.core.calls.limits import Limits

GOOD: list[dict[str, Any]] = [
    {},
    {"listen": ("unix:///run/dataplane.sock",)},
    *({"listen": ("unix:/run/dataplane.sock", port)} for port in ("localhost:0", "127.9.9.9:1", "[::1]:50051")),
    {"listen": ("localhost:0", "127.9.9.9:1"), "insecure": True},
    {"listen": ("localhost:0", "127.9.9.9:1"), "access": Path("a")},
    {"listen": ("0.0.0.0:50051",), "insecure": True},
    {"http": "0.0.0.0:9464"},
    {"health": "0.0.0.0:50052"},
    {"health": "[::]:50052"},
    {"direct": "127.0.0.1:0"},
    {"direct": "0.0.0.0:50053", "insecure": True},
    {"socket_mode": 0o600},
    {"socket_mode": 0o777},
    {"drain_grace_s": 0.0},
]
REACHED = ("0.0.0.0:50051", "[::]:50051", "10.0.0.1:50051", "localhost.example:50051", "*:50051")
MALFORMED = ("127.0.0.1", "127.0.0.1:65536", "127.0.0.1:-1", ":50051", "::1:0", "unix:relative.sock", "unix://")
TLS = TlsFiles(Path("c"), Path("k"))
BAD: list[tuple[dict[str, Any], str]] = [
    *(({"listen": (address,)}, f"'{address}' can be reached") for address in REACHED),
    *(({"listen": (address,)}, f"listen: .*'{address}'") for address in MALFORMED),
    ({"listen": ()}, "listen"),
    ({"listen": ("127.0.0.1:0", "0.0.0.0:0")}, "'0.0.0.0:0'"),
    ({"listen": ("127.0.0.1:0", "unix:/s", "[::1]:1")}, "listen: .*'127.0.0.1:0', '[::1]:1'"),
    ({"listen": ("unix:///s", "127.0.0.1:1", "unix:///s")}, "listen: 'unix:///s' is given twice"),
    ({"durability": "some"}, "durability .* 'some'"),
    ({"durability": "process"}, "'process' .* data_dir"),
    ({"durability": "memory", "data_dir": Path("d")}, "'memory' .* data_dir"),
    ({"data_dir": Path("d"), "snapshot_dir": Path("d/../d")}, "snapshot_dir: d/../d is the data_dir"),
    ({"http": "9464"}, "http: '9464'"),
    ({"health": "50052"}, "health: '50052'"),
    ({"health": "unix:///run/health.sock"}, "health: 'unix:///run/health.sock'"),
    ({"direct": "50053"}, "direct: '50053'"),
    ({"direct": "0.0.0.0:50053"}, "direct: '0.0.0.0:50053' can be reached"),
    ({"direct": "127.0.0.1:0", "access": Path("a")}, "direct: .* access"),
    ({"direct": "127.0.0.1:0", "tls": TLS}, "direct: .* TLS"),
    *(({"socket_mode": mode}, f"socket_mode .* {mode:04o}") for mode in (0, 0o577, 0o1660)),
    *(({"drain_grace_s": value}, f"drain_grace_s .* {value}") for value in (-1.0, float("nan"), float("inf"))),
    ({"limits": Limits(max_fields=65)}, "max_fields .* 64"),
]


@pytest.mark.parametrize("settings", GOOD, ids=str)
def test_settings_are_accepted(settings: dict[str, Any]) -> None:
    ServerConfig(**settings).validate()


@pytest.mark.parametrize(("settings", "fact"), BAD, ids=[str(settings) for settings, _ in BAD])
def test_settings_are_refused_by_name_and_value(settings: dict[str, Any], fact: str) -> None:
    with pytest.raises(ValueError, match=fact.replace("[", r"\[").replace("*:", r"\*:")):
        ServerConfig(**settings).validate()


def test_an_address_is_split_at_its_port_and_keeps_its_host_when_the_system_has_chosen_the_port() -> None:
    split = [host_and_port("listen", address) for address in ("localhost:1", "[::1]:65535", "1.2.3.4:0")]
    assert split == [("localhost", 1), ("::1", 65535), ("1.2.3.4", 0)]
    for host in ("127.0.0.1", "localhost", "[::1]"):
        assert with_port(f"{host}:0", 9465) == f"{host}:9465"


@pytest.mark.parametrize(("data_dir", "durability"), [(None, "memory"), (Path("d"), "process")])
def test_a_data_directory_alone_keeps_rows_over_the_death_of_the_process(
    data_dir: Path | None, durability: str
) -> None:
    config = ServerConfig(data_dir=data_dir)
    config.validate()
    assert config.durability == durability


def test_a_cluster_syncs_its_log_unless_another_durability_was_named() -> None:
    """Ray may start its coordinator again on another machine, which cannot use a log that was not synced."""
    logged = ServerConfig(data_dir=Path("d"))
    for config in (logged, replace(logged, insecure=True), replace(ServerConfig(), data_dir=Path("d"))):
        config.validate(cluster=True)
        assert pickle.loads(pickle.dumps(config)).for_cluster() == replace(config, durability="disk")  # noqa: S301
    named = ServerConfig(data_dir=Path("d"), durability="process")
    for config in (named, replace(named, insecure=True), ServerConfig()):
        assert config.for_cluster() == config
