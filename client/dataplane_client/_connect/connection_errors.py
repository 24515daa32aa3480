"""What gRPC says about a failed connection, in words of ours: what is wrong, and what would be right.

gRPC's own texts name sockets and frames. They are matched by fragments that come from the operating system or have been
stable for years; a text without a known fragment becomes a general one.
"""

from __future__ import annotations

from pathlib import Path

import grpc

from dataplane_client._connect.channel import RAY_SCHEME
from dataplane_client._connect.socket_rights import advice_on

_NOT_OURS = (
    "what answers there is not a data plane server: use the port of its --listen, not that of --http or of another "
    "service"
)
MAY_DIFFER_IN_TLS = "expects TLS and the other does not"
_BROKE = (
    "the connection broke during the call: the server has ended, something on the way has dropped it, one of both "
    f"{MAY_DIFFER_IN_TLS} (credentials, DATAPLANE_TLS_CA), or the server expects another certificate of the client "
    "(DATAPLANE_TLS_CERT)"
)
_NOTHING_LISTENS = "nothing listens there"
_UNREACHABLE_TEXTS = {
    "No such file": _NOTHING_LISTENS,
    "resolv": "its host name cannot be resolved: correct the address",
    "WRONG_VERSION_NUMBER": "the server does not speak TLS: unset DATAPLANE_TLS_CA",
    "certificate has expired": "the server's certificate has expired",
    "CERTIFICATE_VERIFY_FAILED": "the server's certificate is of another CA than those in the file of DATAPLANE_TLS_CA",
    "Hostname Verification": "the server's certificate is for other hosts: connect to one of them, or name it with "
    "DATAPLANE_TLS_SERVER_NAME",
    "Failed parsing HTTP/2": _NOT_OURS,
    "http2 header with status": _NOT_OURS,
    "before receiving SETTINGS": "what listens there does not answer: it hangs, or is not a data plane server",
    "Connection refused": _NOTHING_LISTENS,
    "timed out": "the host does not answer",
    "No route to host": "there is no route to the host",
    "unreachable": "there is no route to the host",
    "Socket closed": _BROKE,
    "reset": _BROKE,
    "Broken pipe": _BROKE,
    "removed": _BROKE,
    "GOAWAY": _BROKE,
    "ping": _BROKE,
}
_TEXTS = {
    grpc.StatusCode.DEADLINE_EXCEEDED: "no answer before the deadline",
    grpc.StatusCode.CANCELLED: "the server ended the call: it has more calls than it can serve, or is shutting down",
    grpc.StatusCode.UNIMPLEMENTED: "the server does not know this call: it is older than this client, or another "
    "service listens there",
    grpc.StatusCode.RESOURCE_EXHAUSTED: "the call needs a message of over 20 MiB: name fewer rows, or use fewer tags",
    grpc.StatusCode.UNKNOWN: _BROKE,
    grpc.StatusCode.INTERNAL: "the connection failed in a way that gRPC does not expect",
}


def in_our_words(code: grpc.StatusCode, said: str, target: str) -> str:
    """The message for a status that gRPC made itself, or the server without details. said: gRPC's text."""
    if code is grpc.StatusCode.UNAVAILABLE:
        return _why_unreachable(said, target)
    return _TEXTS.get(code, said)


def says_nothing_listens(said: str) -> bool:
    """Whether gRPC's text of an unavailable server means that none is there, rather than that the way to it broke."""
    return _known_cause(said) is _NOTHING_LISTENS


def _known_cause(said: str) -> str | None:
    return next((text for fragment, text in _UNREACHABLE_TEXTS.items() if fragment in said), None)


def _why_unreachable(said: str, target: str) -> str:
    forbidden = advice_on(target)
    if forbidden:
        return f"this process may not connect to the socket{forbidden}"
    why = _known_cause(said) or "it cannot be reached"
    if target.startswith(RAY_SCHEME):
        return (
            f"{why}. Its actor in the Ray cluster named the address: the server starts again, or is out of reach here"
        )
    if why is not _NOTHING_LISTENS:
        return f'{why}. "dataplane doctor --server {target}" examines the way there'
    if target.startswith("unix:"):
        why = _why_no_server_at(Path(target.removeprefix("unix:").removeprefix("//")))
    return f'{why}. Start a server with "dataplane-server --listen {target}", or correct the address'


def _why_no_server_at(path: Path) -> str:
    if path.is_socket():
        return f"nothing listens on the socket file {path}, which a server that was killed has left"
    return f"{path} is not a socket" if path.exists() else f"there is no socket file {path}"
