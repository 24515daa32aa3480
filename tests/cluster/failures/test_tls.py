"""A cluster with TLS and an access file: programs of the Ray cluster, and others."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tests.cluster.failures.local_cluster import LocalCluster
from tests.integration.access.conftest import Pki, hashed

from dataplane_client.client import connect
from dataplane_client.errors import AuthenticationError, PermissionDeniedError, UnavailableError
from dataplane_client.options import Credentials

pytestmark = [pytest.mark.cluster, pytest.mark.xdist_group("ray"), pytest.mark.timeout(1800)]


def test_callers_need_the_ca_and_a_token_inside_and_outside_of_the_ray_cluster(
    start_plane: Callable[..., LocalCluster], tmp_path: Path
) -> None:
    pki = Pki(tmp_path)
    (tmp_path / "access.json").write_text(
        json.dumps({"callers": [caller("writer", "admin"), caller("reader", "reader")]})
    )
    plane = start_plane(durable=False, tls=pki.issue("server", "127.0.0.1"), access=tmp_path / "access.json")
    writer, reader, unknown = (Credentials(ca=str(pki.ca), token=token) for token in ("writer", "reader", "unknown"))
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
    return {"name": token, "tokens": [hashed(token)], "roles": {role: [""]}}
