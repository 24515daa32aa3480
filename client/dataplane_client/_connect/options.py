"""The settings of a client, and with which credentials it connects: TLS and tokens."""

from __future__ import annotations

import difflib
import functools
import inspect
import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, ParamSpec, TypeVar, get_args

from dataplane_client.errors import InvalidArgumentError, UnsupportedTypeError

TransportName = Literal["shm", "direct", "grpc"]
TransportChoice = Literal["auto", "shm", "direct", "grpc"]
P = ParamSpec("P")
T = TypeVar("T")

MAX_TIMEOUT_S = 1e9
"""About 30 years; gRPC's clocks overflow beyond that."""

_LEAST_GRACE_S, _LONGEST_GRACE_S = 0.1, 3600
_MAX_CHUNK_BYTES = 16 << 20
_MAX_NAME_BYTES = 256
SYSTEM = "system"
_VARIABLES = {
    "ca": "DATAPLANE_TLS_CA",
    "certificate": "DATAPLANE_TLS_CERT",
    "key": "DATAPLANE_TLS_KEY",
    "server_name": "DATAPLANE_TLS_SERVER_NAME",
    "token": "DATAPLANE_TOKEN",
    "token_file": "DATAPLANE_TOKEN_FILE",
}


@dataclass(frozen=True)
class Credentials:
    """TLS and token of a client. With a CA, connections to `host:port` are encrypted; Unix sockets never need it.

    ca: PEM file of the CA that has signed the server's certificate, or "system" for those that this host trusts.
    certificate, key: PEM files that show who the client is, where the server asks for that.
    server_name: the name in the server's certificate, if it is not the host of the address.
    token: sent with each call. token_file: the file that has it, which may be replaced at any time. A token is sent
        only over TLS, Unix sockets and loopback.

    Raises InvalidArgumentError (a ValueError) or UnsupportedTypeError (a TypeError).
    """

    ca: str | None = None
    certificate: str | None = None
    key: str | None = None
    server_name: str | None = None
    token: str | None = field(default=None, repr=False)
    token_file: str | None = None

    def __post_init__(self) -> None:
        for setting in fields(self):
            value = getattr(self, setting.name)
            if isinstance(value, os.PathLike):
                object.__setattr__(self, setting.name, os.fspath(value))
            elif value is not None and not isinstance(value, str):
                raise UnsupportedTypeError(f"credentials: {setting.name} must be a str, got {type(value).__name__}")
        if (self.certificate is None) is not (self.key is None):
            raise InvalidArgumentError("credentials: a certificate needs its key, and a key its certificate")
        if self.ca is None and (self.certificate or self.server_name):
            raise InvalidArgumentError('credentials: TLS needs the CA of the server (ca, a PEM file or "system")')
        if self.token is not None and self.token_file is not None:
            raise InvalidArgumentError("credentials: give either token or token_file")
        if self.token is not None and not is_token(self.token):
            raise InvalidArgumentError("credentials: a token must be printable ASCII characters")

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Credentials:
        """Those of DATAPLANE_TLS_CA, _CERT, _KEY and _SERVER_NAME, DATAPLANE_TOKEN and DATAPLANE_TOKEN_FILE. A
        certificate counts only beside a CA: a server has the same two variables for its own.
        """
        found = {name: environment.get(variable) or None for name, variable in _VARIABLES.items()}
        if found["ca"] is None:
            found |= {"certificate": None, "key": None, "server_name": None}
        return cls(**found)

    @property
    def files(self) -> list[Path]:
        """The PEM files."""
        names = [name for name in (self.ca, self.certificate, self.key) if name is not None and name != SYSTEM]
        return [Path(name) for name in names]


def is_token(text: str) -> bool:
    return text.isascii() and text.isprintable() and bool(text.strip())


@dataclass(frozen=True)
class ClientOptions:
    """Settings of one client, as `connect` takes and documents them.

    Raises InvalidArgumentError (a ValueError) or UnsupportedTypeError (a TypeError).
    """

    transport: TransportChoice = "auto"
    timeout_s: float = 60.0
    connect_timeout_s: float = 30.0
    chunk_bytes: int = 2 << 20
    first_backoff_s: float = 0.02
    max_backoff_s: float = 1.0
    session_grace_s: float = 10.0
    client_name: str = ""
    credentials: Credentials | None = None

    def __post_init__(self) -> None:
        if self.transport not in get_args(TransportChoice):
            raise InvalidArgumentError(f"transport must be one of {get_args(TransportChoice)}, got {self.transport!r}")
        if not isinstance(self.client_name, str):
            raise UnsupportedTypeError(f"client_name must be a str, got {self.client_name!r}")
        if len(self.client_name.encode()) > _MAX_NAME_BYTES:
            raise InvalidArgumentError(
                f"client_name must have at most {_MAX_NAME_BYTES} bytes, got {len(self.client_name.encode())}: "
                f"{self.client_name[:40]!r}..."
            )
        if self.credentials is not None and not isinstance(self.credentials, Credentials):
            raise UnsupportedTypeError(f"credentials must be Credentials, got {type(self.credentials).__name__}")
        for setting in fields(self):
            if setting.name not in ("transport", "client_name", "credentials"):
                self._check_number(setting.name, getattr(self, setting.name))

    def _check_number(self, name: str, value: object) -> None:
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            raise UnsupportedTypeError(f"{name} must be a number, got {value!r}")
        if name == "session_grace_s" and not _LEAST_GRACE_S <= value <= _LONGEST_GRACE_S:
            raise InvalidArgumentError(
                f"session_grace_s must be {_LEAST_GRACE_S} to {_LONGEST_GRACE_S} seconds, got {value!r}"
            )
        if name == "chunk_bytes" and not (isinstance(value, int) and value <= _MAX_CHUNK_BYTES):
            raise InvalidArgumentError(f"chunk_bytes must be an int of at most {_MAX_CHUNK_BYTES}, got {value!r}")
        if not 0 < value <= MAX_TIMEOUT_S:
            raise InvalidArgumentError(f"{name} must be positive and at most {MAX_TIMEOUT_S:.0f}, got {value!r}")

    @classmethod
    def named(cls, options: Mapping[str, Any], where: str) -> ClientOptions:
        """The settings of a mapping by name. Refuses unknown names."""
        check_option_names(options, [setting.name for setting in fields(cls)], where)
        return cls(**options)

    @property
    def caller(self) -> str:
        """The name by which the server knows this process."""
        return self.client_name or f"{socket.gethostname()}:{os.getpid()}"


def check_option_names(given: Mapping[str, object], known: list[str], where: str) -> None:
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1, cutoff=0.5)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise UnsupportedTypeError(f"{where} has no option {name!r}: {hint}Its options are {', '.join(known)}")


def with_known_options(function: Callable[P, T]) -> Callable[P, T]:
    """Decorate a function: a keyword that it does not take is refused by a text that names the nearest one."""
    known = list(inspect.signature(function).parameters)

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        check_option_names(kwargs, known, function.__name__)
        return function(*args, **kwargs)

    return call
