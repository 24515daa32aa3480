"""Whether a server expects TLS: a client without it only sees connections that break."""

from __future__ import annotations

PROBE_S = 1.0
SERVER_SPEAKS_TLS = "the server speaks TLS: set DATAPLANE_TLS_CA to the file of its CA"


def speaks_tls(target: str, timeout_s: float = PROBE_S) -> bool:
    """Blocks for timeout_s at most for connection and for handshake. Nothing is sent, so any certificate will do."""
    host, _, port = target.rpartition(":")
    if target.startswith("unix:") or not port.isdecimal():
        return False
    import socket  # only a connection that fails needs them
    import ssl

    unchecked = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    unchecked.check_hostname, unchecked.verify_mode = False, ssl.CERT_NONE
    try:
        with (
            socket.create_connection((host.strip("[]"), int(port)), timeout_s) as plain,
            unchecked.wrap_socket(plain),
        ):
            return True
    except OSError:
        return False
