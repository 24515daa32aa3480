"""A cluster with TLS and an access file: programs of the Ray cluster, and others."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import trustme
from tests.cluster.failures.local_cluster import LocalCluster

from dataplane_client.client import connect
from dataplane_client.errors import AuthenticationError, PermissionDeniedError, UnavailableError
from dataplane_client.options import Credentials
from dataplane_server.config import TlsFiles

pytestmark = [pytest.mark.cluster, pytest.mark.xdist_group("ray"), pytest.mark.timeout(1800)]


def test_callers_need_the_ca_and_a_token_inside_and_outside_of_the_ray_cluster(
    start_plane: Callable[..., LocalCluster], tmp_path: Path
) -> None:
    authority, files = trustme.CA(), TlsFiles(tmp_path / "server.pem", tmp_path / "server.key")
    issued = authority.issue_cert("127.0.0.1")
    issued.cert_chain_pems[0].write_to_path(files.certificate)
    issued.private_key_pem.write_to_path(files.key)
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    (tmp_path / "access.json").write_text(
        json.dumps({"callers": [caller("writer", "admin"), caller("reader", "reader")]})
    )
    plane = start_plane(durable=False, tls=files, access=tmp_path / "access.json")
    writer, reader, unknown = (
        Credentials(ca=str(tmp_path / "ca.pem"), token=token) for token in ("writer", "reader", "unknown")
    )
    with (
        connect(plane.address, transport="shm", credentials=writer) as inside,
        connect(plane.outside, credentials=reader) as outside,
    ):
        inside.register_partition("p", ["x"], 0, ["train"])
        inside.put_samples(["a"], "p", {"x": torch.ones(1, 4)})
        assert outside.get_samples(["a"], "p", ["x"])["x"].tolist() == [[1.0] * 4]
        with pytest.raises(PermissionDeniedError):
            outside.put_samples(["b"], "p", {"x": torch.ones(1, 4)})
    for address in (plane.address, plane.outside):
        with pytest.raises(AuthenticationError):
            connect(address, credentials=unknown)
        with pytest.raises(UnavailableError):
            connect(address, connect_timeout_s=1.0)


def caller(token: str, role: str) -> dict[str, object]:
    return {"name": token, "tokens": [f"sha256:{hashlib.sha256(token.encode()).hexdigest()}"], "roles": {role: [""]}}
