"""How a client proves who it is, and how it knows the server: TLS and tokens."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path

from dataplane_client.errors import InvalidArgumentError, UnsupportedTypeError

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
        if self.token is not None and not (self.token.isascii() and self.token.isprintable() and self.token.strip()):
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
