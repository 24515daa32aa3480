"""The settings of a server. Only `cli` reads flags and the environment."""

from __future__ import annotations

import ipaddress
import math
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, cast, get_args

from dataplane_server.core.calls.limits import Limits

Durability = Literal["memory", "process", "disk"]
_OF_ONE_MACHINE = {
    "direct": "a cluster has no such port; its clients use the memory of their nodes",
    "share_memory": "clients of a cluster use the memory of their nodes (--no-share-memory)",
    "snapshot_dir": "a cluster keeps no snapshots",
    "standby": "Ray restarts the coordinator of a cluster",
}
"""Why a cluster refuses these settings, which a server of one machine takes."""


class _Unnamed(str):
    """The default durability, in a type of its own: copies of the settings still tell it from one that was named."""

    __slots__ = ()


@dataclass(frozen=True)
class TlsFiles:
    """PEM files. client_ca: of the certificates that every client must show; None asks for none."""

    certificate: Path
    key: Path
    client_ca: Path | None = None

    @property
    def all(self) -> list[Path]:
        return [self.certificate, self.key, *([] if self.client_ca is None else [self.client_ca])]


@dataclass(frozen=True)
class ServerConfig:
    """The settings of one server.

    listen: gRPC addresses, each `unix:///path` or `host:port` (port 0: the system chooses).
    http: `host:port` of /metrics and /healthz, or None for none.
    http_door: `host:port` of the HTTP gateway, which is started beside the server, or None for none.
    direct: `host:port` where clients that cannot map the arena move values faster than over gRPC, or None for nowhere.
        Plaintext, so not beside TLS or an access file.
    health: `host:port` of a listener with only gRPC's health service, or None for none. Any address is safe: the
        listener only reports whether the server serves.
    socket_mode: mode of the Unix socket files, or None to leave it to the umask. Any user who may write to such a file
        may connect and, with share_memory, write to the arena.
    share_memory: let clients of this host map the arena and exchange values through it, if the system has memfd.
    insecure: allow gRPC, the direct port and the HTTP door without encryption or authentication on addresses that other
        hosts can reach, and to every user of this host on loopback.
    tls: certificate and key of all TCP listeners but health, and a CA for clients' certificates. None for no TLS.
    access: the access file, which says who may call and what they may do. See `access.access_file`.
    allowed_users, allowed_groups: ids of users of this host, beside the server's own and root, who may call over
        loopback and attach to the shared memory.
    tracing: create a span of every call with OpenTelemetry's global tracer provider, which the program sets up.
    reflection: answer gRPC reflection, for tools such as grpcurl; needs grpcio-reflection.
    durability: "memory": rows live as long as the process. "process": they survive its death in data_dir, not that of
        the machine. "disk": they survive that, too; each answer waits until what it reveals is on stable storage. By
        default "process" with a data_dir ("disk" for a cluster), and "memory" without.
    data_dir: a directory of this server alone, on a volume that outlives the process; for "process" and "disk".
    snapshot_dir: where snapshots are; by default `snapshots` in data_dir.
    standby: wait until no other server uses data_dir, and then take over from it. The command does; a `Server` that is
        made without a life does not wait.
    accept_loss: go on without the rows and calls of data_dir that are damaged.
    checkpoint_calls: calls between two checkpoints. A recovery replays at most about as many, 50 us each.
    log_history_bytes: how much of the older log and checkpoints, which recovery does not need, is kept in data_dir for
        `dataplane replay`.
    drain_grace_s: how long calls may take to finish when the server stops, in seconds.
    """

    listen: tuple[str, ...] = ("127.0.0.1:50051",)
    http: str | None = None
    http_door: str | None = None
    health: str | None = None
    direct: str | None = None
    socket_mode: int | None = None
    limits: Limits = field(default_factory=Limits)
    share_memory: bool = True
    insecure: bool = False
    tls: TlsFiles | None = None
    access: Path | None = None
    allowed_users: frozenset[int] = frozenset()
    allowed_groups: frozenset[int] = frozenset()
    tracing: bool = False
    reflection: bool = False
    durability: Durability = None  # type: ignore[assignment]  # until __post_init__
    data_dir: Path | None = None
    snapshot_dir: Path | None = None
    standby: bool = False
    accept_loss: bool = False
    checkpoint_calls: int = 10_000
    log_history_bytes: int = 256 << 20
    drain_grace_s: float = 20.0

    def __post_init__(self) -> None:
        if cast("Durability | None", self.durability) is None or isinstance(self.durability, _Unnamed):
            object.__setattr__(self, "durability", _Unnamed("memory" if self.data_dir is None else "process"))

    def for_cluster(self) -> ServerConfig:
        """These settings, with the defaults of a cluster: its log has to be whole on another machine, too, on which Ray
        starts the coordinator once the first has died.
        """
        is_default = self.data_dir is not None and isinstance(self.durability, _Unnamed)
        return replace(self, durability="disk") if is_default else self

    def validate(self, *, cluster: bool = False) -> None:
        """Raises ValueError that names the setting and the rule. cluster: for a cluster on Ray."""
        for setting, why in _OF_ONE_MACHINE.items():
            if cluster and getattr(self, setting) != getattr(ServerConfig, setting):
                raise ValueError(f"{setting}: {why}; leave it out")
        self.limits.validate()
        self._validate_durability()
        if self.reflection and self.access is not None:
            raise ValueError("reflection answers everybody, so it cannot be on beside an access file")
        if self.direct is not None and (self.tls is not None or self.access is not None):
            raise ValueError("direct: that port knows neither TLS nor an access file; leave it out")
        self._validate_addresses()
        if self.socket_mode is not None and not 0o600 <= self.socket_mode <= 0o777:
            raise ValueError(
                f"socket_mode must be 0600 to 0777, so that its owner may connect, got {self.socket_mode:04o}"
            )
        if not 0 <= self.drain_grace_s < math.inf:
            raise ValueError(f"drain_grace_s must be finite and not negative, got {self.drain_grace_s}")

    def _validate_addresses(self) -> None:
        self._validate_listen()
        for setting, place in (("http", self.http), ("health", self.health)):
            if place is not None:
                host_and_port(setting, place)
        for setting, place in (("http_door", self.http_door), ("direct", self.direct)):
            if place is not None:
                self._validate_reach(setting, place)

    def _validate_listen(self) -> None:
        if not self.listen:
            raise ValueError("listen: at least one address is required")
        if twice := [one for one in self.listen if self.listen.count(one) > 1 and not one.endswith(":0")]:
            raise ValueError(f"listen: {twice[0]!r} is given twice; leave one out")
        for address in self.listen:
            if address.startswith("unix:"):
                if not address.removeprefix("unix:").removeprefix("//").startswith("/"):
                    raise ValueError(f"listen: {address!r} needs an absolute path, as in unix:///run/dataplane.sock")
                continue
            self._validate_reach("listen", address, "a Unix socket or ")
        ports = [address for address in self.listen if not address.startswith("unix:")]
        if len(ports) > 1 and not self.insecure and not self._knows_callers():
            raise ValueError(
                f"listen: by which of {', '.join(map(repr, ports))} a call comes in, gRPC does not say, so the kernel "
                "cannot be asked who calls; leave one of them, or give the server a way to know callers (--access, or "
                "--tls-client-ca)"
            )

    def _validate_reach(self, setting: str, address: str, instead: str = "") -> None:
        host, _ = host_and_port(setting, address)
        lacks = [] if self.insecure or is_loopback(host) else self._lacks_for_network()
        if lacks:
            raise ValueError(
                f"{setting}: {address!r} can be reached from other hosts, and the server has "
                f"{' and '.join(lacks)}; give it that, use {instead}a loopback address, or pass --insecure "
                "(insecure=True)"
            )

    def _lacks_for_network(self) -> list[str]:
        """What is missing before other hosts may call."""
        lacks = [] if self.tls is not None else ["no TLS (--tls-cert, --tls-key)"]
        return lacks if self._knows_callers() else [*lacks, "no way to know callers (--access, or --tls-client-ca)"]

    def _knows_callers(self) -> bool:
        return self.access is not None or (self.tls is not None and self.tls.client_ca is not None)

    def _validate_durability(self) -> None:
        if self.durability not in get_args(Durability):
            raise ValueError(f"durability must be one of {get_args(Durability)}, got {self.durability!r}")
        if self.data_dir is None and self.snapshot_dir is not None:
            raise ValueError("snapshot_dir needs a data_dir")
        if self.data_dir and self.snapshot_dir and self.data_dir.resolve() == self.snapshot_dir.resolve():
            raise ValueError(f"snapshot_dir: {self.snapshot_dir} is the data_dir; snapshots need a folder of their own")
        if (self.durability == "memory") is not (self.data_dir is None):
            raise ValueError(f"durability {self.durability!r} needs {'no' if self.data_dir else 'a'} data_dir")


def host_and_port(setting: str, address: str) -> tuple[str, int]:
    """Split `host:port` or `[v6]:port`. Raises ValueError that names the setting."""
    match = re.fullmatch(r"(?:\[([^][/]+)\]|([^][/:]+)):([0-9]{1,5})", address)
    if match is None or int(match[3]) > 65535:
        other = " or unix:///path" if setting == "listen" else ""
        raise ValueError(f"{setting}: {address!r} is not host:port or [IPv6]:port{other}")
    return match[1] or match[2], int(match[3])


def with_port(address: str, port: int) -> str:
    """`host:port` or `[v6]:port` with the port that the system chose."""
    return f"{address.rpartition(':')[0]}:{port}"


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
