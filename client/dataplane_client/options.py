"""The settings of a client."""

from __future__ import annotations

import difflib
import functools
import inspect
import math
import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, ParamSpec, TypeVar, get_args

from dataplane_client.credentials import Credentials
from dataplane_client.errors import InvalidArgumentError, UnsupportedTypeError

TransportName = Literal["shm", "direct", "grpc"]
TransportChoice = Literal["auto", "shm", "direct", "grpc"]
P = ParamSpec("P")
T = TypeVar("T")

_LEAST_GRACE_S, _LONGEST_GRACE_S = 0.1, 3600
_MAX_CHUNK_BYTES = 16 << 20
_MAX_NAME_BYTES = 256


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
        if not 0 < value < math.inf:
            raise InvalidArgumentError(f"{name} must be positive and finite, got {value!r}")
        if name == "session_grace_s" and not _LEAST_GRACE_S <= value <= _LONGEST_GRACE_S:
            raise InvalidArgumentError(
                f"session_grace_s must be {_LEAST_GRACE_S} to {_LONGEST_GRACE_S} seconds, got {value!r}"
            )
        if name == "chunk_bytes" and not (isinstance(value, int) and value <= _MAX_CHUNK_BYTES):
            raise InvalidArgumentError(f"chunk_bytes must be an int of at most {_MAX_CHUNK_BYTES}, got {value!r}")

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
