"""Which names HTTP answers by, and which pages may call it, on every route."""

from __future__ import annotations

import http.client
import socket
from typing import Any, NamedTuple

import pytest
from tests.integration.access.conftest import TOKENS, Start

from dataplane_client.client import connect
from dataplane_server.testing import ServerThread

PAGE = ("/", "/page/app.js", "/page/events", "/page/samples?partition=p", "/page/dead?partition=p&task=t")
PATHS = ("/healthz", "/metrics", *PAGE, "/page/sample?partition=p&id=r", "/none")


class Asked(NamedTuple):
    """What a request says. origin: PORT stands for the port that it goes to."""

    host: str
    origin: str | None = None
    is_answered: bool = False


NEAR = {
    "address": Asked("127.0.0.1:PORT", is_answered=True),
    "address without a port": Asked("127.0.0.1", is_answered=True),
    "another address": Asked("10.0.0.7:9464", is_answered=True),
    "IPv6": Asked("[::1]:9464", is_answered=True),
    "localhost": Asked("localhost:PORT", is_answered=True),
    "its own page": Asked("localhost:PORT", "http://localhost:PORT", is_answered=True),
    "a site's name": Asked("evil.example:PORT"),
    "a site's name, its own page": Asked("evil.example:PORT", "http://evil.example:PORT"),
    "a name like an address": Asked("127.0.0.1.evil.example"),
    "a name like localhost": Asked("localhost.evil.example"),
    "a service's name": Asked("dataplane:9464"),
    "nothing": Asked(""),
    "no host": Asked("[::1"),
    "another page": Asked("localhost:PORT", "http://evil.example"),
    "a page at another port": Asked("localhost:PORT", "http://localhost:1"),
    "a page over TLS": Asked("localhost:PORT", "https://localhost:PORT"),
    "a page without an origin": Asked("localhost:PORT", "null"),
}
FAR = {
    "a pod's address": Asked("10.0.0.7:9464", is_answered=True),
    "a service's name": Asked("dataplane:9464", is_answered=True),
    "a service's name in Kubernetes": Asked("dataplane.rl.svc:9464", is_answered=True),
    "a service's whole name": Asked("dataplane.rl.svc.cluster.local:9464", is_answered=True),
    "the host's name": Asked(f"{socket.gethostname()}:PORT", is_answered=True),
    "a site's name": Asked("evil.example:PORT"),
    "another page": Asked("dataplane:9464", "http://evil.example"),
}


def ask(server: ServerThread, path: str, asked: Asked, token: str | None = None) -> int:
    """The status. Streams are not read."""
    port = str(server.http_address).rpartition(":")[2]
    connection = http.client.HTTPConnection("127.0.0.1", int(port), timeout=120)
    headers = {"Host": asked.host.replace("PORT", port)}
    headers |= {} if asked.origin is None else {"Origin": asked.origin.replace("PORT", port)}
    headers |= {} if token is None else {"Authorization": f"Bearer {token}"}
    connection.request("GET", path, None, headers)
    status = connection.getresponse().status
    connection.close()
    return status


def with_rows(server: ServerThread) -> ServerThread:
    with connect(f"127.0.0.1:{server.addresses[0].rpartition(':')[2]}", transport="grpc") as client:
        client.register_partition("p", ["x"], 0, ["t"])
        client.put_samples(["r"], "p", {"x": [1]})
    return server


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("settings", "names"),
    [({"http": "127.0.0.1:0"}, NEAR), ({"http": "0.0.0.0:0", "insecure": True}, FAR)],
    ids=["on loopback", "on other addresses"],
)
def test_no_route_answers_a_name_that_a_web_site_can_have(
    start: Start, settings: dict[str, Any], names: dict[str, Asked], path: str
) -> None:
    server = with_rows(start(**settings))
    statuses = {name: ask(server, path, asked) for name, asked in names.items()}
    refused = {name for name, status in statuses.items() if status in (400, 403)}
    assert refused == {name for name, asked in names.items() if not asked.is_answered}, statuses


def test_the_name_that_the_server_listens_by_is_its_own(start: Start) -> None:
    server = start(http="localhost:0")
    assert ask(server, "/healthz", Asked("LOCALHOST.:1")) == 200


def test_with_an_access_file_the_token_decides(start: Start, access_file: object) -> None:
    server = start(http="127.0.0.1:0", access=access_file)
    assert ask(server, "/metrics", Asked("evil.example", "http://evil.example")) == 401
    assert ask(server, "/metrics", Asked("dataplane.example"), TOKENS["everywhere"]) == 200
