"""Makes the gate and the TLS of a server from its settings."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from dataplane_server.access.access_file import AccessRules, key_files, load_access_file
from dataplane_server.access.gate import Gate
from dataplane_server.access.peers import AllowedPeers
from dataplane_server.access.reloading import Reloaded
from dataplane_server.access.tls import Tls
from dataplane_server.config import ServerConfig
from dataplane_server.core.plane import DataPlane


def open_tls(config: ServerConfig) -> Tls | None:
    """Raises OSError that names the file and what is wrong with it."""
    try:
        return None if config.tls is None else Tls(config.tls)
    except ValueError as error:
        raise OSError(str(error)) from None


def open_rules(config: ServerConfig) -> Reloaded[AccessRules] | None:
    """Raises OSError that names the file and what is wrong with it."""
    if config.access is None:
        return None
    try:
        return Reloaded([config.access], partial(load_access_file, config.access), key_files)
    except ValueError as error:
        raise OSError(str(error)) from None


def open_gate(config: ServerConfig, plane: DataPlane, repeats: Callable[[Any], bool]) -> Gate:
    """repeats: see `Gate`. Raises OSError as `open_rules`."""
    rules = open_rules(config)
    users = None if config.insecure else AllowedPeers(config.allowed_users, config.allowed_groups)
    certificates = config.tls is not None and config.tls.client_ca is not None
    return Gate(rules, plane.partition_of, plane.owner_of, repeats, certificates=certificates, users=users)


def peers_of_socket_files(config: ServerConfig) -> AllowedPeers:
    """The processes that the sockets of shared memory admit, of those who may open their files."""
    users, groups = config.allowed_users, config.allowed_groups
    return AllowedPeers(users, groups) if users or groups else AllowedPeers()


def has_abstract_socket(config: ServerConfig) -> bool:
    """Whether clients that know a TCP address find the shared memory by an abstract socket. Not beside an access file,
    whose roles such a client would not have.
    """
    return config.access is None and not all(address.startswith("unix:") for address in config.listen)
