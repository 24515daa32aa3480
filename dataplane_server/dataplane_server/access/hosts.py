"""By which names HTTP answers where no access file knows callers, so that no web site gets in through a browser.

A site can have its own name lead to the address of a server (DNS rebinding). Its pages are then of the same origin as
the server's for a browser, which would call with all rights of the network, or of the user, that it runs in. So the
name that a request gives the server must be one that no site can have, and a page that calls must be the server's own.
A list of allowed names would be one more setting that is wrong at first; what Prometheus and probes use is allowed: an
address, localhost, the host's own name, and names that no public DNS has.
With TLS the browser has compared the name with the certificate.
"""

from __future__ import annotations

import ipaddress
import socket
from urllib.parse import urlsplit

from dataplane_server.config import is_loopback
from dataplane_server.core.calls.refusal import Reason, Refusal

_PRIVATE = (".internal", ".local", ".localhost", ".svc")
"""Ends of names that no public name server has."""


class OwnHosts:
    """The names of one listener. host: as it was told to listen at."""

    def __init__(self, host: str) -> None:
        self._names = {"localhost", host.lower()}
        self._near = is_loopback(host)
        if not self._near:
            self._names.add(socket.gethostname().lower())

    def check(self, host: str | None, origin: str | None, *, secure: bool) -> None:
        """host, origin: the headers of a request. secure: whether it came over TLS. Refusal PERMISSION_DENIED."""
        if host is not None and not secure and not self._is_own(_name_in(host)):
            names = "an address or localhost" if self._near else "an address, its host's name, or a private name"
            message = f"without TLS or an access file the server is called by {names} (the header Host), not {host!r}"
            raise Refusal(Reason.PERMISSION_DENIED, message)
        if origin is not None and origin.lower() != f"{'https' if secure else 'http'}://{host or ''}".lower():
            raise Refusal(Reason.PERMISSION_DENIED, f"a page of {origin!r} calls, which is not this server's")

    def _is_own(self, name: str) -> bool:
        if not name or name in self._names or _is_address(name):
            return bool(name)
        return not self._near and ("." not in name or name.endswith(_PRIVATE))


def _name_in(host: str) -> str:
    """Of a header, without its port; empty if there is none."""
    try:
        return (urlsplit(f"//{host}").hostname or "").rstrip(".")
    except ValueError:
        return ""


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
