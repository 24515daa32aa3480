"""TLS of listeners: a certificate and key, and a CA for clients' certificates where those are required.

Files are read again when they change; connections that are open keep what they began with. TLS 1.2 and 1.3 only. gRPC
chooses its own ciphers (those with forward secrecy and authenticated encryption), HTTP has OpenSSL's of the same kind.
"""

from __future__ import annotations

import ssl
from typing import Any

import grpc

from dataplane_server.access.reloading import Reloaded
from dataplane_server.config import TlsFiles

_CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"


class Tls:
    """The TLS of one server. Raises OSError or ValueError that names the file."""

    def __init__(self, files: TlsFiles) -> None:
        self._files = files
        self._loaded = Reloaded(files.all, self._load)
        _, self._current = self._loaded.now()

    def http_context(self) -> ssl.SSLContext:
        """For one new connection."""
        return self._loaded.now()[0]

    def grpc_credentials(self) -> grpc.ServerCredentials:
        """For a gRPC server; it asks again at each handshake."""
        required = self._files.client_ca is not None
        changed: Any = self._changed  # None says that nothing has, which type stubs do not know
        return grpc.dynamic_ssl_server_credentials(self._current, changed, required)

    def _changed(self) -> grpc.ServerCertificateConfiguration | None:
        _, found = self._loaded.now()
        if found is self._current:
            return None
        self._current = found
        return found

    def _load(self) -> tuple[ssl.SSLContext, grpc.ServerCertificateConfiguration]:
        context = self._load_context()  # first: gRPC itself would not say what is wrong
        files = self._files
        ca = None if files.client_ca is None else files.client_ca.read_bytes()
        pair = (files.key.read_bytes(), files.certificate.read_bytes())
        return context, grpc.ssl_server_certificate_configuration([pair], ca)

    def _refuse_encrypted(self) -> str:
        """Else OpenSSL would ask at the terminal for the pass phrase, and halt the server until somebody answers."""
        raise ValueError(f"TLS: {self._files.key} is encrypted; it must be a key without a pass phrase")

    def _load_context(self) -> ssl.SSLContext:
        files = self._files
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_ciphers(_CIPHERS)
        for file in files.all:
            file.open("rb").close()  # an OSError that names the file
        try:
            context.load_cert_chain(files.certificate, files.key, self._refuse_encrypted)
        except ssl.SSLError as error:
            text = f"TLS: {files.certificate} and {files.key} are not a certificate and its key: {error}"
            raise ValueError(text) from None
        if files.client_ca is not None:
            try:
                context.load_verify_locations(files.client_ca)
            except ssl.SSLError as error:
                raise ValueError(f"TLS: {files.client_ca} has no certificate of a CA: {error}") from None
            context.verify_mode = ssl.CERT_REQUIRED
        return context
