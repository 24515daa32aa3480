"""What a connection sends to be let in, and what it encrypts with; files are read again when they change."""

from __future__ import annotations

import contextlib
import ipaddress
import time
from pathlib import Path

import grpc

from dataplane_client._connect.options import SYSTEM, Credentials, is_token
from dataplane_client.errors import InvalidArgumentError

_LOOK_S = 1.0
_BEARER = "Bearer "
Metadata = tuple[tuple[str, str], ...]


class Secured:
    """The credentials of one connection. Raises InvalidArgumentError if a token would travel in the clear."""

    def __init__(self, target: str, credentials: Credentials | None) -> None:
        """credentials: None for those of the environment."""
        self._credentials = found = credentials or Credentials.from_environment()
        self.encrypts = found.ca is not None and not target.startswith("unix:")
        self._certificates_due, self._token_due = _Due(), _Due()
        self._seen = _stamps(found.files)
        self._token: Metadata = () if found.token is None else _bearer(found.token)
        self._token_seen: tuple[int, ...] | None = None
        if (found.token or found.token_file) and not self.encrypts and not _is_of_this_host(target):
            raise InvalidArgumentError(
                f"the token would travel to {target} unencrypted: name the CA of the server (credentials, or "
                "DATAPLANE_TLS_CA)"
            )

    def channel_credentials(self) -> grpc.ChannelCredentials | None:
        """For a new channel; None for one without encryption. Raises InvalidArgumentError that names a missing file."""
        if not self.encrypts:
            return None
        found = self._credentials
        return grpc.ssl_channel_credentials(
            None if found.ca == SYSTEM else _bytes_of(found.ca), _bytes_of(found.key), _bytes_of(found.certificate)
        )

    @property
    def channel_options(self) -> tuple[tuple[str, str], ...]:
        name = self._credentials.server_name
        return (("grpc.ssl_target_name_override", name),) if self.encrypts and name else ()

    def metadata(self, traceparent: str = "") -> Metadata | None:
        """What goes with a call: the token, and the trace context if there is one. The file of a token is looked at
        once a second at most.
        """
        found = self._credentials
        if found.token_file is not None and (not self._token or self._token_due()):
            self._read_token(Path(found.token_file))
        sent = (("traceparent", traceparent), *self._token) if traceparent else self._token
        return sent or None

    @property
    def token(self) -> str:
        """What `metadata` sends, or empty."""
        return dict(self.metadata() or ()).get("authorization", "").removeprefix(_BEARER)

    @property
    def is_plain(self) -> bool:
        """Whether nothing is encrypted, and no token sent."""
        return not (self.encrypts or self._credentials.token or self._credentials.token_file)

    def is_outdated(self) -> bool:
        """Whether PEM files have changed, and are valid, so that the next calls should go through a new channel."""
        if not self.encrypts or not self._certificates_due():
            return False
        return _stamps(self._credentials.files) != self._seen and self._are_valid()

    def _are_valid(self) -> bool:
        """Whether the PEM files can be used as they are now. gRPC would find that out at the handshake."""
        import ssl  # only files that change need it

        found, context = self._credentials, ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        try:
            if found.ca != SYSTEM:
                context.load_verify_locations(found.ca)
            if found.certificate is not None:
                context.load_cert_chain(found.certificate, found.key, "")  # else OpenSSL asks for a pass phrase
        except OSError:  # also of a missing file, and SSLError
            return False
        return True

    def _read_token(self, file: Path) -> None:
        """Leaves the token as it was while its file is missing, unreadable or without one, as when it is written."""
        stamp = _stamp(file)
        if stamp != self._token_seen:
            with contextlib.suppress(OSError):
                token = file.read_bytes().decode("ascii", "replace").strip()
                if is_token(token):
                    self._token, self._token_seen = _bearer(token), stamp
        if not self._token:
            raise InvalidArgumentError(f"credentials: the file {file} has no token of printable ASCII characters")


class _Due:
    """True once a second at most."""

    def __init__(self) -> None:
        self._last = time.monotonic()

    def __call__(self) -> bool:
        now = time.monotonic()
        due = now - self._last >= _LOOK_S
        if due:
            self._last = now
        return due


def _bearer(token: str) -> Metadata:
    return (("authorization", f"{_BEARER}{token.strip()}"),)


def _bytes_of(file: str | None) -> bytes | None:
    try:
        return None if file is None else Path(file).read_bytes()
    except OSError as error:
        raise InvalidArgumentError(f"credentials: {file} cannot be read: {error.strerror}") from None


def _stamps(files: list[Path]) -> list[tuple[int, ...] | None]:
    return [_stamp(file) for file in files]


def _stamp(file: Path) -> tuple[int, ...] | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size


def _is_of_this_host(target: str) -> bool:
    if target.startswith("unix:"):
        return True
    host = target.rpartition(":")[0].strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
