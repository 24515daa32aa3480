"""The gateway as a process: beside a server that is told to start it, and by itself; its callers in other languages."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import torch
import trustme
from openapi_spec_validator import validate
from tests.waiting import eventually

from dataplane_client import Credentials, DataPlaneClient, connect
from dataplane_http.__main__ import _listener, main
from dataplane_http.tests.asking import Ask, ask_at
from dataplane_server.config import ServerConfig
from dataplane_server.core.calls.limits import Limits
from dataplane_server.service.sidecar import Sidecar
from dataplane_server.testing import ServerThread

HERE = Path(__file__).parent
pytestmark = pytest.mark.xdist_group("dataplane_http")


@contextmanager
def running(*command: str) -> Iterator[dict[str, Any]]:
    """A process that says where it serves. It ends in order."""
    with subprocess.Popen([sys.executable, "-m", *command], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield {**json.loads(process.stdout.readline()), "pid": process.pid}
        finally:
            process.terminate()
    assert process.returncode == 0


def children(process: int) -> list[int]:
    return [int(text) for text in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


@pytest.mark.long
def test_the_gateway_of_a_server_stays_where_it_is_and_is_started_again(tmp_path: Path) -> None:
    listen = f"unix://{tmp_path}/s"
    flags = ["--listen", listen, "--http=", "--http-door=127.0.0.1:0", "--memory=16MiB", f"--data-dir={tmp_path}/data"]
    with running("dataplane_server", *flags) as said, connect(listen, timeout_s=60.0) as client:
        ask = ask_at(said["http_door"])
        client.register_partition("p", ["reward"], 0, ["train"])
        for name in ("a", "b"):
            body = {"samples": [{"sample_id": name, "fields": {"reward": 0.5}}]}
            assert ask("POST", "/v1/partitions/p/samples", body).status == 200
            if name == "a":
                client.create_snapshot("one", timeout_s=600.0)
        client.restore_snapshot("one", timeout_s=600.0)
        eventually(lambda: client.partition("p").rows == 1)
        assert ask("GET", "/v1/partitions/p").body["rows"] == 1
        gateways = [
            pid for pid in children(said["pid"]) if b"dataplane_http" in Path(f"/proc/{pid}/cmdline").read_bytes()
        ]
        os.kill(gateways[0], signal.SIGKILL)
        assert ask("GET", "/v1/partitions/p").body["rows"] == 1
    assert not Path(f"/proc/{gateways[0]}").exists()


@pytest.mark.long
def test_tls_and_tokens_of_a_server_are_those_of_its_gateway(tmp_path: Path) -> None:
    ca, access = trustme.CA(), tmp_path / "access.json"
    names = {"ca": tmp_path / "ca.pem", "cert": tmp_path / "cert.pem", "key": tmp_path / "key.pem"}
    issued = ca.issue_cert("127.0.0.1")
    ca.cert_pem.write_to_path(names["ca"])
    issued.private_key_pem.write_to_path(names["key"])
    issued.cert_chain_pems[0].write_to_path(names["cert"])
    roles = {"admin": {"admin": [""]}, "reader": {"reader": ["train"]}, "producer": {"producer": ["train"]}}
    callers = [
        {"name": name, "tokens": [f"sha256:{sha256(name.encode()).hexdigest()}"], "roles": of}
        for name, of in roles.items()
    ]
    access.write_text(json.dumps({"callers": callers}))
    flags = ["--listen=127.0.0.1:0", "--http=", "--http-door=127.0.0.1:0", "--memory=16MiB", f"--access={access}"]
    with running("dataplane_server", *flags, f"--tls-cert={names['cert']}", f"--tls-key={names['key']}") as said:
        ask = ask_at(said["http_door"], ca=names["ca"])
        at, body = "/v1/partitions/train-1", {"samples": [{"sample_id": "a", "fields": {"x": 1}}]}
        assert ask("GET", at).error == (401, "UNAUTHENTICATED")
        assert ask("GET", at, headers={"Authorization": "Bearer unknown"}).error == (401, "UNAUTHENTICATED")
        assert ask("GET", at, headers={"Authorization": "Bearer \xff"}).error == (401, "UNAUTHENTICATED")
        by = {name: {"Authorization": f"Bearer {name}"} for name in roles}
        assert ask("PUT", at, {"fields": ["x"], "tasks": ["t"]}, headers=by["producer"]).error[0] == 403
        assert ask("PUT", at, {"fields": ["x"], "tasks": ["t"]}, headers=by["admin"]).status == 200
        grouped = {"samples": [{"sample_id": "b", "fields": {"x": 1}}], "group_id": "g", "request_id": "r"}
        statuses = [
            ask("POST", f"{at}/samples", given, headers=by[name]).status
            for name in ("reader", "producer")
            for given in (body, grouped, grouped)
        ]
        assert statuses == [403, 403, 403, 200, 200, 200]
        assert ask("GET", at, headers=by["reader"]).body["rows"] == 2
        credentials = Credentials(ca=str(names["ca"]), token="admin")  # noqa: S106  # of this test
        with connect(said["listen"][0], credentials=credentials) as client:
            assert client.sample("train-1", "b").events[0].who == "producer: http"


def test_a_read_whose_answer_is_too_large_does_not_cost_the_memory_of_its_values(tmp_path: Path) -> None:
    config = ServerConfig(listen=(f"unix://{tmp_path}/s",), limits=Limits(memory_bytes=64 << 20))
    server = ServerThread(config)
    try:
        with (
            connect(server.addresses[0], timeout_s=200.0) as client,
            running("dataplane_http", "--server", server.addresses[0], "--listen", "127.0.0.1:0") as said,
        ):
            client.register_partition("p", ["image"], 0, ["train"])
            for row in range(32):
                client.put_samples([str(row)], "p", {"image": torch.full((1, 1000, 1000), 255, dtype=torch.uint8)})
            ask, claims = ask_at(said["http"]), "/v1/partitions/p/tasks/train/claims"
            one, many = (
                ask("POST", claims, {"fields": ["image"], "batch_size": size}).body["claim_id"] for size in (1, 31)
            )
            assert ask("GET", f"/v1/claims/{one}?field=image").status == 200
            before = _most_memory(said["pid"])
            refused = ask("GET", f"/v1/claims/{many}?field=image")
            assert (refused.error, refused.body["error"]["max_answer_bytes"]) == ((400, "INVALID_REQUEST"), "67108864")
            assert _most_memory(said["pid"]) - before < 160 << 20
    finally:
        server.stop()


def _most_memory(process: int) -> int:
    """The resident memory of a process at its highest, in bytes."""
    found = re.search(r"VmHWM:\s*(\d+) kB", Path(f"/proc/{process}/status").read_text())
    assert found is not None
    return int(found[1]) << 10


@pytest.mark.long
def test_node_does_the_whole_round(server: ServerThread, client: DataPlaneClient) -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("there is no Node.js")
    with running("dataplane_http", "--server", server.addresses[0], "--listen", "127.0.0.1:0") as said:
        round_ = [node, str(HERE / "round.mjs"), f"http://{said['http']}"]
        done = subprocess.run(round_, capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stdout.splitlines()[-1:]) == (0, ["done"]), done.stderr
    assert client.partition("js").task("train").consumed_rows_total == 4
    assert client.get_samples(["p0-0"], "js", ["score"])["score"].tolist() == [3.5]


def test_the_description_of_the_routes_is_valid_openapi(ask: Ask) -> None:
    described = ask("GET", "/openapi.json").body
    validate(described)
    verbs = {f"{method.upper()} {path}" for path, methods in described["paths"].items() for method in methods}
    assert "POST /v1/partitions/{partition}/tasks/{task}/claims" in verbs
    page = (HERE.parents[2] / "docs" / "http.md").read_text()
    assert [verb for verb in sorted(verbs) if f"`{verb}`" not in page] == []


@pytest.mark.parametrize("address", ["127.0.0.1:0", "[::1]:9465", "localhost:0"])
def test_a_server_opens_the_gateway_to_this_host(address: str) -> None:
    ServerConfig(http_door=address).validate()


@pytest.mark.parametrize("address", ["9465", "unix:///run/door", "0.0.0.0:9465"])
def test_a_gateway_to_other_hosts_is_refused_unless_it_may_be_insecure(
    address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ValueError, match="http_door"):
        ServerConfig(http_door=address).validate()
    if "0.0" in address:
        ServerConfig(http_door=address, insecure=True).validate()
    with pytest.raises(SystemExit):
        main(["--server=x:1", f"--listen={address}"])
    assert address in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--listen=127.0.0.1:65536"], "--listen"),
        (["--server=nowhere"], "--server: 'nowhere' is not an address"),
        (["--tls-client-ca=ca.pem"], "--tls-cert and --tls-key"),  # it would serve all users of the host, without TLS
        (["--tls-cert=cert.pem"], "--tls-cert and --tls-key"),
        (["--tls-cert=no.pem", "--tls-key=no.pem"], "--tls-key, --tls-client-ca: [Errno 2]"),
    ],
)
def test_flags_that_are_wrong_are_refused_by_name(
    flags: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--server=127.0.0.1:1", "--listen=127.0.0.1:0", *flags])
    assert (ended.value.code, named in capsys.readouterr().err) == (2, True)


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="needs IPv6")
def test_an_address_of_all_interfaces_takes_ipv4_too() -> None:
    with _listener("::", 0) as listener, socket.create_connection(("127.0.0.1", listener.getsockname()[1]), 10):
        pass


def test_a_port_that_is_taken_is_refused_by_the_name_of_the_flag(gateway: str) -> None:
    with pytest.raises(OSError, match="--http-door"):
        ServerThread(ServerConfig(listen=("127.0.0.1:0",), http_door=gateway))


def test_a_sidecar_that_is_not_installed_is_refused_by_the_name_of_the_flag() -> None:
    with pytest.raises(OSError, match="--nope"):
        Sidecar("nope", "127.0.0.1:0", ServerConfig())
